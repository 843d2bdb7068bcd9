"""SARI, the metric of text simplification: Xu et al. 2016, "Optimizing statistical machine translation for text
simplification", section 3. It scores the n-grams that the output adds, keeps and deletes, as EASSE does (Alva-Manchego
et al. 2019): counts are summed over all sentences, and each operation has the mean of its F1 over the n-gram orders.

Adding nothing scores 0 even if the references add nothing, as there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

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


def corpus_sari(
    sources: Sequence[Sequence[str]], outputs: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> Sari:
    """Return SARI of tokenised sentences; `references` has one list of them per reference."""
    # Of added, kept and deleted n-grams, by order: [of the output, of the references, of both].
    totals = [{order: [0, 0, 0] for order in ORDERS} for _ in range(3)]
    for source, output, *others in zip(sources, outputs, *references, strict=True):
        for order in ORDERS:
            for counts, found in zip(totals, _operations(source, output, others, order), strict=True):
                for side, ngrams in enumerate(found):
                    counts[order][side] += ngrams.total()
    f1 = (
        [2 * right / (ours + theirs) if right else 0.0 for ours, theirs, right in counts.values()] for counts in totals
    )
    return Sari(*(100 * sum(of_orders) / len(ORDERS) for of_orders in f1))


def _operations(
    source: Sequence[str], output: Sequence[str], references: Sequence[Sequence[str]], order: int
) -> tuple[tuple[Counts, Counts, Counts], ...]:
    """Return added, kept and deleted n-grams of one order, each of the output, of the references, and of both."""
    # Counts of source and output are scaled to the sum over references.
    before = _ngrams(source, order, len(references))
    after = _ngrams(output, order, len(references))
    expected = sum((_ngrams(reference, order) for reference in references), Counter())
    added, to_add = Counter(after.keys() - before.keys()), Counter(expected.keys() - before.keys())
    kept, to_keep = before & after, before & expected
    deleted, to_delete = before - after, before - expected
    return (added, to_add, added & to_add), (kept, to_keep, kept & to_keep), (deleted, to_delete, deleted & to_delete)


def _ngrams(tokens: Sequence[str], order: int, times: int = 1) -> Counts:
    counts = Counter(zip(*(tokens[start:] for start in range(order)), strict=False))
    return Counter({ngram: count * times for ngram, count in counts.items()})
