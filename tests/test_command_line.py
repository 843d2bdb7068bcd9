"""The command-line tools end to end: output equals fairseq's."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from tests.conftest import TINY, TRAINING, Corpus
from tests.support import run_in_process


def hypotheses(output: str) -> dict[int, str]:
    """Return sentence number -> text of the H- lines."""
    return {int(number): text for number, text in re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", output, re.MULTILINE)}


def generate(corpus: Corpus, options: str, verifier: Path | None = None) -> subprocess.CompletedProcess:
    return run_in_process("generate", f"{corpus.data} --path {verifier or corpus.verifier} --cpu {options}")


@pytest.fixture(scope="module")
def greedy(corpus: Corpus) -> dict[int, str]:
    """Output of fairseq's own task and search at beam 1."""
    stock = generate(corpus, "--task translation --beam 1 --batch-size 4 --required-batch-size-multiple 1")
    output = hypotheses(stock.stdout)
    assert len(output) == 36 and len({len(text.split()) for text in output.values()}) > 4
    return output


# Options and minimum tokens per iteration, a loose bound, since training differs between processors. The drafter with
# its own encoder is hardly trained.
DECODERS = [
    ("greedy", 1.0),
    ("gad --fixed-width --drafter-path {drafter}", 1.6),
    ("gad --drafter-path {drafter}", 1.0),  # as many as pay
    ("specdec --drafter-path {own_encoder} --block-size 3", 1.0),
    ("gad++ --top-beta 1 --tau 0.0000001 --drafter-path {drafter}", 1.6),
    ("jacobi", 1.0),
    ("gad --fixed-width --drafter-path {drafter} --active-sentences 3", 1.6),
    ("hgj --fixed-width --block-size 4", 1.0),
]


@pytest.mark.parametrize(("decoder", "least"), DECODERS)
@pytest.mark.parametrize("batch_size", [1, 7])
def test_stock_checkpoint_is_decoded_as_by_fairseq(
    corpus: Corpus, greedy: dict[int, str], decoder: str, least: float, batch_size: int
) -> None:
    decoder = decoder.format(**vars(corpus))
    ours = generate(corpus, f"--task spec_dec --decoder {decoder} --batch-size {batch_size}")
    assert hypotheses(ours.stdout) == greedy
    assert "with beam=1" in ours.stdout
    summary = r"36 sentences, \d+ tokens, \d+ iterations, ([\d.]+) tokens per iteration, batch size \d+, [\d.]+ tok"
    summary_line = re.search(summary, ours.stderr)
    assert summary_line is not None and float(summary_line[1]) >= least


def test_decoder_beam_is_fairseqs_search(corpus: Corpus) -> None:
    options = "--beam 3 --batch-size 6 --required-batch-size-multiple 1"
    own = generate(corpus, f"--task translation {options}")
    plugin = generate(corpus, f"--task spec_dec {options}")
    lines = [[line for line in run.stdout.splitlines() if re.match("[STHDP]-", line)] for run in (own, plugin)]
    assert lines[0] == lines[1] and len(lines[0]) == 5 * 36


def printed(output: str) -> list[tuple[str, str, list[float]]]:
    """Return kind, number, text and scores of all S-, T-, H-, D- and P- lines."""
    outputs = []
    for line in output.splitlines():
        if re.match("[STHDP]-", line):
            name, *rest = line.split("\t")
            numbers = rest[0].split() if name[0] in "HDP" else []
            text = "" if name[0] == "P" else rest[-1]
            outputs.append((name, text, [float(number) for number in numbers]))
    return outputs


@pytest.mark.parametrize(
    "options",
    [
        "--beam 5 --nbest 5",
        "--beam 4 --nbest 2 --lenpen 0.6 --min-len 3 --unkpen 1 --max-len-b 12",
        "--beam 3 --nbest 3 --unnormalized --temperature 1.5 --no-early-stop",
        "--beam 2 --nbest 2 --prefix-size 2",
    ],
)
def test_fast_beam_prints_what_fairseq_prints(corpus: Corpus, options: str) -> None:
    options += " --batch-size 6 --required-batch-size-multiple 1"
    own = generate(corpus, f"--task translation {options}")
    ours = generate(corpus, f"--task spec_dec --decoder fast-beam {options}")
    theirs, printed_by_ours = printed(own.stdout), printed(ours.stdout)
    assert [line[:2] for line in printed_by_ours] == [line[:2] for line in theirs] and len(printed_by_ours) > 5 * 36
    for (*_, mine), (*_, its) in zip(printed_by_ours, theirs, strict=True):
        assert mine == pytest.approx(its, abs=3e-4)
    beam = re.search(r"--beam (\d)", options)
    assert beam is not None and f"with beam={beam[1]}" in ours.stdout
    assert re.search(r"^fast-beam: 36 sentences, \d+ tokens, \d+ iterations, ", ours.stderr, re.MULTILINE)


