"""Locks of models, generators and memories, which forked children use, too."""

import os
import threading
import weakref


class ForkSafeLock:
    """A reentrant lock, new in a forked child: a thread that holds the parent's would never release it there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_locks: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


def _renew() -> None:
    for lock in _locks:
        lock._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew)
