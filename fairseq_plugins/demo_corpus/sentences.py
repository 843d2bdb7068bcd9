"""Random sentence pairs of the demo corpus, of several kinds, from main and subordinate clauses."""

from __future__ import annotations

from random import Random

from fairseq_plugins.demo_corpus import clauses, patterns, values
from fairseq_plugins.demo_corpus.actions import (
    ADVERB,
    TENSES,
    VERBS,
    Pair,
    choose_verb,
    fill,
    parse_patterns,
    passive,
    pattern_clause,
    place_phrase,
    random_clause,
    subject_phrase,
    verb_objects,
    with_relative_clause,
)
from fairseq_plugins.demo_corpus.clauses import Adverb, Clause
from fairseq_plugins.demo_corpus.formats import time_expression
from fairseq_plugins.demo_corpus.grammar import PRONOUNS, Phrase, join

CLAUSES = parse_patterns(patterns.CLAUSES)
SENTENCES = parse_patterns(patterns.SENTENCES)
HINDRANCES = {
    "past": parse_patterns(patterns.HINDRANCES_PAST),
    "future": parse_patterns(patterns.HINDRANCES_PRESENT),
}
MOTIVES = {"past": parse_patterns(patterns.MOTIVES_PAST), "future": parse_patterns(patterns.MOTIVES_PRESENT)}
CONDITIONS = parse_patterns(patterns.CONDITIONS)
TURNING_POINTS = parse_patterns(patterns.TURNING_POINTS)
REPORTS = parse_patterns(patterns.REPORTS)
OPENERS = parse_patterns(patterns.OPENERS)
COMMENTS = {kind: parse_patterns(table) for kind, table in patterns.COMMENTS.items()}
INTENTIONS = parse_patterns(patterns.INTENTIONS)

# English words that are capitalised only because a sentence begins with them.
_SENTENCE_CASE = {english.split(" ")[0] for english, _ in CLAUSES if not english.startswith("{")}


def lower_first(text: str) -> str:
    """English text with a small first letter, if its first word is no name and not "I"."""
    return text[0].lower() + text[1:] if text.split(" ", 1)[0] in _SENTENCE_CASE else text


def any_clause(rng: Random, news: float = 0.5) -> Clause:
    """A clause of any make; ``news`` is how often it comes from a hand-written pattern."""
    if rng.random() < news:
        return pattern_clause(rng, CLAUSES)
    return passive(rng) if rng.random() < 0.2 else random_clause(rng)


def main_order(rng: Random, clause: Clause, fronted: float = 0.35) -> Pair:
    """The clause as main clause, sometimes with its expression of time in front."""
    adverb = clause.adverb
    if adverb and not adverb.before and rng.random() < fronted:
        english = f"{adverb.en}, {lower_first(clause.english(adverb=False))}"
        return english, clause.inverted(adverb.de, adverb=False)
    return clause.english(), clause.main()


def actor(rng: Random) -> Phrase:
    """Who acts in a sentence with several clauses: no relative clause, which would make it too long."""
    who = subject_phrase(rng)
    while who.forms["nom"].endswith(","):
        who = subject_phrase(rng)
    return who


def plain_sentence(rng: Random) -> Pair:
    """A main clause."""
    return main_order(rng, any_clause(rng))


def opened_sentence(rng: Random) -> Pair:
    """Unfortunately, ... / Leider ..."""
    english, german, _ = fill(rng, *rng.choice(OPENERS))
    clause = any_clause(rng, news=0.65)
    return f"{english} {lower_first(clause.english())}", clause.inverted(german)


def reported_sentence(rng: Random) -> Pair:
    """Anna said that ... / Anna hat gesagt, dass ..., sometimes with a reason."""
    english, german = rng.choice(REPORTS)
    kind = ADVERB.search(english)
    expression = time_expression(rng, kind[1]) if kind and rng.random() < 0.6 else Adverb("", "")
    english, german, _ = fill(rng, ADVERB.sub(" @", english), german)
    head = join(english.replace("@", expression.en)), join(german.replace("@", expression.de))
    if rng.random() < 0.35:
        main, (conjunction, german_conjunction), reason = reasoned(rng)
        return (
            f"{head[0]} {main.english()} {conjunction} {reason.english()}",
            f"{head[1]} {main.verb_final()}, {german_conjunction} {reason.verb_final()}",
        )
    clause = any_clause(rng, news=0.7)
    return f"{head[0]} {lower_first(clause.english())}", f"{head[1]} {clause.verb_final()}"


