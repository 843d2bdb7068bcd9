"""Steps of a decoder as CUDA graphs: a step of hundreds of small kernels is launched as one.

A graph runs the same kernels on the same addresses every time. So batch, tokens per step, places of the cache and
length of the source are rounded up to powers of two, which makes few shapes of a whole run, and keys, values and masks
lie in memory that stays. Rows and columns beyond the real ones are run and not looked at; as with a rejected draft,
what they write is hidden by the mask and overwritten. Where a sentence stands is a tensor, never a number of the host.
"""

import functools
import logging
import math
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_plugins.decoding.cached_decoder import CachedDecoder, Span, cross_mask_of
from fairseq_plugins.decoding.weights import Precision

logger = logging.getLogger(__name__)

# Graphs that a decoder keeps; beyond, the one that was not used for longest goes.
MOST_GRAPHS = 64
# Steps of so many rows (sentences times tokens) keep a device busy by themselves, and rounding them up is not free.
MOST_ROWS = 2048
# Uses of a shape before it is worth a capture, which costs several steps.
EAGER_USES = 2
_LEAST_PLACES = 64
_LEAST_SOURCE = 32

# Hidden states [B, T, D], and [layers + 1, B, T, D] where the states between the layers are wanted.
Outputs = tuple[Tensor, Tensor | None]
Run = Callable[[], Outputs]
# `cache`, `cross`, `cross_mask` and `mask_table` of a `CachedDecoder`.
_State = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
# Of a function, one that runs its kernels again and leaves the result in the same outputs.
Capture = Callable[[Run], Run]

_wanted = False
_gave_up = False


def enable(wanted: bool) -> None:
    """Switch graphs on or off (as they are at first), for what is built from now on."""
    global _wanted
    _wanted = wanted


def capturer(device: torch.device) -> Capture | None:
    """What captures graphs on a device; None where steps are to run one operation after the other."""
    return capture_on_cuda if _wanted and not _gave_up and device.type == "cuda" else None


def cached_decoder(
    decoder: nn.Module, vocabulary: Tensor | None = None, precision: Precision = Precision.FP32
) -> CachedDecoder:
    """Make a `CachedDecoder`, one that runs from graphs where these are switched on and the device has them."""
    capture = capturer(next(decoder.parameters()).device)
    if capture is None:
        return CachedDecoder(decoder, vocabulary, precision)
    assert precision is Precision.FP32, "others are refused on this device"
    return GraphedDecoder(decoder, capture, vocabulary)


@dataclass(frozen=True)
class Shape:
    """What a graph is captured for.

    Attributes:
        batch: rows.
        width: tokens of every row, masks included.
        masks: how many of them are masks behind the tokens.
        capacity: places of the cache.
        source: places of the source.
        visible: whether the last visible place of every token is given.
        added: width of what is added to the input, 0 for nothing.
        states: whether the states between the layers are wanted.
    """

    batch: int
    width: int
    masks: int
    capacity: int
    source: int
    visible: bool
    added: int
    states: bool

    @property
    def memory(self) -> tuple[int, int, int]:
        """Sizes of what stays in memory between steps."""
        return self.batch, self.capacity, self.source


@dataclass
class _Graph:
    """Inputs at their places, and what runs the step on them."""

    inputs: dict[str, Tensor]
    replay: Run | None = None


