"""`spec-dec-metrics`: values against upstream tools, examples by hand, and refusals."""

import json
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import URLError

import pytest
import sacremoses
from rouge_score.rouge_scorer import RougeScorer

from fairseq_plugins.metrics import cli
from fairseq_plugins.metrics.bleu import metric_of
from fairseq_plugins.metrics.registry import repetition_ratio
from fairseq_plugins.metrics.sari import corpus_sari, sari_tokens
from fairseq_plugins.metrics.texts import Text
from tests.support import run_in_process

REFERENCE = [
    "Die Katze saß auf der alten Fußmatte, die im Flur liegt.",
    "Das U-Bahn-Netz wird in den nächsten fünf Jahren deutlich ausgebaut.",
    "„Wir haben nichts gewusst“, sagte der Minister am Dienstag in Berlin.",
    "Zwei Männer in grünen Westen beladen einen weißen Lastwagen.",
    "Ein kleiner Hund läuft schnell durch das hohe Gras am Rand der Straße.",
]
SECOND = [
    "Auf der alten Matte im Flur saß die Katze.",
    "Das U-Bahn-Netz soll in den kommenden fünf Jahren stark wachsen.",
    "„Wir wussten nichts davon“, sagte der Minister am Dienstag in Berlin.",
    "Zwei Männer mit grünen Westen beladen einen weißen Laster.",
    "Ein kleiner Hund rennt am Straßenrand durch das hohe Gras.",
]
HYPOTHESIS = [
    "Die Katze saß auf der alten Matte, die im Flur liegt.",
    "Das U-Bahn-Netz wird in den kommenden fünf Jahren ausgebaut.",
    "„Wir haben nichts gewusst“, sagte der der Minister am Dienstag in Berlin.",
    "Zwei Männer mit grünen Westen beladen einen weißen Lastwagen.",
    "Ein kleiner Hund läuft durch das hohe Gras am Straßenrand.",
]
BASELINE = [
    "Die Katze saß auf der alten Matte.",
    "Das U-Bahn-Netz wird in den kommenden fünf Jahren ausgebaut.",
    "„Wir haben gewusst“, sagte der Minister am Mittwoch in Bonn.",
    "Zwei Männer beladen einen Wagen.",
    "Ein Hund läuft durch das Gras am Straßenrand.",
]
SOURCE = [f"source sentence {number} ." for number in range(5)]


@pytest.fixture
def files(tmp_path: Path) -> SimpleNamespace:
    """Write the sentences above to files."""
    texts = {"reference": REFERENCE, "second": SECOND, "hypothesis": HYPOTHESIS, "baseline": BASELINE, "source": SOURCE}
    written = {name: write(tmp_path / f"{name}.txt", lines) for name, lines in texts.items()}
    # fairseq-generate prints sentences in the order of their length.
    blocks = [
        f"S-{n}\t{SOURCE[n]}\nT-{n}\t{REFERENCE[n]}\nH-{n}\t-0.5\t{HYPOTHESIS[n]}\nD-{n}\t-0.5\t{HYPOTHESIS[n]}\nP-{n}\t-0.5"
        for n in (3, 0, 4, 1, 2)
    ]
    lines = ["2026-01-01 | INFO | loading", *blocks, "Generate valid: BLEU4 = 1"]
    return SimpleNamespace(**written, generated=write(tmp_path / "generate.out", lines), folder=tmp_path)


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def _run(*arguments: str) -> None:
    assert cli.main(arguments) == 0


def _values(text: str) -> dict[str, str]:
    """Metric -> printed value, from the first table."""
    table = text.split("\n\n")[1].splitlines()[2:]
    return {re.split(r"\s{2,}", row)[0]: re.split(r"\s{2,}", row)[1] for row in table}


def _sacrebleu(*arguments: str) -> str:
    command = [sys.executable, "-m", "sacrebleu", *arguments, "-w", "2", "--format", "text"]
    return subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout


@pytest.mark.parametrize("language", ["zh", "zh-Hans", "zh_CN"])
def test_the_tokenizer_is_that_of_the_language(language: str) -> None:
    """Without its script or country: `13a` would take a Chinese sentence for one word."""
    metric = metric_of("sacrebleu", Namespace(tokenize=None, lang=language))
    assert metric.corpus_score(["今天天气很好"], [["今天天气好"]]).score > 30