def reasoned(rng: Random) -> tuple[Clause, Pair, Clause]:
    """A clause, a subordinating conjunction, and a clause that gives a reason or an obstacle."""
    time = rng.choice(("past", "past", "future"))
    who = actor(rng)
    because = ("because", rng.choice(("weil", "weil", "da")))
    style = rng.random()
    if style < 0.45:
        tense = rng.choice(("past", "past", "could") if time == "past" else ("can", "can", "future"))
        main = random_clause(rng, time, who, 0.5, tense, negated=True)
        return main, because, pattern_clause(rng, HINDRANCES[time], who)
    main = random_clause(rng, time, who, 0.5, negated=False)
    if style < 0.7:
        return main, because, pattern_clause(rng, MOTIVES[time], who)
    return main, ("although", "obwohl"), pattern_clause(rng, HINDRANCES[time], who)


def reason_sentence(rng: Random) -> Pair:
    """A main clause with "because" or "although", or a wish with "but"."""
    if rng.random() < 0.25:
        time, tense = rng.choice((("past", "wanted"), ("future", "like")))
        who = actor(rng)
        left, right = main_order(rng, random_clause(rng, time, who, 0.5, tense, negated=False), 0.25)
        reason = pattern_clause(rng, HINDRANCES[time], who)
        return f"{left}, but {reason.english()}", f"{right}, aber {reason.main()}"
    main, (english, german), reason = reasoned(rng)
    left, right = main_order(rng, main, 0.25)
    comma = "," if english == "although" else ""
    return f"{left}{comma} {english} {reason.english()}", f"{right}, {german} {reason.verb_final()}"


def conditional_sentence(rng: Random) -> Pair:
    """If ..., ... / Wenn ..., ... in either order, and with "as soon as"."""
    who = actor(rng)
    main = random_clause(rng, "future", who, adverb=0.4)
    if rng.random() < 0.6:
        condition = pattern_clause(rng, CONDITIONS, who)
        english, german = "if", "wenn"
    else:
        condition = pattern_clause(rng, TURNING_POINTS, who)
        english, german = rng.choice((("as soon as", "sobald"), ("when", "wenn")))
    if rng.random() < 0.4:
        return f"{english} {condition.english()}, {main.english()}", main.inverted(
            f"{german} {condition.verb_final()},"
        )
    return (
        f"{main.english()} {english} {condition.english()}",
        f"{main.main()}, {german} {condition.verb_final()}",
    )


def sequence_sentence(rng: Random) -> Pair:
    """After Anna had ..., she ... / Nachdem Anna ... hatte, ...; or with "and then"."""
    who = values.person(rng)
    first, second = (
        choose_verb(rng, organization=False, any_tense=True),
        choose_verb(rng, organization=False, any_tense=True),
    )
    while first == second:
        second = choose_verb(rng, organization=False, any_tense=True)
    he = PRONOUNS[who.ref]
    if rng.random() < 0.5:
        before = clauses.verb_clause(first, who, verb_objects(rng, first, who), "pluperfect")
        after = clauses.verb_clause(second, he, verb_objects(rng, second, he), "past")
        return f"after {before.english()}, {after.english()}", after.inverted(f"nachdem {before.verb_final()},")
    one = clauses.verb_clause(first, who, verb_objects(rng, first, who), "past", time_expression(rng, "past"))
    two = clauses.verb_clause(second, he, verb_objects(rng, second, he), "past")
    english, german = main_order(rng, one)
    if first.aux == second.aux and "sich" not in first.flags + second.flags:
        shared = join(two.middle.replace("@", ""), two.end)
        return f"{english} and then {two.english().removeprefix(he.en + ' ')}", f"{german} und dann {shared}"
    return f"{english}, and then {two.english()}", f"{german}, und dann {two.inverted('')}"


