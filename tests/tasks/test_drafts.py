"""`fairseq-generate --drafts`: files are checked at the start, and their lines reach their sentences."""

import re
from pathlib import Path

import pytest

from fairseq_plugins.errors import ConfigurationError
from tests.conftest import Corpus
from tests.support import run_in_process


def generate(corpus: Corpus, options: str, command: str = "generate") -> str:
    # fairseq drops the last sentences where a batch has not the size that it prefers.
    batches = "--batch-size 5 --required-batch-size-multiple 1" if command == "generate" else ""
    run = run_in_process(command, f"{corpus.data} --path {corpus.verifier} --cpu {batches} {options}")
    return run.stdout + run.stderr


def hypotheses(output: str) -> list[str]:
    """The tokens of all sentences, in the order of the text."""
    found = re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)
    return [tokens for _, tokens in sorted(found, key=lambda pair: int(pair[0]))]


@pytest.fixture(scope="module")
def greedy(corpus: Corpus) -> list[str]:
    return hypotheses(generate(corpus, "--task translation --beam 1"))


def test_an_earlier_output_is_reused(corpus: Corpus, greedy: list[str], tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.tgt", tmp_path / "wrong.tgt"
    right.write_text("".join(f"{line}\n" for line in greedy))
    # Some are missing, some are another sentence's, one has an unknown word.
    wrong.write_text("".join(f"{line}\n" for line in ["", *greedy[:-2], "WHAT"]))
    told = {}
    for name, files in (("right", right), ("wrong", wrong), ("both", f"{wrong}:{right}")):
        options = f"--task spec_dec --decoder reuse --fixed-width --drafts {files}"
        output = generate(corpus, options)
        assert hypotheses(output) == greedy
        told[name] = float(re.findall(r"([\d.]+) mean accepted tokens", output)[0])
    least = sum(len(line.split()) + 1 for line in greedy) / len(greedy)
    assert told["right"] == pytest.approx(least, abs=0.01)
    assert told["wrong"] < 3 < told["both"]


def test_files_that_do_not_fit_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    few, other = tmp_path / "few.tgt", tmp_path / "other.tgt"
    few.write_text("BA BE\n" * 3)
    other.write_text("some other language\n" * 36)
    for files, message in (
        (few, "few.tgt: has 3 lines, and --gen-subset test has 36; give a draft a line"),
        (other, "other.tgt: 108 of 108 tokens are not in the target's dictionary"),
        (tmp_path / "none", "none: no such file"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            generate(corpus, f"--task spec_dec --decoder reuse --drafts {files}")
    with pytest.raises(ConfigurationError, match="--decoder reuse: has no drafts; add --drafts FILE"):
        generate(corpus, "--task spec_dec --decoder reuse")
    with pytest.raises(ConfigurationError, match="is for fairseq-generate; give spec-dec-translate"):
        generate(corpus, f"--task spec_dec --decoder reuse --drafts {few}", "interactive")
