"""BLEU, chrF and TER by sacrebleu: of raw text, and BLEU of Moses tokens as by `multi-bleu.perl`."""

import re
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import sacrebleu
from sacrebleu.metrics.base import Metric

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.sample import Sample, Score, Sentences

SHOWN = {"bleu": "BLEU, tokenised", "sacrebleu": "sacreBLEU", "chrf": "chrF2", "ter": "TER"}
"""The metrics of this file: name of --metrics -> name in tables."""


def sacre_bleu(language: str, tokenizer: str | None = None, option: str = "--tokenize") -> sacrebleu.BLEU:
    """Return sacrebleu's BLEU of raw text, with its own tokenizer for the language unless one is given.

    Raises ConfigurationError, which names the option, for a tokenizer that is not there, or not to be had.
    """
    try:  # sacrebleu knows zh, not zh-Hans
        return sacrebleu.BLEU(tokenize=tokenizer, trg_lang=re.split("[-_]", language)[0])
    except (ImportError, RuntimeError, OSError) as error:  # the last one of a download
        raise ConfigurationError(option, tokenizer or language, str(error)) from error


def metric_of(name: str, settings: Namespace) -> Metric:
    """Return sacrebleu's metric; raises ConfigurationError as `sacre_bleu`."""
    if name == "bleu":  # without tokenisation or smoothing
        return sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    if name != "sacrebleu":
        return sacrebleu.CHRF() if name == "chrf" else sacrebleu.TER()
    return sacre_bleu(settings.lang, settings.tokenize)


def lines_for(name: str, sentences: Sentences) -> Sequence[str]:
    """Return the text that a metric compares: Moses tokens for "bleu", else raw text."""
    return sentences.tokenized_lines if name == "bleu" else sentences.raw


def score(name: str, sample: Sample) -> list[Score]:
    """Compute a metric of `SHOWN`."""
    metric, settings = metric_of(name, sample.settings), sample.settings
    references = [lines_for(name, reference) for reference in sample.references]
    found: Any = metric.corpus_score(lines_for(name, sample.hypotheses), references)
    signature = str(metric.get_signature())
    if name == "bleu":  # as in the papers' tables
        signature = "as given" if settings.tokenized else f"Moses tokens, {settings.lang}"
        signature += ", compounds split" if settings.compound_split else ""
    # What sacrebleu prints after the score: precisions, brevity penalty.
    details = found.format(width=2).partition("= ")[2].partition(" ")[2]
    return [Score(SHOWN[name], found.score, f"{found.score:.2f}", details, signature)]
