"""Run the layers of a Transformer for the rows of a step, as launches of kernels."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.kernels import attention
from fairseq_plugins.decoding.gpu.kernels import layers as kernels
from fairseq_plugins.decoding.gpu.kernels.arguments import Embedding, ProductInput
from fairseq_plugins.decoding.gpu.kernels.constants import Activation, InputKind, OutputKind
from fairseq_plugins.decoding.gpu.weights import Layer, Linear, Norm, Transformer

_SLOTS = 32  # keys of a tile; the bits depend on it
_SLOTS_OF_BEAMS = 64  # the same where hypotheses have slots, at least as many as there are hypotheses
# Slots of a part, multiples of these tiles; the bits of longer sources and outputs depend on it.
PART = 256
PART_OF_BEAMS = 1024
_MOST_WHOLE = 1024  # widest input of a product that is one tile
_PART = 512  # inputs of a part of the second feed-forward layer
_FEW_ROWS = 64  # up to here more programs are faster than larger tiles


def padded(width: int) -> int:
    """Return the tile that holds a width: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(width)))


def uses_dependent_launch(device: torch.device) -> bool:
    """Return whether the device has programmatic dependent launch (Hopper and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def most_of_head(device: torch.device) -> int:
    """Return how many numbers a head's tile of weights may have: twice as many bytes are most of the shared memory.

    GPUs for data centres have 163 KB or more, others 99.
    """
    if device.type != "cuda":
        return 2**16
    # Some versions of PyTorch do not tell.
    shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 163 * 1024)
    return 2**16 if shared >= 163 * 1024 else 2**15


@dataclass(frozen=True)
class Tiles:
    """Sizes of tiles for a number of rows. Bits do not depend on `rows`, `outputs` (of layers) and `warps`."""

    rows: int
    outputs: int
    warps: int
    out_tiles: int  # of an output projection

    @staticmethod
    def of(rows: int, width: int, dtype: torch.dtype) -> "Tiles":
        """Return the tiles for a step of `rows` rows."""
        if dtype == torch.float32:
            return Tiles(16, 32, 8, triton.cdiv(width, 64))
        if rows <= _FEW_ROWS:
            return Tiles(16, 32 if width <= 512 else 16, 8, 4 if rows <= 16 else 1)
        return Tiles(16, 64 if width <= 512 else 32, 8, 1)


def chunks(inputs: int, dtype: torch.dtype, most: int = _MOST_WHOLE) -> dict[str, Any]:
    """Return how a product's inputs are split into tiles: IEEE products of fp32 take small ones."""
    chunk = min(padded(inputs), 64 if dtype == torch.float32 else most)
    if padded(inputs) > most and dtype != torch.float32:
        chunk = min(_PART, most)
    count = triton.cdiv(inputs, chunk)
    return {"CHUNK": chunk, "CHUNKS": count, "EVEN": count == 1 and inputs == chunk}


@dataclass(frozen=True)
class Input:
    """What the input of a product still needs: x + parts + bias, and in post-norm layers a normalisation.

    Attributes:
        x: [rows, D], rows may be strided.
        parts: [N, rows, D] in fp32, or None.
        bias: [D], which belongs to the parts.
        kind: how the sum becomes the input.
        norm: its normalisation; None for none.
    """

    x: Tensor
    parts: Tensor | None = None
    bias: Tensor | None = None
    kind: InputKind = InputKind.PLAIN
    norm: Norm | None = None

    def before(self, layer: Layer, norm: Norm) -> "Input":
        """Return the input of a layer's product: in pre-norm layers, the sum is normalised for it only."""
        return replace(self, kind=InputKind.PRE_NORM, norm=norm) if layer.normalize_before else self

    def arguments(
        self, new_x: Tensor | None = None, normal: Tensor | None = None
    ) -> tuple[ProductInput, dict[str, Any]]:
        """Return the input of a kernel, and the constants that belong to it."""
        none, norm = self.x, self.norm or Norm(self.x, self.x)
        assert norm.weight is not None and norm.bias is not None
        new_x, parts, before, normal = (
            none if value is None else value for value in (new_x, self.parts, self.bias, normal)
        )
        constants = {
            "INPUT": int(self.kind),
            "NPARTS": 0 if self.parts is None else self.parts.size(0),
            "HAS_BEFORE": self.bias is not None,
            "eps": norm.eps,
        }
        given = ProductInput(
            self.x, self.x.stride(0), parts, before, norm.weight, norm.bias, new_x, new_x.stride(0), normal
        )
        return given, constants


