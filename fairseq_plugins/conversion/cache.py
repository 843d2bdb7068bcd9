"""A cache of converted models."""

import hashlib
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import cache_folder

_FORMAT = 7
"""Number of the converter's output, raised when that changes."""


def converted(folder: Path) -> Path:
    """Return the folder of the converted model, cached in $XDG_CACHE_HOME/fairseq-spec-dec (default: ~/.cache)."""
    # A changed file has another size or time, so its model is converted again.
    files = [(file.name, file.stat()) for file in sorted(folder.iterdir()) if file.exists()]
    stamp = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    key = hashlib.sha256(repr((_FORMAT, folder.resolve(), stamp)).encode()).hexdigest()[:16]
    target = cache_folder() / f"{folder.resolve().name}.{key}"
    from fairseq_plugins.conversion.convert import convert  # which most programs need not import

    try:
        if not target.is_dir():
            convert(folder, target)
    except ConfigurationError:
        if not target.is_dir():  # else another process has converted it meanwhile
            raise
    return target
