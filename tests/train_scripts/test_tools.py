"""`python -m train_scripts.tools`: the recipes' Python programs."""

import gzip
import json
import logging
import lzma
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fairseq_plugins.api.files import find_files
from fairseq_plugins.errors import ConfigurationError
from tests.command_server import REPOSITORY
from tests.conftest import TRAINING, Corpus
from tests.errors import error_about, refused
from tests.support import run_in_process
from tests.test_command_line import hypotheses
from train_scripts.tools import model_card, models
from train_scripts.tools.__main__ import main

ODD_LINES = ["Ein Satz, größer als 5 km².", "İstanbul  hat\tviele   Leute …", "a\u2028b\x0bc\r"]
CLEAN_LINES = ["Ein Satz, größer als 5 km².", "İstanbul hat viele Leute …", "a b c"]


def write(file: Path, lines: list[str]) -> Path:
    """Write lines to a file unchanged."""
    file.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
    return file


def read(file: Path) -> list[str]:
    """Return the lines of a file; only a line feed ends one."""
    return file.read_bytes().decode().split("\n")[:-1]


def run(*arguments: object) -> int:
    """Run a tool in this process."""
    return main([str(argument) for argument in arguments])


def test_lines_are_cleaned(tmp_path: Path) -> None:
    text = write(tmp_path / "text", ODD_LINES)
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.read_bytes()))
    (tmp_path / "text.xz").write_bytes(lzma.compress(text.read_bytes()))
    for name in ("text", "text.gz", "text.xz"):
        run("clean-lines", tmp_path / name, tmp_path / "clean")
        assert read(tmp_path / "clean") == CLEAN_LINES


def test_example_text(tmp_path: Path) -> None:
    """The first pairs of each set; all sentences of a language differ, so that no set holds one of another."""
    assert run("example-text", tmp_path / "all", "--train", 48000, "--valid", 500, "--test", 500) == 0
    assert run("example-text", tmp_path / "few", "--train", 3, "--valid", 2, "--test", 1) == 0
    first = {"en": "You can help your uncle on January 20.", "de": "Sie können am 20. Januar Ihrem Onkel helfen."}
    for language in first:
        sets = {name: read(tmp_path / f"all/{name}.{language}") for name in ("train", "valid", "test")}
        assert {name: len(lines) for name, lines in sets.items()} == {"train": 48000, "valid": 500, "test": 500}
        assert len(set().union(*sets.values())) == 49000
        assert sets["test"][0] == first[language]
        for name, size in (("train", 3), ("valid", 2), ("test", 1)):
            assert read(tmp_path / f"few/{name}.{language}") == sets[name][:size]


@pytest.mark.parametrize("size", [-1, 0, 501])
def test_sizes_beyond_the_example_text_are_refused(tmp_path: Path, size: int) -> None:
    with error_about("--test", f"^--test {size}: must be from 1 to 500, the pairs in examples/cldr.en-de$"):
        run("example-text", tmp_path, "--train", 1, "--valid", 1, "--test", size)


def test_pairs_that_do_not_fit_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [("a b", "c"), ("", "d"), ("e", " "), ("f " * 5, "g " * 5), ("h", "i j k"), ("l", "m")]
    for side, language in enumerate(("en", "de")):
        write(tmp_path / f"train.{language}", [pair[side] for pair in pairs])

    def kept(*options: object) -> str:
        run("clean-pairs", tmp_path / "train", tmp_path / "clean", "--languages", "en", "de", *options)
        sources, targets = (read(tmp_path / f"clean.{language}") for language in ("en", "de"))
        assert set(zip(sources, targets, strict=True)) <= set(pairs)
        return " ".join(line[0] for line in sources)

    assert kept() == "a f h l"
    assert "4 of 6 training pairs kept" in capsys.readouterr().out
    assert kept("--max-length", 4) == "a h l"
    assert kept("--max-ratio", 2) == "a f l"
    write(tmp_path / "train.de", ["c"])
    with pytest.raises(ConfigurationError, match="not as many lines as"):
        kept()


