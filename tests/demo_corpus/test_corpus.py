"""The generated corpus: German grammar by hand-checked examples, the generator, the command line."""

import datetime
import json
import re
from random import Random

import pytest

pytest.importorskip("babel")
pytest.importorskip("num2words")

from fairseq_plugins.demo_corpus import actions as actions  # noqa: E402
from fairseq_plugins.demo_corpus import clauses as clauses  # noqa: E402
from fairseq_plugins.demo_corpus import corpus as corpus  # noqa: E402
from fairseq_plugins.demo_corpus import formats as formats  # noqa: E402
from fairseq_plugins.demo_corpus import grammar as grammar  # noqa: E402
from fairseq_plugins.demo_corpus import lexicon as lexicon  # noqa: E402
from fairseq_plugins.demo_corpus import patterns as patterns  # noqa: E402
from fairseq_plugins.demo_corpus import values as values  # noqa: E402
from fairseq_plugins.demo_corpus.clauses import Adverb, Clause  # noqa: E402
from fairseq_plugins.demo_corpus.grammar import PRONOUNS, fixed  # noqa: E402

ANNA = grammar.Phrase("Anna", dict.fromkeys(("nom", "acc", "dat"), "Anna"), ref="she", gender="f")


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return list(corpus.generate_pairs(3000, seed=3))


def noun_phrase(english: str, determiner: str, *adjectives: str, plural: bool = False, **options) -> grammar.Phrase:
    return grammar.noun_phrase(values.BY_NAME[english][0], determiner, list(adjectives), plural, **options)


def verb(english: str) -> clauses.Verb:
    return next(v for v in actions.VERBS if f"{v.base} {v.tail}".strip() == english)


def territory(english: str) -> grammar.Phrase:
    return next(t for t in values.TERRITORIES if t.en == english)


class Picks(Random):
    """A Random whose `random()` and `randint()` come from lists."""

    def __init__(self, *, fractions: tuple[float, ...] = (), integers: tuple[int, ...] = ()):
        super().__init__(0)
        self.fractions, self.integers = list(fractions), list(integers)

    def random(self) -> float:
        return self.fractions.pop(0) if self.fractions else 0.99

    def randint(self, a: int, b: int) -> int:
        return self.integers.pop(0)


# --- noun phrases


@pytest.mark.parametrize(
    "phrase, english, cases",
    [
        (
            noun_phrase("apple", "the", "big groß"),
            "the big apple",
            ("der große Apfel", "den großen Apfel", "dem großen Apfel", "des großen Apfels"),
        ),
        (
            noun_phrase("book", "a", "old alt", "French französisch"),
            "an old French book",
            (
                "ein altes französisches Buch",
                "ein altes französisches Buch",
                "einem alten französischen Buch",
                "eines alten französischen Buchs",
            ),
        ),
        (
            noun_phrase("bag", "no", "small klein"),
            "a small bag",
            ("keine kleine Tasche", "keine kleine Tasche", "keiner kleinen Tasche", "keiner kleinen Tasche"),
        ),
        (
            noun_phrase("apple", "the", plural=True),
            "the apples",
            ("die Äpfel", "die Äpfel", "den Äpfeln", "der Äpfel"),
        ),
        (
            noun_phrase("car", "many", "dark dunkl", plural=True),
            "many dark cars",
            ("viele dunkle Autos", "viele dunkle Autos", "vielen dunklen Autos", "vieler dunkler Autos"),
        ),
        (
            noun_phrase("chair", "number", "new neu", plural=True, number=("three", "drei")),
            "three new chairs",
            ("drei neue Stühle", "drei neue Stühle", "drei neuen Stühlen", "drei neuer Stühle"),
        ),
        (
            noun_phrase("customer", "the", "young jung"),
            "the young customer",
            ("der junge Kunde", "den jungen Kunden", "dem jungen Kunden", "des jungen Kunden"),
        ),
        (
            noun_phrase("letter", "this", plural=True),
            "these letters",
            ("diese Briefe", "diese Briefe", "diesen Briefen", "dieser Briefe"),
        ),
        (
            noun_phrase("sister", "owner", owner=PRONOUNS["we"]),
            "our sister",
            ("unsere Schwester", "unsere Schwester", "unserer Schwester", "unserer Schwester"),
        ),
        (
            noun_phrase("car", "owner", "red rot", owner=fixed("Anna", "Anna")),
            "Anna's red car",
            ("Annas rotes Auto", "Annas rotes Auto", "Annas rotem Auto", "Annas roten Autos"),
        ),
    ],
)
def test_noun_phrases_are_declined(phrase, english, cases):
    assert phrase.en == english
    assert tuple(phrase.forms[case] for case in grammar.CASES) == cases


