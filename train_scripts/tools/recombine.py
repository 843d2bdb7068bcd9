"""Draw new source sentences from the n-grams of a text, as additional training data for a drafter.

A drafter trains on the verifier's output, which needs only source sentences. On its own training sentences a verifier
is more certain than on others, so a drafter trained on no others drafts worse on new text.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from train_scripts.tools.text import read_lines, refuse, write_lines

# Stop after this many drawn sentences in a row that are not new: the text is too small.
_ATTEMPTS = 100


def recombined(sentences: Iterable[str], context: int, seed: int) -> Iterator[str]:
    """Yield new sentences whose n-grams all occur in the text.

    Args:
        sentences: words separated by spaces.
        context: n - 1, the number of words that the next one depends on.
        seed: random seed.
    """
    known = list(dict.fromkeys(sentences))
    followers: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for sentence in known:
        words = [*[""] * context, *sentence.split(), ""]
        for end in range(context, len(words)):
            followers[tuple(words[end - context : end])].append(words[end])
    seen, draw, attempts = set(known), random.Random(seed), _ATTEMPTS
    while attempts:
        attempts -= 1
        words = [""] * context
        while (word := draw.choice(followers[tuple(words[-context:])])) != "":
            words.append(word)
        sentence = " ".join(words[context:])
        if sentence not in seen:
            seen.add(sentence)
            attempts = _ATTEMPTS
            yield sentence


def write(source: Path, target: Path, *, count: int, context: int = 2, seed: int = 1) -> None:
    """Write new sentences drawn from the n-grams of a text.

    Args:
        source: text, one sentence a line (.gz, .xz: compressed).
        target: file of the new sentences.
        count: number of new sentences.
        context: n - 1, the number of words that the next one depends on.
        seed: random seed.

    Raises:
        ConfigurationError: for text that is not UTF-8, or has too few n-grams.
    """
    new = list(islice(recombined(read_lines(source), context, seed), count))
    if len(new) < count:
        refuse(None, source, f"gives only {len(new)} new sentences", f"lower {{--count {count}}}")
    write_lines(target, new)