@pytest.mark.parametrize("options", ["--ensemble", "--prefix-size 2", "--max-tokens 60"])
def test_ensembles_prefixes_and_batches_by_tokens(corpus: Corpus, options: str) -> None:
    """fairseq itself drops the last batch if its size is not a multiple of 8."""
    verifier = Path(f"{corpus.verifier}:{corpus.verifier}") if options == "--ensemble" else corpus.verifier
    options = options.removeprefix("--ensemble")
    own = generate(corpus, f"--task translation --beam 1 {options} --required-batch-size-multiple 1", verifier)
    ours = generate(corpus, f"--task spec_dec --decoder gad --drafter-path {corpus.drafter} {options}", verifier)
    assert hypotheses(own.stdout) == hypotheses(ours.stdout) and len(hypotheses(own.stdout)) == 36


def test_drafter_alone_and_relaxed(corpus: Corpus) -> None:
    options = f"--drafter-path {corpus.drafter} --batch-size 9"
    assert len(hypotheses(generate(corpus, f"--task spec_dec --decoder nat {options}").stdout)) == 36
    assert len(hypotheses(generate(corpus, "--task spec_dec --decoder nat", corpus.own_encoder).stdout)) == 36
    relaxed = generate(corpus, f"--task spec_dec --decoder gad++ --preset high-efficiency {options}")
    assert len(hypotheses(relaxed.stdout)) == 36


@pytest.mark.parametrize("decoder", ["gad --drafter-path {drafter}", "fast-beam --beam 3"])
def test_statistics_file_adds_up_to_the_summary(corpus: Corpus, tmp_path: Path, decoder: str) -> None:
    file, decoder = tmp_path / "stats.jsonl", decoder.format(**vars(corpus))
    run = generate(corpus, f"--task spec_dec --decoder {decoder} --stats-file {file} --batch-size 5 --profile")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["id"]: line["tokens"] for line in lines} == {
        number: len(text.split()) + 1 for number, text in hypotheses(run.stdout).items()
    }
    tokens, iterations = (sum(line[name] for line in lines) for name in ("tokens", "iterations"))
    assert f"36 sentences, {tokens} tokens, {iterations} iterations" in run.stderr
    assert all(sum(line["emitted"]) == line["tokens"] for line in lines)
    assert all(len(line["emitted"]) == line["iterations"] for line in lines)
    assert "| verifier" in run.stderr and "| acceptance" in run.stderr


def test_interactive_with_empty_and_unknown_words(corpus: Corpus) -> None:
    text = (corpus.text / "test.src").read_text().splitlines()
    lines = "\n".join([text[0], "", "unheardof " + text[1], text[2]]) + "\n"
    options = f"{corpus.data} --path {corpus.verifier} --cpu --source-lang src --target-lang tgt --buffer-size 4"
    outputs = [
        hypotheses(run_in_process("interactive", f"{options} {more}", input=lines).stdout)
        for more in (
            "--task translation --beam 1 --batch-size 4",
            f"--task spec_dec --decoder gad --drafter-path {corpus.drafter} --batch-size 4",
            "--task spec_dec --decoder greedy --batch-size 1",
        )
    ]
    assert len(outputs[0]) == 4 and outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("option", ["--stats-file", "--trace-file"])
def test_interactive_numbers_the_lines(corpus: Corpus, tmp_path: Path, option: str) -> None:
    """Blocks of three lines, sorted by length into batches of two."""
    lines = (corpus.text / "test.src").read_text().splitlines()[:7]
    options = f"{corpus.data} --path {corpus.verifier} --cpu --source-lang src --target-lang tgt --task spec_dec"
    options += f" --decoder greedy --buffer-size 3 --batch-size 2 {option} {tmp_path}/file"
    run_in_process("interactive", options, input="\n".join(lines) + "\n")
    records = [json.loads(line) for line in (tmp_path / "file").read_text().splitlines()]
    lengths = {one["id"]: one.get("source_tokens") or len(one["source"]) for one in records if "id" in one}
    assert lengths == {number: len(line.split()) + 1 for number, line in enumerate(lines)}


