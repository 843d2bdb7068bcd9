"""One table of decoders on one test set: quality, identity with fairseq's output, iterations and speed.

    spec-dec-compare DATA_BIN --path VERIFIER.pt [--drafter-path DRAFTER.pt] [--blockwise-path HEADS.pt] \
        [--results FOLDER]

All options of fairseq-generate are understood too. Everything is measured in one process, with models loaded
once. Speed is measured with the decoders taking turns, so that whatever else the machine does meanwhile falls
on all of them alike.
"""

import argparse
import ast
import datetime
import json
import logging
import platform
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import DictConfig, OmegaConf
from tabulate import tabulate
from tqdm import tqdm

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.loading import load_model
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer
from fairseq_plugins.reports.cli import run_command
from fairseq_plugins.reports.contenders import (
    BEAM_1,
    BEAM_5,
    BLOCKWISE,
    CONTENDERS,
    DRAFTER,
    Contender,
    choose,
    heads_are_lossless,
)
from fairseq_plugins.reports.files import write_atomically

logger = logging.getLogger("spec-dec-compare")

WARM_UP_SENTENCES = 5
DEFAULT_BATCH_SIZE = 32


Tokens = tuple[int, ...]  # ids of one output sentence


@dataclass
class Row:
    """What was measured for one contender. Quantities that do not apply are None."""

    name: str
    bleu: float | None = None
    identical: int | None = None  # sentences with fairseq's beam=1 ids, whole subset
    sentences: int = 0
    identical_batch1: int | None = None  # the same one sentence at a time, on the timed sentences
    timed_sentences: int = 0
    iterations: float | None = None  # decoder runs per sentence
    accepted_tokens: float | None = None  # tokens per decoder run
    seconds: dict[int, list[float]] = field(default_factory=dict)  # batch size -> one entry per repetition

    def rate(self, batch_size: int) -> float | None:
        """Return sentences per second: the median over the repetitions."""
        times = self.seconds.get(batch_size)
        return self.timed_sentences / statistics.median(times) if times else None


def speed_up(row: Row, baseline: Row, batch_size: int) -> float | None:
    """Return how many times faster `row` is than `baseline` at one batch size."""
    ours, theirs = row.rate(batch_size), baseline.rate(batch_size)
    return ours / theirs if ours and theirs else None


def count_identical(outputs: Mapping[int, Tokens], reference: Mapping[int, Tokens]) -> int:
    """Return for how many sentence ids both hold the same token ids."""
    return sum(tokens == reference[number] for number, tokens in outputs.items())


# --------------------------------------------------------------------------------------------------- decoding