def test_held_out_sentences_are_in_one_set_only(tmp_path: Path) -> None:
    sources = [f"satz {number % 40}" for number in range(120)]
    write(tmp_path / "whole.src", sources)
    write(tmp_path / "whole.tgt", [f"{line} {number}" for number, line in enumerate(sources)])

    def hold_out(one_in: int) -> None:
        files = [tmp_path / name for name in ("whole", "valid", "train")]
        run("hold-out", *files, "--languages", "src", "tgt", "--one-in", one_in)

    hold_out(5)
    valid, train = ([read(tmp_path / f"{name}.{side}") for side in ("src", "tgt")] for name in ("valid", "train"))
    assert len(valid[0]) + len(train[0]) == 120 and 0 < len(valid[0]) < 60
    assert not set(valid[0]) & set(train[0])
    for sides in (valid, train):
        assert all(target.startswith(source + " ") for source, target in zip(*sides, strict=True))
    with pytest.raises(ConfigurationError, match="one sentence in 1; raise HOLD_OUT"):
        hold_out(1)


def test_recombined_sentences_are_new(tmp_path: Path) -> None:
    """Sentences of the text that differ in white space or a byte order mark are not new."""
    text, out = write(tmp_path / "text", ["\ufeffa  b c\r", "d b e", "d b  e", ""]), tmp_path / "new"
    assert run("recombine", text, out, "--count", 2, "--context", 1) == 0
    assert sorted(read(out)) == ["a b e", "d b c"]
    with refused("gives only 2 new sentences; lower --count 3"):
        run("recombine", text, out, "--count", 3, "--context", 1)


def test_sets_of_ted_talks(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for language in ("de", "en"):
        lines = ["<url>http</url>", "<title>Der Titel</title>", *(f"Satz’ {n}" for n in range(2, 47))]
        write(tmp_path / f"train.tags.de-en.{language}", lines)
        for year in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            text = f'<doc>\n<seg id="1"> Ein {year} </seg>\n</doc>\n'
            (tmp_path / f"IWSLT14.{year}.de-en.{language}.xml").write_text(text)
    run("ted-talks", tmp_path, tmp_path / "out")
    assert read(tmp_path / "out/valid.de") == ["satz' 23", "satz' 46"]
    train = read(tmp_path / "out/train.en")
    assert train[:2] == ["der titel", "satz' 2"] and len(train) == 44 and "satz' 23" not in train
    assert read(tmp_path / "out/test.en")[1] == "ein tedx.dev2012"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_subwords_give_back_the_text(tmp_path: Path, kind: str) -> None:
    text, model, pieces = write(tmp_path / "text", ODD_LINES * 20), tmp_path / "model", tmp_path / "pieces"
    run("learn-subwords", model, text, "--kind", kind, "--size", 80)
    run("apply-subwords", model, text, pieces)
    joined = [line.replace(" ", "").replace("\u2581", " ").strip() for line in read(pieces)]
    assert joined == CLEAN_LINES * 20
    assert max(len(line.split()) for line in read(pieces)) > 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "pieces", "text"]


def test_too_few_subwords_are_refused(tmp_path: Path) -> None:
    """sentencepiece needs one for each character."""
    text = write(tmp_path / "text", ODD_LINES)
    with error_about("--size", "--size 9: Vocabulary size is smaller than required_chars.* give a larger VOCABULARY"):
        run("learn-subwords", tmp_path / "model", text, "--kind", "unigram", "--size", 9)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_byte_level_subwords(tmp_path: Path) -> None:
    (tmp_path / "encoder.json").write_text(json.dumps({"a": 7, "b": 8, "ab": 9, "\u0120": 5}))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n")
    run("apply-gpt2-bpe", tmp_path, write(tmp_path / "text", ["ab  a"]), tmp_path / "numbers")
    assert read(tmp_path / "numbers") == ["9 5 7"]


