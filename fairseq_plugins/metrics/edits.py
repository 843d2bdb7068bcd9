"""Edit-based scoring of corrections, for languages without an established scorer: precision, recall and F0.5 of edits.

This is the metric of grammatical error correction without language-dependent parts. M2 (Dahlmeier and Ng 2012) scores
against annotated edits; ERRANT (Bryant et al. 2017) aligns with part-of-speech tags and classifies edits. Here edits
come from a plain word alignment of source and correction, with neighbouring ones merged, as in ERRANT's "all-merge".
Values are not comparable with those of M2 and ERRANT.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein

# (begin, end, replacement): words `begin` to `end` (exclusive) of the source are replaced.
Edit = tuple[int, int, tuple[str, ...]]


@dataclass(frozen=True)
class EditCounts:
    """Numbers of right, wrong and missed edits."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def __add__(self, other: "EditCounts") -> "EditCounts":
        return EditCounts(self.right + other.right, self.wrong + other.wrong, self.missed + other.missed)

    @property
    def precision(self) -> float:
        """Share of right edits among those made; 1 if none was wrong, as in ERRANT."""
        return self.right / (self.right + self.wrong) if self.wrong else 1.0

    @property
    def recall(self) -> float:
        """Share of right edits among those of the reference; 1 if none was missed."""
        return self.right / (self.right + self.missed) if self.missed else 1.0

    def f(self, beta: float = 0.5) -> float:
        """Return the F measure; beta below 1 favours precision, since a wrong correction is worse than none."""
        precision, recall = self.precision, self.recall
        if precision == recall == 0:
            return 0.0
        return (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


def edits_between(source: Sequence[str], target: Sequence[str]) -> list[Edit]:
    """Return the edits that turn the words of a source into those of a target, separated by unchanged words.

    They follow an alignment of minimal edit distance, always the same one for the same words.
    """
    edits: list[Edit] = []
    for code in Levenshtein.opcodes(source, target):
        if code.tag == "equal":
            continue
        begin, words = code.src_start, tuple(target[code.dest_start : code.dest_end])
        if edits and edits[-1][1] == begin:
            begin, _, before = edits.pop()
            words = before + words
        edits.append((begin, code.src_end, words))
    return edits


def compare_edits(hypothesis: Sequence[Edit], reference: Sequence[Edit]) -> EditCounts:
    """Compare the edits of a hypothesis with a reference's; right ones have the same span and words."""
    right = len(set(hypothesis) & set(reference))
    return EditCounts(right, len(hypothesis) - right, len(reference) - right)


def corpus_edits(
    sources: Sequence[Sequence[str]], hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]
) -> EditCounts:
    """Count edits over a corpus of words; of several references the one with the best agreement counts."""
    total = EditCounts()
    for source, hypothesis, *targets in zip(sources, hypotheses, *references, strict=True):
        made = edits_between(source, hypothesis)
        counts = [compare_edits(made, edits_between(source, target)) for target in targets]
        total += max(counts, key=lambda count: (count.f(), count.right, -count.wrong - count.missed))
    return total
