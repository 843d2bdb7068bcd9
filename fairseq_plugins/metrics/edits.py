"""Edit-based scoring of corrections, for languages without an established scorer: precision, recall and F0.5 of edits.

The measure of grammatical error correction, without its language-dependent parts: M2 (Dahlmeier and Ng 2012) scores
against edits that people annotated, ERRANT (Bryant et al. 2017) aligns with part-of-speech tags and classifies. Here
edits are read off a plain word alignment of source and correction, and neighbouring ones are one edit, as with ERRANT's
"all-merge". Values compare with each other, not with those of the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# A span of the source, from word `begin` up to `end`, and the words that take its place.
Edit = tuple[int, int, tuple[str, ...]]


@dataclass(frozen=True)
class Counts:
    """Edits that are right, and those that only one side has."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.right + other.right, self.wrong + other.wrong, self.missed + other.missed)

    @property
    def precision(self) -> float:
        """Share of the edits made that are right; 1 when none was wrong, as in ERRANT."""
        return self.right / (self.right + self.wrong) if self.wrong else 1.0

    @property
    def recall(self) -> float:
        """Share of the edits wanted that were made; 1 when none was missed."""
        return self.right / (self.right + self.missed) if self.missed else 1.0

    def f(self, beta: float = 0.5) -> float:
        """F measure; beta below 1 weighs precision higher, since a wrong correction is worse than none."""
        precision, recall = self.precision, self.recall
        if precision == recall == 0:
            return 0.0
        return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def edits_between(source: Sequence[str], target: Sequence[str]) -> list[Edit]:
    """The edits that turn the words of a source into those of a target.

    They follow an alignment of least edit distance. Where several have the same, words are matched or replaced from the
    left as long as they can be, then deleted, then inserted, so that equal changes are equal edits.

    Args:
        source: N words.
        target: M words.

    Returns:
        edits from left to right; between two there is at least one unchanged word.
    """
    rows, columns = len(source), len(target)
    # distance[i][j]: of source[i:] and target[j:], so that the alignment can be read from the left.
    distance = [[columns - j for j in range(columns + 1)]]
    for i in range(rows - 1, -1, -1):
        below, row = distance[0], [0] * columns + [rows - i]
        for j in range(columns - 1, -1, -1):
            row[j] = min(below[j + 1] + (source[i] != target[j]), below[j] + 1, row[j + 1] + 1)
        distance.insert(0, row)
    edits: list[Edit] = []
    i = j = begin = first = 0  # an edit that has begun covers source[begin:i] and target[first:j]
    while i < rows or j < columns:
        left = distance[i][j]
        if i < rows and j < columns and source[i] == target[j] and distance[i + 1][j + 1] == left:
            _close(edits, begin, i, target[first:j])
            i, j = i + 1, j + 1
            begin, first = i, j
        elif i < rows and j < columns and distance[i + 1][j + 1] + 1 == left:
            i, j = i + 1, j + 1
        elif i < rows and distance[i + 1][j] + 1 == left:
            i += 1
        else:
            j += 1
    _close(edits, begin, i, target[first:j])
    return edits


def _close(edits: list[Edit], begin: int, end: int, words: Sequence[str]) -> None:
    if begin < end or words:
        edits.append((begin, end, tuple(words)))


def compare_edits(hypothesis: Sequence[Edit], reference: Sequence[Edit]) -> Counts:
    """Count the edits of a hypothesis that a reference has too, in the same span and with the same words."""
    right = len(set(hypothesis) & set(reference))
    return Counts(right, len(hypothesis) - right, len(reference) - right)


def corpus_edits(
    sources: Sequence[Sequence[str]], hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> Counts:
    """Counts over a corpus; of several references that one counts for a sentence which it agrees with best.

    Args:
        sources: words of every sentence.
        hypotheses: words of their corrections.
        references: one list of the same form per reference.
    """
    total = Counts()
    for source, hypothesis, *targets in zip(sources, hypotheses, *references, strict=True):
        made = edits_between(source, hypothesis)
        counts = [compare_edits(made, edits_between(source, target)) for target in targets]
        total += max(counts, key=lambda count: (count.f(), count.right, -count.wrong - count.missed))
    return total