def test_decoder_layers_are_kept_in_order(tmp_path: Path) -> None:
    weights = {f"decoder.layers.{layer}.fc1.weight": torch.full((2,), float(layer)) for layer in range(3)}
    weights |= {"encoder.layers.1.fc1.weight": torch.ones(2), "decoder.embed_tokens.weight": torch.zeros(2)}
    torch.save({"model": weights, "args": None}, tmp_path / "whole.pt")
    run("keep-decoder-layers", tmp_path / "whole.pt", tmp_path / "part.pt", "--layers", "0,2")
    kept = torch.load(tmp_path / "part.pt")["model"]
    assert kept["decoder.layers.1.fc1.weight"].tolist() == [2.0, 2.0]
    assert sorted(kept) == sorted(set(weights) - {"decoder.layers.2.fc1.weight"})
    with pytest.raises(ConfigurationError, match="its decoder has no layer 5; "):
        models.keep_decoder_layers(tmp_path / "whole.pt", tmp_path / "other.pt", layers="0,5")
    assert not (tmp_path / "other.pt").exists()


@pytest.mark.slow
def test_a_tuned_verifier_and_its_drafter_are_parted(corpus: Corpus, tmp_path: Path) -> None:
    """The parts decode losslessly together, and the drafter is refused with other verifiers."""
    tuned = tmp_path / "tuned" / "checkpoint_last.pt"
    run_in_process(
        "train",
        f"{corpus.data} --task spec_dec --arch block_nat {TRAINING} --criterion glat_loss --max-update 20 "
        f"--block-size 4 --drafter-context features --drafter-layers 1 --tune-verifier "
        f"--verifier-path {corpus.verifier} --save-dir {tuned.parent}",
    )
    verifier, drafter = tmp_path / "verifier.pt", tmp_path / "drafter.pt"
    run("split-verifier", tuned, corpus.verifier, verifier, drafter)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafter.pt", "tuned", "verifier.pt"]
    assert not any(name.startswith("encoder.") for name in torch.load(drafter)["model"])
    old, new = torch.load(corpus.verifier)["model"], torch.load(verifier)["model"]
    changed = "decoder.layers.0.fc1.weight"
    assert list(new) == list(old) and (new[changed] - old[changed]).abs().max() > 1e-3
    ours = f"{corpus.data} --task spec_dec --decoder gad --fixed-width --path"
    options = f"{corpus.data} --path {verifier} --beam 1 --required-batch-size-multiple 1"
    drafted = hypotheses(run_in_process("generate", f"{ours} {verifier} --drafter-path {drafter}").stdout)
    assert drafted and drafted == hypotheses(run_in_process("generate", options, plugin=False).stdout)
    with pytest.raises(ConfigurationError, match="was trained on the states of another verifier"):
        run_in_process("generate", f"{ours} {corpus.verifier} --drafter-path {drafter}")
    with refused("holds a verifier of its own .--tune-verifier.; part them"):
        run_in_process("generate", f"{ours} {corpus.verifier} --drafter-path {tuned}")
    with pytest.raises(ConfigurationError, match="holds no verifier"):
        run("split-verifier", drafter, corpus.verifier, verifier, drafter)