class Workspace:
    """Memory of a step of up to `rows` rows, used again by every step."""

    def __init__(self, rows: int, width: int, inner: int, parts: int, dtype: torch.dtype, device: torch.device) -> None:
        def empty(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device=device)

        self.rows, self.width = rows, width
        self.x = [empty(rows * width) for _ in range(4)]
        self.query, self.inner = empty(rows * width), empty(rows * inner)
        self.parts = [empty(parts * rows * width, of=torch.float32) for _ in range(2)]
        # Parts of attention; graphs hold the addresses of smaller ones.
        self.contexts = [empty(0, of=torch.float32)]

    def split_attention(self, parts: int, heads: int, rows: int) -> tuple[Tensor, Tensor]:
        """Return memory for parts of attention: contexts [parts, rows, D], and their peaks [parts, heads, rows, 2]."""
        size = parts * rows * (self.width + 2 * heads)
        if len(self.contexts[-1]) < size:
            self.contexts.append(torch.zeros(size, dtype=torch.float32, device=self.query.device))
        contexts = self.contexts[-1][: parts * rows * self.width]
        return contexts, self.contexts[-1][len(contexts) : size]

    def free(self, rows: int, *used: Tensor) -> Tensor:
        """Return a buffer [rows, D] that is none of the used ones."""
        taken = {tensor.data_ptr() for tensor in used}
        buffer = next(buffer for buffer in self.x if buffer.data_ptr() not in taken)
        return buffer[: rows * self.width].view(rows, self.width)


@dataclass(frozen=True)
class DecoderStep:
    """The rows of a step.

    Attributes:
        rows: number of rows, `per_sentence` for each sentence.
        per_sentence: rows of a sentence, the tokens of its step.
        active: [rows / per_sentence], how many rows of a sentence are needed; 0 where none is decoded.
        slots: [rows], the slot of each row's key and value.
        bases: [rows / per_sentence], each sentence's first slot.
        last_visible: [rows], the last slot that each row reads, counted from its base.
        source_bases, source_ends: [rows / per_sentence], first slot and last of the source; None in an encoder.
        ancestors: [places, 2, beam, columns] in beam search; rows are hypotheses, and a position has a slot of each.
        parts: of attention to outputs, and to sources.
        active_at_first: `active` for the first launch, which reads it before it waits, if the launch before writes it.
    """

    rows: int
    per_sentence: int
    active: Tensor
    slots: Tensor
    bases: Tensor
    last_visible: Tensor
    source_bases: Tensor | None = None
    source_ends: Tensor | None = None
    ancestors: Tensor | None = None
    parts: tuple[int, int] = (1, 1)
    active_at_first: Tensor | None = None


