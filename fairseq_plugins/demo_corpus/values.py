"""What fills the slots of the demo corpus: places and languages of CLDR, noun phrases, and formats."""

from __future__ import annotations

from random import Random

from babel import lists

from fairseq_plugins.demo_corpus import formats, grammar, lexicon
from fairseq_plugins.demo_corpus.formats import DE, EN, VARIATION, words
from fairseq_plugins.demo_corpus.grammar import Phrase, fixed

NOUNS = {kind: grammar.parse_nouns(kind, table) for kind, table in lexicon.NOUNS.items()}
BY_NAME = {row[0].english: row for rows in NOUNS.values() for row in rows}
_NATIONAL = [f"{EN.languages[code]} {DE.languages[code].lower()}" for code in lexicon.NATIONAL.split()]
ADJECTIVES = {kind: [a.strip() for a in table.split(",")] for kind, table in lexicon.ADJECTIVES.items()}


# --- places and languages

CITIES = [fixed(en, de or en) for en, _, de in (row.partition("/") for row in lexicon.CITIES.split())]


def _territories() -> list[Phrase]:
    result = []
    for code in lexicon.TERRITORIES.split():
        english, german = EN.territories[code], DE.territories[code]
        genitive = f"von {german}" if german[-1] in "sxzß" else german + "s"
        result.append(
            fixed(english, german, gen=genitive, to=f"nach {german}", frm=f"aus {german}", loc=f"in {german}")
        )
    for code, (article, gender, nom, dat, gen) in lexicon.TERRITORIES_WITH_ARTICLE.items():
        articles = grammar.DEFINITE[gender].split()
        forms = [f"{a} {noun}" for a, noun in zip(articles, (nom, nom, dat, gen), strict=True)]
        cases = dict(zip(grammar.CASES, forms, strict=True))
        at, out_of = ("auf", "von") if code in lexicon.ISLANDS else ("in", "aus")
        places = {
            "to": grammar.with_preposition(at, forms[1]),
            "loc": grammar.with_preposition(at, forms[2]),
            "frm": f"{out_of} {forms[2]}",
        }
        result.append(Phrase(article + EN.territories[code], cases | places))
    return result


TERRITORIES = _territories()


def _language(code: str) -> Phrase:
    german = DE.languages[code]
    return fixed(EN.languages[code], german, to=f"ins {german}e", frm=f"aus dem {german}en")


LANGUAGES = [_language(code) for code in lexicon.LANGUAGES.split()]


def several(rng: Random, phrases: list[Phrase], count: int) -> Phrase:
    """``count`` of the phrases in a list: France, Italy, and Switzerland."""
    chosen = rng.sample(phrases, count)
    english = lists.format_list([p.en for p in chosen], locale=EN)
    forms = {case: lists.format_list([p.form(case) for p in chosen], locale=DE) for case in ("nom", "acc")}
    return Phrase(english, forms, agr="pl", gender="p", ref="they")


# --- noun phrases


def pick_variant(rng: Random, variants: list) -> object:
    """The first of the variants, or with probability ``VARIATION`` another one."""
    if len(variants) == 1 or rng.random() >= VARIATION:
        return variants[0]
    return rng.choice(variants[1:])


def pick_noun(rng: Random, kinds: tuple[str, ...]) -> grammar.Noun:
    """A noun of one of the ``kinds`` (classes or single English nouns)."""
    kind = rng.choice(kinds)
    row = rng.choice(NOUNS[kind]) if kind in NOUNS else BY_NAME[kind.replace("_", " ")]
    return pick_variant(rng, row)


def pick_adjectives(rng: Random, kind: str, definite: bool, likely: float = 0.4) -> list[str]:
    """No, one or two adjectives that suit nouns of a class."""
    if kind not in ADJECTIVES or rng.random() > likely:
        return []
    choices = [a for a in ADJECTIVES[kind] if definite or a.split()[0] not in lexicon.DEFINITE_ADJECTIVES]
    if kind in lexicon.NATIONAL_CLASSES and rng.random() < 0.25:
        return ([rng.choice(choices)] if rng.random() < 0.3 else []) + [rng.choice(_NATIONAL)]
    places = sorted(rng.sample(range(len(choices)), 2 if len(choices) > 4 and rng.random() < 0.2 else 1))
    pair = [choices[i] for i in places]
    english = {a.split()[0] for a in pair}
    clash = any(len(english & set(group.split())) > 1 for group in lexicon.EXCLUSIVE_ADJECTIVES)
    return pair[:1] if clash else pair


def noun_phrase(
    rng: Random, kinds: tuple[str, ...], determiner: str, plural: bool = False, owner: Phrase | None = None
) -> Phrase:
    """A random noun of the ``kinds`` with a determiner of ``grammar.noun_phrase``."""
    noun = pick_noun(rng, kinds)
    few = words(rng.randint(2, 12)) if determiner == "number" else None
    adjectives = pick_adjectives(rng, noun.kind, determiner == "the" and not plural)
    return grammar.noun_phrase(noun, determiner, adjectives, plural, owner, few)


