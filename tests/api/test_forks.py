"""Children forked while other threads decode and add to a memory: they inherit locks, perhaps held."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairseq_plugins import Memory
from fairseq_plugins.api.service import ServiceClosed
from tests.api.released import loaded


def status_of_fork(holds: Callable[[], bool]) -> int:
    """Return the exit status of a child: 0 if `holds` returns true, -9 if it hangs."""
    process = os.fork()
    if process == 0:
        status = 3
        try:
            status = 0 if holds() else 1
        finally:
            os._exit(status)
    end = time.monotonic() + 200
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@contextmanager
def meanwhile(*work: Callable[[], object]) -> Iterator[None]:
    """Call each function again and again, in a thread of its own."""
    stop = threading.Event()

    def repeat(function: Callable[[], object]) -> None:
        while not stop.is_set():
            function()

    with ThreadPoolExecutor(len(work)) as pool:
        futures = [pool.submit(repeat, function) for function in work]
        try:
            yield
        finally:
            stop.set()
        for future in futures:
            future.result()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_children_decode(decoder: str, tmp_path: Path) -> None:
    model = loaded(decoder, threads=2)
    memory = Memory(tmp_path)
    text = ["A dog runs.", "Two men sit ."][: 1 if decoder == "beam" else 2]
    expected = model.translate(text)

    def work() -> None:
        model.translate(text)
        memory.add(["a"], [f"{time.monotonic()}"])

    def holds() -> bool:
        memory.add(["b"], ["c"])
        return model.translate(text) == expected and memory.drafts("b") == ["c"]

    with meanwhile(work, work):
        for _ in range(3):
            assert status_of_fork(holds) == 0
    assert model.translate(text) == expected


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_a_child_is_refused_by_the_service_of_its_parent(decoder: str) -> None:
    """The threads that would decode are not in the child, which would wait without end; closing waits for none."""
    text = "A dog runs."
    with loaded(decoder).service() as service:
        before = service.submit(text).result()

        def is_refused() -> bool:
            with pytest.raises(ServiceClosed, match="make one in this process"):
                service.submit(text)
            return service.close(seconds=1000)

        with service._lock:  # as if a thread submitted meanwhile
            assert status_of_fork(is_refused) == 0
        assert service.submit(text).result() == before
