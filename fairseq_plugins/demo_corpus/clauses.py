"""Clauses of the demo corpus: conjugation in both languages, and German word order."""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_plugins.demo_corpus import lexicon
from fairseq_plugins.demo_corpus.grammar import AGREEMENT, PERSONS, PRONOUNS, Phrase, join, with_preposition


@dataclass(frozen=True)
class Verb:
    """A row of ``lexicon.VERBS``."""

    base: str
    past_form: str
    participle: str
    tail: str
    recipient_last: bool
    infinitive: str
    present: str
    german_participle: str
    aux: str
    prefix: str
    complement: str
    objects: tuple[str, ...]
    flags: tuple[str, ...]

    def third(self) -> str:
        """The English third person: carries, watches, reads."""
        if self.base.endswith(("s", "x", "ch", "sh", "o")):
            return self.base + "es"
        if self.base.endswith("y") and self.base[-2] not in "aeou":
            return self.base[:-1] + "ies"
        return self.base + "s"

    def finite(self, agr: str) -> str:
        """The German present tense, without prefix."""
        if agr == "3s":
            return self.present
        if agr == "pl":
            return self.infinitive
        return self.infinitive.removesuffix("n").removesuffix("e") + "e"

    def zu(self) -> str:
        """The German infinitive with zu."""
        return f"{self.prefix}zu{self.infinitive}" if self.prefix else f"zu {self.infinitive}"


def parse_verbs(table: str) -> list[Verb]:
    """Read ``lexicon.VERBS``."""
    verbs = []
    for line in table.strip().splitlines():
        english, german, complement, objects, *flags = [part.strip() for part in line.split(";")]
        english, _, recipient = english.partition(",")
        head, _, tail = english.partition(" ")
        forms = head.split("/")
        if len(forms) == 1:
            base = forms[0]
            if base.endswith("e"):
                past = base + "d"
            else:
                past = base[:-1] + "ied" if base.endswith("y") and base[-2] not in "aeou" else base + "ed"
            forms = [base, past, past]
        infinitive, present, participle, *aux = german.split()
        prefix, _, rest = infinitive.rpartition("|")
        verbs.append(
            Verb(
                forms[0],
                forms[1],
                forms[2],
                tail,
                bool(recipient),
                rest,
                present,
                prefix + participle,
                aux[0] if aux else "haben",
                prefix,
                complement,
                tuple(objects.split()),
                tuple(flags[0].split()) if flags else (),
            )
        )
    return verbs


@dataclass(frozen=True)
class Adverb:
    """A time expression; ``before`` says that it stands before the English verb (often, always, already)."""

    en: str
    de: str
    before: bool = False


@dataclass(frozen=True)
class Clause:
    """A clause in English, and the fields of the German one, from which every word order is made."""

    en: str
    subject: str
    finite: str
    middle: str
    end: str
    adverb: Adverb | None = None

    def english(self, adverb: bool = True) -> str:
        """The English clause, with its time expression at the end unless it is to be put in front."""
        late = f" {self.adverb.en}" if adverb and self.adverb and not self.adverb.before else ""
        return self.en + late

    def _middle(self, adverb: bool) -> str:
        return self.middle.replace("@", self.adverb.de if adverb and self.adverb else "")

    def main(self) -> str:
        """Subject first, verb second."""
        return join(self.subject, self.finite, self._middle(True), self.end.removesuffix("-"))

    def inverted(self, first: str, adverb: bool = True) -> str:
        """``first``, then the verb, then the subject; without its adverb where that is what stands first."""
        return join(first, self.finite, self.subject, self._middle(adverb), self.end.removesuffix("-"))

    def verb_final(self) -> str:
        """The order of subordinate clauses."""
        last = self.end.removesuffix("-") + self.finite if self.end.endswith("-") else f"{self.end} {self.finite}"
        return join(self.subject, self._middle(True), last)


# English auxiliary by agreement (None: do-support), form of the verb, German finite verb, form of the German
# verb.
TENSES: dict[str, tuple[tuple[str, str, str] | None, str, str, str]] = {
    "present": (None, "present", "", ""),
    "past": (None, "past", "hat", "participle"),
    "perfect": (AGREEMENT["has"], "participle", "hat", "participle"),
    "pluperfect": (("had", "had", "had"), "participle", "hatte", "participle"),
    "future": (("will", "will", "will"), "base", "wird", "infinitive"),
}


def english_predicate(verb: Verb, tense: str, agr: str, negative: str = "", before: str = "") -> tuple[str, str, str]:
    """(auxiliary, negation or adverb, verb) of an English declarative clause; no auxiliary is "".

    :param tense: a key of ``TENSES`` or of ``lexicon.MODALS``
    :param negative: "", "not", "never", or "no" (negated in German by "kein" at the object, in English by
        "not")
    :param before: an adverb before the verb
    """
    person = PERSONS.index(agr)
    past = tense == "past"
    if tense in TENSES:
        auxiliaries, shape = TENSES[tense][:2]
        aux, base = auxiliaries[person] if auxiliaries else "", verb.base
        word = {
            "base": verb.base,
            "past": verb.past_form,
            "participle": verb.participle,
            "present": verb.third() if agr == "3s" else verb.base,
        }[shape]
    else:
        kind, aux, plural, third, base, _, _ = lexicon.MODALS[tense]
        past = kind == "past"
        word = join(third if agr == "3s" else plural, verb.base)
        base = join(base, verb.base)
    if negative in ("not", "no"):
        if aux:
            return aux, "not", word
        return "did" if past else AGREEMENT["does"][person], "not", base
    return aux, "never" if negative == "never" else before, word


