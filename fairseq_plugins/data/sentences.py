"""Split running text into sentences, and join their translations with the line breaks as they were.

The rules of each language are sentencex's, which knows some 300 languages and needs nothing else. Titles that it takes
for the end of a sentence ("M. Dupont" in French) are those of Moses, which sacremoses has.
"""

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import sentencex

# Languages of sentencex with rules of their own, by their codes of three letters, which NLLB's languages have.
_SHORT = dict(
    pair.split(":")
    for pair in (
        "amh:am bel:be ben:bn bul:bg cat:ca ces:cs dan:da deu:de ell:el eng:en est:et fin:fi fra:fr glg:gl guj:gu "
        "hin:hi hun:hu hye:hy isl:is ita:it jpn:ja kan:kn kaz:kk lav:lv lit:lt mal:ml mar:mr mya:my nld:nl oci:oc "
        "pan:pa pol:pl por:pt ron:ro rus:ru slk:sk slv:sl spa:es swe:sv tam:ta tat:tt tel:te ukr:uk wol:wo zho:zh"
    ).split()
)
_WITHOUT_SPACES = frozenset({"ja", "yue", "zh"})
# Zero-width characters, Braille's blank pattern and Hangul's fillers show nothing, and `str.isspace` denies them.
_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]*"
)
_LINE_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def is_blank(text: str) -> bool:
    """Return whether a text shows nothing: spaces, line breaks, and characters without width."""
    return _INVISIBLE.fullmatch(text) is not None


def has_line_breaks(text: str) -> bool:
    """Return whether there is something to read on both sides of a line break."""
    return sum(not is_blank(line) for line in text.splitlines()) > 1


def split_text(text: str, language: str) -> list[tuple[str, str]]:
    """Split a text into sentences; a line break always ends one.

    Args:
        text: of any length, with any line breaks.
        language: code of its language, as models name it: "de", "de_DE", "deu_Latn"; others have English rules.

    Raises:
        UnicodeEncodeError: for a lone surrogate.

    Returns:
        (sentence, separator) in order; joined they are the text. A separator is blank, and "" where the next sentence
        follows without a space. A sentence is not blank, but for the first one if the text begins with a blank.
    """
    code = _code(language)
    pairs: list[tuple[str, str]] = []
    for piece in _pieces(text, code):
        sentence = "" if is_blank(piece) else piece.strip()
        start = piece.index(sentence)
        before, after = piece[:start], piece[start + len(sentence) :]
        if before and pairs:
            pairs[-1] = (pairs[-1][0], pairs[-1][1] + before)
        elif before:
            pairs.append(("", before))
        if sentence:
            pairs.append((sentence, after))
        elif after:
            last, separator = pairs.pop() if pairs else ("", "")
            pairs.append((last, separator + after))
    return pairs


def join_text(pairs: Iterable[tuple[str, str]], language: str | None = None) -> str:
    """Join sentences and their separators, as `split_text` returns them, or translations in place of sentences.

    With the `language` of the translations, sentences on one line have a space between them, or none where the language
    writes none. By default separators stay as they are.
    """
    pairs = list(pairs)
    if language is None:
        return "".join(sentence + separator for sentence, separator in pairs)
    space = "" if _code(language) in _WITHOUT_SPACES else " "
    parts = []
    for (sentence, separator), (following, _) in pairwise([*pairs, ("", "")]):
        is_between = sentence and following and not _LINE_BREAK.search(separator)
        if is_between and not (space and separator):
            separator = space
        parts.append(sentence + separator)
    return "".join(parts)


def _code(language: str) -> str:
    """Return the code of sentencex for a language: "de" for "de_DE", "deu_Latn" and "__de__"."""
    first = re.split(r"[-_]", language.strip("_").lower())[0]
    return _SHORT.get(first, first)


def _pieces(text: str, code: str) -> Iterable[str]:
    """Yield the sentences of a text with the blanks around them."""
    for line in text.splitlines(keepends=True):
        piece = ""
        for part in sentencex.segment(code, line):
            piece += part
            if not _ends_in_title(part, code):
                yield piece
                piece = ""
        if piece:
            yield piece


def _ends_in_title(piece: str, code: str) -> bool:
    words = piece.split()
    return bool(words) and words[-1].endswith(".") and words[-1][:-1] in _titles(code)


@cache
def _titles(code: str) -> frozenset[str]:
    """Return Moses's abbreviations before names; no initials but "M.", since "I." and "C." end sentences."""
    from sacremoses.corpus import NonbreakingPrefixes  # takes 0.2 s

    moses = NonbreakingPrefixes()
    words = moses.words(code) if code in moses.available_langs else ()
    return frozenset(word for word in words if word.isalpha() and word[0].isupper() and (len(word) > 1 or word == "M"))