def test_every_noun_declines_and_has_adjectives_with_two_words():
    for kind, rows in values.NOUNS.items():
        for row in rows:
            for noun in row:
                assert noun.gender in "mfn" and len(noun.decline(False)) == 4 and noun.german[0].isupper()
        for adjective in values.ADJECTIVES.get(kind, []):
            assert len(adjective.split()) == 2


@pytest.mark.parametrize(
    "english, to, place, source, genitive",
    [
        ("France", "nach Frankreich", "in Frankreich", "aus Frankreich", "Frankreichs"),
        ("Laos", "nach Laos", "in Laos", "aus Laos", "von Laos"),
        ("Switzerland", "in die Schweiz", "in der Schweiz", "aus der Schweiz", "der Schweiz"),
        ("Iraq", "in den Irak", "im Irak", "aus dem Irak", "des Irak"),
        (
            "the United States",
            "in die Vereinigten Staaten",
            "in den Vereinigten Staaten",
            "aus den Vereinigten Staaten",
            "der Vereinigten Staaten",
        ),
        (
            "the United Kingdom",
            "ins Vereinigte Königreich",
            "im Vereinigten Königreich",
            "aus dem Vereinigten Königreich",
            "des Vereinigten Königreichs",
        ),
        (
            "the Netherlands",
            "in die Niederlande",
            "in den Niederlanden",
            "aus den Niederlanden",
            "der Niederlande",
        ),
        (
            "the Dominican Republic",
            "in die Dominikanische Republik",
            "in der Dominikanischen Republik",
            "aus der Dominikanischen Republik",
            "der Dominikanischen Republik",
        ),
        (
            "the Philippines",
            "auf die Philippinen",
            "auf den Philippinen",
            "von den Philippinen",
            "der Philippinen",
        ),
    ],
)
def test_countries_with_and_without_article(english, to, place, source, genitive):
    phrase = territory(english)
    assert [phrase.form(name) for name in ("to", "loc", "frm", "gen")] == [to, place, source, genitive]


def test_turkey_has_an_article():
    turkey = next(t for t in values.TERRITORIES if t.form("nom") == "die Türkei")
    assert (turkey.form("to"), turkey.form("loc")) == ("in die Türkei", "in der Türkei")


def test_languages_after_prepositions():
    german = next(x for x in values.LANGUAGES if x.en == "German")
    polish = next(x for x in values.LANGUAGES if x.en == "Polish")
    assert f"{german.form('frm')} {polish.form('to')}" == "aus dem Deutschen ins Polnische"


def test_prepositions_contract():
    assert noun_phrase("museum", "the").form("zu") == "zum Museum"
    assert noun_phrase("school", "the").form("zu") == "zur Schule"
    assert noun_phrase("museum", "this").form("zu") == "zu diesem Museum"


# --- formats


def test_number_words():
    assert formats.words(342) == ("three hundred and forty-two", "dreihundertzweiundvierzig")
    assert formats.words(7, ordinal=True) == ("seventh", "siebt")
    assert formats.words(20, ordinal=True) == ("twentieth", "zwanzigst")


def test_numbers_dates_and_money():
    day = datetime.date(2014, 3, 3)
    assert formats.format_date(day, "full", formats.DE) == "Montag, 3. März 2014"
    assert formats.format_date(day, "long", formats.EN) == "March 3, 2014"
    assert formats.number(1234.5) == ("1,234.5", "1.234,5")
    assert formats.measure("temperature-celsius", 12.5, "short").forms["nom"] == "12,5 °C"
    assert formats.measure("speed-kilometer-per-hour", 120, "short").en == "120 km/h"


def test_clock_changes_from_twelve_to_twenty_four_hours():
    time = formats.clock(Picks(integers=(15, 9)))
    assert (time.en, time.form("nom"), time.form("bare")) == ("3:45 PM", "15:45 Uhr", "15:45")


