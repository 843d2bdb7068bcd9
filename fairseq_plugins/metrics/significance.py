"""Against a baseline: which sentences are the same, and whether a difference in score is more than chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from fairseq_plugins.metrics.bleu import sacrebleu_metrics, tokenized_bleu_metric
from fairseq_plugins.metrics.sample import Sample, Settings


@dataclass
class Difference:
    """How far hypotheses equal the baseline's.

    Attributes:
        identical: sentences with exactly the same text.
        sentences: all of them.
        first: number of the first sentence that differs, None when none does.
        word: position of the first differing word in it, from 1.
        baseline: that sentence of the baseline.
        hypothesis: that sentence here.
    """

    identical: int
    sentences: int
    first: int | None = None
    word: int | None = None
    baseline: str = ""
    hypothesis: str = ""


def significance(names: Sequence[str], sample: Sample) -> list[dict[str, Any]]:
    """Paired bootstrap resampling (Koehn 2004) through sacrebleu, for its metrics among `names`.

    Returns:
        one record a metric: both scores, their bootstrap means and 95 % intervals, and the p-value.
    """
    assert sample.baseline is not None
    records = []
    shown = {"sacrebleu": "sacreBLEU", "chrf": "chrF2", "ter": "TER"}
    raw = {shown[name]: metric for name, metric in sacrebleu_metrics(sample.settings).items() if name in names}
    systems: list[tuple[str, Sequence[str]]]
    if "bleu" in names:
        references = [reference.tokenized_lines for reference in sample.references]
        systems = [("baseline", sample.baseline.tokenized_lines), ("here", sample.hypotheses.tokenized_lines)]
        records += _paired({"BLEU, tokenised": tokenized_bleu_metric()}, systems, references, sample.settings)
    if raw:
        references = [reference.raw for reference in sample.references]
        systems = [("baseline", sample.baseline.raw), ("here", sample.hypotheses.raw)]
        records += _paired(raw, systems, references, sample.settings)
    return records


def _paired(
    metrics: dict[str, Metric],
    systems: list[tuple[str, Sequence[str]]],
    references: list[list[str]],
    settings: Settings,
) -> list[dict[str, Any]]:
    test = PairedTest(systems, metrics, references, test_type="bs", n_samples=settings.bootstrap_samples)
    signatures, scores = test()
    records = []
    # sacrebleu keeps the order of the metrics and gives them names of its own.
    for name, (key, signature) in zip(metrics, signatures.items(), strict=True):
        # Of the metrics one result for each system; of "System" their names.
        baseline, here = (cast(Result, result) for result in scores[key])
        record: dict[str, Any] = {"metric": name, "p": _number(here.p_value), "signature": str(signature)}
        for side, result in (("baseline", baseline), ("here", here)):
            record[side] = {"score": result.score, "mean": _number(result.mean), "interval": _number(result.ci)}
        records.append(record)
    return records


def _number(value: float | None) -> float:
    """Return what a test with bootstrap samples always has."""
    assert value is not None
    return float(value)


def difference(sample: Sample) -> Difference:
    """Count the sentences whose text equals the baseline's, and find the first that does not."""
    assert sample.baseline is not None
    pairs = list(zip(sample.numbers, sample.baseline.lines, sample.hypotheses.lines, strict=True))
    different = [pair for pair in pairs if pair[1] != pair[2]]
    result = Difference(len(pairs) - len(different), len(pairs))
    if different:
        result.first, result.baseline, result.hypothesis = different[0]
        ours, theirs = result.hypothesis.split(), result.baseline.split()
        same = [one == other for one, other in zip(ours, theirs, strict=False)]
        result.word = (same.index(False) if False in same else len(same)) + 1
    return result
