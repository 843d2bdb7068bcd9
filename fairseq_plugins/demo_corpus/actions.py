"""Random clauses of the demo corpus: filled patterns, and verbs with subject, objects, time and place."""

from __future__ import annotations

import re
from random import Random

from fairseq_plugins.demo_corpus import clauses, grammar, lexicon, values
from fairseq_plugins.demo_corpus.clauses import Clause, Verb
from fairseq_plugins.demo_corpus.formats import time_expression
from fairseq_plugins.demo_corpus.grammar import Phrase, join

Pair = tuple[str, str]
VERBS = clauses.parse_verbs(lexicon.VERBS)
_SLOT = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
ADVERB = re.compile(r" @(\w+)")


def parse_patterns(table: str) -> list[tuple[str, str]]:
    """The (English, German) lines of a table of ``patterns``."""
    rows = [line.partition(" => ") for line in table.strip().splitlines()]
    return [(english, german) for english, _, german in rows]


# --- filling patterns


def fill(
    rng: Random, english: str, german: str, known: dict[str, Phrase] | None = None
) -> tuple[str, str, dict[str, Phrase]]:
    """Fill the slots of a pattern and make its choices.

    :param known: phrases of slots that are filled already, such as ``he``
    :return: English, German, and all phrases by slot name
    :raises KeyError: if the pattern has an unknown slot
    """
    phrases = dict(known or {})
    for slot_name, _ in _SLOT.findall(english):
        if slot_name in phrases:
            continue
        if slot_name in ("he", "it", "his"):
            phrases[slot_name] = pronoun(_antecedent(phrases, slot_name), slot_name)
            continue
        base = slot_name if slot_name in values.SLOTS else slot_name.rstrip("23")
        taken = {p.en for p in phrases.values()}
        phrase = values.slot(rng, base)
        while phrase.en in taken:
            phrase = values.slot(rng, base)
        phrases[slot_name] = phrase
    filled_english = _SLOT.sub(lambda m: phrases[m[1]].form(m[2] or "en"), _choose(rng, english))
    filled_german = _SLOT.sub(lambda m: phrases[m[1]].form(m[2] or "nom"), _choose(rng, german))
    return filled_english, filled_german, phrases


def _antecedent(phrases: dict[str, Phrase], slot_name: str) -> Phrase:
    for name, phrase in phrases.items():
        if name.startswith("person") == (slot_name != "it"):
            return phrase
    raise KeyError(f"there is nothing before {{{slot_name}}} that it could refer to")


def _choose(rng: Random, text: str) -> str:
    return _CHOICE.sub(lambda m: rng.choice(m[1].split("/")), text)


def pronoun(phrase: Phrase, kind: str) -> Phrase:
    """The pronoun for a phrase, or its possessive for ``kind`` "his"."""
    pronoun = grammar.PRONOUNS[phrase.ref]
    if kind != "his":
        return pronoun
    return grammar.fixed(*pronoun.forms["poss"].split())


def pattern_clause(rng: Random, rows: list[Pair], he: Phrase | None = None) -> Clause:
    """A clause from a pattern; ``he`` is whom the pronouns refer to."""
    english, german = rng.choice(rows)
    known = {"he": pronoun(he, "he"), "his": pronoun(he, "his")} if he else None
    kind = ADVERB.search(english)
    adverb = time_expression(rng, kind[1]) if kind else None
    english, german, _ = fill(rng, ADVERB.sub("", english), german, known)
    subject, finite, middle, end = (part.strip() for part in german.split("|"))
    return Clause(english, subject, finite, middle, end, adverb)


# --- clauses from verbs


def subject_phrase(rng: Random, organization: bool = False) -> Phrase:
    """Somebody or some organisation that acts."""
    if organization:
        return values.noun_phrase(rng, ("organization",), rng.choice(("the", "the", "a", "this")))
    style = rng.random()
    if style < 0.22:
        return grammar.PRONOUNS[rng.choice(("I", "I", "we", "he", "she", "they", "you"))]
    if style < 0.74:
        return values.person(rng)
    if style < 0.84:
        return values.noun_phrase(rng, ("person",), rng.choice(("the", "many", "several", "some", "all")), plural=True)
    if style < 0.92:
        return values.noun_phrase(rng, ("person",), "number", plural=True)
    return with_relative_clause(rng, values.noun_phrase(rng, ("person",), "the", plural=rng.random() < 0.25))