def test_durations_have_a_dative():
    span = formats.span(Picks(integers=(3,), fractions=(0.1,)), "day", 2, 9)
    assert (span.en, span.form("nom"), span.form("dat")) == ("three days", "drei Tage", "drei Tagen")
    span = formats.span(Picks(integers=(25,)), "month", 2, 30)
    assert (span.en, span.form("acc"), span.form("dat")) == ("25 months", "25 Monate", "25 Monaten")


def test_no_unusual_spaces_and_all_formats_can_be_drawn():
    rng = Random(0)
    for name in [*values.SLOTS, *formats.MEASURES]:
        for _ in range(50):
            phrase = values.slot(rng, name)
            assert not re.search("[\u00a0\u202f\u2009]|  ", phrase.en + phrase.form("nom"))


def test_unknown_slot_and_time_are_refused():
    with pytest.raises(KeyError):
        values.slot(Random(0), "the_nothing")
    with pytest.raises(ValueError):
        formats.time_expression(Random(0), "never")


# --- clauses

CAR, KEY = noun_phrase("car", "the"), noun_phrase("key", "the")
YESTERDAY = Adverb("yesterday", "gestern")


@pytest.mark.parametrize(
    "clause, english, main, final",
    [
        (
            clauses.verb_clause(verb("pick up"), ANNA, {"acc": KEY}, "past", YESTERDAY),
            "Anna picked up the key yesterday",
            "Anna hat gestern den Schlüssel abgeholt",
            "Anna gestern den Schlüssel abgeholt hat",
        ),
        (
            clauses.verb_clause(verb("pick up"), ANNA, {"acc": KEY}, "present", Adverb("often", "oft", True)),
            "Anna often picks up the key",
            "Anna holt oft den Schlüssel ab",
            "Anna oft den Schlüssel abholt",
        ),
        (
            clauses.verb_clause(verb("sell"), PRONOUNS["I"], {"acc": CAR}, "past", negative="not"),
            "I did not sell the car",
            "ich habe das Auto nicht verkauft",
            "ich das Auto nicht verkauft habe",
        ),
        (
            clauses.verb_clause(verb("buy"), ANNA, {"acc": noun_phrase("car", "no")}, "future", negative="no"),
            "Anna will not buy a car",
            "Anna wird kein Auto kaufen",
            "Anna kein Auto kaufen wird",
        ),
        (
            clauses.verb_clause(verb("register for"), PRONOUNS["we"], {"prep": noun_phrase("course", "the")}, "must"),
            "we have to register for the course",
            "wir müssen uns für den Kurs anmelden",
            "wir uns für den Kurs anmelden müssen",
        ),
        (
            clauses.verb_clause(
                verb("take part in"), ANNA, {"prep": noun_phrase("meeting", "the")}, "had", negative="not"
            ),
            "Anna did not have to take part in the meeting",
            "Anna musste nicht an der Besprechung teilnehmen",
            "Anna nicht an der Besprechung teilnehmen musste",
        ),
        (
            clauses.verb_clause(verb("lend"), ANNA, {"dat": PRONOUNS["he"], "acc": CAR}, "perfect"),
            "Anna has lent him the car",
            "Anna hat ihm das Auto geliehen",
            "Anna ihm das Auto geliehen hat",
        ),
        (
            clauses.verb_clause(
                verb("explain"),
                ANNA,
                {"dat": noun_phrase("customer", "the"), "acc": noun_phrase("form", "a")},
                "can",
            ),
            "Anna can explain a form to the customer",
            "Anna kann dem Kunden ein Formular erklären",
            "Anna dem Kunden ein Formular erklären kann",
        ),
        (
            clauses.verb_clause(
                verb("come back"),
                PRONOUNS["they"],
                {"goal": actions._located(territory("Switzerland"), "frm")},
                "pluperfect",
            ),
            "they had come back from Switzerland",
            "sie waren aus der Schweiz zurückgekommen",
            "sie aus der Schweiz zurückgekommen waren",
        ),
        (
            clauses.passive_clause(verb("sign"), noun_phrase("contract", "the", plural=True), "past", YESTERDAY, ANNA),
            "the contracts were signed by Anna yesterday",
            "die Verträge wurden gestern von Anna unterschrieben",
            "die Verträge gestern von Anna unterschrieben wurden",
        ),
        (
            clauses.passive_clause(verb("publish"), noun_phrase("report", "the"), "perfect"),
            "the report has been published",
            "der Bericht ist veröffentlicht worden",
            "der Bericht veröffentlicht worden ist",
        ),
    ],
)
def test_clauses_in_every_order(clause, english, main, final):
    assert clause.english() == english
    assert clause.main() == main
    assert clause.verb_final() == final


