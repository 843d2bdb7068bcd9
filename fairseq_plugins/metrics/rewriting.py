"""Metrics of rewriting, which compare with the source: SARI and F0.5 of edits."""

from fairseq_plugins.metrics.edits import corpus_edits
from fairseq_plugins.metrics.sample import Sample, Score
from fairseq_plugins.metrics.sari import Sari, corpus_sari, mean_sari, sari_tokens


def sari(sample: Sample) -> list[Score]:
    """Compute SARI in both conventions, see `sari.py`."""
    assert sample.sources is not None
    tokenize = not sample.settings.tokenized
    source, output, *references = (
        [sari_tokens(line, tokenize) for line in sentences.lines]
        for sentences in (sample.sources, sample.hypotheses, *sample.references)
    )
    how = "lowercased, " + ("13a" if tokenize else "tokens as given")
    return [
        _sari_score("SARI", mean_sari(source, output, references), f"mean over sentences, {how}"),
        _sari_score("SARI, EASSE", corpus_sari(source, output, references), f"counts of the corpus, {how}"),
    ]


def _sari_score(name: str, value: Sari, how: str) -> Score:
    parts = f"add {value.add:.2f}, keep {value.keep:.2f}, delete {value.delete:.2f}"
    return Score(name, value.score, f"{value.score:.2f}", parts, how)


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
