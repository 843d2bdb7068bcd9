"""Edit ratio: share of a sentence that was changed (Aggressive Decoding, Figure 5)."""

from collections.abc import Hashable, Sequence

from rapidfuzz.distance import Levenshtein


def edit_ratio(before: Sequence[Hashable], after: Sequence[Hashable]) -> float:
    """Return the edit distance (insertions, deletions, replacements) divided by the length of `before`."""
    return Levenshtein.distance(before, after) / max(len(before), 1)