@pytest.mark.slow
def test_trained_updates(corpus: Corpus, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    sources, targets = (read(corpus.text / f"train.{side}") for side in ("src", "tgt"))
    tokens = sum(max(len(line.split()) for line in pair) + 1 for pair in zip(sources, targets, strict=True))
    with caplog.at_level(logging.INFO):  # the log level that fairseq's imports set
        run("count-updates", corpus.data, "--languages", "src", "tgt", "--epochs", 2.5, "--tokens", 100)
    assert not caplog.records
    assert int(capsys.readouterr().out) == int(2.5 * tokens / 100) + 1
    with refused("train.tgt-src.tgt: no such data; give the folder and --languages "):
        models.count_updates(corpus.data, languages=("tgt", "src"), epochs=1, tokens=100)


def test_a_card_has_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder, results = Path("checkpoints/toy.en-de"), Path("results/toy.en-de")
    folder.mkdir(parents=True)
    (results / "test").mkdir(parents=True)
    for name, size in (("verifier", 3000), ("drafter", 200)):
        torch.save({"model": {"weight": torch.zeros(size * 100)}}, folder / f"{name}.pt")
    note = "- " + 40 * "word " + "end"
    (results / "table.md").write_text(f"| gad | 2.2 |\n\n{note}\n")
    arguments = "model-card toy.en-de --languages en pt-BR --licence free --recipe demo.sh".split()
    run(*arguments)
    card = (folder / "README.md").read_text()
    assert "| verifier.pt | 0.3 M" in card and "| gad | 2.2 |" in card and "Licence: free" in card
    assert "Scores:" not in card and "blockwise" not in card
    assert note in card.replace("\n  ", " ") and max(map(len, card.splitlines())) <= model_card.COLUMNS
    tied = {name: torch.zeros(500, 200) for name in ("embedding", "projection")}  # two copies in the file
    torch.save({"model": tied}, folder / "blockwise.pt")
    score = {"metric": "BLEU", "shown": "31.50", "signature": "nrefs:1|case:mixed"}
    (results / "test/gad.json").write_text(json.dumps({"scores": [score]}))
    run(*arguments)
    card = (folder / "README.md").read_text()
    assert "| blockwise.pt | 0.1 M" in card
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", card.splitlines()[-1])[1:-1]]
    assert cells == ["gad", "BLEU", "31.50", r"nrefs:1\|case:mixed"]
    for language in ("en", "pt-BR"):
        (folder / f"dict.{language}.txt").touch()
    assert find_files(folder, None, None, None, (None, None), None).languages == ("en", "pt-BR")
    assert "load.json" in (folder / "SHA256SUMS").read_text()


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool in a new process, as recipes do."""
    command = [sys.executable, "-m", "train_scripts.tools", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none"], "invalid choice: 'none'"),
        (["learn-subwords", "a", "b", "--size", "9"], "the following arguments are required: --kind"),
        (["learn-subwords", "a", "b", "--kind", "x", "--size", "9"], "argument --kind: invalid choice: 'x'"),
        (["hold-out", "a", "b", "c", "--languages", "en"], "argument --languages: expected 2 arguments"),
        (["learn-subwords", "a", "b", "--kind", "bpe", "--size", "many"], "argument --size: invalid int value: 'many'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_errors_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe\n")
    for file, message in (("none", "No such file or directory"), ("text", "not UTF-8; convert it: iconv")):
        result = tool("clean-lines", f"{tmp_path}/{file}", f"{tmp_path}/out")
        assert result.returncode != 0 and result.stdout == ""
        assert result.stderr.startswith(f"error: {tmp_path}/{file}: {message}") and result.stderr.count("\n") == 1
    result = tool("clean-lines", str(REPOSITORY / "README.md"), "/dev/full")
    full = "error: a file: cannot be written (No space left on device); free disk space\n"
    assert (result.returncode, result.stderr) == (2, full)


@pytest.mark.parametrize("content", [None, "a text\n", ""])
def test_what_is_no_model_of_sentencepiece_is_named(content: str | None, tmp_path: Path) -> None:
    model = tmp_path / "subwords.model"
    if content is not None:
        model.write_text(content)
    with refused("subwords.model: not a model of sentencepiece .*; copy it again"):
        main(["apply-subwords", str(model), "in", "out"])


def test_text_needs_no_torch(tmp_path: Path) -> None:
    """A recipe calls these tools often."""
    script = "import sys, train_scripts.tools.__main__; print({'torch', 'fairseq', 'sentencepiece'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert result.stdout == "set()\n", result.stderr
