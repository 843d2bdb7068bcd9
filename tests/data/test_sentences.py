"""Splitting texts into sentences, and joining them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.data.sentences import has_line_breaks, is_blank, join_text, split_text
from tests.strategies import DETERMINISTIC

# Texts of characters that end sentences, break lines or are not seen.
TRICKY = st.text(
    st.sampled_from("aBé 1.?!…。।\"'“”«»()\n\r\t\v\x1c\x85\u00a0\u2028\u200b\ufeff\u2800\u3000😀M-,"), max_size=40
)
LANGUAGES = st.sampled_from(["de", "de_DE", "deu_Latn", "en", "fr", "hi", "ja", "ru", "zho_Hans", "src", ""])


def sentences(text: str, language: str) -> list[str]:
    return [sentence for sentence, _ in split_text(text, language)]


@settings(DETERMINISTIC)
@given(text=TRICKY | st.text(), language=LANGUAGES)
def test_sentences_and_separators_are_the_text(text: str, language: str) -> None:
    pairs = split_text(text, language)
    assert join_text(pairs) == text
    assert all(is_blank(separator) for _, separator in pairs)
    assert not any(is_blank(sentence) for sentence, _ in pairs[1:])
    assert not any(has_line_breaks(sentence) or sentence != sentence.strip() for sentence, _ in pairs)


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Mr. Smith left at 5 p.m. He was late.", ["Mr. Smith left at 5 p.m.", "He was late."]),
        ("eng_Latn", "See www.example.com for 2.5 more. OK?", ["See www.example.com for 2.5 more.", "OK?"]),
        ("en", "So do I. But not you.", ["So do I.", "But not you."]),
        ("de", "Am 3. Oktober kam z. B. er.  Gut!", ["Am 3. Oktober kam z. B. er.", "Gut!"]),
        ("deu_Latn", "Am 3. Oktober kam Dr. Bach. Gut!", ["Am 3. Oktober kam Dr. Bach.", "Gut!"]),
        ("fr", "Voici M. Dupont et MM. Roux. Bien.", ["Voici M. Dupont et MM. Roux.", "Bien."]),
        ("zh", "你好。你在哪里？好", ["你好。", "你在哪里？", "好"]),
        ("hi", "यह किताब है। वह क्या है?", ["यह किताब है।", "वह क्या है?"]),
        ("src", "Hello. World", ["Hello.", "World"]),
        ("en", "\n\nA title\r\nwithout an end\u2028Next.", ["", "A title", "without an end", "Next."]),
        ("en", " \u200b ", [""]),
        ("en", "", []),
    ],
)
def test_sentences_of_a_text(language: str, text: str, expected: list[str]) -> None:
    assert sentences(text, language) == expected


def test_translations_have_the_spaces_of_their_language() -> None:
    chinese = split_text("你好。你在哪里？\n  好。", "zh")
    english = [*zip(["Hello.", "Where?", "Good."], (separator for _, separator in chinese), strict=True)]
    assert join_text(english, "en") == "Hello. Where?\n  Good."
    assert join_text([("你好。", " "), ("好。", " \n")], "zho_Hans") == "你好。好。 \n"
    assert join_text([("", "  "), ("Gut.", "  "), ("Ja.", "")], "de") == "  Gut.  Ja."


def test_invisible_text_is_blank() -> None:
    assert all(is_blank(text) for text in ("", " \t", "\u200b", "\ufeff", "\u2800", "\u00ad\u2060", "\u3164"))
    assert not any(is_blank(text) for text in (".", "\u200ba", "👩\u200d👧"))
    assert has_line_breaks("a\nb") and has_line_breaks("a\u2028b") and not has_line_breaks("a\n \u200b\n")


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        split_text("Fine.\n\ud800", "en")
