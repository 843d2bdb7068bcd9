"""The progress bar of long work."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(sentences: int, **options: Any) -> tqdm:
    """A bar over so many sentences on stderr, which goes away at its end.

    Args:
        sentences: in all.
        options: more of tqdm's.
    """
    often = 0.2 if sys.stderr.isatty() else 20.0  # seconds; in a log file every refresh is a line
    return tqdm(total=sentences, unit="sentences", leave=False, mininterval=often, dynamic_ncols=True, **options)
