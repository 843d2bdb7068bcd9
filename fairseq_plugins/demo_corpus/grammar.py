"""Declension in the demo corpus: pronouns and noun phrases in English and in the four German cases."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

CASES = ("nom", "acc", "dat", "gen")
# Endings and articles by gender (p: plural), in the order of CASES; "-" is no ending.
DEFINITE = {"m": "der den dem des", "f": "die die der der", "n": "das das dem des", "p": "die die den der"}
EIN = {"m": "- en em es", "f": "e e er er", "n": "- - em es", "p": "e e en er"}
DIESER = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
MIXED = {"m": "er en en en", "f": "e e en en", "n": "es es en en", "p": "en en en en"}
STRONG = {"m": "er en em en", "f": "e e er er", "n": "es es em en", "p": "e e en er"}
RELATIVE = {
    "m": "der den dem dessen",
    "f": "die die der deren",
    "n": "das das dem dessen",
    "p": "die die denen deren",
}
CONTRACTIONS = {
    "in dem": "im",
    "in das": "ins",
    "an dem": "am",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
}
PREPOSITIONS = {"zu": "dat", "an": "dat", "in": "dat", "von": "dat", "mit": "dat"}

# Finite verbs by agreement: first person singular, third person singular, plural.
AGREEMENT = {
    "has": ("have", "has", "have"),
    "was": ("was", "was", "were"),
    "is": ("am", "is", "are"),
    "does": ("do", "does", "do"),
    "hat": ("habe", "hat", "haben"),
    "hatte": ("hatte", "hatte", "hatten"),
    "war": ("war", "war", "waren"),
    "ist": ("bin", "ist", "sind"),
    "muss": ("muss", "muss", "müssen"),
    "musste": ("musste", "musste", "mussten"),
    "costs": ("cost", "costs", "cost"),
    "belongs": ("belong", "belongs", "belong"),
    "kostet": ("koste", "kostet", "kosten"),
    "gehört": ("gehöre", "gehört", "gehören"),
    "liegt": ("liege", "liegt", "liegen"),
    "wollte": ("wollte", "wollte", "wollten"),
    "wird": ("werde", "wird", "werden"),
    "wurde": ("wurde", "wurde", "wurden"),
}
PERSONS = ("1s", "3s", "pl")


@dataclass(frozen=True)
class Phrase:
    """Something that fills a slot: its English, its German forms (nom, acc, dat, gen or others) and how it
    agrees.

    ``gender`` is the German gender (m, f, n; p for plural), ``ref`` the pronoun that refers back to it (a key
    of ``PRONOUNS``), ``order`` where an object stands in the German middle field (pronoun, definite or
    indefinite), ``head`` the class of the noun, and ``key`` the form in which a place is used.
    """

    en: str
    forms: dict[str, str]
    obj: str = ""
    agr: str = "3s"
    gender: str = "n"
    ref: str = "it_n"
    order: str = "definite"
    head: str = ""
    key: str = field(default="", compare=False)

    @property
    def relatable(self) -> bool:
        """Whether a relative clause may be put to it: it begins with "the" and has none."""
        return bool(self.head) and self.en.startswith("the ") and not self.forms["nom"].endswith(",")

    def form(self, name: str) -> str:
        """The form ``name``: ``en``, ``obj``, a case, a preposition and its dative, or a verb that agrees."""
        if name == "en":
            return self.en
        if name == "obj":
            return self.obj or self.en
        if name in self.forms:
            return self.forms[name]
        if name in PREPOSITIONS:
            return with_preposition(name, self.forms[PREPOSITIONS[name]])
        if name in AGREEMENT:
            return AGREEMENT[name][PERSONS.index(self.agr)]
        raise KeyError(f"phrase {self.en!r} has no form {name!r}")


def fixed(english: str, german: str, **forms: str) -> Phrase:
    """A phrase with the same German in every case, and other ``forms`` where given."""
    return Phrase(english, dict.fromkeys(CASES, german) | forms)


def _cases(nom: str, acc: str, dat: str, gen: str) -> dict[str, str]:
    return {"nom": nom, "acc": acc, "dat": dat, "gen": gen}


PRONOUNS: dict[str, Phrase] = {
    key: Phrase(en, _cases(*de.split()) | {"refl": refl, "poss": poss}, obj, agr, gender, key, "pronoun")
    for key, en, obj, de, refl, poss, agr, gender in (
        ("I", "I", "me", "ich mich mir meiner", "mich", "my mein", "1s", "m"),
        ("we", "we", "us", "wir uns uns unser", "uns", "our unser", "pl", "p"),
        ("you", "you", "you", "Sie Sie Ihnen Ihrer", "sich", "your Ihr", "pl", "p"),
        ("he", "he", "him", "er ihn ihm seiner", "sich", "his sein", "3s", "m"),
        ("she", "she", "her", "sie sie ihr ihrer", "sich", "her ihr", "3s", "f"),
        ("they", "they", "them", "sie sie ihnen ihrer", "sich", "their ihr", "pl", "p"),
        ("it_m", "it", "it", "er ihn ihm seiner", "sich", "its sein", "3s", "m"),
        ("it_f", "it", "it", "sie sie ihr ihrer", "sich", "its ihr", "3s", "f"),
        ("it_n", "it", "it", "es es ihm seiner", "sich", "its sein", "3s", "n"),
    )
}


@dataclass(frozen=True)
class Noun:
    """A noun with its English and German singular and plural (German plural "-": none)."""

    kind: str
    english: str
    english_plural: str
    gender: str
    weak: bool
    german: str
    german_plural: str

    def decline(self, plural: bool) -> list[str]:
        """The German noun in the four cases."""
        if plural:
            base = self.german_plural
            return [base, base, base if base[-1] in "ns" else base + "n", base]
        if self.weak:
            return [self.german, self.german_plural, self.german_plural, self.german_plural]
        return [self.german] * 3 + [self.german if self.gender == "f" else _genitive(self.german)]


def _genitive(noun: str) -> str:
    if noun[-1] in "sßxz":
        return noun + ("ses" if noun == "Bus" else "es")
    syllables = len(re.findall("[aeiouyäöü]+", noun.lower()))
    return noun + ("es" if syllables == 1 and noun[-1] not in "aeiouhlrm" else "s")


def parse_nouns(kind: str, table: str) -> list[list[Noun]]:
    """Read rows of ``lexicon.NOUNS``: for each row, the German nouns that may stand for the English one."""
    rows = []
    for line in table.strip().splitlines():
        english, rest = line.strip().split(" ", 1)
        singular, _, plural = english.replace("_", " ").partition("/")
        readings = []
        for reading in rest.split(" ~ "):
            gender, german = reading.split()
            german, german_plural = german.split("/")
            readings.append(
                Noun(kind, singular, plural or singular + "s", gender[0], "w" in gender, german, german_plural)
            )
        rows.append(readings)
    return rows


def noun_phrase(
    noun: Noun,
    determiner: str,
    adjectives: list[str],
    plural: bool = False,
    owner: Phrase | None = None,
    number: tuple[str, str] | None = None,
) -> Phrase:
    """Put a determiner, adjectives and a noun together.

    :param determiner: the, a, this, no, every, all, many, several, some, number, none, or owner
    :param adjectives: rows "english german-stem"
    :param owner: for "owner": a pronoun (my house) or a person's name (Anna's house)
    :param number: for "number": English and German words
    :return: the phrase, declined in four cases; ``order`` says whether it is definite
    """
    gender = "p" if plural else noun.gender
    english_noun = noun.english_plural if plural else noun.english
    stem, articles, endings, definite = "", None, STRONG, False
    english = determiner
    if determiner == "the":
        articles, endings, definite = DEFINITE, WEAK, True
    elif determiner in ("this", "every", "all"):
        stem = {"this": "dies", "every": "jed", "all": "all"}[determiner]
        articles, endings, definite = DIESER, WEAK, True
        english = {"this": "these" if plural else "this", "all": "all the"}.get(determiner, determiner)
    elif determiner == "a":
        stem, articles, endings = "ein", EIN, MIXED
    elif determiner == "no":
        stem, articles, endings = "kein", EIN, MIXED
    elif determiner in ("many", "several", "some"):
        stem, articles = {"many": "viel", "several": "mehrer", "some": "einig"}[determiner], DIESER
    elif determiner == "number":
        english = number[0]
    elif determiner == "owner":
        definite = True
        if "poss" in owner.forms:
            english, stem = owner.forms["poss"].split()
            articles, endings = EIN, MIXED
        else:
            english = owner.en + "'s"
    else:
        english = ""
    words = [a.rsplit(" ", 1)[0] for a in adjectives] + [english_noun]
    if determiner in ("a", "no"):
        english = _a(words[0]) if not plural else ("any" if determiner == "no" else "")
    forms = {}
    for i, (case, german_noun) in enumerate(zip(CASES, noun.decline(plural), strict=True)):
        parts = []
        if articles is not None:
            parts.append(stem + articles[gender].split()[i].replace("-", ""))
        elif determiner == "number":
            parts.append(number[1])
        elif determiner == "owner":
            parts.append(owner.forms["nom"] + "s")
        parts += [a.rsplit(" ", 1)[1] + endings[gender].split()[i] for a in adjectives]
        forms[case] = " ".join(parts + [german_noun])
    human = noun.kind in ("person", "family")
    ref = "they" if plural else {"m": "he", "f": "she", "n": "it_n"}[gender] if human else "it_" + gender
    return Phrase(
        " ".join([english, *words]).strip(),
        forms,
        "",
        "pl" if plural else "3s",
        gender,
        ref,
        "definite" if definite else "indefinite",
        noun.kind,
    )


def _a(word: str) -> str:
    return "an" if word[0] in "aeiou" and not word.startswith(("uni", "use", "Eu")) else "a"


def with_preposition(preposition: str, phrase: str) -> str:
    """``preposition + phrase`` with the usual contraction: zu + dem Bahnhof = zum Bahnhof."""
    first, _, rest = phrase.partition(" ")
    short = CONTRACTIONS.get(f"{preposition} {first}")
    return f"{short} {rest}" if short else f"{preposition} {phrase}"


def join(*parts: str) -> str:
    """Join with single spaces, dropping empty parts and doubled commas."""
    text = " ".join(" ".join(parts).split()).replace(" ,", ",")
    return text.replace(",,", ",").replace(",.", ".").replace(",?", "?")
