"""The progress bar of commands."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(sentences: int, **options: Any) -> tqdm:
    """Return a progress bar over sentences on standard error, which disappears at its end; `options` are tqdm's."""
    often = 0.2 if sys.stderr.isatty() else 20.0  # seconds; in a log file every refresh is a line
    return tqdm(total=sentences, unit="sentences", leave=False, mininterval=often, dynamic_ncols=True, **options)
