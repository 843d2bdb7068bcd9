"""BLEU, chrF and TER by sacrebleu: of raw text, and BLEU of Moses tokens."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import sacrebleu
from sacrebleu.metrics.base import Metric

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.sample import Sample, Score


def tokenized_bleu_metric() -> sacrebleu.BLEU:
    """Return the BLEU of `multi-bleu.perl`: without tokenisation or smoothing."""
    return sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)


def sacrebleu_metrics(settings: Namespace) -> dict[str, Metric]:
    """Return sacrebleu's metrics of raw text by the names of `--metrics`."""
    try:
        bleu = sacrebleu.BLEU(tokenize=settings.tokenize, trg_lang=settings.lang)
    except (ImportError, RuntimeError) as error:
        name = settings.tokenize or settings.lang
        raise ConfigurationError("--tokenize", name, str(error)) from error
    return {"sacrebleu": bleu, "chrf": sacrebleu.CHRF(), "ter": sacrebleu.TER()}


def tokenized_bleu(sample: Sample) -> list[Score]:
    """Compute BLEU of Moses-tokenised text, as in the papers' tables."""
    metric = tokenized_bleu_metric()
    score = metric.corpus_score(
        sample.hypotheses.tokenized_lines, [reference.tokenized_lines for reference in sample.references]
    )
    settings = sample.settings
    how = "as given" if settings.tokenized else f"Moses tokens, {settings.lang}"
    how += ", compounds split" if settings.compound_split else ""
    return [Score("BLEU, tokenised", score.score, f"{score.score:.2f}", _after_equals(score), how)]


def sacrebleu_scorer(name: str) -> Callable[[Sample], list[Score]]:
    def scorer(sample: Sample) -> list[Score]:
        metric = sacrebleu_metrics(sample.settings)[name]
        score = metric.corpus_score(sample.hypotheses.raw, [reference.raw for reference in sample.references])
        shown_name = "sacreBLEU" if name == "sacrebleu" else score.name
        signature = str(metric.get_signature())
        return [Score(shown_name, score.score, f"{score.score:.2f}", _after_equals(score), signature)]

    return scorer


def _after_equals(score: Any) -> str:
    """Return what sacrebleu prints after the score: precisions, brevity penalty."""
    return score.format(width=2).partition("= ")[2].partition(" ")[2]
