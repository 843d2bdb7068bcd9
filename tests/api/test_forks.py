"""Children forked while other threads decode and add to a memory: they inherit locks, perhaps held."""

import os
import signal
import threading
import time
from collections.abc import Callable
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


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_children_decode(decoder: str, tmp_path: Path) -> None:
    model = loaded(decoder, threads=2)
    memory = Memory(tmp_path)
    text = ["A dog runs.", "Two men sit ."][: 1 if decoder == "beam" else 2]
    expected = model.translate(text)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            model.translate(text)
            memory.add(["a"], [f"{time.monotonic()}"])

    def holds() -> bool:
        memory.add(["b"], ["c"])
        return model.translate(text) == expected and memory.drafts("b") == ["c"]

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(3):
            assert status_of_fork(holds) == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join()
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
