"""Capture CUDA graphs: what launches kernels becomes something that launches them all at once."""

import functools
import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# Graphs that a model keeps; beyond, the one that was not used for longest goes.
MAX_GRAPHS = 64
# Uses of a shape before it is worth a capture, which costs several steps.
EAGER_USES = 2

# What a function returns that is captured.
Outputs = tuple[Tensor | None, ...]
Run = Callable[[], Outputs]
# Of a function, one that runs its kernels again and leaves the result in the same outputs.
Capture = Callable[[Run], Run]


# Graphs of this process; as long as there is one, new ones share its memory.
_captured_graphs: "weakref.WeakSet[torch.cuda.CUDAGraph]" = weakref.WeakSet()


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def capture_on_cuda(run: Run, **settings: Any) -> Run:
    """Capture a function that launches kernels, does not synchronise and reads and writes memory that stays.

    Follows https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.

    Args:
        run: the function.
        settings: further arguments of `torch.cuda.graph`.

    Raises:
        RuntimeError: where the function cannot be captured.
    """
    main = torch.cuda.current_stream()
    side = _side_stream(torch.cuda.current_device())
    # Entered once more because torch.cuda.graph leaves its own stream behind when a capture fails.
    with torch.cuda.stream(main):
        # Loads kernels and makes workspaces, which must not happen while capturing.
        side.wait_stream(main)
        with torch.cuda.stream(side):
            run()
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = next((other.pool() for other in _captured_graphs), None)
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local", **settings):
            outputs = run()
    _captured_graphs.add(graph)

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay


def cannot_be_captured(error: RuntimeError) -> bool:
    """Whether an error says that a function cannot be captured at all, and not, say, that memory has run out.

    CUDA has no one class for these: what cudaErrorStreamCapture* and PyTorch itself say speaks of capturing.
    """
    return out_of_memory_in(error) is None and "captur" in str(error).lower()


def out_of_memory_in(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """Memory that ran out at the bottom of an error: ending a capture that broke off may be an error of its own."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error


@dataclass
class Graphs:
    """Whether and how the steps of an engine are captured, and what came of it.

    With or without a graph, a step of an engine that has these runs the same operations in the same rounded shapes.

    Attributes:
        capture: what makes a graph of a function.
        device_type: of the devices that have graphs.
        enabled: capture steps; without, every operation is launched by itself.
        failed: a step could not be captured; from then on none is.
        captures: graphs that were made; `dropped`: those that had to go, for others or for more memory.
        replays: steps run from graphs; `launched`: steps run operation by operation.
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
        """Whether steps are captured, now."""
        return self.enabled and not self.failed

    def give_up(self, error: RuntimeError) -> None:
        """Capture no more, and say so in one line."""
        self.failed = True
        reason = " ".join(str(error).split())[:200]
        logger.warning(
            "CUDA graphs: a step could not be captured (%s): decoding goes on without; --no-cuda-graphs does not try",
            reason,
        )

    @property
    def state(self) -> str:
        """Whether steps are captured, in a word or two."""
        return "gave up" if self.failed else "on" if self.enabled else "off"

    def __str__(self) -> str:
        """What came of it, in words."""
        return (
            f"CUDA graphs {self.state}: {self.captures} captures, {self.dropped} dropped, "
            f"{self.replays} steps from graphs, {self.launched} launched"
        )


@dataclass
class _Graph:
    """Inputs in memory that stays, and what runs the step on them; None before it is captured."""

    inputs: tuple[Tensor | None, ...]
    replay: Run | None = None


class CapturedSteps:
    """Graphs of steps by their shape. A shape is captured when it comes up again.

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
            make: makes its inputs, in memory that stays.
            fill: fills them.
            step: returns the step on them; a capture may run it, too.
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
            # With more shapes than graphs, most steps then run without one, instead of capturing all the time.
            del self.uses[oldest]
        return graph.replay()

    def drop_all(self) -> None:
        """Drop all graphs, because memory that they know has moved."""
        self.how.dropped += len(self.graphs)
        self.graphs.clear()

    def _captured(self, run: Run) -> Run | None:
        """Return the graph of a step, None where it cannot be captured."""
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
