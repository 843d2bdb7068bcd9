"""Capture CUDA graphs: record the kernel launches of a function, and replay them with one launch."""

import functools
import logging
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# Maximum number of graphs of a model; then the least recently used one is dropped.
MAX_GRAPHS = 64
# Uses of a shape before it is captured: a capture costs as much as several steps.
EAGER_USES = 2

# Outputs of a captured function.
Outputs = tuple[Tensor | None, ...]
Run = Callable[[], Outputs]
# Captures a function; the result replays its kernels, which write to the same output tensors.
Capture = Callable[[Run], Run]
_Result = TypeVar("_Result")


# One capture at a time: it begins by synchronising the device, which is forbidden while another thread captures, and
# records whatever is launched on its stream.
capturing = threading.Lock()
# Graphs of this process; a new one shares the memory pool of an existing one.
_captured_graphs: "weakref.WeakSet[torch.cuda.CUDAGraph]" = weakref.WeakSet()


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def capture_on_cuda(run: Callable[[], _Result], **settings: Any) -> Callable[[], _Result]:
    """Capture a function that launches kernels, does not synchronise, and reads and writes fixed addresses.

    Follows https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.

    Args:
        run: the function.
        settings: further arguments of `torch.cuda.graph`.

    Raises:
        RuntimeError: if the function cannot be captured.
    """
    main = torch.cuda.current_stream()
    side = _side_stream(torch.cuda.current_device())
    # Restores the current stream: after a failed capture, torch.cuda.graph does not.
    with capturing, torch.cuda.stream(main):
        # A first run loads kernels and allocates workspaces, which a capture must not do.
        side.wait_stream(main)
        with torch.cuda.stream(side):
            run()
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in _captured_graphs), None)
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local", **settings):
            outputs = run()
        _captured_graphs.add(graph)

    def replay() -> _Result:
        graph.replay()
        return outputs

    return replay


def cannot_be_captured(error: RuntimeError) -> bool:
    """Return whether an error means that a function cannot be captured at all, unlike out of memory.

    These errors have no class of their own, but the messages of cudaErrorStreamCapture* and of PyTorch mention capture.
    """
    return out_of_memory_in(error) is None and "captur" in str(error).lower()


def out_of_memory_in(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """Return the out-of-memory error that caused an error, or None: ending a failed capture may raise another one."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error


@dataclass
class Graphs:
    """Settings and counters of graph capture.

    An engine with this object runs the same operations in the same rounded shapes, whether steps are captured or not.

    Attributes:
        capture: captures a function.
        device_type: type of the devices that have graphs.
        enabled: capture steps; otherwise every operation is launched by itself.
        failed: a step could not be captured, so no further step is.
        captures: number of captured graphs.
        dropped: number of graphs that were dropped, for other graphs or because a buffer has moved.
        replays: number of steps run from graphs.
        launched: number of steps run operation by operation.
    """

    capture: Capture = capture_on_cuda
    device_type: str = "cuda"
    enabled: bool = True
    failed: bool = False
    captures: int = 0
    dropped: int = 0
    replays: int = 0
    launched: int = 0

    @property
    def are_on(self) -> bool:
        """Whether steps are captured at present."""
        return self.enabled and not self.failed

    def give_up(self, error: RuntimeError) -> None:
        """Stop capturing, and log the reason in one line."""
        self.failed = True
        reason = " ".join(str(error).split())[:200]
        logger.warning(
            "CUDA graphs: a step could not be captured (%s): decoding continues without graphs; add --no-cuda-graphs",
            reason,
        )

    @property
    def state(self) -> str:
        """State of graph capture for users: "on", "off" or "gave up"."""
        return "gave up" if self.failed else "on" if self.enabled else "off"

    def __str__(self) -> str:
        """Return state and counters for the summary of a run."""
        return (
            f"CUDA graphs {self.state}: {self.captures} captures, {self.dropped} dropped, "
            f"{self.replays} steps from graphs, {self.launched} launched"
        )


@dataclass
class _Graph:
    """Input buffers of a step, and its captured graph (None before the capture)."""

    inputs: tuple[Tensor | None, ...]
    replay: Run | None = None


class CapturedSteps:
    """Graphs of steps by shape. A shape is captured when it is used again.

    Args:
        how: how steps are captured.
    """

    def __init__(self, how: Graphs) -> None:
        self.how = how
        self.graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self.uses: Counter[Hashable] = Counter()

    def run(
        self,
        shape: Hashable,
        make: Callable[[], Outputs],
        fill: Callable[[Outputs], None],
        step: Callable[[Outputs], Run],
    ) -> Outputs:
        """Run the graph of a shape, or the same operations one by one.

        Args:
            shape: of the step.
            make: allocates its input buffers.
            fill: fills them.
            step: returns the step as a function of them, which a capture runs, too.
        """
        graph = self.graphs.pop(shape, None) or _Graph(make())
        fill(graph.inputs)
        run = step(graph.inputs)
        self.uses[shape] += 1
        if graph.replay is None and self.how.are_on and self.uses[shape] > EAGER_USES:
            graph.replay = self._captured(run)
        if graph.replay is None:
            self.how.launched += 1
            return run()
        self.how.replays += 1
        self.graphs[shape] = graph
        if len(self.graphs) > MAX_GRAPHS:
            oldest, _ = self.graphs.popitem(last=False)
            self.how.dropped += 1
            # Its uses are forgotten, too: a run with more shapes than graphs would otherwise capture in most steps.
            del self.uses[oldest]
        return graph.replay()

    def drop_all(self) -> None:
        """Drop all graphs, because a buffer that they use has moved."""
        self.how.dropped += len(self.graphs)
        self.graphs.clear()

    def _captured(self, run: Run) -> Run | None:
        """Return the captured step, or None if it cannot be captured."""
        try:
            replay = self.how.capture(run)
        except RuntimeError as error:
            memory = out_of_memory_in(error)
            if memory is not None:
                raise memory from None
            if not cannot_be_captured(error):
                raise
            self.how.give_up(error)
            self.graphs.clear()
            return None
        self.how.captures += 1
        return replay
