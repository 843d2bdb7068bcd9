"""New source sentences out of those that there are, for a drafter to learn more of its verifier from.

A drafter learns from what its verifier says, of any text. On its own training sentences a verifier is surer than on
others, so that a drafter which has seen only these drafts others less well.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from train_scripts.tools.text import refuse

# Attempts for every sentence that is wanted, before a text is taken to hold too little.
_ATTEMPTS = 100


def recombined(sentences: Iterable[str], context: int, seed: int) -> Iterator[str]:
    """Sentences drawn from the n-grams of a text: every word follows the `context` words before it somewhere in there.

    Args:
        sentences: words with blanks between.
        context: words before; 2 draws from trigrams.
        seed: of the draws.
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
    """Make new sentences out of the n-grams of a text.

    Args:
        source: the text.
        target: where the new sentences go, one a line.
        count: number of new sentences.
        context: words that the next one is drawn after.
        seed: of the draws.

    Raises:
        ConfigurationError: where the text has too few n-grams.
    """
    lines = source.read_text(encoding="utf-8").splitlines()
    new = list(islice(recombined(lines, context, seed), count))
    if len(new) < count:
        refuse(f"{source}: only {len(new)} sentences can be made of it, {count} are wanted; want fewer")
    target.write_text("".join(f"{sentence}\n" for sentence in new), encoding="utf-8")
