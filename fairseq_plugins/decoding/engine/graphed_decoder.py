"""Steps of a decoder as CUDA graphs: a step of hundreds of small kernels is launched as one.

A graph runs the same kernels on the same addresses every time. So batch, tokens per step, slots of the cache and
length of the source are rounded up to powers of two, which makes few shapes of a whole run, and keys, values and masks
lie in memory that stays. Rows and columns beyond the real ones are run and not looked at; as with a rejected draft,
what they write is hidden by the mask and overwritten. Where a sentence stands is a tensor, never a number of the host.

A step that is not captured, or not yet, is the same function in the same shapes, launched operation by operation: what
a sentence gives does not depend on how often a shape has come up.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder, cross_mask_of
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.graph_capture import Graphs, Outputs, Run, cannot_be_captured, out_of_memory_in
from fairseq_plugins.decoding.engine.layout import BeamLayout, Chain, Span, StepLayout
from fairseq_plugins.decoding.engine.mask_inputs import FixedInputs, MaskInputs
from fairseq_plugins.decoding.engine.weights import Precision

# Graphs that a decoder keeps; beyond, the one that was not used for longest goes.
MAX_GRAPHS = 64
# Steps of so many rows (sentences times tokens) keep a device busy by themselves, and rounding them up is not free.
MAX_ROWS = 2048
# Uses of a shape before it is worth a capture, which costs several steps.
EAGER_USES = 2
_MIN_SLOTS = 64
_MIN_SOURCE = 32

# `cache`, `cross` and `cross_mask` of a `CachedDecoder`.
_State = tuple[Tensor | None, Tensor | None, Tensor | None]


def cached_decoder(
    decoder: nn.Module, engine: Engine, vocabulary: Tensor | None = None, beam: int = 1
) -> CachedDecoder:
    """Make a `CachedDecoder`, one that runs from graphs where the engine has them for the decoder's device."""
    if not engine.has_graphs(next(decoder.parameters()).device):
        return CachedDecoder(decoder, engine, vocabulary, beam)
    assert engine.graphs is not None
    assert engine.precision is Precision.FP32, "others are refused on this device"
    return GraphedDecoder(decoder, engine, engine.graphs, vocabulary, beam)


@dataclass(frozen=True)
class Shape:
    """What a graph is captured for.

    Attributes:
        batch: sentences.
        beam: hypotheses of each of them, 0 for a `Chain`.
        width: tokens of every row, masks included.
        masks: how many of them are masks after the tokens.
        capacity: slots of the cache.
        source: tokens of the source.
        visible: whether the last visible slot of every token is given.
        added: width of what is added to the input, 0 for nothing.
        states: whether the states between the layers are wanted.
    """

    batch: int
    beam: int
    width: int
    masks: int
    capacity: int
    source: int
    visible: bool
    added: int
    states: bool

    @property
    def rows(self) -> int:
        """Of the cache: sentences, or their hypotheses."""
        return self.batch * max(self.beam, 1)

    @property
    def memory(self) -> tuple[int, int, int]:
        """Sizes of what stays in memory between steps."""
        return self.batch, self.capacity, self.source


@dataclass
class _Graph:
    """Inputs in memory that stays, and what runs the step on them."""

    inputs: dict[str, Tensor]
    replay: Run | None = None


