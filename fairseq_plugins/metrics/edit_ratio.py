"""Edit ratio: share of a sentence that was changed (Aggressive Decoding, Figure 5)."""

from collections.abc import Hashable, Sequence


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Return the number of insertions, deletions and replacements between two sequences (Levenshtein).

    Hyyrö's bit-parallel form: bit j of the integers is the difference of two neighbouring cells in row j of a column.
    """
    if not left:
        return len(right)
    positions: dict[Hashable, int] = {}
    for position, item in enumerate(left):
        positions[item] = positions.get(item, 0) | 1 << position
    full, last = (1 << len(left)) - 1, 1 << (len(left) - 1)
    rises, falls, distance = full, 0, len(left)
    for item in right:
        equal = positions.get(item, 0) | falls
        diagonal = (((equal & rises) + rises) ^ rises) | equal
        grows = (falls | ~(diagonal | rises)) & full
        shrinks = rises & diagonal
        distance += bool(grows & last) - bool(shrinks & last)
        grows = grows << 1 | 1
        rises = (shrinks << 1 | ~(diagonal | grows)) & full
        falls = grows & diagonal & full
    return distance


def edit_ratio(before: Sequence[Hashable], after: Sequence[Hashable]) -> float:
    """Return the edit distance divided by the length of `before`."""
    return edit_distance(before, after) / max(len(before), 1)
