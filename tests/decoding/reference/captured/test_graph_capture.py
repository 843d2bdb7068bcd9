"""A capture keeps to PyTorch's rules, which needs no GPU to be seen."""

import contextlib
import gc
import inspect
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fairseq_plugins.decoding.reference.captured import graph_capture
from fairseq_plugins.decoding.reference.captured.graph_capture import Outputs, capture_on_cuda


class FakeGraph:
    """A `torch.cuda.CUDAGraph` that counts its launches."""

    def __init__(self) -> None:
        self.launches = 0
        self.own_pool = object()

    def pool(self) -> object:
        return self.own_pool

    def replay(self) -> None:
        self.launches += 1


def test_capturing_follows_pytorchs_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: a run beforehand on the stream of the capture, each waiting for the other; one pool for all."""
    events: list[str] = []
    captured: list[tuple[FakeGraph, Any]] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            events.append(f"{self.name} waits for {other.name}")

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        before, current[0] = current[0], stream
        yield
        current[0] = before

    @contextlib.contextmanager
    def capture(*args: Any, **kwargs: Any) -> Iterator[None]:
        given = inspect.signature(real).bind(*args, **kwargs).arguments
        captured.append((given["cuda_graph"], given["pool"]))
        with on(given["stream"]):
            events.append("capture begins")
            yield
            events.append("capture ends")

    real = torch.cuda.graph
    main, side = Stream("main"), Stream("side")
    current = [main]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(graph_capture, "_side_stream", lambda device: side)
    monkeypatch.setattr(graph_capture, "_captured_graphs", weakref.WeakSet())

    outputs = (torch.zeros(1), None)

    def run() -> Outputs:
        assert graph_capture.capturing.locked(), "another thread might capture"
        events.append(f"runs on {current[0].name}")
        return outputs

    replay = capture_on_cuda(run)
    expected = ["side waits for main", "runs on side", "main waits for side"]
    assert events == [*expected, "capture begins", "runs on side", "capture ends"]
    assert replay() is outputs and replay() is outputs and captured[0][0].launches == 2
    assert len(events) == 6 and current == [main]
    another = capture_on_cuda(run)
    assert [pool for _, pool in captured] == [None, captured[0][0].own_pool]
    # When all graphs are gone, so is their pool.
    del replay, another
    captured.clear()
    gc.collect()
    capture_on_cuda(run)
    assert captured[0][1] is None


@pytest.mark.parametrize(
    "error, wanted",
    [
        (RuntimeError("CUDA error: operation not permitted when stream is capturing"), True),
        (RuntimeError("CUDA error: operation failed due to a previous error during capture"), True),
        (RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB (while capturing)"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_which_errors_mean_that_a_step_cannot_be_captured(error: RuntimeError, wanted: bool) -> None:
    assert graph_capture.cannot_be_captured(error) == wanted


def test_memory_that_runs_out_while_capturing_is_what_is_told() -> None:
    """Also where the end of the capture fails because of it."""
    memory = torch.OutOfMemoryError("CUDA out of memory")
    try:
        try:
            raise memory
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert not graph_capture.cannot_be_captured(error)
        assert graph_capture.out_of_memory_in(error) is memory
    assert graph_capture.out_of_memory_in(RuntimeError("capture")) is None
