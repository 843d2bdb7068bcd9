"""Models, generators and memories in forked children, which have none of their parent's threads."""

import os
import threading
import weakref
from typing import Any

_owners: "weakref.WeakSet[Any]" = weakref.WeakSet()


def usable_in_forks(owner: Any) -> None:
    """Let a forked child use an object with a `_lock`, and perhaps a number of `_threads`.

    The child gets a new lock: that of the parent may be held by a thread which would never release it there. Its calls
    have one thread, as in torch's data workers: others of OpenMP are gone, and torch would wait for them.
    """
    _owners.add(owner)


def _renew() -> None:
    for owner in _owners:
        owner._lock = threading.RLock()
        if hasattr(owner, "_threads"):
            owner._threads = 1


os.register_at_fork(after_in_child=_renew)