class Bench:
    """The models, the data and the task, loaded once; decodes any contender on any sentences."""

    def __init__(self, cfg: DictConfig, blockwise_path: str | None = None) -> None:
        """Load everything.

        Args:
            cfg: fairseq's whole configuration, as fairseq-generate gets it.
            blockwise_path: checkpoint of a `blockwise_transformer`, for the row that is one.
        """
        self.cfg = cfg
        self.cuda = torch.cuda.is_available() and not cfg.common.cpu
        self.task = tasks.setup_task(cfg.task)
        self.task.reports_summary = False  # the table says it all
        self.models = self._load_models()
        self.blockwise = self._load_blockwise(blockwise_path)
        self.subset = cfg.dataset.gen_subset
        self._load_data()
        self.tokenizer = self.task.build_tokenizer(cfg.tokenizer)
        self.bpe = self.task.build_bpe(cfg.bpe)

    def _load_models(self) -> list[torch.nn.Module]:
        models, _ = checkpoint_utils.load_model_ensemble(
            utils.split_paths(self.cfg.common_eval.path),
            arg_overrides=ast.literal_eval(self.cfg.common_eval.model_overrides),
            task=self.task,
        )
        return [self._prepared(model) for model in models]

    def _load_blockwise(self, path: str | None) -> torch.nn.Module | None:
        if path is None:
            return None
        return self._prepared(load_model(path, self.task, BLOCKWISE, required=BlockwiseTransformer))

    def _prepared(self, model: torch.nn.Module) -> torch.nn.Module:
        if self.cfg.common.fp16:
            model.half()
        if self.cuda:
            model.cuda()
        model.prepare_for_inference_(self.cfg)
        return model

    def _load_data(self) -> None:
        try:
            self.task.load_dataset(self.subset)
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"--gen-subset {self.subset}: no such subset in {self.cfg.task.data}; "
                "name one that fairseq-preprocess wrote there"
            ) from error
        self.dataset = self.task.dataset(self.subset)
        limits = utils.resolve_max_positions(
            self.task.max_positions(), *[model.max_positions() for model in self.models]
        )
        skip = self.cfg.dataset.skip_invalid_size_inputs_valid_test
        usable = self.task.filter_indices_by_size(self.dataset.ordered_indices(), self.dataset, limits, skip)
        # Sorted by length, as fairseq does, so that a batch holds sentences of similar length.
        self.order: list[int] = [int(number) for number in usable]

    def first(self, count: int) -> list[int]:
        """Return the ids of the `count` sentences that come first in the file, shortest sentence first."""
        chosen = set(sorted(self.order)[:count])
        return [number for number in self.order if number in chosen]

    def generator(self, contender: Contender) -> Any:
        """Return a fresh generator for `contender`: the task's own, so that all generation options count."""
        generation = OmegaConf.create(OmegaConf.to_container(self.cfg.generation))
        generation.beam, generation.nbest = contender.beam, 1
        wanted = {"decoding_method": contender.decoder, **contender.task_options}
        before = {option: self.task.cfg[option] for option in wanted}
        try:
            self.task.cfg.update(wanted)
            models = [self.blockwise] if contender.needs == BLOCKWISE else self.models
            return self.task.build_generator(models, generation)
        finally:
            self.task.cfg.update(before)

    def cannot_run(self, contender: Contender) -> str | None:
        """Return why a row has to be left out, None for one that can run."""
        if contender.needs == DRAFTER and self.cfg.task.drafter_path is None:
            return f"without {DRAFTER}"
        if contender.needs == BLOCKWISE and self.blockwise is None:
            return f"without {BLOCKWISE}"
        if contender.decoder == "iad" and self.task.source_dictionary != self.task.target_dictionary:
            return "dictionaries of source and target differ"
        if contender.decoder == "nat" and self.cfg.generation.prefix_size > 0:
            return f"--prefix-size {self.cfg.generation.prefix_size}"
        return None

    def runnable(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Return those that can run, and say in a line why others cannot."""
        reasons: dict[str, list[str]] = {}
        chosen = []
        for contender in contenders:
            reason = self.cannot_run(contender)
            if reason is not None:
                reasons.setdefault(reason, []).append(contender.name)
            elif contender.needs == BLOCKWISE:
                chosen.append(replace(contender, lossless=heads_are_lossless(self.blockwise, self.models)))
            else:
                chosen.append(contender)
        for reason, names in reasons.items():
            logger.info("%s: left out %s", reason, ", ".join(names))
        return chosen

    def batches(self, numbers: Sequence[int], batch_size: int) -> Iterator[dict]:
        """Yield fairseq samples of `batch_size` sentences each, on the device."""
        for start in range(0, len(numbers), batch_size):
            chosen = numbers[start : start + batch_size]
            sample = self.dataset.collater([self.dataset[number] for number in chosen])
            yield utils.move_to_cuda(sample) if self.cuda else sample

    def decode(
        self, generator: Any, numbers: Sequence[int], batch_size: int, bar: tqdm | None = None
    ) -> tuple[dict[int, Tokens], float]:
        """Decode sentences `numbers`; return their token ids, and the seconds that `generate` alone took."""
        outputs: dict[int, Tokens] = {}
        seconds = 0.0
        prefix_size = self.cfg.generation.prefix_size
        for sample in self.batches(numbers, batch_size):
            prefix = sample["target"][:, :prefix_size] if prefix_size > 0 else None
            self._synchronise()
            start = time.perf_counter()
            with torch.no_grad():
                hypotheses = generator.generate(self.models, sample, prefix_tokens=prefix)
            self._synchronise()
            seconds += time.perf_counter() - start
            for number, sentence in zip(sample["id"].tolist(), hypotheses, strict=True):
                outputs[number] = tuple(sentence[0]["tokens"].tolist())
            if bar is not None:
                bar.update(len(hypotheses))
        return outputs, seconds

    def _synchronise(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def text(self, tokens: Sequence[int]) -> str:
        """Return raw text: subwords joined and detokenised as --remove-bpe, --bpe and --tokenizer say."""
        dictionary = self.task.target_dictionary
        line = dictionary.string(torch.tensor(tokens), self.cfg.common_eval.post_process)
        line = self.bpe.decode(line) if self.bpe is not None else line
        return self.tokenizer.decode(line) if self.tokenizer is not None else line

    def references(self, file: str | None) -> dict[int, str] | None:
        """Return the reference of each sentence: from a raw text file, else the target side, if any."""
        if file is not None:
            return read_references(file, len(self.dataset))
        if self.dataset.tgt is None:
            return None
        return {number: self.text(self.dataset.tgt[number].tolist()) for number in self.order}


def read_references(file: str, sentences: int) -> dict[int, str]:
    """Return line number -> line of a raw text file, which must have `sentences` lines."""
    try:
        lines = Path(file).read_bytes().decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigurationError(
            f"--reference {file}: {reason}; give the raw text of the target side"
        ) from error
    if lines[-1] == "":  # the end of the last line, not one more
        lines.pop()
    if len(lines) != sentences:
        raise ConfigurationError(
            f"--reference {file}: {len(lines)} lines, but the decoded subset has {sentences}; "
            "give the file that was binarised"
        )
    return dict(enumerate(lines))


# -------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    batch_sizes: Sequence[int]
    timing_sentences: int
    repeats: int


def measure(
    bench: Bench, contenders: Sequence[Contender], plan: Plan, references: dict[int, str] | None
) -> list[Row]:
    """Decode the subset once for quality, then part of it repeatedly for speed; one row per contender."""
    timed = bench.first(plan.timing_sentences)
    warm_up = timed[-WARM_UP_SENTENCES:]
    per_contender = len(bench.order) + len(plan.batch_sizes) * (len(warm_up) + plan.repeats * len(timed))
    rows = [Row(c.name, sentences=len(bench.order), timed_sentences=len(timed)) for c in contenders]
    total = per_contender * len(contenders)
    often = 0.2 if sys.stderr.isatty() else 20.0  # seconds; in a log file every refresh is a line
    with tqdm(total=total, unit="sentences", leave=False, mininterval=often, dynamic_ncols=True) as bar:
        measure_quality(bench, contenders, rows, references, bar)
        measure_speed(bench, contenders, rows, plan, timed, warm_up, bar)
    return rows


def measure_quality(
    bench: Bench,
    contenders: Sequence[Contender],
    rows: Sequence[Row],
    references: dict[int, str] | None,
    bar: tqdm,
) -> None:
    """Fill in BLEU, identity, iterations and accepted tokens, from one pass over the whole subset."""
    batch_size = bench.cfg.dataset.batch_size or DEFAULT_BATCH_SIZE
    outputs: dict[str, dict[int, Tokens]] = {}
    for contender, row in zip(contenders, rows, strict=True):
        bar.set_description(f"quality, {contender.name}", refresh=False)
        generator = bench.generator(contender)
        outputs[contender.name], _ = bench.decode(generator, bench.order, batch_size, bar)
        row.iterations, row.accepted_tokens = iterations(generator, contender, outputs[contender.name])
        if references is not None:
            row.bleu = bleu(bench, outputs[contender.name], references)
    for row in rows:
        row.identical = count_identical(outputs[row.name], outputs[BEAM_1])


def measure_speed(
    bench: Bench,
    contenders: Sequence[Contender],
    rows: Sequence[Row],
    plan: Plan,
    timed: Sequence[int],
    warm_up: Sequence[int],
    bar: tqdm,
) -> None:
    """Fill in the seconds of each repetition, and identity at batch size 1."""
    generators = [bench.generator(contender) for contender in contenders]
    for batch_size in plan.batch_sizes:
        for generator in generators:
            bar.set_description(f"warm-up, batch {batch_size}", refresh=False)
            bench.decode(generator, warm_up, batch_size, bar)
        outputs: dict[str, dict[int, Tokens]] = {}
        for repetition in range(plan.repeats):
            for row, generator in zip(rows, generators, strict=True):
                bar.set_description(
                    f"speed {repetition + 1}/{plan.repeats}, batch {batch_size}, {row.name}", refresh=False
                )
                outputs[row.name], seconds = bench.decode(generator, timed, batch_size, bar)
                row.seconds.setdefault(batch_size, []).append(seconds)
        if batch_size == 1:
            for row in rows:
                row.identical_batch1 = count_identical(outputs[row.name], outputs[BEAM_1])


def iterations(
    generator: Any, contender: Contender, outputs: Mapping[int, Tokens]
) -> tuple[float | None, float | None]:
    """Return decoder runs per sentence and tokens per run.

    Our generators count them. fairseq's greedy search runs once per token; how often its beam search runs
    cannot be seen in its output.
    """
    stats = getattr(generator, "stats", None)
    if stats is not None:
        return stats.iterations / max(stats.sentences, 1), stats.mean_accepted_tokens
    if contender.beam == 1:
        return sum(map(len, outputs.values())) / len(outputs), 1.0
    return None, None


SCORER = sacrebleu.BLEU()


def bleu(bench: Bench, outputs: Mapping[int, Tokens], references: Mapping[int, str]) -> float:
    """Return sacrebleu's BLEU of raw text."""
    numbers = sorted(outputs)
    hypotheses = [bench.text(outputs[number]) for number in numbers]
    return SCORER.corpus_score(hypotheses, [[references[number] for number in numbers]]).score


# -------------------------------------------------------------------------------------------------- reporting


def machine() -> str:
    """Return one line: processor, threads, accelerator, versions, date. Speed means nothing without it."""
    parts = [cpu_model(), f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    parts += [
        f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
        datetime.date.today().isoformat(),
    ]
    return ", ".join(parts)


def cpu_model() -> str:
    """Return the processor's name as Linux knows it, elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def shown(value: float | None, form: str) -> str:
    """Return `value` formatted, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def markdown_table(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return the rows as a Markdown table that also reads well in a terminal."""
    baselines = {name: row for row in rows for name in (BEAM_5, BEAM_1) if row.name == name}
    first = batch_sizes[0]
    header = ["decoder", "BLEU", "identical"]
    header += ["at batch 1"] if 1 in batch_sizes else []
    header += ["iterations", "accepted"]
    header += [f"sent/s, batch {size}" for size in batch_sizes]
    header += [f"× {name.removeprefix('fairseq ')}" for name in baselines]
    body = []
    for row in rows:
        cells = [row.name, shown(row.bleu, ".2f"), f"{row.identical} of {row.sentences}"]
        cells += [f"{row.identical_batch1} of {row.timed_sentences}"] if 1 in batch_sizes else []
        cells += [shown(row.iterations, ".2f"), shown(row.accepted_tokens, ".2f")]
        cells += [shown(row.rate(size), ".1f") for size in batch_sizes]
        cells += [shown(speed_up(row, baseline, first), ".2f") for baseline in baselines.values()]
        body.append(cells)
    alignment = ["left"] + ["right"] * (len(header) - 1)
    return tabulate(body, headers=header, tablefmt="github", colalign=alignment, disable_numparse=True)


def notes(
    bench: Bench, contenders: Sequence[Contender], rows: Sequence[Row], plan: Plan, command: str, has_bleu: bool
) -> list[str]:
    """Return the lines below the table: what the columns mean, and how it was measured."""
    lossless = ", ".join(contender.name for contender in contenders if contender.lossless) or "none"
    quality_batch = bench.cfg.dataset.batch_size or DEFAULT_BATCH_SIZE
    lines = [
        f"Subset {bench.subset}, {len(bench.order)} sentences, at batch size {quality_batch}: BLEU; "
        f"sentences with exactly the token ids of {BEAM_1}; iterations per sentence; accepted tokens "
        f"per iteration.",
        f"Speed on the first {rows[0].timed_sentences} sentences: median of {plan.repeats} alternating runs, "
        f"time in the decoder only; × is the speed-up at batch size {plan.batch_sizes[0]}.",
        f"Lossless by construction: {lossless}.",
        f"Machine: {machine()}",
        f"Command: {command}",
    ]
    if has_bleu:
        lines.insert(1, f"sacrebleu {SCORER.get_signature()}")
    return lines


def as_json(rows: Sequence[Row], lines: Sequence[str], batch_sizes: Sequence[int]) -> str:
    """Return everything that was measured, every repetition included."""
    by_name = {row.name: row for row in rows}
    records = []
    for row in rows:
        record = asdict(row)
        record["sentences_per_second"] = {size: row.rate(size) for size in batch_sizes}
        for baseline in (name for name in (BEAM_5, BEAM_1) if name in by_name):
            record[f"speed_up_over_{baseline.replace(' ', '_')}"] = {
                size: speed_up(row, by_name[baseline], size) for size in batch_sizes
            }
        records.append(record)
    return json.dumps({"rows": records, "notes": list(lines)}, indent=2, ensure_ascii=False) + "\n"


def warn_if_lossy(rows: Sequence[Row], contenders: Sequence[Contender]) -> None:
    """Say so where a decoder that promises fairseq's output did not give it."""
    for row, contender in zip(rows, contenders, strict=True):
        if not contender.lossless:
            continue
        for identical, total in ((row.identical, row.sentences), (row.identical_batch1, row.timed_sentences)):
            if identical is not None and identical < total:
                different = f"{row.name} differs from {BEAM_1} in {total - identical} of {total} sentences"
                logger.warning("%s; in fp32 only two tokens of equal score can explain that", different)


# ----------------------------------------------------------------------------------------------- command line


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def positive_list(text: str) -> list[int]:
    """Parse a comma-separated list of integers of at least 1, for argparse."""
    return [positive(part) for part in text.split(",")]


def get_parser() -> argparse.ArgumentParser:
    """Return fairseq-generate's parser with our own options added."""
    parser = options.get_generation_parser(default_task="spec_dec")
    parser.prog = "spec-dec-compare"
    group = parser.add_argument_group("comparison")
    group.add_argument("--results", metavar="FOLDER", help="write table.md and table.json there")
    group.add_argument("--repeats", type=positive, default=3, help="timed repetitions; the median counts")
    group.add_argument("--timing-sentences", type=positive, default=100, help="how many sentences are timed")
    group.add_argument(
        "--timing-batch-sizes", type=positive_list, default=[1, 16], metavar="N,N", help="batch sizes to time"
    )
    group.add_argument(
        "--reference", metavar="FILE", help="raw text to score against (default: the subset's target side)"
    )
    known = ", ".join(c.name for c in CONTENDERS)
    group.add_argument("--decoders", metavar="NAME,NAME", help=f"rows besides {BEAM_1}, all by default: {known}")
    group.add_argument(
        "--blockwise-path", metavar="MODEL.pt", help="checkpoint of a blockwise_transformer, for the row blockwise"
    )
    return parser


def leave_the_decoder_to_us(cfg: DictConfig) -> None:
    """Reset the options that name a decoder: every contender sets its own."""
    if cfg.task.stats_file is not None:
        raise ConfigurationError(
            f"--stats-file {cfg.task.stats_file}: is for one decoder; use it with fairseq-generate"
        )
    decoder = "beam" if cfg.task.drafter_path is None else "gad"
    cfg.task.update(decoding_method=decoder, preset="none", top_beta=1, tau=0.0)


def check_paths(cfg: DictConfig, blockwise_path: str | None = None) -> None:
    """Refuse files that are not there, before anything is loaded."""
    if not cfg.common_eval.path:
        raise ConfigurationError("--path is missing; give the checkpoint of the verifier")
    if not Path(str(cfg.task.data)).is_dir():
        raise ConfigurationError(f"{cfg.task.data}: no such folder; give one that fairseq-preprocess wrote")
    drafter = cfg.task.get("drafter_path")
    for option, paths in (("--path", cfg.common_eval.path), (DRAFTER, drafter), (BLOCKWISE, blockwise_path)):
        for path in utils.split_paths(paths) if paths else []:
            if not Path(path).is_file():
                raise ConfigurationError(f"{option} {path}: no such file; give a checkpoint of fairseq-train")


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hydra's, about how fairseq calls it
        args = options.parse_args_and_arch(get_parser(), input_args=list(argv))
        cfg = convert_namespace_to_omegaconf(args)
    wanted = choose(args.decoders)
    check_paths(cfg, args.blockwise_path)
    leave_the_decoder_to_us(cfg)
    plan = Plan(args.timing_batch_sizes, args.timing_sentences, args.repeats)
    bench = Bench(cfg, args.blockwise_path)
    contenders = bench.runnable(wanted)
    if not bench.order:
        raise ConfigurationError(f"--gen-subset {bench.subset}: has no sentences; choose another")
    references = bench.references(args.reference)
    rows = measure(bench, contenders, plan, references)

    table = markdown_table(rows, plan.batch_sizes)
    command = shlex.join(["spec-dec-compare", *argv])
    lines = notes(bench, contenders, rows, plan, command, references is not None)
    print(table + "\n")
    print("\n".join(lines))
    warn_if_lossy(rows, contenders)
    if args.results:
        folder = Path(args.results)
        write_atomically(folder / "table.json", as_json(rows, lines, plan.batch_sizes), "--results")
        markdown = table + "\n\n" + "".join(f"- {line}\n" for line in lines)
        write_atomically(folder / "table.md", markdown, "--results")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-compare`: 0, or 2 after a one-line error."""
    logger.setLevel(logging.INFO)
    return run_command("spec-dec-compare", run, argv)


if __name__ == "__main__":
    sys.exit(main())