def test_overlong_sources_are_handled_by_fairseq(corpus: Corpus) -> None:
    options = "--max-source-positions 6 --batch-size 4 --required-batch-size-multiple 1"
    with pytest.raises(Exception, match="max_positions"):
        generate(corpus, f"--task spec_dec --decoder greedy {options}")
    skip = "--skip-invalid-size-inputs-valid-test"
    own = generate(corpus, f"--task translation --beam 1 {options} {skip}")
    ours = generate(corpus, f"--task spec_dec --decoder greedy {options} {skip}")
    assert 0 < len(hypotheses(own.stdout)) < 36 and hypotheses(own.stdout) == hypotheses(ours.stdout)


def test_validation_counts_accepted_tokens(corpus: Corpus, tmp_path: Path) -> None:
    """Also those of a drafter with a setting that its loss had in an earlier version."""
    assert re.search(r"best_tokens_per_iteration [\d.]+", corpus.training_log)
    state = torch.load(corpus.drafter)
    state["cfg"] = OmegaConf.create({**state["cfg"]}, flags={"allow_objects": True})
    state["cfg"].criterion["soft_targets"] = False
    torch.save(state, earlier := tmp_path / "drafter.pt")
    run = run_in_process(
        "validate",
        f"{corpus.data} --path {earlier} --task spec_dec --verifier-path {corpus.verifier} --valid-subset test "
        "--cpu --batch-size 9 --log-format simple",
    )
    output = run.stdout + run.stderr
    accepted = float(re.findall(r"tokens_per_iteration ([\d.]+)", output)[-1])
    decoder = f"gad --fixed-width --drafter-path {corpus.drafter}"
    decoded = generate(corpus, f"--task spec_dec --decoder {decoder} --batch-size 9")
    assert accepted == pytest.approx(float(re.findall(r"([\d.]+) tokens per iteration", decoded.stderr)[-1]), abs=0.01)


def test_bleu_of_a_drafter_in_training(corpus: Corpus, tmp_path: Path) -> None:
    log = run_in_process(
        "train",
        f"{corpus.data} --task spec_dec --arch block_nat {TINY} {TRAINING} --criterion glat_loss --max-update 3 "
        f"--block-size 4 --eval-bleu --eval-bleu-args '{{\"max_len_b\": 20}}' --best-checkpoint-metric bleu "
        f"--maximize-best-checkpoint-metric --save-dir {tmp_path}",
    )
    assert re.search(r"\| bleu [\d.]+", log.stdout + log.stderr)
    assert (tmp_path / "checkpoint_best.pt").exists()


def test_blockwise_from_a_stock_checkpoint(corpus: Corpus, greedy: dict[int, str], tmp_path: Path) -> None:
    """Heads on a frozen base with an identity first head: output is exactly the base model's."""
    log = run_in_process(
        "train",
        f"{corpus.data} --task spec_dec --arch blockwise_transformer --base-path {corpus.verifier} --freeze-base "
        f"--identity-first-head --blockwise-heads 3 {TRAINING} --criterion blockwise_loss --max-update 40 "
        f"--save-dir {tmp_path}",
    )
    validated = float(re.findall(r"valid on .* tokens_per_iteration ([\d.]+)", log.stdout + log.stderr)[-1])
    last = tmp_path / "checkpoint_last.pt"
    options = "--task spec_dec --decoder blockwise --fixed-width --gen-subset valid"
    decoded = float(re.findall(r"([\d.]+) tokens per iteration", generate(corpus, options, last).stderr)[-1])
    assert validated == pytest.approx(decoded, abs=0.03) and decoded > 1
    model = tmp_path / "checkpoint_best.pt"
    blockwise = generate(corpus, "--task spec_dec --decoder blockwise --batch-size 7", model)
    assert hypotheses(blockwise.stdout) == greedy
    stock = generate(corpus, "--task spec_dec --beam 1 --batch-size 7", model)
    assert hypotheses(stock.stdout) == greedy