def object_phrase(rng: Random, kinds: tuple[str, ...], subject: Phrase | None = None, bare: bool = False) -> Phrase:
    """Something that is acted on; ``bare`` allows human pronouns and names."""
    human = all(k in ("person", "family") or values.BY_NAME.get(k, [None])[0] in _HUMANS for k in kinds)
    kind = rng.choice(kinds)
    style = rng.random()
    if kind in ("person", "family"):
        if bare and style < 0.15 and human:
            choices = [k for k in ("I", "he", "she", "they", "we", "you") if subject is None or k != subject.ref]
            return grammar.PRONOUNS[rng.choice(choices)]
        if kind == "family":
            return values.noun_phrase(rng, ("family",), "owner", owner=_owner(rng, subject))
        if style < 0.45:
            return values.name(rng)
    if style < 0.28:
        return values.noun_phrase(rng, (kind,), "a")
    if style < 0.40:
        return values.noun_phrase(rng, (kind,), "owner", owner=_owner(rng, subject))
    if style < 0.46:
        return values.noun_phrase(rng, (kind,), "this", plural=rng.random() < 0.4)
    if style < 0.56:
        return values.noun_phrase(rng, (kind,), "number", plural=True)
    if style < 0.64:
        return values.noun_phrase(rng, (kind,), rng.choice(("many", "several", "some", "all")), plural=True)
    return values.noun_phrase(rng, (kind,), "the", plural=rng.random() < 0.2)


_HUMANS = [row[0] for kind in ("person", "family") for row in values.NOUNS[kind]]


def _owner(rng: Random, subject: Phrase | None) -> Phrase:
    if rng.random() < 0.25:
        name = rng.choice(_NAMES)
        if subject is None or name.en != subject.en:
            return name
    return grammar.PRONOUNS[subject.ref if subject is not None else "I"]


_NAMES = [grammar.fixed(n, n) for n in (lexicon.WOMEN + " " + lexicon.MEN).split()]


def verb_objects(rng: Random, verb: Verb, subject: Phrase) -> dict[str, Phrase]:
    """Objects that the verb takes."""
    objects: dict[str, Phrase] = {}
    what = verb.complement
    if what == "dat+acc":
        objects["dat"] = object_phrase(rng, ("person", "family"), subject, bare=True)
        objects["acc"] = object_phrase(rng, verb.objects, subject)
    elif what in ("acc", "dat"):
        objects[what] = object_phrase(rng, verb.objects, subject, bare=True)
    elif what in ("goal", "source", "loc"):
        key = {"goal": "to", "source": "frm", "loc": "loc"}[what]
        city = "city" in verb.flags or rng.random() < 0.5
        place = rng.choice(values.CITIES if city else values.TERRITORIES)
        objects["goal"] = _located(place, key)
        if "by" in verb.flags and rng.random() < 0.5:
            objects["by"] = rng.choice(MEANS)
    elif what != "none":
        objects["prep"] = object_phrase(rng, verb.objects, subject, bare=True)
    return objects


MEANS = [
    grammar.fixed("by train", "mit dem Zug"),
    grammar.fixed("by car", "mit dem Auto"),
    grammar.fixed("by bus", "mit dem Bus"),
    grammar.fixed("by boat", "mit dem Schiff"),
]


def _located(place: Phrase, key: str) -> Phrase:
    german = place.forms["nom"]
    city = {"to": f"nach {german}", "frm": f"aus {german}", "loc": f"in {german}"}
    return Phrase(place.en, city | place.forms, key=key)


def place_phrase(rng: Random) -> Phrase:
    """Where something happens: in Rome, in Switzerland, in the museum."""
    if rng.random() < 0.6:
        place = rng.choice(values.CITIES) if rng.random() < 0.6 else rng.choice(values.TERRITORIES)
        return Phrase("in " + place.en, {"loc": _located(place, "loc").forms["loc"]})
    building = values.noun_phrase(rng, ("place",), "the")
    return Phrase("in " + building.en, {"loc": building.form("in")})


def choose_verb(
    rng: Random, complements: tuple[str, ...] = (), organization: bool | None = None, any_tense: bool = False
) -> Verb:
    """A verb.

    :param complements: those it may take; () for any
    :param organization: whether its subject is an organisation; None for either
    :param any_tense: whether it must go with every tense and modal verb
    """
    return rng.choice(
        [
            v
            for v in VERBS
            if (not complements or v.complement in complements)
            and (organization is None or ("org" in v.flags) == organization)
            and not (any_tense and {"stative", "mishap"} & set(v.flags))
        ]
    )


TIMES = ("past", "past", "past", "future", "future", "perfect", "habit")
TENSES = {
    "past": ("past", "past", "past", "had", "could", "wanted"),
    "perfect": ("perfect",),
    "habit": ("present",),
    "future": ("future", "future", "must", "can", "should", "want", "like"),
}