def verb_clause(
    verb: Verb,
    subject: Phrase,
    objects: dict[str, Phrase],
    tense: str,
    adverb: Adverb | None = None,
    place: Phrase | None = None,
    negative: str = "",
    relative: str = "",
) -> Clause:
    """Build a clause from a verb.

    :param objects: "acc", "dat" or "prep" (with a preposition), "goal" (German form: to, frm or loc), "by"
    :param tense: a key of ``TENSES`` or ``lexicon.MODALS``
    :param relative: name of the object that is the relative pronoun, whose place is the front: "acc" or ""
    """
    english_objects = [objects[k].form("obj") for k in ("dat", "acc", "prep") if k in objects and k != relative]
    if verb.recipient_last and "dat" in objects:
        english_objects = [objects[k].form("obj") for k in ("acc",) if k != relative] + [
            "to " + objects["dat"].form("obj")
        ]
    tail = verb.tail
    pieces = [tail, *english_objects]
    if "goal" in objects:
        preposition = {"to": "to", "frm": "from", "loc": "in"}[objects["goal"].key]
        pieces.append(f"{preposition} {objects['goal'].en}")
    if "by" in objects:
        pieces.append(objects["by"].en)
    if place is not None:
        pieces.append(place.en)
    aux, mid, word = english_predicate(
        verb, tense, subject.agr, negative, adverb.en if adverb and adverb.before else ""
    )
    english = join(subject.en, aux, mid, word, *pieces).replace("can not ", "cannot ")

    finite, shape = german_finite(verb, tense, subject.agr)
    end = {
        "": verb.prefix + "-" if verb.prefix else "",
        "participle": verb.german_participle,
        "infinitive": verb.prefix + verb.infinitive,
    }[shape]
    others = {k: v for k, v in objects.items() if k != relative}
    middle = middle_field(verb, subject, others, place, negative)
    return Clause(english, subject.form("nom"), finite, middle, end, adverb)


def german_finite(verb: Verb, tense: str, agr: str) -> tuple[str, str]:
    """The finite verb (without prefix) and the shape of the verb that stands at the end ("": none)."""
    if tense in lexicon.MODALS:
        return lexicon.MODALS[tense][6 if agr == "pl" else 5], "infinitive"
    finite, shape = TENSES[tense][2:]
    if not finite:
        return verb.finite(agr), ""
    if shape == "participle" and verb.aux == "sein":
        finite = {"hat": "ist", "hatte": "war"}[finite]
    return AGREEMENT[finite][PERSONS.index(agr)], shape


PASSIVE: dict[str, tuple[tuple[str, str, str], str, str]] = {
    "present": (AGREEMENT["is"], "wird", ""),
    "past": (("was", "was", "were"), "wurde", ""),
    "perfect": (("have been", "has been", "have been"), "ist", "worden"),
    "future": (("will be", "will be", "will be"), "wird", ""),
    "must": (("have to be", "has to be", "have to be"), "muss", "werden"),
    "had": (("had to be", "had to be", "had to be"), "musste", "werden"),
}


def passive_clause(
    verb: Verb,
    subject: Phrase,
    tense: str,
    adverb: Adverb | None = None,
    agent: Phrase | None = None,
    place: Phrase | None = None,
    negative: str = "",
) -> Clause:
    """The passive of a verb with an accusative object: the contract was signed by the customer."""
    person = PERSONS.index(subject.agr)
    english, german, werden = PASSIVE[tense]
    aux, _, rest = english[person].partition(" ")
    before = adverb.en if adverb and adverb.before else ""
    by = "by " + agent.form("obj") if agent else ""
    words = (
        aux,
        "not" if negative else before,
        rest,
        verb.participle,
        verb.tail,
        by,
        place.en if place else "",
    )
    von = with_preposition("von", agent.form("dat")) if agent else ""
    middle = join("@", von, "nicht" if negative else "", place.form("loc") if place else "")
    return Clause(
        join(subject.en, *words),
        subject.form("nom"),
        AGREEMENT[german][person],
        middle,
        join(verb.german_participle, werden),
        adverb,
    )


def infinitive(verb: Verb, subject: Phrase, objects: dict[str, Phrase], place: Phrase | None = None) -> tuple[str, str]:
    """The infinitive clause of a verb, without its ``subject``: ("buy the car", "das Auto zu kaufen")."""
    clause = verb_clause(verb, subject, objects, "future", None, place)
    english = clause.en.removeprefix(subject.en + " will ")
    return english, join(clause.middle.replace("@", ""), verb.zu())


def middle_field(verb: Verb, subject: Phrase, objects: dict[str, Phrase], place: Phrase | None, negative: str) -> str:
    """German middle field with "@" for the adverb: pronouns, time, definite objects, not, place, the rest."""
    early, definite, late = [], [], []
    if "sich" in verb.flags:
        early.append(PRONOUNS[subject.ref].forms["refl"] if subject.ref in PRONOUNS else "sich")
    bare = [(case, objects[case]) for case in ("dat", "acc") if case in objects]
    if len(bare) == 2 and bare[1][1].order == "pronoun":
        bare.reverse()
    for case, phrase in bare:
        group = (
            early if phrase.order == "pronoun" else definite if phrase.order == "definite" or case == "dat" else late
        )
        group.append(phrase.form(case))
    goal = []
    if "prep" in objects:
        preposition, case = verb.complement.split("+")
        goal.append(with_preposition(preposition, objects["prep"].form(case)))
    if "goal" in objects:
        goal.append(objects["goal"].form(objects["goal"].key))
    by = [objects["by"].form("nom")] if "by" in objects else []
    where = [place.form("loc")] if place is not None else []
    no = [{"not": "nicht", "never": "nie", "no": ""}[negative]] if negative else []
    return join(*early, "@", *definite, *by, *no, *where, *late, *goal)