class Runner:
    """Runs the layers of a model.

    Args:
        model: the weights.
        most_rows: of a step.
    """

    def __init__(self, model: Transformer, most_rows: int) -> None:
        self.model = model
        self.dtype, self.device = model.embedding.dtype, model.embedding.device
        # Constants and options of each launch.
        self.launch = {"PDL": True, "launch_pdl": True} if uses_dependent_launch(self.device) else {"PDL": False}
        self.most_of_head = most_of_head(self.device)
        # By the most outputs that a tile may have, whatever the number of rows: the bits depend on it.
        self.most_whole = min(_MOST_WHOLE, self.most_of_head // (64 if model.width <= 512 else 32))
        inner = max(layer.fc1.outputs for layer in model.layers)
        parts = max(model.heads, triton.cdiv(inner, _PART))
        self.memory = Workspace(most_rows, model.width, inner, parts, self.dtype, self.device)

    def run(
        self,
        step: DecoderStep,
        x: Tensor,
        cache: Tensor,
        source_cache: Tensor | None = None,
        kept: dict[int, Tensor] | None = None,
    ) -> Input:
        """Run rows through the layers.

        Args:
            step: the rows.
            x: [rows, D], their inputs.
            cache: [L, slots, 2, D], keys and values.
            source_cache: the same of the source.
            kept: buffers [rows, D] for the states after some layers; 0 is the input itself.

        Returns:
            the input of the product that comes next.
        """
        state = Input(x)
        for number, layer in enumerate(self.model.layers):
            kept_here = (kept or {}).get(number) if number else None
            state = self._attend_self(step, layer, state, cache[number], number, kept_here)
            if source_cache is not None:
                state = self._attend_source(step, layer, state, source_cache[number])
            state = self._feed_forward(step, layer, state)
        # Post-norm layers have no norm at the end.
        return state.before(self.model.layers[-1], self.model.final_norm) if self.model.final_norm else state

    def rows_arguments(self, x: Tensor) -> dict[str, Any]:
        """Return the arguments of a kernel that embeds the rows of a step, into x [rows, D]."""
        model = self.model
        table, norm = model.positions, model.embedding_norm
        none = model.embedding
        embedding = Embedding(
            model.embedding, none if table is None else table, none if norm.weight is None else norm.weight,
            none if norm.bias is None else norm.bias, x, model.width, x.stride(0),
            0 if table is None else table.size(0), model.scale,
        )  # fmt: skip
        return {
            "embedding": embedding, "eps": norm.eps, "HAS_TABLE": table is not None, "HAS_NORM": bool(norm),
            "WIDTH": padded(model.width), **self.launch,
        }  # fmt: skip

    def linear(
        self,
        step: DecoderStep,
        state: Input,
        layer: Linear,
        out: Tensor,
        new_x: Tensor | None = None,
        output: OutputKind = OutputKind.STORE,
        activation: Activation = Activation.NONE,
        cache: Tensor | None = None,
        slots: Tensor | None = None,
        width: int = 0,
        layer_stride: int = 0,
        normal: Tensor | None = None,
        residual: Tensor | None = None,
        read_rows: Tensor | None = None,
        residual_rows: Tensor | None = None,
    ) -> None:
        """Launch `layers.linear`.

        PARTS takes no bias. `normal` [rows, D] gets the normalised input. Of `residual` [any, D], every row or the
        `residual_rows` are added to each D outputs. With `read_rows`, one row of each sentence is read.
        """
        tiles = Tiles.of(step.rows, self.model.width, self.dtype)
        given, constants = state.arguments(new_x, normal)
        split = chunks(layer.inputs, self.dtype, self.most_whole)
        parts = 1
        if output == OutputKind.PARTS:
            split = chunks(min(layer.inputs, _PART), self.dtype)
            parts = triton.cdiv(layer.inputs, split["CHUNK"] * split["CHUNKS"])
            split["EVEN"] = split["CHUNKS"] == 1 and layer.inputs % split["CHUNK"] == 0
        has_bias = layer.bias is not None and output != OutputKind.PARTS
        none = state.x
        rows = step.rows if read_rows is None else step.rows // step.per_sentence
        row_map = read_rows if residual_rows is None else residual_rows
        grid = (triton.cdiv(layer.outputs, tiles.outputs), triton.cdiv(rows, tiles.rows), parts)
        kernels.linear[grid](
            given, layer.weight, layer.bias if has_bias else none, out, none if residual is None else residual,
            step.active if row_map is None else row_map, none if cache is None else cache,
            step.slots if slots is None else slots, step.active, step.rows, step.per_sentence, layer.outputs,
            layer.inputs, 1 if residual is None else residual.size(1), layer_stride, OUTPUT=int(output),
            ACTIVATION=int(activation), HAS_BIAS=has_bias, KEEP=normal is not None,
            READS=read_rows is not None, ADDS=residual is not None, MAPS=residual_rows is not None, WIDTH=width,
            ROWS=tiles.rows, OUTPUTS=tiles.outputs, num_warps=tiles.warps, **constants, **split, **self.launch,
        )  # fmt: skip

    def _attend_self(
        self, step: DecoderStep, layer: Layer, state: Input, cache: Tensor, number: int, kept: Tensor | None
    ) -> Input:
        state, width, rows = state.before(layer, layer.self_norm), self.model.width, step.rows
        x = state.x
        if state.kind != InputKind.PLAIN:
            x = self.memory.free(rows, state.x) if kept is None else kept
        query = self.memory.query[: rows * width].view(rows, width)
        first = step
        if number == 0 and step.active_at_first is not None:
            first = replace(step, active=step.active_at_first)
        self.linear(first, state, layer.self_qkv, query, x, OutputKind.QUERY_KEY_VALUE, cache=cache, width=width)
        parts = self.attend(step, layer, Input(query), query, cache, step.bases, step.last_visible, layer.self_out)
        return _sum(x, parts, layer.self_out, layer, layer.self_norm)

    def _attend_source(self, step: DecoderStep, layer: Layer, state: Input, cache: Tensor) -> Input:
        assert layer.cross_out is not None and layer.cross_query is not None
        assert step.source_bases is not None and step.source_ends is not None
        state, x = state.before(layer, layer.cross_norm), self.memory.free(step.rows, state.x)
        parts = self.attend(
            step, layer, state, x, cache, step.source_bases, step.source_ends, layer.cross_out, layer.cross_query
        )
        return _sum(x, parts, layer.cross_out, layer, layer.cross_norm)

    def _feed_forward(self, step: DecoderStep, layer: Layer, state: Input) -> Input:
        rows = step.rows
        state, x = state.before(layer, layer.final_norm), self.memory.free(rows, state.x)
        inner = self.memory.inner[: rows * layer.fc1.outputs].view(rows, layer.fc1.outputs)
        self.linear(step, state, layer.fc1, inner, x, activation=layer.activation)
        count = triton.cdiv(layer.fc2.inputs, _PART)
        parts = self._parts(0, count, rows)
        self.linear(step, Input(inner), layer.fc2, parts, output=OutputKind.PARTS)
        return _sum(x, parts, layer.fc2, layer, layer.final_norm)

    def attend(
        self,
        step: DecoderStep,
        layer: Layer,
        state: Input,
        new_x_or_query: Tensor,
        cache: Tensor,
        bases: Tensor,
        last: Tensor,
        out: Linear,
        query: Linear | None = None,
    ) -> Tensor:
        """Launch attention; return the partial results [heads, rows, D] of the output projection."""
        tiles, width = Tiles.of(step.rows, self.model.width, self.dtype), self.model.width
        given, constants = state.arguments(new_x_or_query)
        # With 32 rows and a projection of the query, registers do not suffice.
        tile = 16 if query is not None or step.per_sentence <= 16 or self.dtype == torch.float32 else 32
        results = self._parts(0 if query is None else 1, layer.heads, step.rows)
        head = padded(width // layer.heads)
        outputs = min(padded(triton.cdiv(width, tiles.out_tiles)), self.most_of_head // 2 // head)
        ancestors = step.ancestors if query is None else None
        beam = 0 if ancestors is None else step.per_sentence
        slots, part = (_SLOTS, PART) if ancestors is None else (max(_SLOTS_OF_BEAMS, padded(beam)), PART_OF_BEAMS)
        parts = step.parts[0 if query is None else 1]
        has_bias = query is not None and query.bias is not None
        is_small = query is None and tile == 16 and head * outputs < 2**15
        warps = 4 if is_small and self.dtype != torch.float32 else 8
        grid = (step.rows // step.per_sentence * triton.cdiv(step.per_sentence, tile), layer.heads)
        out_tiles = triton.cdiv(width, outputs)
        into, peaks = (results, results) if parts == 1 else self.memory.split_attention(parts, layer.heads, step.rows)
        shape = {"ROWS": tile, "HEAD": head, "OUTPUTS": outputs, "BEAM": beam}
        attention.attend[*grid, out_tiles if parts == 1 else parts](
            given, out.weight if query is None else query.weight,
            query.bias if query is not None and has_bias else state.x, new_x_or_query, cache, bases, last,
            last if ancestors is None else ancestors, 0 if ancestors is None else ancestors.size(-1), out.weight, into,
            peaks, step.active, step.rows, step.per_sentence, width, width // layer.heads,
            (width // layer.heads) ** -0.5, CROSS=query is not None, HAS_BIAS=has_bias, SLOTS=slots,
            PART=0 if parts == 1 else max(part, slots), num_warps=warps, **shape, **constants,
            **chunks(width, self.dtype, min(_MOST_WHOLE, self.most_of_head // head)), **self.launch,
        )  # fmt: skip
        if parts > 1:
            attention.join_parts[*grid, out_tiles](
                into, peaks, last, out.weight, results, step.active, step.rows, step.per_sentence, width,
                width // layer.heads, CROSS=query is not None, PART=max(part, slots), num_warps=warps, **shape,
                **self.launch,
            )  # fmt: skip
        return results

    def _parts(self, buffer: int, count: int, rows: int) -> Tensor:
        return self.memory.parts[buffer][: count * rows * self.model.width].view(count, rows, self.model.width)


def _sum(x: Tensor, parts: Tensor, out: Linear, layer: Layer, norm: Norm) -> Input:
    """Return what a sublayer leaves: the sum, which post-norm layers normalise."""
    if layer.normalize_before:
        return Input(x, parts, out.bias, InputKind.SUM)
    return Input(x, parts, out.bias, InputKind.POST_NORM, norm)
