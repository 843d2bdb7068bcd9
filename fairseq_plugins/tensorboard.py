"""Logs of training and decoding for TensorBoard, with fairseq's own `--tensorboard-logdir`.

fairseq logs all metrics of training and validation: glancing_ratio, glancing_accuracy, accuracy, mean_accepted_tokens,
and with the option also accuracy by position (criterions/block_accuracy.py) and calibration error
(criterions/block_reliability.py). This module adds drafts and verifications of one validation sentence, the
reliability diagram, and statistics of decoding runs. Without the option it does nothing.
"""

import html
import os
import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from typing import Any

import numpy
import torch
from fairseq import utils

from fairseq_plugins.commands.tables import table
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import MethodOptions, MethodSpec
from fairseq_plugins.decoding.reliability import HEADERS, Reliability
from fairseq_plugins.decoding.state import Advance
from fairseq_plugins.decoding.stats import DecodingStats, SentenceStats
from fairseq_plugins.pages.figures import reliability_diagram

SAMPLES = "samples"
"""Folder of texts and figures: TensorBoard needs one writer per folder, beside fairseq's of training and validation."""


def logdir(cfg: Any) -> str | None:
    """Return the folder of `--tensorboard-logdir`, None without the option.

    Args:
        cfg: the task's settings; without fairseq's command line the field is an unresolved reference.
    """
    folder = getattr(cfg, "tensorboard_logdir", None)
    return None if not folder or folder.startswith("${") else folder


@cache
def _writer(folder: str) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder)


class SampleTrace:
    """Records the iterations of one sentence, as a generator's `trace`."""

    def __init__(self) -> None:
        self.iterations: list[tuple[list[int], list[int], int]] = []

    def iteration(self, sentences: Sequence[int], advance: Advance) -> None:
        """Record draft, verifier tokens and number of accepted ones; arguments as for `Tracer.iteration`."""
        draft, count = advance.draft, advance.draft.tokens.size(1)
        drafted = draft.tokens[0, : count if draft.num_drafted is None else int(draft.num_drafted[0])]
        verifier = advance.verification.best[0, : len(drafted) + 1]
        self.iterations.append((drafted.tolist(), verifier.tolist(), int(advance.num_accepted[0])))

    def write(self, sample: dict[str, Any], hypotheses: list[Any], has_prefix: bool) -> None:
        """Do nothing at the end of the sentence."""


