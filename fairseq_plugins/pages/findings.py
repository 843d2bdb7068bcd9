"""Numbers of a run for reports: speed-ups, acceptance, the drafter's reliability."""

import math

import torch

from fairseq_plugins.decoding.recording.reliability import Reliability
from fairseq_plugins.decoding.recording.trace import stream_trace
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.pages.runs import Run

# Points with a smaller share of the iterations are noise and not drawn.
_ITERATIONS_SHARE = 0.01


def speed_ups(run: Run, baseline: Run | None) -> dict[int, float]:
    """Return the speed-up of every sentence: in wall-clock time over `baseline`, on common sentences.

    Without a baseline: in iterations over greedy decoding, which needs one per token. Raises ConfigurationError if the
    runs have no sentence in common.
    """
    if baseline is None:
        return {number: sentence.tokens / sentence.iterations for number, sentence in run.sentences.items()}
    common = run.sentences.keys() & baseline.sentences.keys()
    if not common:
        problem = f"has no sentence number in common with {run.file}"
        raise ConfigurationError("--baseline", baseline.file, problem, "decode the same subset")
    return {
        number: baseline.sentences[number].seconds / max(run.sentences[number].seconds, 1e-9)
        for number in sorted(common)
    }


def acceptance_by_position(run: Run) -> tuple[list[float], list[float]]:
    """Return the probability that a drafted token is accepted, by position in the draft.

    An iteration that emits g tokens has accepted the drafted positions 1 to g - 1 and rejected position g. In the last
    iteration of a sentence, position g is unknown. This is a survival curve with censored observations, estimated as by
    Kaplan and Meier (1958). Drafts are assumed to have one token less than the most that an iteration emitted; shorter
    drafts count as rejected after their end. Returns the probability given that all before it were accepted, and the
    product of these.
    """
    last = [sentence.emitted[-1] for sentence in run.sentences.values()]
    others = [count for sentence in run.sentences.values() for count in sentence.emitted[:-1]]
    conditional: list[float] = []
    joint: list[float] = []
    min_count = max(1.0, _ITERATIONS_SHARE * (len(last) + len(others)))
    for position in range(1, max([*last, *others])):
        accepted = sum(count > position for count in last) + sum(count > position for count in others)
        observed = accepted + sum(count == position for count in others)
        if observed < min_count:
            break
        conditional.append(accepted / observed)
        joint.append(conditional[-1] * (joint[-1] if joint else 1.0))
    return conditional, joint


def drafter_reliability(run: Run) -> Reliability | None:
    """Return the reliability of the drafter's probabilities; None without a trace.

    Counts the accepted tokens of every draft and the first rejected one, if the drafter gave probabilities; later
    tokens were not verified with a right prefix. Raises ConfigurationError for a trace of another run.
    """
    if run.trace is None:
        return None
    probabilities: list[float] = []
    accepted: list[bool] = []
    for sentence in stream_trace(run.trace)[1]:
        stats = run.sentences.get(sentence.id)
        if stats is None or stats.emitted != [len(note.why) for note in sentence.iterations]:
            problem = f"sentence {sentence.id} has other iterations than in {run.file}"
            raise ConfigurationError("--traces", run.trace, problem, "give the {--trace-file} of the same run")
        for note in sentence.iterations:
            counted = note.accepted + (note.bifurcation is not None)
            for position, log_prob in enumerate((note.drafter_log_probs or [])[:counted]):
                if log_prob is not None:
                    probabilities.append(math.exp(log_prob))
                    accepted.append(position < note.accepted)
    return Reliability.of(torch.tensor(probabilities), torch.tensor(accepted, dtype=torch.bool))
