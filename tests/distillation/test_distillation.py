"""`spec-dec-distill`: translations against fairseq's own, shards, merging, bad input."""

import json
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from fairseq_plugins.distillation import cli
from fairseq_plugins.distillation.decode import Teacher
from fairseq_plugins.distillation.merge import filter_pairs
from fairseq_plugins.distillation.shards import TOO_LONG, TeacherSentence, read_sentences, shards_of
from fairseq_plugins.shared.files import HeldByAnother
from fairseq_plugins.shared.workers import Worker, find_worker, take_shards
from tests.conftest import Corpus
from tests.support import REPOSITORY, run_in_process
from train_scripts.tools.__main__ import main as tools

# All tests share one folder of shards.
pytestmark = pytest.mark.xdist_group("distillation")

TRAIN = 300


def decode(corpus: Corpus, output: Path, *more: str) -> None:
    """Decode in this process."""
    arguments = ["--path", str(corpus.verifier), "--output", str(output), "--cpu", *more]
    cli.run(["decode", str(corpus.data), *arguments])


def generated(corpus: Corpus, decoder: str, more: str = "") -> list[list[str]]:
    """Return number, score and text of each sentence that fairseq-generate prints, by number."""
    options = f"{corpus.data} --task spec_dec --decoder {decoder} --path {corpus.verifier} --gen-subset valid --cpu"
    lines = run_in_process("generate", f"{options} {more}").stdout.splitlines()
    rows = [line[2:].split("\t") for line in lines if line.startswith("H-")]
    return sorted(rows, key=lambda row: int(row[0]))


def sentences(folder: Path, subset: str = "train") -> list[TeacherSentence]:
    """Return the sentences of all finished shards, in the order they were written."""
    shards = shards_of(folder, subset)
    count = shards.count()
    assert count is not None
    return [sentence for shard in range(count) for sentence in read_sentences(shards.path(shard, count))]


def texts(sentences_by_number: Sequence[TeacherSentence]) -> list[str]:
    """Return translations by number, each number once."""
    assert sorted(sentence.number for sentence in sentences_by_number) == list(range(len(sentences_by_number)))
    return [sentence.text for sentence in sorted(sentences_by_number, key=lambda sentence: sentence.number)]