def log_sample(task: Any, generator: DraftVerifyGenerator, step: int) -> None:
    """Decode one validation sentence and log its drafts and verifications as text.

    It is always the same sentence, of median length, so that drafts can be compared over time.

    Args:
        task: the training task, for its options, dictionaries and validation data.
        generator: decodes with the drafter in training; its `trace` is replaced.
        step: number of updates so far.
    """
    folder = logdir(task.cfg)
    subset = next((name for name in task.datasets if "train" not in name), None)
    if folder is None or subset is None or not _is_first_worker():
        return
    dataset = task.dataset(subset)
    # ordered_indices() would shuffle sentences of equal length.
    by_length = sorted(range(len(dataset)), key=dataset.num_tokens)
    sample = dataset.collater([dataset[by_length[len(by_length) // 2]]])
    if next(generator.parameters()).is_cuda:
        sample = utils.move_to_cuda(sample)
    trace = SampleTrace()
    generator.trace = trace
    generator.refresh()
    output = generator.generate([], sample)[0][0]["tokens"]
    source, target = sample["net_input"]["src_tokens"][0], sample["target"][0]
    texts = {
        "source": task.source_dictionary.string(source),
        "reference": task.target_dictionary.string(target),
        "output": task.target_dictionary.string(output),
    }
    writer = _writer(os.path.join(folder, SAMPLES))
    writer.add_text("draft_and_verify", sample_text(texts, trace, task.target_dictionary.symbols), step)
    writer.add_scalar("sample_iterations", len(trace.iterations), step)
    writer.flush()


def sample_text(texts: dict[str, str], trace: SampleTrace, symbols: Sequence[str]) -> str:
    """Return Markdown: the sentence, then draft and verifier line by line; accepted drafts are bold."""

    def words(tokens: Sequence[int]) -> str:
        return " ".join(_escaped(symbols[token]) for token in tokens)

    lines = [f"**{name}** {_escaped(text)}\n" for name, text in texts.items()]
    lines += ["| | draft (bold: accepted) | verifier |", "|---|---|---|"]
    for number, (drafted, verifier, accepted) in enumerate(trace.iterations, 1):
        bold = f"**{words(drafted[:accepted])}** " if accepted else ""
        lines.append(f"| {number} | {bold}{words(drafted[accepted:])} | {words(verifier)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Escape text for Markdown and HTML."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|~])", r"\\\1", html.escape(text, quote=False))


def _is_first_worker() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def log_reliability(cfg: Any, reliability: Reliability | None, step: int) -> None:
    """Log the reliability diagram of a validation as a table of bins, and as a figure if matplotlib is installed.

    Args:
        cfg: the task's settings.
        reliability: of the drafter in training; None logs nothing.
        step: number of updates so far.
    """
    folder = logdir(cfg)
    if folder is None or reliability is None or not reliability.total or not _is_first_worker():
        return
    writer = _writer(os.path.join(folder, SAMPLES))
    bins = table(reliability.rows(), HEADERS, "pipe")
    summary = f"{reliability.total:,} tokens, expected calibration error {reliability.error:.3f}"
    if find_spec("matplotlib") is None:
        summary += "; the figure needs matplotlib: pip install '.[reports]'"
    else:
        from PIL import Image

        figure = Image.open(BytesIO(reliability_diagram({f"{step} updates": reliability}))).convert("RGB")
        writer.add_image("reliability_diagram", numpy.asarray(figure), step, dataformats="HWC")
    writer.add_text("reliability", f"{bins}\n\n{summary}", step)
    writer.flush()


class LoggedStats(DecodingStats):
    """Statistics that are also logged to TensorBoard: running means over the sentences, and final distributions.

    Args:
        decoder, file: as for `DecodingStats`.
        folder: of `--tensorboard-logdir`; the run gets a subfolder.
        run: name of the run, such as `gad-k10`; a number is added if it exists.
    """

    def __init__(self, decoder: str, file: str | None, folder: str, run: str) -> None:
        super().__init__(decoder, file)
        self._folder = unused(os.path.join(folder, run))
        self._writer = _writer(self._folder)
        self._emitted: list[int] = []
        self._speed_ups: list[float] = []

    def record(self, batch: Sequence[SentenceStats], seconds: float) -> None:
        """Add a decoded batch and its wall-clock time."""
        super().record(batch, seconds)
        for sentence in batch:
            self._emitted += sentence.emitted
            self._speed_ups.append(sentence.tokens / max(sentence.iterations, 1))
        for name, value in (
            ("mean_accepted_tokens", self.mean_accepted_tokens),
            ("iterations_per_sentence", self.iterations / self.sentences),
            ("tokens_per_second", self.tokens / max(self.seconds, 1e-9)),
            ("seconds_per_sentence", self.seconds / self.sentences),
        ):
            self._writer.add_scalar(f"decoding/{name}", value, self.sentences)

    def close(self) -> None:
        """Log the distributions and the summary, and close as `DecodingStats` does."""
        try:
            self._log_distributions()
        finally:
            super().close()

    def _log_distributions(self) -> None:
        if self._emitted:
            bins = [edge - 0.5 for edge in range(max(self._emitted) + 2)]
            self._writer.add_histogram("decoding/emitted_tokens", torch.tensor(self._emitted), self.sentences, bins)
            speed_ups = torch.tensor(self._speed_ups)
            self._writer.add_histogram("decoding/tokens_per_iteration_of_a_sentence", speed_ups, self.sentences)
            self._writer.add_text("decoding/summary", _escaped(self.summary()), self.sentences)
        self._writer.close()


def decoding_stats(cfg: Any, spec: MethodSpec, options: MethodOptions, is_one_run: bool) -> DecodingStats:
    """Return the statistics of a generator: logged ones with `--tensorboard-logdir`, else plain ones.

    Args:
        cfg: the task's settings.
        spec, options: the method.
        is_one_run: whether the generator serves a single decoding run, not validation or a comparison.
    """
    folder = logdir(cfg)
    label = f"{spec.name} int8 (lossy: weights rounded)" if cfg.int8 else spec.name
    if folder is None or not is_one_run:
        return DecodingStats(label, cfg.stats_file)
    return LoggedStats(label, cfg.stats_file, folder, run_name(spec, options, cfg.int8))


def run_name(spec: MethodSpec, options: MethodOptions, int8: bool = False) -> str:
    """Return decoder and settings, such as `gad++-k10-beta3-tau1`."""
    shown = (("block_size", "k"), ("top_beta", "beta"), ("tau", "tau"))
    defaults = spec.options()
    parts = [spec.name]
    for name, short in shown:
        value = getattr(options, name, None)
        if value != getattr(defaults, name, None):
            parts.append(f"{short}{value:g}")
    return "-".join([*parts, "int8"] if int8 else parts)


def unused(folder: str) -> str:
    """Return the folder, with a number if it exists: TensorBoard would mix two runs in one folder."""
    number = 1
    name = folder
    while os.path.exists(name):
        number += 1
        name = f"{folder}-{number}"
    return name
