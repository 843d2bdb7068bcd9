"""What happened in a run, as numbers: speed-ups, edit ratios, emitted tokens, acceptance, the drafter's reliability."""

import math
import statistics
from collections.abc import Sequence

import torch

from fairseq_plugins.decoding.reliability import Reliability
from fairseq_plugins.decoding.trace import stream_trace
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.edit_ratio import edit_ratio
from fairseq_plugins.pages.runs import Run

# What fewer than this share of the sentences or iterations reach is noise and not drawn.
_SENTENCES_SHARE = 0.05
_ITERATIONS_SHARE = 0.01


def speed_ups(run: Run, baseline: Run | None) -> dict[int, float]:
    """Speed-up of every sentence.

    Args:
        run: whose.
        baseline: compare wall-clock times with this run, on the sentences that both have. Without one, count
            iterations, of which greedy decoding needs one per token.

    Raises:
        ConfigurationError: when the runs have no sentence in common.
    """
    if baseline is None:
        return {number: sentence.tokens / sentence.iterations for number, sentence in run.sentences.items()}
    common = run.sentences.keys() & baseline.sentences.keys()
    if not common:
        raise ConfigurationError(
            f"--baseline {baseline.file}: has no sentence number in common with {run.file}; decode the same subset"
        )
    return {
        number: baseline.sentences[number].seconds / max(run.sentences[number].seconds, 1e-9)
        for number in sorted(common)
    }


def edit_ratios(sources: Sequence[str], outputs: Sequence[str]) -> list[float]:
    """Edit distance of source and output in tokens between spaces, divided by the length of the source.

    Aggressive Decoding, section 4.1.2: "normalized (by the input length) edit distance between the input and output".
    """
    return [edit_ratio(source.split(), output.split()) for source, output in zip(sources, outputs, strict=True)]


# Upper ends of the rows of the table of speed-up by edit ratio; the first row is of unchanged sentences.
_EDIT_RATIOS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, math.inf)


def speed_up_by_edits(ratios: Sequence[float], speed_ups: Sequence[float]) -> list[tuple[str, int, float]]:
    """(range of edit ratios, sentences in it, their median speed-up), ranges without sentences left out.

    Aggressive Decoding, Figure 5, as numbers.
    """
    rows = []
    lower = -math.inf
    for upper in _EDIT_RATIOS:
        inside = [gain for ratio, gain in zip(ratios, speed_ups, strict=True) if lower < ratio <= upper]
        if inside:
            name = f"above {lower:g}, to {upper:g}" if upper < math.inf else f"above {lower:g}"
            rows.append(("0 (unchanged)" if upper == 0 else name, len(inside), statistics.median(inside)))
        lower = upper
    return rows


def emitted_by_iteration(run: Run) -> list[tuple[int, float, int]]:
    """(iteration from 1, mean emitted tokens in it, sentences that had it), as long as enough sentences have it."""
    lists = [sentence.emitted for sentence in run.sentences.values()]
    enough = max(1.0, _SENTENCES_SHARE * len(lists))
    points = []
    for iteration in range(max(map(len, lists))):
        counts = [emitted[iteration] for emitted in lists if len(emitted) > iteration]
        if len(counts) < enough:
            break
        points.append((iteration + 1, sum(counts) / len(counts), len(counts)))
    return points


def acceptance_by_position(run: Run) -> tuple[list[float], list[float]]:
    """Probability that the token at a position of the draft is accepted.

    An iteration that emits g tokens has accepted the drafted positions 1 to g - 1; the verifier's own token was the
    last. What it says of position g depends: it was rejected, unless the sentence ended there, where nothing is known
    of it. So this is a survival curve with censored observations, estimated as by Kaplan and Meier (1958). Drafts are
    taken to be one token shorter than the largest gain; one that is shorter itself counts as rejected after its end.

    Returns:
        by position: the probability given that all before it were accepted, and the product of these.
    """
    ended = [sentence.emitted[-1] for sentence in run.sentences.values()]
    went_on = [gain for sentence in run.sentences.values() for gain in sentence.emitted[:-1]]
    given: list[float] = []
    together: list[float] = []
    enough = max(1.0, _ITERATIONS_SHARE * (len(ended) + len(went_on)))
    for position in range(1, max([*ended, *went_on])):
        accepted = sum(gain > position for gain in ended) + sum(gain > position for gain in went_on)
        observed = accepted + sum(gain == position for gain in went_on)
        if observed < enough:
            break
        given.append(accepted / observed)
        together.append(given[-1] * (together[-1] if together else 1.0))
    return given, together


def drafter_reliability(run: Run) -> Reliability | None:
    """How likely the drafter said that its tokens are, and how many of them were accepted; None without a trace.

    Counted are of every draft the accepted tokens and the first rejected one, where the drafter gave a probability:
    of what comes after it nobody knows.

    Raises:
        ConfigurationError: where the trace cannot be read, or is that of another run.
    """
    if run.trace is None:
        return None
    said: list[float] = []
    accepted: list[bool] = []
    for sentence in stream_trace(run.trace)[1]:
        stats = run.sentences.get(sentence.id)
        if stats is None or stats.emitted != [len(note.why) for note in sentence.iterations]:
            raise ConfigurationError(
                f"--traces {run.trace}: sentence {sentence.id} has other iterations than in {run.file}; give the "
                "--trace-file of the same run"
            )
        for note in sentence.iterations:
            looked_at = note.accepted + (note.bifurcation is not None)
            for position, log_prob in enumerate((note.drafter_log_probs or [])[:looked_at]):
                if log_prob is not None:
                    said.append(math.exp(log_prob))
                    accepted.append(position < note.accepted)
    return Reliability.of(torch.tensor(said), torch.tensor(accepted, dtype=torch.bool))
