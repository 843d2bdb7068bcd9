"""Logs of training for TensorBoard, with fairseq's own `--tensorboard-logdir`.

fairseq logs all metrics of training and validation: glancing_ratio, glancing_accuracy, accuracy, tokens_per_iteration,
and with the option also accuracy by position and calibration error (criterions/logged_sums.py). This module adds drafts
and verifications of one validation sentence, and the reliability diagram. Without the option it does nothing.
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

from fairseq_plugins.checkpoint.session import options_of
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.recording.reliability import HEADERS, Reliability
from fairseq_plugins.decoding.reference.state import Advance
from fairseq_plugins.pages.figures import reliability_diagram
from fairseq_plugins.shared.display import table

SAMPLES = "samples"
"""Folder of texts and figures: TensorBoard needs one writer per folder, beside fairseq's of training and validation."""


def logdir(cfg: Any) -> str | None:
    """Return the folder of `--tensorboard-logdir`, None without the option.

    Without fairseq's command line the field of `cfg` is an unresolved reference.
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
        drafted = advance.draft.tokens[0, : int(advance.draft.counts()[0])]
        verifier = advance.verification.best[0, : len(drafted) + 1]
        self.iterations.append((drafted.tolist(), verifier.tolist(), int(advance.num_accepted[0])))

    def write(self, sample: dict[str, Any], hypotheses: list[Any], has_prefix: bool) -> None:
        """Do nothing at the end of the sentence."""


def log_sample(task: Any, generator: DraftVerifyGenerator, step: int) -> None:
    """Decode one validation sentence and log its drafts and verifications as text.

    It is always the same sentence, of median length, so that drafts can be compared over time. The generator decodes
    with the drafter in training; its `trace` is replaced. `step` is the number of updates.
    """
    folder = logdir(options_of(task))
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
    output = task.inference_step(generator, [], sample)[0][0]["tokens"]
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
    """Log the drafter's reliability in a validation as a table, and as a figure if matplotlib is installed.

    `step` is the number of updates.
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
