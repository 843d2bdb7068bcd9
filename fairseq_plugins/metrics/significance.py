"""Compare with a baseline: identical sentences, and the significance of differences in score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sacrebleu.significance import PairedTest

from fairseq_plugins.metrics.bleu import SHOWN, lines_for, metric_of
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
    records = []
    for name in (name for name in SHOWN if name in names):
        systems = [("baseline", lines_for(name, sample.baseline)), ("here", lines_for(name, sample.hypotheses))]
        references = [lines_for(name, reference) for reference in sample.references]
        metrics = {SHOWN[name]: metric_of(name, sample.settings)}
        samples = sample.settings.bootstrap_samples
        signatures, scores = PairedTest(systems, metrics, references, test_type="bs", n_samples=samples)()
        (key, signature), *_ = signatures.items()
        baseline, here = (cast(Any, result) for result in scores[key])
        record: dict[str, Any] = {"metric": SHOWN[name], "p": float(here.p_value), "signature": str(signature)}
        for side, result in (("baseline", baseline), ("here", here)):
            record[side] = {"score": result.score, "mean": float(result.mean), "interval": float(result.ci)}
        records.append(record)
    return records


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
