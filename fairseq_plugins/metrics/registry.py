"""All metrics by name, and their requirements."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError, unknown_value
from fairseq_plugins.metrics.bleu import sacrebleu_scorer, tokenized_bleu
from fairseq_plugins.metrics.comet import comet
from fairseq_plugins.metrics.repetition import repetition
from fairseq_plugins.metrics.rewriting import edit_f, sari
from fairseq_plugins.metrics.rouge import rouge
from fairseq_plugins.metrics.sample import Sample, Score

METRICS: dict[str, Callable[[Sample], list[Score]]] = {
    "bleu": tokenized_bleu,
    "sacrebleu": sacrebleu_scorer("sacrebleu"),
    "chrf": sacrebleu_scorer("chrf"),
    "ter": sacrebleu_scorer("ter"),
    "rouge": rouge,
    "sari": sari,
    "f0.5": edit_f,
    "repetition": repetition,
    "comet": comet,
}
# Metrics that compare with the source: computed by default only if --source is given.
REWRITING = {"sari": "SARI", "f0.5": "edit F0.5"}


def obstacle(metric: str, sample: Sample) -> str | None:
    """Return why a metric cannot be computed and what to do, or None if it can."""
    if metric == "rouge" and importlib.util.find_spec("rouge_score") is None:
        return "ROUGE: rouge-score is not installed; pip install rouge-score"
    if metric in REWRITING and sample.sources is None:
        return f"{REWRITING[metric]}: compares with the source; add --source FILE"
    if metric != "comet":
        return None
    if importlib.util.find_spec("comet") is None:
        return (
            "COMET: unbabel-comet is not installed; pip install unbabel-comet, fetch a model once with comet-score "
            "and give its file with --comet-model MODEL.ckpt"
        )
    path = sample.settings.comet_model
    if path is None:
        return "COMET: no model given; add --comet-model MODEL.ckpt, a model file on this machine"
    if not Path(path).is_file():
        return f"COMET: --comet-model {path} is no file; fetch the model once with comet-score and name its .ckpt file"
    return "COMET: compares with the source; add --source FILE" if sample.sources is None else None


def compute(names: Sequence[str], sample: Sample, required: bool) -> tuple[list[Score], list[str]]:
    """Return the scores of metrics, and for each metric left out a line that says what to do.

    Raises ConfigurationError for a `required` metric that cannot be computed.
    """
    obstacles = {name: obstacle(name, sample) for name in names}
    left_out = [reason for reason in obstacles.values() if reason is not None]
    if left_out and required:
        raise ConfigurationError("--metrics", ",".join(names), left_out[0])
    return [score for name in names if obstacles[name] is None for score in METRICS[name](sample)], left_out


def choose(names: str | None, rewriting: bool) -> list[str]:
    """Return keys of `METRICS` for a value of `--metrics`; by default all, those of `REWRITING` only with a source.

    Raises ConfigurationError for an unknown name.
    """
    if names is None:
        return [name for name in METRICS if name not in REWRITING or rewriting]
    chosen = [name.strip().lower() for name in names.split(",")]
    unknown = [name for name in chosen if name not in METRICS]
    if unknown:
        raise unknown_value("--metrics", unknown[0], METRICS)
    return chosen
