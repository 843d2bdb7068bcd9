"""All metrics by name, and their requirements; those that are a few lines over a library are here."""

import importlib.util
import re
from collections.abc import Callable, Sequence
from functools import partial

from fairseq_plugins.errors import ConfigurationError, unknown_value
from fairseq_plugins.metrics import bleu
from fairseq_plugins.metrics.edits import corpus_edits
from fairseq_plugins.metrics.sample import Sample, Score
from fairseq_plugins.metrics.sari import corpus_sari, sari_tokens

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge(sample: Sample) -> list[Score]:
    """Compute mean F1 of ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum; several references: the best one counts."""
    from rouge_score.rouge_scorer import RougeScorer

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


def sari(sample: Sample) -> list[Score]:
    """Compute SARI, see `sari.py`."""
    assert sample.sources is not None
    tokenize = not sample.settings.tokenized
    source, output, *references = (
        [sari_tokens(line, tokenize) for line in sentences.lines]
        for sentences in (sample.sources, sample.hypotheses, *sample.references)
    )
    how = "as EASSE, lowercased, " + ("13a" if tokenize else "tokens as given")
    value = corpus_sari(source, output, references)
    parts = f"add {value.add:.2f}, keep {value.keep:.2f}, delete {value.delete:.2f}"
    return [Score("SARI", value.score, f"{value.score:.2f}", parts, how)]


def edit_f(sample: Sample) -> list[Score]:
    """Compute F0.5 of the edits of corrections, see `edits.py`."""
    assert sample.sources is not None
    references = [reference.tokens for reference in sample.references]
    counts = corpus_edits(sample.sources.tokens, sample.hypotheses.tokens, references)
    value = 100 * counts.f(0.5)
    settings = sample.settings
    details = (
        f"precision {100 * counts.precision:.2f}, recall {100 * counts.recall:.2f}; "
        f"{counts.right} edits right, {counts.wrong} wrong, {counts.missed} missed"
    )
    tokens = "tokens as given" if settings.tokenized else f"Moses tokens, {settings.lang}"
    how = f"edits of a word alignment, neighbouring ones merged, {tokens}; not M2, not ERRANT"
    return [Score("edit F0.5", value, f"{value:.2f}", details, how)]


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


METRICS: dict[str, Callable[[Sample], list[Score]]] = {
    **{name: partial(bleu.score, name) for name in bleu.SHOWN},
    "rouge": rouge,
    "sari": sari,
    "f0.5": edit_f,
    "repetition": repetition,
}
# Metrics of rewriting, which compare with the source: computed by default only if --source is given.
REWRITING = {"sari": "SARI", "f0.5": "edit F0.5"}
# Metrics that align the words of two lines, with a table of words x words: gigabytes for lines that are longer.
ALIGNING = {"ter": "TER", "rouge": "ROUGE"}
MAX_ALIGNED_WORDS = 10_000


def obstacle(metric: str, sample: Sample) -> str | None:
    """Return why a metric cannot be computed and what to do, or None if it can."""
    if metric == "rouge" and importlib.util.find_spec("rouge_score") is None:
        return "ROUGE: rouge-score is not installed; pip install rouge-score"
    settings = sample.settings
    if metric in REWRITING and (sample.sources is None or settings.metrics is None and settings.source is None):
        return f"{REWRITING[metric]}: for rewriting, compares with the source; add --source FILE"
    if metric in ALIGNING and (line := _overlong_line(sample)) is not None:
        remedy = "leave the sentence out of all files"
        return f"{ALIGNING[metric]}: {line}; it aligns lines of at most {MAX_ALIGNED_WORDS}: {remedy}"
    return None


def _overlong_line(sample: Sample) -> str | None:
    """Return the first line with too many words or marks to be aligned, and its file."""
    settings = sample.settings
    references = settings.references or [settings.hypotheses] * len(sample.references)
    files = [(settings.hypotheses, sample.hypotheses), *zip(references, sample.references, strict=True)]
    for file, sentences in files:
        for number, line in zip(sample.numbers, sentences.lines, strict=True):
            if len(line) > MAX_ALIGNED_WORDS and (words := len(re.findall(r"\w+|[^\w\s]", line))) > MAX_ALIGNED_WORDS:
                return f"{file}: sentence {number} (counted from 0) has {words} words"
    return None


def compute(names: Sequence[str], sample: Sample) -> tuple[list[Score], list[str]]:
    """Return the scores of metrics, and for each metric left out a line that says what to do.

    Raises ConfigurationError for a metric of --metrics that cannot be computed.
    """
    obstacles = {name: obstacle(name, sample) for name in names}
    left_out = [reason for reason in obstacles.values() if reason is not None]
    if left_out and sample.settings.metrics is not None:
        raise ConfigurationError("--metrics", ",".join(names), left_out[0])
    return [score for name in names if obstacles[name] is None for score in METRICS[name](sample)], left_out


def choose(names: str | None) -> list[str]:
    """Return keys of `METRICS` for a value of `--metrics`, by default all; ConfigurationError for an unknown name."""
    if names is None:
        return list(METRICS)
    chosen = [name.strip().lower() for name in names.split(",")]
    unknown = [name for name in chosen if name not in METRICS]
    if unknown:
        raise unknown_value("--metrics", unknown[0], METRICS)
    return chosen