def test_inversion_puts_the_verb_second():
    clause = clauses.verb_clause(verb("pick up"), ANNA, {"acc": KEY}, "past", YESTERDAY)
    assert clause.inverted("gestern", adverb=False) == "gestern hat Anna den Schlüssel abgeholt"
    assert clause.inverted("leider") == "leider hat Anna gestern den Schlüssel abgeholt"
    assert clause.english(adverb=False) == "Anna picked up the key"


def test_separable_prefix_joins_at_the_end_of_subordinate_clauses():
    clause = Clause("the train leaves", "der Zug", "fährt", "@", "ab-", Adverb("at 9 AM", "um 9 Uhr"))
    assert clause.main() == "der Zug fährt um 9 Uhr ab"
    assert clause.verb_final() == "der Zug um 9 Uhr abfährt"


def test_infinitive_with_zu():
    assert clauses.infinitive(verb("call"), ANNA, {"acc": PRONOUNS["he"]}) == ("call him", "ihn anzurufen")
    assert clauses.infinitive(verb("sell"), ANNA, {"acc": CAR}) == ("sell the car", "das Auto zu verkaufen")


def test_relative_clauses_take_gender_of_the_noun_and_case_of_the_gap():
    for english, relative in (("coat", "den"), ("jacket", "die"), ("dress", "das")):
        phrase = actions.with_relative_clause(Random(1), noun_phrase(english, "the"))
        assert f", {relative} " in phrase.forms["nom"] and phrase.forms["nom"].endswith(",")
        assert " that " in phrase.en


def test_pronouns_agree_with_the_german_noun():
    row = next(r for r in actions.parse_patterns(patterns.SENTENCES) if r[0].startswith("{the_clothes} was too"))
    known = {"the_clothes": noun_phrase("coat", "the"), "person": ANNA}
    english, german, _ = actions.fill(Random(0), *row, known)
    assert english == "the coat was too expensive, so Anna did not buy it"
    assert german == "der Mantel war zu teuer, deshalb hat Anna ihn nicht gekauft."


def all_patterns() -> list[tuple[str, str]]:
    tables = [table for name, table in vars(patterns).items() if name.isupper() and isinstance(table, str)]
    return [row for table in [*tables, *patterns.COMMENTS.values()] for row in actions.parse_patterns(table)]


@pytest.mark.parametrize("english, german", all_patterns())
def test_every_pattern_can_be_filled(english, german):
    rng = Random(english)
    known = {"he": PRONOUNS["she"], "his": fixed("her", "ihr"), "who": PRONOUNS["they"], "thing": CAR}
    if "{person}" in english.partition("{he}")[0]:
        known.pop("he")
    for _ in range(3):
        left, right, _ = actions.fill(rng, actions.ADVERB.sub("", english), german, known)
        assert not re.search(r"[{}\[\]]", left + right)
    assert ("@" in german) == ("@" in english)
    if german.count("|"):
        assert german.count("|") == 3


# --- the generator and its files


def test_deterministic_and_a_prefix_of_a_longer_run(pairs):
    assert list(corpus.generate_pairs(3000, seed=3)) == pairs
    assert list(corpus.generate_pairs(100, seed=3)) == pairs[:100]
    assert list(corpus.generate_pairs(100, seed=4)) != pairs[:100]


def test_distinct_on_both_sides(pairs):
    assert len({english for english, _ in pairs}) == len({german for _, german in pairs}) == len(pairs)


def test_lengths_and_vocabulary(pairs):
    for side in zip(*pairs, strict=True):
        lengths = [len(text.split()) for text in side]
        assert min(lengths) >= 4 and max(lengths) <= 40
        assert 11 <= sum(lengths) / len(lengths) <= 15
        assert 2000 <= len({word for text in side for word in text.split()}) <= 8000


def test_every_sentence_is_clean_text(pairs):
    for english, german in pairs:
        for text in (english, german):
            assert re.fullmatch(r"[0-9A-ZÄÖÜ€$£].*[.?]", text), text
            assert not re.search(r"[{}\[\]@|_\u00a0\u202f\u2009]|  | ,|,,|\.\.|,\.|\bNone\b", text), text
        assert english.endswith("?") == german.endswith("?")