def name(rng: Random) -> Phrase:
    """A person's name."""
    kind = rng.random()
    if kind < 0.4:
        woman = rng.choice(lexicon.WOMEN.split())
        return Phrase(
            woman,
            dict.fromkeys(("nom", "acc", "dat"), woman) | {"gen": f"von {woman}"},
            ref="she",
            gender="f",
        )
    if kind < 0.75:
        man = rng.choice(lexicon.MEN.split())
        return Phrase(man, dict.fromkeys(("nom", "acc", "dat"), man) | {"gen": f"von {man}"}, ref="he", gender="m")
    surname = rng.choice(lexicon.SURNAMES.split())
    if kind < 0.88:
        german = f"Frau {surname}"
        return Phrase(
            f"Ms. {surname}",
            dict.fromkeys(("nom", "acc", "dat"), german) | {"gen": f"von {german}"},
            ref="she",
            gender="f",
        )
    herrn = f"Herrn {surname}"
    forms = {"nom": f"Herr {surname}", "acc": herrn, "dat": herrn, "gen": f"von {herrn}"}
    return Phrase(f"Mr. {surname}", forms, ref="he", gender="m")


def person(rng: Random) -> Phrase:
    """Somebody in the third person singular."""
    if rng.random() < 0.45:
        return name(rng)
    if rng.random() < 0.25:
        owner = grammar.PRONOUNS[rng.choice(("I", "I", "we", "he", "she", "you"))]
        return noun_phrase(rng, ("family",), "owner", owner=owner)
    return noun_phrase(rng, ("person",), rng.choice(("the", "the", "the", "a", "this")))


def slot(rng: Random, slot_name: str) -> Phrase:
    """What fills a slot of the patterns.

    Nouns: ``the_CLASS``, ``a_CLASS``, ``pl_CLASS`` (a number of them; also a single noun, ``the_car``),
    ``staple``, ``person``. Places: ``city``, ``country``, ``countries``. Languages: ``language``,
    ``languages``. Time: ``clock``, ``opening``, ``closing``, ``weekday``, ``ago``, ``early_day``,
    ``late_date``, ``early_month``, ``late_month``, ``year``, ``future_year``, ``minutes``, ``duration``,
    ``years``. Numbers: ``few`` (in words), ``num``, ``age``, ``wordnum``, ``big``, ``million``, ``ordinal``,
    ``birthday``, ``nth``, ``percent``, ``price``, ``fare``, ``rent``, ``money``, and the keys of
    ``MEASURES``.

    :raises KeyError: for an unknown name
    """
    determiner, _, kind = slot_name.partition("_")
    if determiner in ("the", "a", "pl") and (kind in NOUNS or kind in BY_NAME):
        return noun_phrase(rng, (kind,), "number" if determiner == "pl" else determiner, determiner == "pl")
    if slot_name in formats.MEASURES:
        unit, lengths, low, high, step = formats.MEASURES[slot_name]
        value = low + step * rng.randint(0, int((high - low) / step))
        return formats.measure(unit, value, rng.choice(lengths.split()))
    return SLOTS[slot_name](rng)


SLOTS = {
    "staple": lambda rng: noun_phrase(rng, ("staple",), "none"),
    "person": person,
    "city": lambda rng: rng.choice(CITIES),
    "country": lambda rng: rng.choice(TERRITORIES),
    "countries": lambda rng: several(rng, TERRITORIES, rng.choice((2, 3, 3, 4))),
    "language": lambda rng: rng.choice(LANGUAGES),
    "languages": lambda rng: several(rng, LANGUAGES, rng.choice((2, 3, 3, 4))),
    "clock": formats.clock,
    "opening": lambda rng: formats.clock(rng, 7, 11),
    "closing": lambda rng: formats.clock(rng, 16, 22),
    "weekday": lambda rng: formats.weekday(rng, 0, 2),
    "weekday2": lambda rng: formats.weekday(rng, 3, 6),
    "ago": lambda rng: fixed(*formats.ago(rng)),
    "early_day": lambda rng: fixed(*formats.day_of_year(rng, 1, 6)),
    "late_date": formats.late_date,
    "early_month": lambda rng: formats.month_name(rng, 1, 6),
    "late_month": lambda rng: formats.month_name(rng, 7, 12),
    "year": lambda rng: fixed(*[str(rng.randint(1950, 2024))] * 2),
    "future_year": lambda rng: fixed(*[str(rng.randint(2025, 2040))] * 2),
    "minutes": lambda rng: formats.span(rng, "minute", 2, 59),
    "duration": lambda rng: formats.span(rng, "hour", 2, 12),
    "years": lambda rng: formats.span(rng, rng.choice(("year", "month")), 2, 30),
    "few": lambda rng: fixed(*words(rng.randint(2, 12))),
    "num": lambda rng: fixed(*[str(rng.randint(2, 40))] * 2),
    "age": lambda rng: fixed(
        *rng.choice((words, formats.number))(rng.choice((20, 30, 40, 50, 60)) + rng.randint(2, 9))
    ),
    "wordnum": lambda rng: fixed(*words(100 * rng.randint(0, 9) + rng.randint(12, 99))),
    "big": lambda rng: fixed(*formats.number(rng.randint(210, 98_000))),
    "million": lambda rng: fixed(*formats.compact(rng, (10**6,))),
    "ordinal": lambda rng: fixed(*words(rng.randint(2, 40), ordinal=True)),
    "birthday": lambda rng: fixed(*words(rng.randint(18, 70), ordinal=True)),
    "nth": lambda rng: fixed(*words(rng.randint(2, 5), ordinal=True)),
    "percent": formats.percent,
    "price": formats.price,
    "fare": lambda rng: formats.price(rng, 9, 180),
    "rent": lambda rng: formats.price(rng, 300, 1900),
    "money": formats.money,
}
