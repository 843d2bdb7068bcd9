"""`fairseq-generate --drafts`: files are checked at the start, and their lines reach their sentences."""

import re
from pathlib import Path

import pytest
import sentencepiece

from fairseq_plugins.errors import ConfigurationError
from tests.conftest import Corpus
from tests.errors import error_about, refused
from tests.support import REPOSITORY, run_in_process


def generate(corpus: Corpus, options: str, command: str = "generate") -> str:
    # fairseq drops the last batch if its size is not a multiple of 8.
    batches = "--batch-size 5 --required-batch-size-multiple 1" if command == "generate" else ""
    run = run_in_process(command, f"{corpus.data} --path {corpus.verifier} --cpu {batches} {options}")
    return run.stdout + run.stderr


def hypotheses(output: str) -> list[str]:
    """Return the H- lines' tokens, in the order of the text."""
    outputs = re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)
    return [tokens for _, tokens in sorted(outputs, key=lambda pair: int(pair[0]))]


@pytest.fixture(scope="module")
def greedy(corpus: Corpus) -> list[str]:
    return hypotheses(generate(corpus, "--task translation --beam 1"))


def test_an_earlier_output_is_reused(corpus: Corpus, greedy: list[str], tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.tgt", tmp_path / "wrong.tgt"
    right.write_text("".join(f"{line}\n" for line in greedy))
    # Some drafts are empty, some are another sentence's, one has an unknown word.
    wrong.write_text("".join(f"{line}\n" for line in ["", *greedy[:-2], "WHAT"]))
    summaries = {}
    for name, files in (("right", right), ("wrong", wrong), ("both", f"{wrong}:{right}")):
        options = f"--task spec_dec --decoder reuse --fixed-width --drafts {files}"
        output = generate(corpus, options)
        assert hypotheses(output) == greedy
        summaries[name] = float(re.findall(r"([\d.]+) tokens per iteration", output)[0])
    least = sum(len(line.split()) + 1 for line in greedy) / len(greedy)
    assert summaries["right"] == pytest.approx(least, abs=0.01)
    assert summaries["wrong"] < 3 < summaries["both"]


def test_files_that_do_not_fit_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    few, other = tmp_path / "few.tgt", tmp_path / "other.tgt"
    few.write_text("BA BE\n" * 3)
    other.write_text("some other language\n" * 36)
    for files, message in (
        (few, "few.tgt: has 3 lines, and --gen-subset test has 36; give a draft a line"),
        (other, "other.tgt: 108 of 108 tokens are not in the target's dictionary"),
    ):
        with refused(message):
            generate(corpus, f"--task spec_dec --decoder reuse --drafts {files}")
    with error_about("--decoder", "has no drafts; add --drafts FILE"):
        generate(corpus, "--task spec_dec --decoder reuse")


@pytest.mark.parametrize("kernels", ["", "--no-compiled-steps"])
def test_words_of_outputs_are_no_subwords(corpus: Corpus, greedy: list[str], tmp_path: Path, kernels: str) -> None:
    """With --remove-bpe fairseq adds the words of earlier outputs to the dictionary: drafts may contain them, too."""
    words, joined = tmp_path / "words.tgt", [line.replace(" ", "") for line in greedy]
    words.write_text(f"{'BA ' * len(greedy)}{' '.join(joined)}\n" * len(greedy))
    options = f"--task spec_dec --decoder reuse --drafts {words} --remove-bpe letter {kernels}"
    assert hypotheses(generate(corpus, options)) == joined


def interact(corpus: Corpus, options: str) -> str:
    files = f"--input {corpus.text}/test.src --buffer-size 7 --batch-size 3"
    return generate(corpus, f"--task spec_dec --decoder reuse --fixed-width {files} {options}", "interactive")


def test_lines_of_interactive_have_drafts(corpus: Corpus, greedy: list[str], tmp_path: Path) -> None:
    """Sentences are numbered through the input, although fairseq restarts at 0 in each block."""
    right, few = tmp_path / "right.tgt", tmp_path / "few.tgt"
    right.write_text("".join(f"{line}\n" for line in greedy))
    few.write_text("".join(f"{line}\n" for line in greedy[:20]))
    output = interact(corpus, f"--drafts {right}")
    assert hypotheses(output) == greedy
    least = sum(len(line.split()) + 1 for line in greedy) / len(greedy)
    assert float(re.findall(r"([\d.]+) tokens per iteration", output)[0]) == pytest.approx(least, abs=0.01)
    with pytest.raises(ConfigurationError, match="few.tgt.: has 20 lines, and there is a sentence 21; give a draft a"):
        interact(corpus, f"--drafts {few}")


def test_raw_text_is_cut_with_bpe(tmp_path: Path) -> None:
    folder = REPOSITORY / "checkpoints" / "multi30k.en-de"
    cut = sentencepiece.SentencePieceProcessor(model_file=str(folder / "subwords.model"))
    for language in ("en", "de"):
        captions = ["Two dogs play in the snow.", "A man is riding a bicycle."]
        pieces = (" ".join(cut.encode(caption, out_type=str)) + "\n" for caption in captions)
        (tmp_path / f"test.{language}").write_text("".join(pieces))
    dictionaries = f"--srcdict {folder}/dict.en.txt --tgtdict {folder}/dict.de.txt"
    languages = f"--source-lang en --target-lang de --testpref {tmp_path}/test --destdir {tmp_path}/data --workers 1"
    run_in_process("preprocess", f"{languages} {dictionaries}")
    options = f"{tmp_path}/data --path {folder}/verifier.pt --cpu"
    bpe = f"--bpe sentencepiece --sentencepiece-model {folder}/subwords.model"
    stock = run_in_process("generate", f"{options} {bpe} --task translation --beam 1 --required-batch-size-multiple 1")
    raw = tmp_path / "old.de"
    texts = dict(re.findall(r"^D-(\d+)\t\S+\t(.*)$", stock.stdout, re.MULTILINE))
    raw.write_text("".join(texts[number] + "\n" for number in ("0", "1")))
    reuse = f"--task spec_dec --decoder reuse --fixed-width --drafts {raw}"
    ours = run_in_process("generate", f"{options} {bpe} {reuse}")
    assert hypotheses(ours.stdout) == hypotheses(stock.stdout)
    assert "2 sentences, 2 iterations" in ours.stderr or " 2 iterations" in ours.stderr
    with pytest.raises(ConfigurationError, match="old.de.: .* tokens are not in the target's dictionary"):
        run_in_process("generate", f"{options} {reuse}")