def test_values_equal_sacrebleu(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    _run("--hypotheses", files.hypothesis, "--references", files.reference, files.second)
    printed = capsys.readouterr().out
    upstream = _sacrebleu(files.reference, files.second, "-i", files.hypothesis, "-m", "bleu", "chrf", "ter")
    expected = re.findall(r"^ *(\w+)\|(\S+) = ([\d.]+)", upstream, flags=re.MULTILINE)
    assert [name for name, _, _ in expected] == ["BLEU", "chrF2", "TER"]
    for name, signature, value in expected:
        name = {"BLEU": "sacreBLEU"}.get(name, name)
        assert _values(printed)[name] == value
        assert f"{name}: {signature}" in printed


def test_tokenizers_that_cannot_be_downloaded_are_named(
    files: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", Mock(side_effect=URLError("no route")))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(files.folder))
    arguments = ["--hypotheses", files.hypothesis, "--references", files.reference, "--tokenize", "flores200"]
    assert cli.main(arguments) == 2
    assert "error: --tokenize flores200: <urlopen error no route>" in capsys.readouterr().err


@pytest.mark.parametrize("compounds", [False, True])
def test_bleu_of_fairseq_score(compounds: bool, files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of given Moses tokens."""
    more = ["--lang", "de", "--metrics", "bleu,repetition", *(["--compound-split"] if compounds else [])]
    _run("--hypotheses", files.hypothesis, "--references", files.reference, *more)
    printed = capsys.readouterr().out
    tokenizer, written = sacremoses.MosesTokenizer(lang="de"), []
    for name, lines in (("sys", HYPOTHESIS), ("ref", REFERENCE)):
        tokens = [tokenizer.tokenize(line, return_str=True) for line in lines]
        written.append(write(files.folder / f"{name}.tok", tokens))
        tokens = [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in tokens] if compounds else tokens
        write(files.folder / name, tokens)
    upstream = run_in_process("score", f"--sys {files.folder}/sys --ref {files.folder}/ref", plugin=False).stdout
    value, precisions = re.search(r"BLEU4 = ([\d.]+), (\S+) ", upstream).groups()
    assert _values(printed)["BLEU, tokenised"] == value
    assert precisions in printed
    assert ("compounds split" in printed) == compounds
    _run("--hypotheses", written[0], "--references", written[1], *more, "--tokenized")
    assert _values(capsys.readouterr().out) == _values(printed)


@pytest.mark.parametrize("stemmer", [False, True])
def test_rouge_equals_rouge_score(stemmer: bool, files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """The best of several references counts, and `<q>` separates sentences for ROUGE-Lsum."""
    english = {
        "h": ["the cats sat<q>a dog barked loudly", "he was running"],
        "r": ["a dog barks<q>the cat sat down", "he runs"],
        "q": ["nothing alike", "he was running home"],
    }
    hypotheses, *references = (write(files.folder / name, lines) for name, lines in english.items())
    arguments = ["--hypotheses", hypotheses, "--references", *references, "--metrics", "rouge"]
    _run(*arguments, *(["--stemmer"] if stemmer else []))
    values = _values(capsys.readouterr().out)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=stemmer)
    lines = {name: [line.replace("<q>", "\n") for line in text] for name, text in english.items()}
    for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
        best = [
            max(scorer.score(target, hypothesis)[kind].fmeasure for target in targets)
            for hypothesis, *targets in zip(lines["h"], lines["r"], lines["q"], strict=True)
        ]
        assert values[kind.replace("rouge", "ROUGE-")] == f"{100 * sum(best) / len(best):.2f}"
    assert float(values["ROUGE-Lsum"]) > float(values["ROUGE-L"])


def test_sari_equals_published_value() -> None:
    """The example of EASSE's README."""
    references = [
        ["About 95 species are currently known.", "The cat sat on the mat."],
        ["About 95 species are now accepted.", "The cat is on the mat."],
        ["95 species are now accepted.", "The cat sat."],
    ]
    source, output, *references = (
        [sari_tokens(line) for line in text]
        for text in (
            ["About 95 species are currently accepted.", "The cat perched on the mat."],
            ["About 95 you now get in.", "Cat on mat."],
            *references,
        )
    )
    assert corpus_sari(source, output, references).score == pytest.approx(33.17472563619544)


def test_sari_by_hand_two_references() -> None:
    """Source "a b", output "a c", references "a c" and "a b"; source and output count double.

    Unigrams: added {c} of {c}: 1. Kept {a: 2}, the references keep {a: 2, b: 1}: precision 1, recall 2/3. Deleted
    {b: 2}, the references {b: 1}: precision 1/2, recall 1. Bigrams: added {ac} of {ac}: 1. Kept none of {ab: 1}: 0.
    Deleted {ab: 2}, the references {ab: 1}: precision 1/2, recall 1.
    """
    value = corpus_sari([["a", "b"]], [["a", "c"]], [[["a", "c"]], [["a", "b"]]])
    assert value.add == pytest.approx(100 * (1 + 1) / 4)
    assert value.keep == pytest.approx(100 * (4 / 5) / 4)
    assert value.delete == pytest.approx(100 * (2 / 3 + 2 / 3) / 4)


def test_metrics_that_align_words_leave_overlong_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their table of words x words would take all memory; the other metrics are computed."""
    short, long = write(tmp_path / "short", ["a", "a b"]), write(tmp_path / "long", ["a", "b " * 10_001])
    _run("--hypotheses", long, "--references", short, "--source", long)
    text = capsys.readouterr().out
    for name in ("TER", "ROUGE"):
        reason = f"{long}: sentence 1 (counted from 0) has 10001 words; it aligns lines of at most 10000"
        assert f"left out: {name}: {reason}: leave the sentence out of all files" in text
    assert text.count("left out: ") == 2 and "edit F0.5" in text
    assert cli.main(["--hypotheses", short, "--references", long, "--metrics", "ter"]) == 2
    assert "--metrics ter: TER: " in capsys.readouterr().err


def test_sari_needs_source(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    _run("--hypotheses", files.hypothesis, "--references", files.reference)
    assert "left out: SARI: for rewriting, compares with the source; add --source FILE" in capsys.readouterr().out
    _run("--hypotheses", files.hypothesis, "--references", files.reference, "--source", files.source)
    values = _values(capsys.readouterr().out)
    tokens = [[sari_tokens(line) for line in lines] for lines in (SOURCE, HYPOTHESIS, REFERENCE)]
    assert values["SARI"] == f"{corpus_sari(tokens[0], tokens[1], [tokens[2]]).score:.2f}"


def test_edit_f(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three corrections: one of two edits found, one wrong and one missed, one wrong: P = 1/3, R = 1/3."""
    texts = {
        "source": ["Він є лікар в місті.", "Я читати книга.", "Все добре."],
        "output": ["Він є лікар у місті.", "Я читаю книга.", "Все гарно."],
        "target": ["Він — лікар у місті.", "Я читав книга.", "Все добре."],
    }
    source, output, target = (write(tmp_path / name, lines) for name, lines in texts.items())
    arguments = ["--hypotheses", output, "--references", target]
    _run(*arguments, "--source", source, "--lang", "uk", "--metrics", "f0.5")
    printed = capsys.readouterr().out
    assert _values(printed) == {"edit F0.5": "33.33"}
    assert "precision 33.33, recall 33.33; 1 edits right, 2 wrong, 2 missed" in printed
    assert "Moses tokens, uk; not M2, not ERRANT" in printed
    assert cli.main([*arguments, "--metrics", "f0.5"]) == 2
    assert "edit F0.5: for rewriting, compares with the source" in capsys.readouterr().err


def test_repetition_by_hand(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    # "der der" and "a a a": 3 of 9 tokens equal the one before; across sentences nothing counts.
    assert repetition_ratio([["der", "der", "Hund"], ["Hund", "a", "a", "a"], ["a", "b"]]) == pytest.approx(3 / 9)
    assert repetition_ratio([]) == 0
    _run("--hypotheses", files.hypothesis, "--references", files.reference, "--metrics", "repetition", "--lang", "de")
    tokenizer = sacremoses.MosesTokenizer(lang="de")
    tokens = sum(len(tokenizer.tokenize(line)) for line in HYPOTHESIS)
    printed = capsys.readouterr().out
    assert _values(printed)["repetition"] == f"{100 / tokens:.2f} %"  # "der der" in the third sentence
    assert "references 0.00 %" in printed


def test_identical(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--hypotheses", files.hypothesis, "--references", files.reference, "--metrics", "repetition"]
    _run(*common, "--baseline", files.baseline)
    printed = capsys.readouterr().out
    assert "Identical to the baseline: 1 of 5 sentences; the first difference is in sentence 0 " in printed
    assert f"word 7:\n  baseline: {BASELINE[0]}\n  here:     {HYPOTHESIS[0]}" in printed
    _run(*common, "--baseline", files.hypothesis)
    assert capsys.readouterr().out.rstrip().endswith("Identical to the baseline: 5 of 5 sentences")


def test_generate_output(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Same values as plain text, in any order of sentences; references come from T- lines."""
    _run("--hypotheses", files.hypothesis, "--references", files.reference, "--json", f"{files.folder}/plain.json")
    _run("--hypotheses", files.generated, "--json", f"{files.folder}/generated.json")
    plain, generated = (json.loads((files.folder / f"{name}.json").read_text()) for name in ("plain", "generated"))
    assert plain["scores"] == generated["scores"]
    assert len(plain["scores"]) == 9
    _run("--hypotheses", files.generated, "--references", files.second, "--baseline", files.generated)
    assert "Identical to the baseline: 5 of 5" in capsys.readouterr().out


def test_detokenised_output_is_refused(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--tokenizer` or `--bpe` fairseq prints D- lines as text, but S-, T- and H- lines in tokens or subwords."""
    tokens = "Jameson &apos;s dog is n&apos;t &quot; big &quot; ."
    lines = [f"S-0\t{tokens}", f"T-0\t{tokens}", f"H-0\t-0.5\t{tokens}", "D-0\t-0.5\tJameson's dog isn't \"big\"."]
    output, plain = write(files.folder / "moses.out", lines), write(files.folder / "plain", [lines[3].split("\t")[2]])
    unlike = "lines in tokens or subwords, unlike its D- lines; "
    for arguments, message in (
        ([], f"--references: missing, and {output} has T- {unlike}add --references FILE"),
        (["--references", output], f"--references {output}: generate output with T- {unlike}give plain text"),
        (["--references", plain, "--source", output], f"--source {output}: generate output with S- {unlike}"),
        (["--references", plain, "--metrics", "sari"], "SARI: for rewriting, compares with the source; add --source"),
    ):
        assert cli.main(["--hypotheses", output, *arguments]) == 2
        assert message in capsys.readouterr().err
    _run("--hypotheses", output, "--references", plain, "--source", plain, "--metrics", "bleu,sacrebleu")
    assert _values(capsys.readouterr().out) == {"BLEU, tokenised": "100.00", "sacreBLEU": "100.00"}


def test_incomplete_generate_output(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Sentences that fairseq skipped are left out of the references; subwords are noticed."""
    blocks = Path(files.generated).read_text(encoding="utf-8").splitlines()
    some = write(files.folder / "some.out", [line for line in blocks if not re.match(r"[A-Z]-[13]\t", line)])
    _run("--hypotheses", some, "--references", files.reference, "--metrics", "sacrebleu")
    printed, log = capsys.readouterr()
    assert printed.startswith("3 sentences, ")
    assert "2 sentence(s) are missing, the first is 1; " in log and "--required-batch-size-multiple 1" in log
    subwords = write(files.folder / "bpe.txt", ["▁Die ▁Kat ze", *HYPOTHESIS[1:]])
    _run("--hypotheses", subwords, "--references", files.reference, "--metrics", "sacrebleu")
    assert "sentence 0 is in subwords; generate with --remove-bpe" in capsys.readouterr().err


def test_warnings_do_not_join_the_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where standard error is closed (`2>&-`), print would write them on standard output."""
    monkeypatch.setattr(sys, "stderr", None)
    cli.warn_of_gaps(Text("generate.out", {0: "a", 2: "b"}))
    cli.warn_of_subwords(Text("generate.out", {0: "a", 2: "b@@ c"}))
    assert capsys.readouterr().out == ""


def test_errors(files: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path(files.generated).read_text(encoding="utf-8").splitlines()
    write(files.folder / "short.txt", ["one line"])
    write(files.folder / "empty.txt", [])
    write(files.folder / "broken.out", lines[:8])
    write(files.folder / "targetless.out", [line for line in lines if not line.startswith("T-")])
    (files.folder / "latin1.txt").write_bytes("Männer\n".encode("latin-1"))
    folder, hypotheses, references = files.folder, ["--hypotheses", files.hypothesis], ["--references", files.reference]
    for arguments, message in (
        ([*hypotheses], "--references: missing, and "),
        ([*hypotheses, "--references", "none"], "--references none: No such file or directory; "),
        (["--hypotheses", "none", *references], "--hypotheses none: No such file or directory; "),
        ([*hypotheses, "--references", f"{folder}/short.txt"], "1 sentences, but "),
        ([*hypotheses, "--references", f"{folder}/latin1.txt"], "not UTF-8 (byte 1); convert it with iconv -t UTF-8"),
        ([*hypotheses, "--references", f"{folder}/empty.txt"], "is empty; "),
        ([*hypotheses, *references, "--baseline", f"{folder}/short.txt"], "1 sentences, but "),
        ([*hypotheses, *references, "--metrics", "bleu,none"], "--metrics none: no such value; choose from bleu, "),
        ([*hypotheses, *references, "--metrics", "sari"], "SARI: for rewriting, compares with the source; add "),
        (["--hypotheses", f"{folder}/broken.out"], "broken.out: generate output that broke off (sentence 0 has no "),
        (["--hypotheses", f"{folder}/targetless.out"], "targetless.out has no T- lines; add --references FILE"),
        ([*hypotheses, "--references", f"{folder}/targetless.out"], "generate output with no T- lines; "),
        (["--hypotheses", files.generated, "--references", f"{folder}/short.txt"], "has no sentence 1 (1 "),
        ([*hypotheses, *references, "--json", f"{folder}/short.txt/x"], "short.txt is a file; give a folder"),
    ):
        assert cli.main(arguments) == 2, message
        error = capsys.readouterr().err.strip()
        assert message in error and error.startswith("spec-dec-metrics: error: ") and "\n" not in error
