"""SARI, the metric of text simplification: Xu et al. 2016, "Optimizing statistical machine translation for text
simplification", section 3 and equations 2-9. It scores the n-grams that the output adds, keeps and deletes.

Two conventions for a corpus are in use, and differ by several points; both are here:

- `mean`: the mean of the sentences' scores, each as in the authors' `SARI.py`: keep and delete are means over distinct
  n-grams of the share that is right; delete is precision only.
- `corpus`: as in EASSE (Alva-Manchego et al. 2019): counts are summed over all sentences first, precision and recall
  are averaged over the n-gram orders before they are combined to F1, and delete is an F1, too.

Adding nothing scores 0 in both even if the references add nothing, as in the two reference implementations.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

ORDERS = (1, 2, 3, 4)
_TOKENIZER = Tokenizer13a()


@dataclass(frozen=True)
class Sari:
    """The parts of SARI, 0 to 100."""

    add: float
    keep: float
    delete: float

    @property
    def score(self) -> float:
        """SARI, the mean of its parts (eq. 2)."""
        return (self.add + self.keep + self.delete) / 3


# Counts of n-grams.
Counts = Counter[tuple[str, ...]]


def sari_tokens(line: str, tokenize: bool = True) -> list[str]:
    """Return lowercased tokens: by sacrebleu's 13a, or split at spaces if the text is tokenised."""
    line = line.lower()
    return (_TOKENIZER(line) if tokenize else line).split()


def sentence_sari(source: Sequence[str], output: Sequence[str], references: Sequence[Sequence[str]]) -> Sari:
    """Return SARI of one tokenised sentence, as the authors' script computes it."""
    add, keep, delete = [], [], []
    for order in ORDERS:
        (added, to_add, both), kept, deleted = _operations(source, output, references, order)
        add.append(_f1(_share(len(both), len(added)), _share(len(both), len(to_add))))
        keep.append(_f1(_mean_share(kept[2], kept[0]), _mean_share(kept[2], kept[1])))
        delete.append(_mean_share(deleted[2], deleted[0]))
    return Sari(*(100 * sum(scores) / len(ORDERS) for scores in (add, keep, delete)))


def mean_sari(
    sources: Sequence[Sequence[str]], outputs: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> Sari:
    """Return the mean of `sentence_sari`; `references` has one list of tokenised sentences per reference."""
    scores = [
        sentence_sari(source, output, others)
        for source, output, *others in zip(sources, outputs, *references, strict=True)
    ]
    return Sari(*(sum(getattr(s, part) for s in scores) / len(scores) for part in ("add", "keep", "delete")))


def corpus_sari(
    sources: Sequence[Sequence[str]], outputs: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> Sari:
    """Return SARI of summed counts, as EASSE's `corpus_sari`; arguments as for `mean_sari`."""
    # Of added, kept and deleted n-grams, by order: [of the output, of the references, of both].
    totals = [{order: [0, 0, 0] for order in ORDERS} for _ in range(3)]
    for source, output, *others in zip(sources, outputs, *references, strict=True):
        for order in ORDERS:
            for counts, found in zip(totals, _operations(source, output, others, order), strict=True):
                for side, ngrams in enumerate(found):
                    counts[order][side] += ngrams.total() if isinstance(ngrams, Counter) else len(ngrams)
    parts = []
    for counts in totals:
        precision = sum(_share(right, ours) for ours, _, right in counts.values()) / len(ORDERS)
        recall = sum(_share(right, theirs) for _, theirs, right in counts.values()) / len(ORDERS)
        parts.append(100 * _f1(precision, recall))
    return Sari(*parts)


def _operations(
    source: Sequence[str], output: Sequence[str], references: Sequence[Sequence[str]], order: int
) -> tuple[tuple[Any, ...], tuple[Counts, ...], tuple[Counts, ...]]:
    """Return added, kept and deleted n-grams of one order, each of the output, of the references, and of both."""
    # Counts of source and output are scaled to the sum over references.
    before = _ngrams(source, order, len(references))
    after = _ngrams(output, order, len(references))
    expected = sum((_ngrams(reference, order) for reference in references), Counter())
    added, to_add = after.keys() - before.keys(), expected.keys() - before.keys()
    kept, to_keep = before & after, before & expected
    deleted, to_delete = before - after, before - expected
    return (added, to_add, added & to_add), (kept, to_keep, kept & to_keep), (deleted, to_delete, deleted & to_delete)


def _ngrams(tokens: Sequence[str], order: int, times: int = 1) -> Counts:
    counts = Counter(zip(*(tokens[start:] for start in range(order)), strict=False))
    return Counter({ngram: count * times for ngram, count in counts.items()})


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean_share(right: Counts, counts: Counts) -> float:
    """Return the mean over the n-grams of `counts` of the share that is right."""
    return _share(sum(right[ngram] / count for ngram, count in counts.items()), len(counts))


def _f1(precision: float, recall: float) -> float:
    return _share(2 * precision * recall, precision + recall)
