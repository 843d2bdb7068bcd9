"""Compare with a baseline: identical sentences, and the significance of differences in score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from fairseq_plugins.metrics.bleu import sacrebleu_metrics, tokenized_bleu_metric
from fairseq_plugins.metrics.sample import Sample


@dataclass
class Difference:
    """Differences between hypotheses and baseline."""

    identical: int  # sentences with the same text
    sentences: int  # all
    first: int | None = None  # number of the first different sentence
    word: int | None = None  # position of the first different word in it, from 1
    baseline: str = ""  # its text in the baseline
    hypothesis: str = ""  # its text in the hypotheses


def significance(names: Sequence[str], sample: Sample) -> list[dict[str, Any]]:
    """Test by paired bootstrap resampling (Koehn 2004) with sacrebleu, for its metrics among `names`.

    Returns a record per metric: both scores, their bootstrap means and 95 % intervals, and the p-value.
    """
    assert sample.baseline is not None
    records: list[dict[str, Any]] = []
    samples = sample.settings.bootstrap_samples
    shown = {"sacrebleu": "sacreBLEU", "chrf": "chrF2", "ter": "TER"}
    raw = {shown[name]: metric for name, metric in sacrebleu_metrics(sample.settings).items() if name in names}
    systems: list[tuple[str, Sequence[str]]]
    if "bleu" in names:
        references = [reference.tokenized_lines for reference in sample.references]
        systems = [("baseline", sample.baseline.tokenized_lines), ("here", sample.hypotheses.tokenized_lines)]
        records += _paired({"BLEU, tokenised": tokenized_bleu_metric()}, systems, references, samples)
    if raw:
        references = [reference.raw for reference in sample.references]
        systems = [("baseline", sample.baseline.raw), ("here", sample.hypotheses.raw)]
        records += _paired(raw, systems, references, samples)
    return records


def _paired(
    metrics: dict[str, Metric],
    systems: list[tuple[str, Sequence[str]]],
    references: list[list[str]],
    samples: int,
) -> list[dict[str, Any]]:
    test = PairedTest(systems, metrics, references, test_type="bs", n_samples=samples)
    signatures, scores = test()
    records = []
    # sacrebleu renames the metrics and keeps their order.
    for name, (key, signature) in zip(metrics, signatures.items(), strict=True):
        # One result for each system.
        baseline, here = (cast(Result, result) for result in scores[key])
        record: dict[str, Any] = {"metric": name, "p": _number(here.p_value), "signature": str(signature)}
        for side, result in (("baseline", baseline), ("here", here)):
            record[side] = {"score": result.score, "mean": _number(result.mean), "interval": _number(result.ci)}
        records.append(record)
    return records


def _number(value: float | None) -> float:
    """Return a value that bootstrap tests always set."""
    assert value is not None
    return float(value)


def difference(sample: Sample) -> Difference:
    """Count the sentences that equal the baseline's, and find the first different one."""
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