class GraphedDecoder(CachedDecoder):
    """A `CachedDecoder` whose steps are captured when their shape comes up again, and then run from the graph.

    What a step returns is overwritten by the next one.

    Args:
        decoder: decoder of a trained fairseq Transformer, in eval mode.
        capture: what makes a graph of a function.
        vocabulary: as for `CachedDecoder`.
    """

    def __init__(self, decoder: nn.Module, capture: Capture, vocabulary: Tensor | None = None) -> None:
        super().__init__(decoder, vocabulary)
        self.capture = capture
        self.graphs: OrderedDict[Shape, _Graph] = OrderedDict()
        self.uses: Counter[Shape] = Counter()
        # One piece of memory per purpose, as large as the largest shape needs; every shape begins where it begins.
        self.rooms: dict[str, Tensor] = {}
        # What is in them, with the rows that are padding; and `cache` and sizes as they were left there: it is another
        # tensor once rows have come, gone or grown.
        self.whole: _State = (None, None, None, None)
        self.left: tuple[Tensor, tuple[int, int, int]] | None = None

    def step(
        self,
        tokens: Tensor,
        lengths: Tensor,
        span: Span,
        visible: Tensor | None = None,
        layers: list[Tensor] | None = None,
        masks: int = 0,
        added: Tensor | None = None,
    ) -> Tensor:
        """As `CachedDecoder.step`; the hidden states and `layers` are valid until the next step."""
        assert self.cross is not None, "call start() first"
        width = rounded_up(tokens.size(1) + masks)
        shape = Shape(
            batch=rounded_up(tokens.size(0)),
            width=width,
            masks=width - tokens.size(1) if masks else 0,
            capacity=rounded_up(max(span.longest + width, self.capacity), _LEAST_PLACES),
            source=rounded_up(self.cross.size(2), _LEAST_SOURCE),
            visible=visible is not None,
            added=0 if added is None else 1 if added.size(1) == 1 else width,
            states=layers is not None,
        )
        given = {"tokens": tokens, "lengths": lengths, "visible": visible, "added": added}
        graph = self._graph(shape, {name: value for name, value in given.items() if value is not None})
        if graph is None:
            return super().step(tokens, lengths, span, visible, layers, masks, added)
        hidden, states = graph()
        real = (slice(tokens.size(0)), slice(tokens.size(1) + masks))
        if layers is not None:
            assert states is not None
            layers.extend(state[real] for state in states)
        return hidden[real]

    def _graph(self, shape: Shape, given: dict[str, Tensor]) -> Run | None:
        """The graph of a shape with these inputs; None where the step is to run without."""
        if _gave_up or shape.batch * shape.width > MOST_ROWS:
            return None
        self.uses[shape] += 1
        if self.uses[shape] <= EAGER_USES:
            return None
        self._move_in(shape)
        graph = self.graphs.pop(shape, None) or _Graph(_inputs(shape, given))
        for name, value in given.items():
            # Behind it stands what earlier steps were given, which is valid for rows that do not count.
            rows = given["tokens"].size(0)
            graph.inputs[name][(slice(rows), *map(slice, value.shape[1:]))] = value
        if graph.replay is None:
            try:
                graph.replay = self._captured(shape, graph.inputs)
            except RuntimeError as error:
                _give_up(error)
                self.graphs.clear()
                return None
        self.graphs[shape] = graph
        if len(self.graphs) > MOST_GRAPHS:
            oldest, _ = self.graphs.popitem(last=False)
            # With more shapes than graphs, most steps then run without one, instead of capturing all the time.
            del self.uses[oldest]
        return graph.replay

    def _captured(self, shape: Shape, inputs: dict[str, Tensor]) -> Run:
        """Capture the step of a shape. The inputs are filled in already, since capturing may run the step."""
        # No two lengths are known to be equal, and the longest is the longest for which there is room.
        span = Span(-1, shape.capacity - shape.width)

        def run() -> Outputs:
            layers: list[Tensor] | None = [] if shape.states else None
            hidden = CachedDecoder.step(self, **inputs, span=span, layers=layers, masks=shape.masks)
            # Not in the memory that graphs share, where another one would overwrite it.
            results = self._room("hidden", hidden.shape, hidden).copy_(hidden), None
            if layers is None:
                return results
            states = torch.stack(layers)
            return results[0], self._room("states", states.shape, states).copy_(states)

        real = self._state
        self._state = self.whole
        try:
            return self.capture(run)
        finally:
            self._state = real

    @property
    def _state(self) -> _State:
        return self.cache, self.cross, self.cross_mask, self.mask_table

    @_state.setter
    def _state(self, state: _State) -> None:
        self.cache, self.cross, self.cross_mask, self.mask_table = state

    def _move_in(self, shape: Shape) -> None:
        """Have keys, values and masks where graphs of this shape look for them."""
        assert self.cache is not None and self.cross is not None
        if self.left is not None and self.left[0] is self.cache and self.left[1] == shape.memory:
            return
        rows = self.cache.size(1)
        cache = self._laid("cache", self.cache, {1: shape.batch, 2: shape.capacity})
        mask = cross_mask_of(self.cross_mask, self.cross)
        mask = self._laid("cross_mask", mask, {0: shape.batch, 3: shape.source})
        cross = self._laid("cross", self.cross, {1: shape.batch, 2: shape.source})
        table = None
        if self.mask_vectors is not None:
            table = self._mask_table(rows, shape.capacity)
            if table.dim() == 3:
                table = self._laid("mask_table", table[:, : shape.capacity], {0: shape.batch})
        self.whole = cache, cross, mask, table
        own_table = table[:rows] if table is not None and table.dim() == 3 else table
        self._state = cache[:, :rows], cross[:, :rows], mask[:rows], own_table
        self.left = self.cache, shape.memory

    def _laid(self, name: str, value: Tensor, sizes: dict[int, int]) -> Tensor:
        """Put a value into its room, filled up with zeros to these sizes by dimension."""
        if name in self.rooms and value.untyped_storage().data_ptr() == self.rooms[name].untyped_storage().data_ptr():
            value = value.clone()
        room = self._room(name, [sizes.get(dim, size) for dim, size in enumerate(value.shape)], value)
        # Rows of padding attend to nothing, which may give NaN, and NaN that is left here stays NaN under a mask.
        room.zero_()
        room[tuple(map(slice, value.shape))] = value
        return room

    def _room(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Memory for one purpose in this shape; whenever it has to grow, graphs that know the old place are gone."""
        size = math.prod(shape)
        if name not in self.rooms or self.rooms[name].numel() < size:
            self.graphs.clear()
            self.rooms[name] = like.new_zeros(size)
        return self.rooms[name][:size].view(shape)


def rounded_up(number: int, least: int = 1) -> int:
    """The power of two that is at least `number` and at least `least`, itself one."""
    return max(least, 1 << (number - 1).bit_length())


def _inputs(shape: Shape, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Room for the inputs of a step, of this shape, and zero."""
    sizes = {"tokens": (shape.width - shape.masks,), "lengths": (), "visible": (shape.width,)}
    if shape.added:
        sizes["added"] = (shape.added, given["added"].size(2))
    return {name: value.new_zeros(shape.batch, *sizes[name]) for name, value in given.items()}


def _give_up(error: RuntimeError) -> None:
    global _gave_up
    _gave_up = True
    reason = " ".join(str(error).split())[:200]
    logger.warning(
        "CUDA graphs: a step could not be captured (%s): decoding goes on without; --no-cuda-graphs does not try",
        reason,
    )


# Graphs of this process; as long as there is one, new ones share its memory.
_captured_graphs: "weakref.WeakSet[torch.cuda.CUDAGraph]" = weakref.WeakSet()


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def capture_on_cuda(run: Run) -> Run:
    """Capture a function that launches kernels, does not synchronise and reads and writes memory that stays.

    Follows https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.

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
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            outputs = run()
    _captured_graphs.add(graph)

    def replay() -> Outputs:
        graph.replay()
        return outputs

    return replay
