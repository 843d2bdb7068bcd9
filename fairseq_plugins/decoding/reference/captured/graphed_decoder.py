"""Run the steps of a decoder as CUDA graphs: one launch instead of hundreds of small ones.

A graph replays the same kernels on the same addresses. Batch size, tokens per step, cache slots and source length are
therefore rounded up to powers of two, so that a run has few shapes, and keys, values and masks lie in reused buffers.
Padding rows and columns are computed and ignored. As for rejected tokens, the mask hides what they write, and later
steps overwrite it. Output lengths are tensors, because a graph would keep a Python integer of its capture.

A step that is not captured runs the same function in the same shapes, operation by operation. Its result therefore does
not depend on whether its shape has been captured.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn

from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder, cross_mask_of
from fairseq_plugins.decoding.reference.captured.graph_capture import CapturedSteps, Graphs, Outputs, Run
from fairseq_plugins.decoding.reference.captured.shapes import MAX_ROWS, Shape, rounded_up
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.layout import BeamLayout, Chain, Span
from fairseq_plugins.decoding.reference.mask_embeddings import MaskTable

_MIN_SLOTS = 64
_MIN_SOURCE = 32

# `cache`, `cross` and `cross_mask` of a `CachedDecoder`.
_State = tuple[Tensor | None, Tensor | None, Tensor | None]


class _FixedMaskTable:
    """Mask embeddings in the tensor `value`, which a CUDA graph reads at a fixed address."""

    value: Tensor

    def table(self, batch: int, positions: int) -> Tensor:
        return self.value


def cached_decoder(
    decoder: nn.Module, engine: Engine, vocabulary: Tensor | None = None, beam: int = 1
) -> CachedDecoder:
    """Return a `CachedDecoder`, which runs from graphs if the engine has them for the decoder's device."""
    if not engine.has_graphs(next(decoder.parameters()).device):
        return CachedDecoder(decoder, engine, vocabulary, beam)
    assert engine.graphs is not None
    assert not engine.int8, "others are refused on this device"
    return GraphedDecoder(decoder, engine, engine.graphs, vocabulary, beam)


# A function that is captured after a step. Its arguments are hidden states [B, T, D], the states between the layers if
# they are requested, and the inputs of the step by name.
After = Callable[[Tensor, list[Tensor] | None, dict[str, Tensor]], Outputs]