def random_clause(
    rng: Random,
    time: str = "",
    subject: Phrase | None = None,
    adverb: float = 0.75,
    tense: str = "",
    negated: bool | None = None,
) -> Clause:
    """A clause about a random action.

    :param time: past, perfect, habit or future; "" for any
    :param subject: who acts, if known
    :param adverb: how often there is an expression of time
    :param tense: a key of ``clauses.TENSES`` or ``lexicon.MODALS``; "" for any of that time
    :param negated: whether it is negated; None for sometimes
    """
    verb = choose_verb(rng, organization=None if subject is None else False, any_tense=bool(tense or time))
    subject = subject or subject_phrase(rng, "org" in verb.flags)
    time = "habit" if "stative" in verb.flags else time or rng.choice(TIMES)
    tense = tense or rng.choice(TENSES[time] if "mishap" not in verb.flags else TENSES[time][:2])
    expression = time_expression(rng, time) if rng.random() < adverb and "stative" not in verb.flags else None
    objects = verb_objects(rng, verb, subject)
    if negated is None:
        vague = subject.order == "indefinite" or subject.en.startswith("all ")
        negated = rng.random() < 0.18 and time != "perfect" and not vague
    if negated and expression and expression.before:
        expression = None
    negative = "not" if negated else ""
    for case in ("acc", "dat"):
        if negative == "not" and case in objects and objects[case].order == "indefinite":
            kinds = verb.objects if case == "acc" or verb.complement == "dat" else ("person",)
            objects[case] = values.noun_phrase(rng, kinds, "no", plural=rng.random() < 0.3)
            negative = "no"
    place = place_phrase(rng) if "place" in verb.flags and not negated and rng.random() < 0.35 else None
    if not expression and not place and not negated and verb.base != "write" and rng.random() < 0.3:
        for case, thing in objects.items():
            if thing.relatable:
                objects[case] = with_relative_clause(rng, thing)
                break
    return clauses.verb_clause(verb, subject, objects, tense, expression, place, negative)


def passive(rng: Random) -> Clause:
    """A clause in the passive."""
    verb = rng.choice(
        [
            v
            for v in VERBS
            if v.complement == "acc"
            and not {"sich", "stative"} & set(v.flags)
            and v.base not in ("meet", "take", "lose", "see", "use", "know")
        ]
    )
    subject = object_phrase(rng, tuple(k for k in verb.objects if k not in ("person", "family")) or ("person",))
    tense = rng.choice(("past", "past", "past", "future", "perfect", "must", "had"))
    if "mishap" in verb.flags:
        tense = "past"
    time = {"had": "past", "must": "future", "perfect": "perfect"}.get(tense, tense)
    agent = subject_phrase(rng, True) if "org" in verb.flags else values.person(rng)
    expression = time_expression(rng, time) if rng.random() < 0.75 else None
    negative = "not" if tense in ("past", "future") and rng.random() < 0.15 else ""
    place = place_phrase(rng) if "place" in verb.flags and not negative and rng.random() < 0.3 else None
    return clauses.passive_clause(
        verb, subject, tense, expression, agent if rng.random() < 0.4 else None, place, negative
    )


def with_relative_clause(rng: Random, phrase: Phrase) -> Phrase:
    """The phrase with a relative clause: the man who sold the car, or the car that the man sold."""
    relative = grammar.RELATIVE[phrase.gender].split()
    human = phrase.head in ("person", "family")
    time = rng.choice(("past", "past", "habit", "perfect"))
    expression = time_expression(rng, time) if rng.random() < 0.3 else None
    if human:
        verb = choose_verb(rng, ("acc", "goal", "loc", "auf+acc", "für+acc"), organization=False)
        who = Phrase("who", {"nom": relative[0]}, agr=phrase.agr, ref=phrase.ref)
        clause = clauses.verb_clause(verb, who, verb_objects(rng, verb, who), rng.choice(TENSES[time][:2]), expression)
        english, german = clause.english(), clause.verb_final()
    else:
        verbs = [v for v in VERBS if v.complement == "acc" and phrase.head in v.objects and "org" not in v.flags]
        if not verbs:
            return phrase
        verb = rng.choice(verbs)
        who = values.person(rng) if rng.random() < 0.7 else grammar.PRONOUNS[rng.choice(("I", "we", "she", "he"))]
        gap = Phrase("", {"acc": relative[1]})
        clause = clauses.verb_clause(verb, who, {"acc": gap}, rng.choice(TENSES[time][:2]), expression, relative="acc")
        english, german = "that " + clause.english(), join(relative[1], clause.verb_final())
    forms = {case: f"{text}, {german}," for case, text in phrase.forms.items()}
    return Phrase(f"{phrase.en} {english}", forms, "", phrase.agr, phrase.gender, phrase.ref, phrase.order, phrase.head)