@pytest.fixture(scope="module")
def greedy(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Greedy shards of the training and validation sets."""
    folder = tmp_path_factory.mktemp("greedy")
    decode(corpus, folder, "--decoder", "greedy", "--num-shards", "3", "--gen-subset", "train,valid")
    return folder


@pytest.mark.parametrize("decoder", ["beam", "fast-beam"])
def test_translations_are_those_of_fairseq_generate(corpus: Corpus, tmp_path: Path, decoder: str) -> None:
    decode(corpus, tmp_path, "--decoder", decoder, "--gen-subset", "valid", "--num-shards", "2")
    rows = generated(corpus, decoder)
    assert texts(sentences(tmp_path, "valid")) == [text for _, _, text in rows]
    ours = {sentence.number: float(sentence.score) for sentence in sentences(tmp_path, "valid")}
    # fairseq-generate prints logarithms to base 2.
    theirs = {int(number): float(score) * math.log(2) for number, score, _ in rows}
    assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("prefixes", [False, True])
def test_repeated_sources_are_decoded_once(
    corpus: Corpus, greedy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefixes: bool
) -> None:
    """A text with several translations of a sentence repeats it; prefixes of these may differ."""
    decoded: list[int] = []

    def record(teacher: Teacher, dataset: Any, numbers: Sequence[int]) -> list[TeacherSentence]:
        decoded.extend(numbers)
        return original(teacher, dataset, numbers)

    original = Teacher.decode
    monkeypatch.setattr(Teacher, "decode", record)
    decode(corpus, tmp_path, "--decoder", "greedy", "--num-shards", "1", *(["--prefix-size", "1"] if prefixes else []))
    different = {tuple(line) for line in _ids(corpus.data, "train", "src")}
    assert 1 < len(different) < TRAIN
    assert len(decoded) == (TRAIN if prefixes else len(different))
    found = texts(sentences(tmp_path))
    assert prefixes or found == texts(sentences(greedy))


def test_samples_depend_on_the_seed_alone(corpus: Corpus, tmp_path: Path) -> None:
    """Neither on drafts nor on shards and batches: a back-translation may be shared and resumed."""
    found = {}
    runs = {
        "whole": ["greedy", "1", "40", "5"],
        "parts": ["gs-jacobi", "3", "7", "5"],
        "other": ["greedy", "1", "40", "6"],
    }
    for name, (decoder, count, size, seed) in runs.items():
        options = ["--gen-subset", "valid", "--sampling", "--beam", "1", "--temperature", "1.3", "--batch-size", size]
        decode(corpus, tmp_path / name, "--decoder", decoder, "--num-shards", count, "--seed", seed, *options)
        found[name] = texts(sentences(tmp_path / name, "valid"))
    expected = generated(corpus, "greedy", "--sampling --beam 1 --temperature 1.3 --seed 5")
    assert found["whole"] == [text for _, _, text in expected]
    assert found["parts"] == found["whole"] != found["other"]


def test_two_processes_share_the_work(corpus: Corpus, greedy: Path, programs: Path, tmp_path: Path) -> None:
    command = [str(programs / "spec-dec-distill"), "decode", str(corpus.data), "--path", str(corpus.verifier), "--cpu"]
    command += ["--output", str(tmp_path), "--decoder", "greedy", "--workers", "2"]
    subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=200, check=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["train.0-of-2.tsv", "train.1-of-2.tsv"]
    assert texts(sentences(tmp_path)) == texts(sentences(greedy))


@pytest.mark.parametrize(
    ("tasks", "step", "begun"), [((4, 7), 3, None), ((1, 3), 1, 4), ((0, 2, 5), 1, 2), ((1,), 1, 3)], ids=str
)
def test_arrays_with_gaps_leave_no_shard(
    corpus: Corpus, greedy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: tuple[int, ...], step: int,
    begun: int,
) -> None:  # fmt: skip
    """`sbatch --array=1,3`, also with shards of an array of another size: the last task finishes all shards."""
    more = ["--decoder", "greedy", "--gen-subset", "valid"]
    if begun is not None:
        decode(corpus, tmp_path, *more, "--num-shards", str(begun), "--shard-id", "0")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", str(len(tasks)))
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", str(tasks[0]))
    monkeypatch.setenv("SLURM_ARRAY_TASK_STEP", str(step))
    for task in tasks:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        decode(corpus, tmp_path, *more)
    assert texts(sentences(tmp_path, "valid")) == texts(sentences(greedy, "valid"))


def test_each_shard_is_taken_once() -> None:
    for jobs, world, count in ((1, 1, 5), (2, 3, 6), (3, 2, 7), (4, 2, 3)):
        taken: list[int] = []
        for job in range(jobs):
            for rank in range(world):
                worker = Worker(job, jobs, rank, world)
                for shard in take_shards(worker, count, taken.__contains__, lambda shard: shard):
                    taken.append(shard)
        assert sorted(taken) == list(range(count))
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16"}
    assert find_worker(torchrun) == Worker(rank=9, world_size=16, device=1, spawned=True, run_id="x")
    assert find_worker({"RANK": "3"}) == Worker()


def test_worker_waits_for_held_shards(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Shard 1 is held by a process that ends without finishing it; another one takes it over."""
    held, taken = {1}, {0}
    monkeypatch.setattr("fairseq_plugins.shared.workers.time.sleep", lambda seconds: held.clear())

    def begin(shard: int) -> int:
        if shard in held:
            raise HeldByAnother(Path(f"shard {shard}"))
        return shard

    assert list(take_shards(Worker(1, 2), 2, taken.__contains__, begin)) == [1]
    assert capsys.readouterr().err == "waiting for other processes, which write what is left: shard 1\n"
    held.add(1)
    with pytest.raises(HeldByAnother, match="shard 1: another process writes it"):
        list(take_shards(Worker(), 2, taken.__contains__, begin))


def _ids(folder: Path, subset: str, language: str) -> list[list[int]]:
    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    dataset = load_indexed_dataset(str(folder / f"{subset}.src-tgt.{language}"), dictionary)
    return [dataset[number].tolist() for number in range(len(dataset))]


def test_merged_data(corpus: Corpus, greedy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["merge", str(corpus.data), "--shards", str(greedy), "--destdir", str(tmp_path / "out")]
    assert cli.main([*arguments, "--gen-subset", "train,valid", "--keep-raw"]) == 0
    out = tmp_path / "out"
    assert "train: 300 of 300 kept, 0 empty, 0 too long, 0 of unlike lengths; 300 raw" in capsys.readouterr().out
    for language in ("src", "tgt"):
        name = f"dict.{language}.txt"
        assert (out / name).read_bytes() == (corpus.data / name).read_bytes()
    assert _ids(out, "train", "src") == _ids(corpus.data, "train", "src") * 2
    assert _ids(out, "valid", "src") == _ids(corpus.data, "valid", "src")
    dictionary = Dictionary.load(str(out / "dict.tgt.txt"))
    distilled = _ids(out, "train", "tgt")
    assert distilled[TRAIN:] == _ids(corpus.data, "train", "tgt")
    assert [dictionary.string(line[:-1]) for line in distilled[:TRAIN]] == texts(sentences(greedy))
    record = json.loads((out / "distilled.json").read_text())
    assert record["counts"]["train"]["kept"] == TRAIN and record["made_from"]["train"]["decoder"] == "greedy"
    assert not list(tmp_path.glob("*.partial*"))


def test_languages_with_a_hyphen(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fairseq infers none from train.pt-BR-en.en.bin; the commands do, also those without language options."""
    data, drafter = tmp_path / "data", tmp_path / "drafter.pt"
    data.mkdir()
    for file in corpus.data.glob("*.*"):
        shutil.copy(
            file, data / file.name.replace("src-tgt", "pt-BR-en").replace("src.", "pt-BR.").replace("tgt.", "en.")
        )
    arguments = ["--gen-subset", "valid", "--decoder", "greedy", "--num-shards", "1", "--cpu"]
    shards = ["--output", str(tmp_path / "shards")]
    assert cli.main(["decode", str(data), "--path", str(corpus.verifier), *shards, *arguments]) == 0
    merge = ["--shards", str(tmp_path / "shards"), "--destdir", str(tmp_path / "out"), "--gen-subset", "valid"]
    assert cli.main(["merge", str(data), *merge]) == 0
    assert (tmp_path / "out/valid.pt-BR-en.en.bin").is_file()
    shutil.copy(corpus.drafter, drafter)
    measure = ["measure-survival", str(data), str(corpus.verifier), str(drafter)]
    assert tools(measure) == 0
    assert "survival counts are stored in it" in capsys.readouterr().out
    assert tools([*measure, "--languages", "pt-BR", "en"]) == 0
    assert "survival counts are stored in it" in capsys.readouterr().out


def test_filtering() -> None:
    decoded = [
        TeacherSentence(0, "-1", "A B"),
        TeacherSentence(1, "-1", ""),
        TeacherSentence(2, TOO_LONG, ""),
        TeacherSentence(3, "-1", "A B C D"),
    ]
    pairs, counts = filter_pairs(["a", "a", "a", "a"], decoded, 3)
    assert pairs == [("a", "A B")]
    assert (counts.sentences, counts.kept, counts.empty, counts.too_long, counts.ratio) == (4, 1, 1, 1, 1)
    assert filter_pairs(["a"], decoded[3:], None)[1].kept == 1


def test_sources_too_long_for_the_teacher(corpus: Corpus, tmp_path: Path) -> None:
    decode(corpus, tmp_path, "--decoder", "greedy", "--gen-subset", "valid", "--max-source-positions", "6")
    lengths = [len(line) for line in _ids(corpus.data, "valid", "src")]
    scores = {sentence.number: sentence.score for sentence in sentences(tmp_path, "valid")}
    assert {number for number, score in scores.items() if score == TOO_LONG} == {
        number for number, length in enumerate(lengths) if length > 6
    }


def refused(message: str, capsys: pytest.CaptureFixture[str], *argv: str) -> None:
    """Check that a command ends with this one-line error."""
    capsys.readouterr()
    assert cli.main([str(word) for word in argv]) == 2
    error = capsys.readouterr().err.strip().split("\r")[-1]  # after the progress bar
    assert message in error and error.startswith("spec-dec-distill: error: "), error
    assert len(error.splitlines()) == 1


@pytest.fixture
def copy(greedy: Path, tmp_path: Path) -> Path:
    """A copy of finished shards, which a test may change."""
    return Path(shutil.copytree(greedy, tmp_path / "shards"))


def test_spoiled_shards(corpus: Corpus, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = copy / "train.1-of-3.tsv", copy / "train.2-of-3.tsv"
    whole = file.read_bytes()
    merge = ["merge", corpus.data, "--shards", copy, "--destdir", tmp_path / "out"]
    again = ["decode", corpus.data, "--path", corpus.verifier, "--output", copy, "--decoder", "greedy", "--cpu"]
    for spoiled in (whole[:-2], whole.replace(b"\t", b" ", 5), whole + b"\xff\n"):
        file.write_bytes(spoiled)
        refused(f"{file}: corrupt shard", capsys, *merge)
        refused(f"{file}: corrupt shard", capsys, *again)
    for foreign in (b"", whole[:100], b"[]\n"):
        file.write_bytes(foreign)
        refused(f"{file}: was not written by this command; rename it", capsys, *merge)
        refused(f"{file}: was not written by this command; rename it", capsys, *again)
    file.unlink()
    refused(f"{file}: not finished; ", capsys, *merge)
    kept = other.stat().st_mtime_ns
    capsys.readouterr()
    assert cli.main([str(word) for word in again]) == 0
    assert capsys.readouterr().out.count("finished before") == 2
    assert file.read_bytes() == whole and other.stat().st_mtime_ns == kept
    header, first, *lines = whole.splitlines(keepends=True)
    for changed in ([first, *lines, first], lines, [first, *lines, b"300\t0\tA\n"]):
        file.write_bytes(header + b"".join(changed))
        refused(f"{copy}: has not one translation for each of the 300 sentences of the data; ", capsys, *merge)
    shutil.copy(other, copy / "train.0-of-2.tsv")
    refused("has shards of different divisions", capsys, *merge)
    assert not list(tmp_path.glob("out*"))


def test_shards_that_were_moved_to_another_disk(
    corpus: Corpus, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links to finished shards are read."""
    file = copy / "train.1-of-3.tsv"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    command = ["decode", corpus.data, "--path", corpus.verifier, "--output", copy, "--decoder", "greedy", "--cpu"]
    assert cli.main([str(word) for word in command]) == 0
    assert capsys.readouterr().out.count("finished before") == 3
    merge = ["merge", corpus.data, "--shards", copy, "--destdir"]
    assert cli.main([str(word) for word in (*merge, tmp_path / "merged")]) == 0
    (tmp_path / "dangling").symlink_to("nowhere")
    refused("dangling: is there already", capsys, *merge, tmp_path / "dangling")


def test_shards_of_other_text(corpus: Corpus, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decode_again = ["decode", corpus.data, "--output", copy, "--cpu"]
    path = ["--path", corpus.verifier]
    refused("was made from another decoder; ", capsys, *decode_again, *path)
    refused("was made from another lenpen; ", capsys, *decode_again, *path, "--decoder", "greedy", "--lenpen", "2")
    other_path = ["--decoder", "greedy", "--path", corpus.own_encoder]
    refused("was made from other checkpoints; ", capsys, *decode_again, *other_path)
    refused("--num-shards 2: ", capsys, *decode_again, *path, "--num-shards", "2")
    small = ["--output", tmp_path / "small", "--cpu", "--max-tokens", "3"]
    refused("; give at least as many", capsys, "decode", corpus.data, *small, *path, "--decoder", "greedy")
    other = ["--shards", copy, "--destdir", tmp_path / "out"]
    refused("made from other data or dictionaries", capsys, "merge", corpus.other_data, *other)
    refused("was made from another precision; ", capsys, *decode_again, *path, "--decoder", "greedy", "--fp16")
    refused("was made from another int8; ", capsys, *decode_again, *path, "--decoder", "greedy", "--int8")
    token = Dictionary.load(str(corpus.data / "dict.tgt.txt")).symbols[-1]
    for name, value in (("suppress-tokens", token), ("forced-first-token", token), ("max-source-positions", "4")):
        problem = f"was made from another {name.replace('-', '_')}"
        problem = problem.replace("another", "other") if name.endswith("s") else problem
        refused(f"{problem}; ", capsys, *decode_again, *path, "--decoder", "greedy", f"--{name}", value)
    partial, shard = copy / "valid.0-of-3.tsv", ("--num-shards", "3", "--shard-id", "0")
    partial.rename(copy / "valid.0-of-3.tsv.partial")
    refused("was made from another decoder", capsys, *decode_again, *path, "--gen-subset", "valid", *shard)
    for file in copy.glob("train.*"):
        file.write_text('{"text": "of another command"}\n')
    refused("made from other data or dictionaries", capsys, "merge", corpus.data, *other)


def test_shards_of_another_drafter_or_rule(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of gad++ depends on drafter and rule, that of gad does not."""
    common = ["--gen-subset", "valid", "--batch-size", "30"]
    decode(corpus, tmp_path / "gad", *common, "--decoder", "gad", "--drafter-path", str(corpus.own_encoder))
    decode(corpus, tmp_path / "gad", *common, "--decoder", "gad", "--drafter-path", str(corpus.drafter))
    relaxed = [*common, "--decoder", "gad++", "--top-beta", "3", "--tau"]
    decode(corpus, tmp_path / "relaxed", *relaxed, "1", "--drafter-path", str(corpus.own_encoder))
    again = ["decode", corpus.data, "--path", corpus.verifier, "--cpu", "--output", tmp_path / "relaxed", *relaxed]
    refused("was made from another drafting; ", capsys, *again, "2", "--drafter-path", corpus.own_encoder)
    refused("was made from another drafter; ", capsys, *again, "1", "--drafter-path", corpus.drafter)
    missing = tmp_path / "none.pt"
    refused(f"--drafter-path {missing}: no such file", capsys, *again, "1", "--drafter-path", missing)


def test_shards_of_other_prefixes(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --prefix-size translations begin as the target side does, else they do not depend on it."""
    data = shutil.copytree(corpus.data, tmp_path / "data")
    command = ["decode", data, "--path", corpus.verifier, "--cpu", "--decoder", "greedy", "--gen-subset", "valid"]
    free, forced = [*command, "--output", tmp_path / "0"], [*command, "--output", tmp_path / "1", "--prefix-size", "1"]
    for given in (free, forced):
        assert cli.main([str(word) for word in given]) == 0
    with (data / "valid.src-tgt.tgt.bin").open("ab") as file:
        file.write(b"\0\0")
    assert cli.main([str(word) for word in free]) == 0
    refused("was made from other prefixes; ", capsys, *forced)


def test_dictionaries_that_do_not_match(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--path", corpus.verifier, "--output", tmp_path / "shards", "--cpu"]
    refused("dict.src.txt is not the one that", capsys, "decode", corpus.other_data, *command)
    moved = tmp_path / "small"
    shutil.copytree(corpus.data, moved)
    lines = (moved / "dict.tgt.txt").read_text().splitlines(keepends=True)
    (moved / "dict.tgt.txt").write_text("".join(lines[:-4]))
    refused("dict.tgt.txt is not the one that", capsys, "decode", moved, *command)
    assert not (tmp_path / "shards").exists() or not list((tmp_path / "shards").glob("*.tsv"))


def test_misaligned_and_empty_data(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoiled = tmp_path / "spoiled"
    shutil.copytree(corpus.data, spoiled)
    for kind in ("bin", "idx"):
        shutil.copy(spoiled / f"valid.src-tgt.tgt.{kind}", spoiled / f"train.src-tgt.tgt.{kind}")
    command = ["decode", spoiled, "--path", corpus.verifier, "--output", tmp_path / "shards", "--cpu"]
    refused("train has different numbers of source and target sentences", capsys, *command)
    (tmp_path / "empty.src").write_text("")
    (tmp_path / "empty.tgt").write_text("")
    dictionaries = f"--srcdict {corpus.data}/dict.src.txt --tgtdict {corpus.data}/dict.tgt.txt"
    run_in_process(
        "preprocess",
        f"--source-lang src --target-lang tgt {dictionaries} --testpref {tmp_path}/empty --destdir {tmp_path}/none",
    )
    command[1] = tmp_path / "none"
    refused("test.src-tgt.src.idx: has no sentences", capsys, *command, "--gen-subset", "test")
    refused("no such subset of src-tgt", capsys, *command, "--gen-subset", "train")


def test_other_mistakes(corpus: Corpus, greedy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["decode", corpus.data, "--path", corpus.verifier, "--output", tmp_path, "--cpu"]
    refused("--shard-id 4: give a number from 0 to 3", capsys, *command, "--num-shards", "4", "--shard-id", "4")
    refused("--shard-id 1: of how many?", capsys, *command, "--shard-id", "1")
    refused("--num-shards 0: ", capsys, *command, "--num-shards", "0")
    refused("--max-tokens 3: a sentence has ", capsys, *command, "--max-tokens", "3")
    refused("no command: choose from decode, merge", capsys)
    merge = ["merge", corpus.data, "--shards", greedy, "--destdir"]
    refused("--gen-subset dev: no such value; choose from", capsys, *merge, tmp_path / "x", "--gen-subset", "dev")
    refused("--max-length-ratio 0.5: ", capsys, *merge, tmp_path / "x", "--max-length-ratio", "0.5")