def contrast_sentence(rng: Random) -> Pair:
    """Anna ..., but Peter ... / Anna ..., aber Peter ..."""
    time = rng.choice(("past", "past", "future", "habit"))
    one, two = values.person(rng), values.person(rng)
    while one.en == two.en:
        two = values.person(rng)
    one, two = (random_clause(rng, time, who, adverb=0.5) for who in (one, two))
    english, german = rng.choice((("but", "aber"), ("but", "aber"), ("and", "und")))
    return f"{one.english()}, {english} {two.english()}", f"{one.main()}, {german} {two.main()}"


def infinitive_sentence(rng: Random) -> Pair:
    """Anna promised to ... / Anna hat versprochen, ... zu ...; or with "in order to"."""
    who = actor(rng)
    verb = choose_verb(rng, organization=False, any_tense=True)
    place = place_phrase(rng) if "place" in verb.flags and rng.random() < 0.4 else None
    if rng.random() < 0.4 and verb.complement not in ("goal", "source", "loc"):
        travel = rng.choice([v for v in VERBS if v.complement == "goal"])
        expression = time_expression(rng, "past") if rng.random() < 0.5 else None
        english, german = clauses.infinitive(verb, who, verb_objects(rng, verb, who))
        left, right = main_order(
            rng, clauses.verb_clause(travel, who, verb_objects(rng, travel, who), "past", expression)
        )
        return f"{left} to {english}", f"{right}, um {german}"
    head, german_head, phrases = fill(rng, *rng.choice(INTENTIONS), {"who": who})
    who = phrases.get("person2", who)
    english, german = clauses.infinitive(verb, who, verb_objects(rng, verb, who), place)
    return f"{head} {english}", f"{german_head}, {german}"


QUESTION_WORDS = (
    ("why", "warum"),
    ("when", "wann"),
    ("where", "wo"),
    ("how often", "wie oft"),
    ("", ""),
    ("", ""),
    ("", ""),
)


def question(rng: Random) -> Pair:
    """Did Anna ...? / Hat Anna ...? with or without question word."""
    english_word, german_word = rng.choice(QUESTION_WORDS)
    who = PRONOUNS["you"] if rng.random() < 0.4 else values.person(rng)
    verb = choose_verb(rng, organization=False, any_tense=True)
    while english_word == "where" and verb.complement in ("goal", "source", "loc"):
        verb = choose_verb(rng, organization=False, any_tense=True)
    time = rng.choice(("past", "past", "future"))
    tense = rng.choice(TENSES[time])
    timed = english_word not in ("when", "how often") and rng.random() < 0.6
    expression = time_expression(rng, time) if timed else None
    clause = clauses.verb_clause(verb, who, verb_objects(rng, verb, who), tense, expression)
    aux, _, word = clauses.english_predicate(verb, tense, who.agr)
    rest = clause.en.removeprefix(join(who.en, aux, word))
    if not aux:
        aux, _, word = clauses.english_predicate(verb, tense, who.agr, "not")
    english = join(english_word, aux, who.en, word, rest, expression.en if expression else "")
    return f"{english}?", clause.inverted(german_word) + "?"


def whole_sentence(rng: Random) -> Pair:
    """A sentence of ``patterns.SENTENCES``."""
    return fill(rng, *rng.choice(SENTENCES))[:2]


def relative_sentence(rng: Random) -> Pair:
    """A sentence about something with a relative clause."""
    kind = rng.choice(list(COMMENTS))
    thing = with_relative_clause(rng, values.noun_phrase(rng, (kind,), "the", plural=rng.random() < 0.2))
    english, german, _ = fill(rng, *rng.choice(COMMENTS[kind]), {"thing": thing})
    return english, german


# The kinds of sentences, with how often each is drawn.
KINDS = {
    plain_sentence: 27,
    opened_sentence: 5,
    reported_sentence: 15,
    reason_sentence: 10,
    conditional_sentence: 6,
    sequence_sentence: 8,
    contrast_sentence: 5,
    infinitive_sentence: 6,
    question: 5,
    whole_sentence: 8,
    relative_sentence: 5,
}


def sentence(rng: Random) -> Pair:
    """A random (English, German) pair, with capital first letter and final punctuation."""
    english, german = rng.choices(list(KINDS), list(KINDS.values()))[0](rng)
    return _finish(english), _finish(german)


def _finish(text: str) -> str:
    text = join(text.removesuffix(",") + ("" if text.endswith((".", "?")) else "."))
    return text[0].upper() + text[1:]