class GraphedDecoder(CachedDecoder):
    """A `CachedDecoder` whose steps have rounded shapes and are captured when a shape is used again.

    The outputs of a step are valid until the next step.

    Args:
        decoder: decoder of a trained fairseq Transformer, in eval mode.
        engine: runs its layers.
        graphs: how steps are captured.
        vocabulary, beam: as for `CachedDecoder`.
    """

    def __init__(
        self, decoder: nn.Module, engine: Engine, graphs: Graphs, vocabulary: Tensor | None = None, beam: int = 1
    ) -> None:
        super().__init__(decoder, engine, vocabulary, beam)
        self.steps, self.starts = CapturedSteps(graphs), CapturedSteps(graphs)
        # One buffer per purpose, as large as the largest shape so far; every shape uses the beginning of it.
        self.buffers: dict[str, Tensor] = {}
        # `cache`, `cross` and `cross_mask` in the buffers, with padding rows.
        self.padded_state: _State = (None, None, None)
        # `cache` and `cross` as views of the buffers, with their rounded sizes. If `cache` is another tensor, rows were
        # added, removed or grown, and it must be copied into the buffer.
        self.buffered_cache: tuple[Tensor, tuple[int, int]] | None = None
        self.buffered_cross: tuple[Tensor, tuple[int, int]] | None = None
        # The integers from 0 on, for inputs that are known on the host.
        self.constants = torch.empty(0, dtype=torch.long)
        # Mask embeddings in their buffer, and the table that was copied there, with the rounded sizes.
        self.mask_buffer = _FixedMaskTable()
        self.mask_table: tuple[Tensor, tuple[int, int, int]] | None = None

    def append_rows(self, encoder_out: dict[str, list[Tensor]]) -> None:
        """Append sentences as `CachedDecoder.append_rows` does."""
        assert self.cross is not None, "call start() first"
        # Copied, because `_start` overwrites the buffers with the keys and values of the new sentences.
        self.cross, self.cross_mask = self.cross.clone(), cross_mask_of(self.cross_mask, self.cross).clone()
        super().append_rows(encoder_out)

    def _start(self, states: Tensor, padding: Tensor | None) -> None:
        """Begin a batch in a rounded shape, from a CUDA graph if that shape has one."""
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
                # Padding has states of earlier batches, and a NaN among them would stay NaN under a mask.
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
        self.cross, self.cross_mask, self.padded_state = cross[:, :rows], mask[:rows], (None, cross, mask)
        self.buffered_cross = self.cross, shape
        self._clear_cache(rows)

    def step(
        self,
        tokens: Tensor,
        layout: Chain | BeamLayout,
        states: list[Tensor] | None = None,
        mask_embeddings: MaskTable | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """Run a step as `CachedDecoder.step` does; the hidden states and `states` are valid until the next step."""
        rows = tokens if isinstance(layout, Chain) else tokens[:, None]
        hidden, stacked = self._run(None, None, states is not None, [rows], layout, {}, mask_embeddings, added)
        assert hidden is not None
        if states is not None:
            assert stacked is not None
            states.extend(stacked)
        return hidden

    def step_then(
        self,
        after: After,
        key: Hashable,
        tokens: Sequence[Tensor],
        layout: Chain | BeamLayout,
        inputs: dict[str, Tensor],
        mask_embeddings: MaskTable | None = None,
        added: Tensor | None = None,
        with_states: bool = False,
    ) -> Outputs:
        """Run a step, and then a function of its result, in one graph.

        Args:
            after: the function. Its inputs are "tokens" [B, T], "lengths" [B, 1] and `inputs`; B and T may be larger
                than those of the layout.
            key: distinguishes `after` from functions that follow other steps of this decoder.
            tokens: ids [B, any], to be concatenated.
            layout, mask_embeddings, added: as for `step`.
            inputs: integers [B, any] for `after`.
            with_states: pass the states between the layers to `after`.

        Returns:
            hidden states [B, T, D], and the outputs of `after` for the B sentences; valid until the next step.
        """
        hidden, _, *others = self._run(after, key, with_states, tokens, layout, inputs, mask_embeddings, added)
        return hidden, *others

    def column(self, number: int, rows: int) -> Tensor:
        """Return an integer as a tensor [rows, 1]; only the first call launches a kernel."""
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
        mask_embeddings: MaskTable | None,
        added: Tensor | None,
    ) -> Outputs:
        """Return hidden states, stacked states (None if `after` reads them), and the outputs of `after`."""
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
            return self._compute(after, exact, layout, with_states, mask_embeddings, added)
        pieces = []
        for name, parts in given.items():
            pieces += parts
            missing = sizes[name] - sum(part.size(1) for part in parts)
            pieces += [self.column(0, rows).expand(-1, missing)] if missing else []
        outputs = self._run_shape(shape, after, pieces, mask_embeddings, added)
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
        mask_embeddings: MaskTable | None,
        added: Tensor | None,
    ) -> Outputs:
        """Run the step of a rounded shape with these integer inputs."""
        self._fill_buffers(shape)
        if mask_embeddings is not None:
            self._fill_mask_buffer(shape, mask_embeddings)
        rows = pieces[0].size(0)

        def make() -> Outputs:
            width = sum(size for _, size in shape.numbers)
            additions = None if added is None else added.new_zeros(shape.rows, shape.added, added.size(2))
            return pieces[0].new_zeros(shape.rows, width), additions

        def fill(inputs: Outputs) -> None:
            numbers, additions = inputs
            assert numbers is not None
            # Further rows keep inputs of earlier steps: these are valid, and their results are ignored.
            torch.cat(pieces, dim=1, out=numbers[:rows])
            if added is not None:
                assert additions is not None
                additions[:rows, : added.size(1)] = added

        return self.steps.run(
            shape, make, fill, lambda inputs: self._step_of(shape, inputs, after, mask_embeddings is not None)
        )

    def _step_of(self, shape: Shape, given: Outputs, after: After | None, has_masks: bool) -> Run:
        """Return the step of a shape as a function of its buffers."""
        # A replay may have any lengths: they are not known to be equal, and the longest may fill the capacity.
        span = Span(-1, shape.capacity - shape.width)
        numbers, added = given
        assert numbers is not None
        inputs = shape.by_name(numbers)
        lengths = inputs["lengths"][:, 0]
        layout: Chain | BeamLayout = Chain(lengths, span, shape.width, inputs.get("visible"))
        if shape.beam:
            layout = BeamLayout(lengths, span, shape.beam, inputs["beam_ancestors"])
        mask_embeddings = self.mask_buffer if has_masks else None

        def run() -> Outputs:
            unpadded, self._state = self._state, self.padded_state
            try:
                outputs = self._compute(after, inputs, layout, shape.states, mask_embeddings, added)
            finally:
                self._state = unpadded
            # Copied out of the memory pool of the graphs, where another graph would overwrite them.
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
        mask_embeddings: MaskTable | None,
        added: Tensor | None,
    ) -> Outputs:
        """Run a step and `after`; return the outputs of `_run`."""
        states: list[Tensor] | None = [] if with_states else None
        tokens = inputs["tokens"] if isinstance(layout, Chain) else inputs["tokens"][:, 0]
        hidden = super().step(tokens, layout, states, mask_embeddings, added)
        if after is not None:
            return hidden, None, *after(hidden, states, inputs)
        return hidden, None if states is None else torch.stack(states)

    @property
    def _state(self) -> _State:
        return self.cache, self.cross, self.cross_mask

    @_state.setter
    def _state(self, state: _State) -> None:
        self.cache, self.cross, self.cross_mask = state

    def _fill_buffers(self, shape: Shape) -> None:
        """Copy keys, values and mask into the buffers that graphs of this shape read, unless they are there."""
        assert self.cache is not None and self.cross is not None
        (batch, capacity, source), (cache, cross, mask) = shape.memory, self.padded_state
        rows, sentences = self.cache.size(1), self.cross.size(1)
        if not _is_buffered(self.buffered_cache, self.cache, (batch, capacity)):
            cache = self._copy_to_buffer("cache", self.cache, {1: shape.rows, 2: capacity})
        if not _is_buffered(self.buffered_cross, self.cross, (batch, source)):
            mask = cross_mask_of(self.cross_mask, self.cross)
            mask = self._copy_to_buffer("cross_mask", mask, {0: batch, 3: source})
            cross = self._copy_to_buffer("cross", self.cross, {1: batch, 2: source})
        assert cache is not None and cross is not None and mask is not None
        self.padded_state = cache, cross, mask
        self._state = cache[:, :rows], cross[:, :sentences], mask[:sentences]
        self.buffered_cache, self.buffered_cross = (self.cache, (batch, capacity)), (self.cross, (batch, source))

    def _fill_mask_buffer(self, shape: Shape, mask_embeddings: MaskTable) -> None:
        """Copy mask embeddings into the buffer that graphs of this shape read, unless they are there."""
        assert self.cache is not None
        table = mask_embeddings.table(self.cache.size(1), shape.capacity)
        if self.mask_table is not None and self.mask_table[0] is table and self.mask_table[1] == shape.memory:
            return
        padded = table
        if table.dim() == 3:
            padded = self._copy_to_buffer("mask_embeddings", table[:, : shape.capacity], {0: shape.batch})
        self.mask_buffer.value = padded
        self.mask_table = table, shape.memory

    def _copy_to_buffer(self, name: str, value: Tensor, sizes: dict[int, int]) -> Tensor:
        """Copy a value into its buffer, padded with zeros to the size that `sizes` has for a dimension."""
        if (
            name in self.buffers
            and value.untyped_storage().data_ptr() == self.buffers[name].untyped_storage().data_ptr()
        ):
            value = value.clone()
        buffer = self._buffer(name, [sizes.get(dim, size) for dim, size in enumerate(value.shape)], value)
        # Padding rows attend to nothing, which may give NaN, and a NaN in the buffer would stay NaN under a mask.
        buffer.zero_()
        buffer[tuple(map(slice, value.shape))] = value
        return buffer

    def _buffer(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return the buffer of one purpose in a shape; growing it drops the graphs that use its old address."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.steps.drop_all()
            if name in ("cross", "cross_mask"):
                self.starts.drop_all()
            self.buffers[name] = like.new_zeros(size)
        return self.buffers[name][:size].view(shape)


def _is_buffered(buffered: tuple[Tensor, tuple[int, int]] | None, value: Tensor, sizes: tuple[int, int]) -> bool:
    """Return whether a tensor is already in its buffer, with these rounded sizes."""
    return buffered is not None and buffered[0] is value and buffered[1] == sizes