def test_german_contractions_and_articles_hold_everywhere(pairs):
    for _, german in pairs:
        assert not re.search(r"\b(zu|an|in|von) dem [A-ZÄÖÜa-zäöü]+e?n? ?[A-ZÄÖÜ]", german), german
        assert not re.search(r"\b(einem|dem|diesem|keinem) \w+(er|es|e) [A-ZÄÖÜ]", german), german


def test_some_english_has_several_german_translations():
    seen: dict[str, set[str]] = {}
    rng = Random(0)
    for _ in range(400):
        known = {"country": territory("France"), "percent": fixed("5%", "5 %")}
        row = rng.choice([r for r in actions.parse_patterns(patterns.CLAUSES) if r[0].startswith("Exports")])
        english, german, _ = actions.fill(rng, *row, known)
        seen.setdefault(english, set()).add(german)
    assert max(len(germans) for germans in seen.values()) == 2


def test_numbers_that_cannot_be_generated_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="more than the patterns are made for"):
        corpus.generate_pairs(10**9, seed=1)
    with pytest.raises(ValueError):
        corpus.generate_pairs(-1, seed=1)
    monkeypatch.setattr(corpus, "sentence", lambda rng: (f"a b c {rng.randint(1, 5)}", f"d e f {rng.randint(1, 9)}"))
    with pytest.raises(ValueError, match="no more than"):
        list(corpus.generate_pairs(50, seed=1))


def read(folder, name):
    return (folder / name).read_text(encoding="utf-8").splitlines()


def test_command_line_writes_disjoint_splits_once(tmp_path, capsys):
    arguments = [
        "--out",
        str(tmp_path / "a" / "demo"),
        "--train",
        "300",
        "--valid",
        "20",
        "--test",
        "30",
        "--seed",
        "7",
    ]
    folder = tmp_path / "a" / "demo"
    assert corpus.main(arguments) == 0
    for language in ("en", "de"):
        splits = {name: read(folder, f"{name}.{language}") for name in ("train", "valid", "test")}
        assert [len(lines) for lines in splits.values()] == [300, 20, 30]
        assert len(set().union(*splits.values())) == 350
    assert sorted(p.name for p in folder.iterdir()) == sorted(
        ["README.md", "corpus.json", *(f"{s}.{x}" for s in ("train", "valid", "test") for x in ("en", "de"))]
    )
    assert json.loads((folder / "corpus.json").read_text())["seed"] == 7
    assert "CLDR" in (folder / "README.md").read_text() and "--seed 7" in (folder / "README.md").read_text()

    before = (folder / "train.en").stat().st_mtime_ns
    capsys.readouterr()
    assert corpus.main(arguments) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert (folder / "train.en").stat().st_mtime_ns == before

    test = read(folder, "test.de")
    assert corpus.main([*arguments, "--train", "310"]) == 0
    assert len(read(folder, "train.en")) == 310 and read(folder, "test.de") == test


def test_an_incomplete_folder_is_written_again(tmp_path):
    corpus.write_corpus(tmp_path, 20, 5, 5, seed=2)
    (tmp_path / "valid.de").unlink()
    assert not corpus.is_complete(tmp_path, 20, 5, 5, 2)
    corpus.write_corpus(tmp_path, 20, 5, 5, seed=2)
    assert corpus.is_complete(tmp_path, 20, 5, 5, 2)


def test_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        corpus.write_corpus(tmp_path, 20, 5, 5, seed=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--train", "0"], "--train 0: must be at least 1"),
        (["--valid", "-3"], "--valid -3: must be at least 1"),
        (["--train", "100000000"], "more than the patterns are made for"),
    ],
)
def test_bad_numbers_are_one_line_and_exit_code_2(tmp_path, capsys, arguments, message):
    assert corpus.main(["--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert corpus.main(["--out", str(tmp_path / "file"), "--train", "5", "--valid", "1", "--test", "1"]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error and error.count("\n") == 1


def test_help_and_bad_options(capsys):
    with pytest.raises(SystemExit) as stop:
        corpus.main(["--help"])
    assert stop.value.code == 0 and "--train" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        corpus.main(["--out", "x", "--train", "many"])
    assert stop.value.code == 2


def test_lexicon_names_resolve():
    for entry in actions.VERBS:
        for name in entry.objects:
            assert name in values.NOUNS or name.replace("_", " ") in values.BY_NAME, name
    assert set(lexicon.ADJECTIVES) <= set(lexicon.NOUNS)
