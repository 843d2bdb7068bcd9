"""Token repetition ratio: repeated words are typical of non-autoregressive models without a verifier."""

from collections.abc import Sequence

from fairseq_plugins.metrics.sample import Sample, Score


def repetition_ratio(sentences: Sequence[Sequence[str]]) -> float:
    """Return the share of tokens that equal the token before them in the sentence (GAD Table 9)."""
    tokens = sum(map(len, sentences))
    repeated = sum(token == before for line in sentences for before, token in zip(line, line[1:], strict=False))
    return repeated / tokens if tokens else 0.0


def repetition(sample: Sample) -> list[Score]:
    """Compute the token repetition ratio in percent, with that of the references."""
    ratio = 100 * repetition_ratio(sample.hypotheses.tokens)
    theirs = 100 * repetition_ratio([tokens for reference in sample.references for tokens in reference.tokens])
    how = "share of Moses tokens equal to the one before"
    return [Score("repetition", ratio, f"{ratio:.2f} %", f"references {theirs:.2f} %", how)]
