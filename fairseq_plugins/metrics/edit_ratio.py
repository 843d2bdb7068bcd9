"""Edit ratio: how much of a sentence was changed (Aggressive Decoding, Figure 5)."""

from collections.abc import Hashable, Sequence


def edit_distance(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Insertions, deletions and replacements that turn one sequence into the other (Levenshtein).

    Hyyrö's bit-parallel form: integer number i holds, in bit j, how two neighbouring cells of the table differ.
    """
    if not left:
        return len(right)
    places: dict[Hashable, int] = {}
    for place, item in enumerate(left):
        places[item] = places.get(item, 0) | 1 << place
    full, last = (1 << len(left)) - 1, 1 << (len(left) - 1)
    rises, falls, distance = full, 0, len(left)
    for item in right:
        equal = places.get(item, 0) | falls
        diagonal = (((equal & rises) + rises) ^ rises) | equal
        grows = (falls | ~(diagonal | rises)) & full
        shrinks = rises & diagonal
        distance += bool(grows & last) - bool(shrinks & last)
        grows = grows << 1 | 1
        rises = (shrinks << 1 | ~(diagonal | grows)) & full
        falls = grows & diagonal & full
    return distance


def edit_ratio(before: Sequence[Hashable], after: Sequence[Hashable]) -> float:
    """Edit distance divided by the length of what was there before."""
    return edit_distance(before, after) / max(len(before), 1)
