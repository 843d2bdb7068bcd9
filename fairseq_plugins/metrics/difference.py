"""Compare with a baseline, sentence by sentence."""

from dataclasses import dataclass

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


def difference(sample: Sample) -> Difference:
    """Count the sentences that equal the baseline's, and find the first different one."""
    assert sample.baseline is not None
    pairs = list(zip(sample.numbers, sample.baseline, sample.hypotheses.lines, strict=True))
    different = [pair for pair in pairs if pair[1] != pair[2]]
    result = Difference(len(pairs) - len(different), len(pairs))
    if different:
        result.first, result.baseline, result.hypothesis = different[0]
        ours, theirs = result.hypothesis.split(), result.baseline.split()
        same = [one == other for one, other in zip(ours, theirs, strict=False)]
        result.word = (same.index(False) if False in same else len(same)) + 1
    return result