class GraphedDecoder(CachedDecoder):
    """A `CachedDecoder` whose steps have rounded shapes, and are captured when a shape comes up again.

    What a step returns is overwritten by the next one. Steps laid out as a `Chain` or a `BeamLayout` are captured.

    Args:
        decoder: decoder of a trained fairseq Transformer, in eval mode.
        engine: what it runs on.
        graphs: how steps are captured.
        vocabulary, beam: as for `CachedDecoder`.
    """

    def __init__(
        self, decoder: nn.Module, engine: Engine, graphs: Graphs, vocabulary: Tensor | None = None, beam: int = 1
    ) -> None:
        super().__init__(decoder, engine, vocabulary, beam)
        self.how = graphs
        self.graphs: OrderedDict[Shape, _Graph] = OrderedDict()
        self.uses: Counter[Shape] = Counter()
        # One piece of memory per purpose, as large as the largest shape needs; every shape begins where it begins.
        self.rooms: dict[str, Tensor] = {}
        # What is in them, with the rows that are padding; and `cache` and sizes as they were left there: it is another
        # tensor once rows have come, gone or grown.
        self.whole: _State = (None, None, None)
        self.left: tuple[Tensor, tuple[int, int, int]] | None = None
        # What masks are fed, in its room, and as it was given.
        self.fed = FixedInputs()
        self.fed_left: tuple[Tensor, tuple[int, int, int]] | None = None

    def step(
        self,
        tokens: Tensor,
        layout: Chain | StepLayout | BeamLayout,
        states: list[Tensor] | None = None,
        masks: int = 0,
        mask_inputs: MaskInputs | FixedInputs | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """As `CachedDecoder.step`; the hidden states and `states` are valid until the next step."""
        if isinstance(layout, StepLayout):
            return super().step(tokens, layout, states, masks, mask_inputs, added)
        assert self.cross is not None, "call start() first"
        given = {"tokens": tokens, "lengths": layout.lengths, "added": added}
        real: tuple[slice, ...] = (slice(tokens.size(0)),)
        if isinstance(layout, Chain):
            width, beam = rounded_up(layout.width), 0
            given["visible"], real = layout.last_visible, (*real, slice(layout.width))
        else:
            width, beam = 1, layout.beam
            given["beam_ancestors"] = layout.beam_ancestors[:, : layout.slots]
        shape = Shape(
            batch=rounded_up(self.cross.size(1)),
            beam=beam,
            width=width,
            masks=width - tokens.size(1) if masks else 0,
            capacity=rounded_up(max(layout.span.longest + width, self.capacity), _MIN_SLOTS),
            source=rounded_up(self.cross.size(2), _MIN_SOURCE),
            visible=given.get("visible") is not None,
            added=0 if added is None else 1 if added.size(1) == 1 else width,
            states=states is not None,
        )
        if shape.rows * shape.width > MAX_ROWS:
            self.how.launched += 1
            return super().step(tokens, layout, states, masks, mask_inputs, added)
        run = self._run(shape, {name: value for name, value in given.items() if value is not None}, mask_inputs)
        hidden, all_states = run()
        if states is not None:
            assert all_states is not None
            states.extend(state[real] for state in all_states)
        return hidden[real]

    def _run(self, shape: Shape, given: dict[str, Tensor], mask_inputs: MaskInputs | FixedInputs | None) -> Run:
        """What runs the step of a shape on these inputs: its graph, or the same operations one by one."""
        self._move_in(shape)
        if mask_inputs is not None:
            self._feed(shape, mask_inputs)
        graph = self.graphs.pop(shape, None) or _Graph(_inputs(shape, given))
        for name, value in given.items():
            # Beyond it stands what earlier steps were given, which is valid for rows that do not count.
            rows = given["tokens"].size(0)
            graph.inputs[name][(slice(rows), *map(slice, value.shape[1:]))] = value
        run = self._step_of(shape, graph.inputs, mask_inputs is not None)
        self.uses[shape] += 1
        if graph.replay is None and self.how.are_on and self.uses[shape] > EAGER_USES:
            graph.replay = self._captured(run)
        if graph.replay is None:
            self.how.launched += 1
            return run
        self.how.replays += 1
        self.graphs[shape] = graph
        if len(self.graphs) > MAX_GRAPHS:
            oldest, _ = self.graphs.popitem(last=False)
            self.how.dropped += 1
            # With more shapes than graphs, most steps then run without one, instead of capturing all the time.
            del self.uses[oldest]
        return graph.replay

    def _captured(self, run: Run) -> Run | None:
        """The graph of a step, None where it cannot be captured. Its inputs are filled in: capturing may run it."""
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

    def _step_of(self, shape: Shape, inputs: dict[str, Tensor], has_masks: bool) -> Run:
        """The step of a shape as a function of memory that stays."""
        # No two lengths are known to be equal, and the longest is the longest for which there is room.
        span = Span(-1, shape.capacity - shape.width)
        layout: Chain | BeamLayout = Chain(inputs["lengths"], span, shape.width, inputs.get("visible"))
        if shape.beam:
            layout = BeamLayout(inputs["lengths"], span, shape.beam, inputs["beam_ancestors"])
        mask_inputs = self.fed if has_masks else None

        def run() -> Outputs:
            states: list[Tensor] | None = [] if shape.states else None
            real, self._state = self._state, self.whole
            try:
                hidden = CachedDecoder.step(
                    self, inputs["tokens"], layout, states, shape.masks, mask_inputs, inputs.get("added")
                )
            finally:
                self._state = real
            # Not in the memory that graphs share, where another one would overwrite it.
            results = self._room("hidden", hidden.shape, hidden).copy_(hidden), None
            if states is None:
                return results
            stacked = torch.stack(states)
            return results[0], self._room("states", stacked.shape, stacked).copy_(stacked)

        return run

    @property
    def _state(self) -> _State:
        return self.cache, self.cross, self.cross_mask

    @_state.setter
    def _state(self, state: _State) -> None:
        self.cache, self.cross, self.cross_mask = state

    def _move_in(self, shape: Shape) -> None:
        """Have keys and values where graphs of this shape look for them."""
        assert self.cache is not None and self.cross is not None
        if self.left is not None and self.left[0] is self.cache and self.left[1] == shape.memory:
            return
        rows, sentences = self.cache.size(1), self.cross.size(1)
        cache = self._laid("cache", self.cache, {1: shape.rows, 2: shape.capacity})
        mask = cross_mask_of(self.cross_mask, self.cross)
        mask = self._laid("cross_mask", mask, {0: shape.batch, 3: shape.source})
        cross = self._laid("cross", self.cross, {1: shape.batch, 2: shape.source})
        self.whole = cache, cross, mask
        self._state = cache[:, :rows], cross[:, :sentences], mask[:sentences]
        self.left = self.cache, shape.memory

    def _feed(self, shape: Shape, mask_inputs: MaskInputs | FixedInputs) -> None:
        """Have what masks are fed where graphs of this shape look for it."""
        assert self.cache is not None
        table = mask_inputs.table(self.cache.size(1), shape.capacity)
        if self.fed_left is not None and self.fed_left[0] is table and self.fed_left[1] == shape.memory:
            return
        laid = table
        if table.dim() == 3:
            laid = self._laid("fed", table[:, : shape.capacity], {0: shape.batch})
        self.fed.value = laid
        self.fed_left = table, shape.memory

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
            self.how.dropped += len(self.graphs)
            self.graphs.clear()
            self.rooms[name] = like.new_zeros(size)
        return self.rooms[name][:size].view(shape)


def rounded_up(number: int, least: int = 1) -> int:
    """The power of two that is at least `number` and at least `least`, itself one."""
    return max(least, 1 << (number - 1).bit_length())


def _inputs(shape: Shape, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Room for the inputs of a step, of this shape, and zero."""
    sizes = {"lengths": (), "visible": (shape.width,), "beam_ancestors": (shape.capacity,)}
    sizes["tokens"] = () if shape.beam else (shape.width - shape.masks,)
    if shape.added:
        sizes["added"] = (shape.added, given["added"].size(2))
    return {name: value.new_zeros(shape.rows, *sizes[name]) for name, value in given.items()}
