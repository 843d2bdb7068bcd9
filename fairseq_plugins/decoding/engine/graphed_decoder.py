"""Steps of a decoder as CUDA graphs: a step of hundreds of small kernels is launched as one.

A graph runs the same kernels on the same addresses every time. So batch, tokens per step, slots of the cache and
length of the source are rounded up to powers of two, which makes few shapes of a whole run, and keys, values and masks
lie in memory that stays. Rows and columns beyond the real ones are run and not looked at; as with a rejected draft,
what they write is hidden by the mask and overwritten. Where a sentence stands is a tensor, never a number of the host.

A step that is not captured, or not yet, is the same function in the same shapes, launched operation by operation: what
a sentence gives does not depend on how often a shape has come up.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn

from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder, cross_mask_of
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.graph_capture import CapturedSteps, Graphs, Outputs, Run
from fairseq_plugins.decoding.engine.layout import BeamLayout, Chain, Span
from fairseq_plugins.decoding.engine.mask_inputs import FixedInputs, MaskInputs
from fairseq_plugins.decoding.engine.shapes import MAX_ROWS, Shape, rounded_up
from fairseq_plugins.decoding.engine.weights import Precision

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


# From hidden states [B, T, D], the states between the layers where they are wanted, and the inputs of a step by name.
After = Callable[[Tensor, list[Tensor] | None, dict[str, Tensor]], Outputs]


class GraphedDecoder(CachedDecoder):
    """A `CachedDecoder` whose steps have rounded shapes, and are captured when a shape comes up again.

    What a step returns is overwritten by the next one.

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
        self.steps, self.starts = CapturedSteps(graphs), CapturedSteps(graphs)
        # One piece of memory per purpose, as large as the largest shape needs; every shape begins where it begins.
        self.buffers: dict[str, Tensor] = {}
        # What is in them, with the rows that are padding; and `cache` and `cross` with sizes as they were left there:
        # they are other tensors once rows have come, gone or grown.
        self.whole: _State = (None, None, None)
        self.left_cache: tuple[Tensor, tuple[int, int]] | None = None
        self.left_cross: tuple[Tensor, tuple[int, int]] | None = None
        # Whole numbers from 0 on: inputs that are known on the host.
        self.constants = torch.empty(0, dtype=torch.long)
        # Mask embeddings in their buffer, and as given.
        self.mask_embeddings = FixedInputs()
        self.mask_table: tuple[Tensor, tuple[int, int, int]] | None = None

    def append_rows(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """As `CachedDecoder.append_rows`."""
        assert self.cross is not None, "call start() first"
        # `_start` writes the keys and values of the new sentences where those of the others are.
        self.cross, self.cross_mask = self.cross.clone(), cross_mask_of(self.cross_mask, self.cross).clone()
        super().append_rows(encoder_out)

    def _start(self, states: Tensor, padding: Tensor | None) -> None:
        """As `CachedDecoder._start`, in a rounded shape and from a CUDA graph if that shape has one."""
        rows, source, width = states.shape
        shape = rounded_up(rows), rounded_up(source, _MIN_SOURCE)
        if padding is None or math.prod(shape) > MAX_ROWS:
            super()._start(states, padding)
            return

        def make() -> Outputs:
            return states.new_zeros(*shape, width), states.new_zeros(shape, dtype=torch.bool)

        def fill(inputs: Outputs) -> None:
            all_states, is_padding = inputs
            assert all_states is not None and is_padding is not None
            all_states[:rows, :source] = states
            is_padding.fill_(True)[:rows, :source] = padding

        def start(inputs: Outputs) -> Run:
            all_states, is_padding = inputs
            assert all_states is not None and is_padding is not None

            def run() -> Outputs:
                # In place of padding are states of earlier batches, and a NaN stays NaN under a mask.
                cross, hidden = self._source_kv(all_states.masked_fill(is_padding[:, :, None], 0), is_padding)
                assert hidden is not None
                visible = ~hidden[:, None, None, :]
                return (
                    self._buffer("cross", cross.shape, cross).copy_(cross),
                    self._buffer("cross_mask", visible.shape, visible).copy_(visible),
                )

            return run

        cross, mask = self.starts.run(shape, make, fill, start)
        assert cross is not None and mask is not None
        self.cross, self.cross_mask, self.whole = cross[:, :rows], mask[:rows], (None, cross, mask)
        self.left_cross = self.cross, shape
        self._clear_cache(rows)

    def step(
        self,
        tokens: Tensor,
        layout: Chain | BeamLayout,
        states: list[Tensor] | None = None,
        mask_inputs: MaskInputs | FixedInputs | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """As `CachedDecoder.step`; the hidden states and `states` are valid until the next step."""
        rows = tokens if isinstance(layout, Chain) else tokens[:, None]
        hidden, stacked = self._run(None, None, states is not None, [rows], layout, {}, mask_inputs, added)
        assert hidden is not None
        if states is not None:
            assert stacked is not None
            states.extend(stacked)
        return hidden

    def step_and(
        self,
        after: After,
        key: Hashable,
        tokens: Sequence[Tensor],
        layout: Chain | BeamLayout,
        inputs: dict[str, Tensor],
        mask_inputs: MaskInputs | None = None,
        added: Tensor | None = None,
        with_states: bool = False,
    ) -> Outputs:
        """Run a step and what follows it, in one graph.

        Args:
            after: what follows. Its inputs are "tokens" [B, T], "lengths" [B, 1] and `inputs`; B and T may be
                larger than those of the layout.
            key: tells what follows from what may follow other steps of this decoder.
            tokens: whole numbers [B, any], side by side.
            layout, mask_inputs, added: as for `step`.
            inputs: whole numbers [B, any].
            with_states: give it the states between the layers.

        Returns:
            hidden states [B, T, D], and what `after` returns of the B sentences; valid until the next step.
        """
        hidden, _, *others = self._run(after, key, with_states, tokens, layout, inputs, mask_inputs, added)
        return hidden, *others

    def column(self, number: int, rows: int) -> Tensor:
        """Return a number as a tensor [rows, 1], without a launch from the second time on."""
        if len(self.constants) <= number:
            device = self.decoder.embed_tokens.weight.device
            self.constants = torch.arange(rounded_up(number + 1, _MIN_SLOTS), device=device)
        return self.constants[number].expand(rows, 1)

    def _run(
        self,
        after: After | None,
        key: Hashable,
        with_states: bool,
        tokens: Sequence[Tensor],
        layout: Chain | BeamLayout,
        inputs: dict[str, Tensor],
        mask_inputs: MaskInputs | FixedInputs | None,
        added: Tensor | None,
    ) -> Outputs:
        """Return hidden states, stacked states where nothing follows that reads them, and what follows."""
        assert self.cross is not None, "call start() first"
        rows, width, beam = tokens[0].size(0), 1, 0
        given = {"lengths": [layout.lengths[:, None]], **{name: [value] for name, value in inputs.items()}}
        sizes = {name: value.size(1) for name, (value,) in given.items()}
        if isinstance(layout, Chain):
            width = rounded_up(layout.width)
            if layout.last_visible is not None:
                given["visible"], sizes["visible"] = [layout.last_visible.expand(rows, -1)], width
        capacity = rounded_up(max(layout.span.longest + width, self.capacity), _MIN_SLOTS)
        if isinstance(layout, BeamLayout):
            beam = layout.beam
            given["beam_ancestors"], sizes["beam_ancestors"] = [layout.beam_ancestors[:, : layout.slots]], capacity
        given["tokens"], sizes["tokens"] = list(tokens), width
        shape = Shape(
            batch=rounded_up(self.cross.size(1)),
            beam=beam,
            width=width,
            capacity=capacity,
            source=rounded_up(self.cross.size(2), _MIN_SOURCE),
            numbers=tuple(sizes.items()),
            added=0 if added is None else 1 if added.size(1) == 1 else width,
            states=with_states,
            after=key,
        )
        if shape.rows * shape.width > MAX_ROWS:
            self.steps.how.launched += 1
            exact = {name: torch.cat(parts, dim=1) for name, parts in given.items()}
            return self._compute(after, exact, layout, with_states, mask_inputs, added)
        pieces = []
        for name, parts in given.items():
            pieces += parts
            missing = sizes[name] - sum(part.size(1) for part in parts)
            pieces += [self.column(0, rows).expand(-1, missing)] if missing else []
        outputs = self._run_shape(shape, after, pieces, mask_inputs, added)
        hidden, stacked, *others = outputs
        assert hidden is not None
        real: tuple[slice, ...] = (slice(rows),)
        if isinstance(layout, Chain):
            real = (*real, slice(layout.width))
        stacked = None if stacked is None else stacked[(slice(None), *real)]
        return hidden[real], stacked, *(None if value is None else value[:rows] for value in others)

    def _run_shape(
        self,
        shape: Shape,
        after: After | None,
        pieces: list[Tensor],
        mask_inputs: MaskInputs | FixedInputs | None,
        added: Tensor | None,
    ) -> Outputs:
        """Run the step of a shape on these inputs."""
        self._move_in(shape)
        if mask_inputs is not None:
            self._feed(shape, mask_inputs)
        rows = pieces[0].size(0)

        def make() -> Outputs:
            width = sum(size for _, size in shape.numbers)
            additions = None if added is None else added.new_zeros(shape.rows, shape.added, added.size(2))
            return pieces[0].new_zeros(shape.rows, width), additions

        def fill(inputs: Outputs) -> None:
            numbers, additions = inputs
            assert numbers is not None
            # Beyond these rows stands what earlier steps were given, which is valid for rows that do not count.
            torch.cat(pieces, dim=1, out=numbers[:rows])
            if added is not None:
                assert additions is not None
                additions[:rows, : added.size(1)] = added

        return self.steps.run(
            shape, make, fill, lambda inputs: self._step_of(shape, inputs, after, mask_inputs is not None)
        )

    def _step_of(self, shape: Shape, given: Outputs, after: After | None, has_masks: bool) -> Run:
        """The step of a shape as a function of memory that stays."""
        # No two lengths are known to be equal, and the longest is the longest for which there is room.
        span = Span(-1, shape.capacity - shape.width)
        numbers, added = given
        assert numbers is not None
        inputs = shape.by_name(numbers)
        lengths = inputs["lengths"][:, 0]
        layout: Chain | BeamLayout = Chain(lengths, span, shape.width, inputs.get("visible"))
        if shape.beam:
            layout = BeamLayout(lengths, span, shape.beam, inputs["beam_ancestors"])
        mask_inputs = self.mask_embeddings if has_masks else None

        def run() -> Outputs:
            real, self._state = self._state, self.whole
            try:
                outputs = self._compute(after, inputs, layout, shape.states, mask_inputs, added)
            finally:
                self._state = real
            # Not in the memory that graphs share, where another one would overwrite it.
            return tuple(
                None if value is None else self._buffer(f"output {number}", value.shape, value).copy_(value)
                for number, value in enumerate(outputs)
            )

        return run

    def _compute(
        self,
        after: After | None,
        inputs: dict[str, Tensor],
        layout: Chain | BeamLayout,
        with_states: bool,
        mask_inputs: MaskInputs | FixedInputs | None,
        added: Tensor | None,
    ) -> Outputs:
        """Return hidden states, stacked states where nothing follows that reads them, and what follows."""
        states: list[Tensor] | None = [] if with_states else None
        tokens = inputs["tokens"] if isinstance(layout, Chain) else inputs["tokens"][:, 0]
        hidden = super().step(tokens, layout, states, mask_inputs, added)
        if after is not None:
            return hidden, None, *after(hidden, states, inputs)
        return hidden, None if states is None else torch.stack(states)

    @property
    def _state(self) -> _State:
        return self.cache, self.cross, self.cross_mask

    @_state.setter
    def _state(self, state: _State) -> None:
        self.cache, self.cross, self.cross_mask = state

    def _move_in(self, shape: Shape) -> None:
        """Copy keys and values to where graphs of this shape read them."""
        assert self.cache is not None and self.cross is not None
        (batch, capacity, source), (cache, cross, mask) = shape.memory, self.whole
        rows, sentences = self.cache.size(1), self.cross.size(1)
        if not _is_left(self.left_cache, self.cache, (batch, capacity)):
            cache = self._in_buffer("cache", self.cache, {1: shape.rows, 2: capacity})
        if not _is_left(self.left_cross, self.cross, (batch, source)):
            mask = cross_mask_of(self.cross_mask, self.cross)
            mask = self._in_buffer("cross_mask", mask, {0: batch, 3: source})
            cross = self._in_buffer("cross", self.cross, {1: batch, 2: source})
        assert cache is not None and cross is not None and mask is not None
        self.whole = cache, cross, mask
        self._state = cache[:, :rows], cross[:, :sentences], mask[:sentences]
        self.left_cache, self.left_cross = (self.cache, (batch, capacity)), (self.cross, (batch, source))

    def _feed(self, shape: Shape, mask_inputs: MaskInputs | FixedInputs) -> None:
        """Copy mask embeddings to where graphs of this shape read them."""
        assert self.cache is not None
        table = mask_inputs.table(self.cache.size(1), shape.capacity)
        if self.mask_table is not None and self.mask_table[0] is table and self.mask_table[1] == shape.memory:
            return
        padded = table
        if table.dim() == 3:
            padded = self._in_buffer("mask_embeddings", table[:, : shape.capacity], {0: shape.batch})
        self.mask_embeddings.value = padded
        self.mask_table = table, shape.memory

    def _in_buffer(self, name: str, value: Tensor, sizes: dict[int, int]) -> Tensor:
        """Copy a value into its buffer, padded with zeros to these sizes by dimension."""
        if (
            name in self.buffers
            and value.untyped_storage().data_ptr() == self.buffers[name].untyped_storage().data_ptr()
        ):
            value = value.clone()
        buffer = self._buffer(name, [sizes.get(dim, size) for dim, size in enumerate(value.shape)], value)
        # Rows of padding attend to nothing, which may give NaN, and NaN that is left here stays NaN under a mask.
        buffer.zero_()
        buffer[tuple(map(slice, value.shape))] = value
        return buffer

    def _buffer(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Memory for one purpose in this shape; whenever it has to grow, graphs that know the old place are gone."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.steps.drop_all()
            if name in ("cross", "cross_mask"):
                self.starts.drop_all()
            self.buffers[name] = like.new_zeros(size)
        return self.buffers[name][:size].view(shape)


def _is_left(left: tuple[Tensor, tuple[int, int]] | None, value: Tensor, sizes: tuple[int, int]) -> bool:
    """Return whether a tensor of these rounded sizes is what was left in its buffer."""
    return left is not None and left[0] is value and left[1] == sizes
