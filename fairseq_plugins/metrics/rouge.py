"""ROUGE by rouge-score, for summaries."""

from collections.abc import Sequence

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.sample import Sample, Score

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge(sample: Sample) -> list[Score]:
    """Compute mean F1 of ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum; several references: the best one counts."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        problem = "rouge-score is not installed"
        raise ConfigurationError("--metrics", "rouge", problem, "pip install rouge-score") from error
    settings = sample.settings

    def prepared(lines: Sequence[str]) -> list[str]:
        return [line.replace(settings.sentence_separator, "\n") for line in lines]

    scorer = RougeScorer(ROUGE_TYPES, use_stemmer=settings.stemmer)
    references = zip(*(prepared(reference.raw) for reference in sample.references), strict=True)
    by_sentence = [
        scorer.score_multi(list(targets), hypothesis)
        for targets, hypothesis in zip(references, prepared(sample.hypotheses.raw), strict=True)
    ]
    how = "F1 by rouge-score" + (", stemmed" if settings.stemmer else "")
    scores = []
    for kind in ROUGE_TYPES:
        means = [100 * sum(score[kind][part] for score in by_sentence) / len(by_sentence) for part in range(3)]
        name = kind.replace("rouge", "ROUGE-")
        details = f"precision {means[0]:.2f}, recall {means[1]:.2f}"
        scores.append(Score(name, means[2], f"{means[2]:.2f}", details, how))
    return scores
