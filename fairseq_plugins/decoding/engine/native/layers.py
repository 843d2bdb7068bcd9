"""Linear layers and Transformer layers as the kernels want them: structures of pointers, checked when they are made.

The kernels trust what they are given. So types, shapes and strides are checked here: once where layers are built, and
where a call brings tensors of its own, at the call.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import gelu
from torch import Tensor

from fairseq_plugins.decoding.engine.layout import Chain, StepLayout
from fairseq_plugins.decoding.engine.memory import new_empty
from fairseq_plugins.decoding.engine.native.build import (
    EndsStructure,
    InputStructure,
    LayerStructure,
    LayoutStructure,
    LimitsStructure,
    LinearStructure,
    MemoryStructure,
    NormStructure,
    PathStructure,
    PredictStructure,
    StackStructure,
)
from fairseq_plugins.decoding.engine.weights import Layer, Linear, Norm, QuantizedLinear, quantized

PANEL, _INT8_INPUTS = 16, 4  # as in kernels.cpp
_TILE_INPUTS, _TILE_SCALE, _TILE_BLOCK = 2, 1024.0, 32  # as in tiles.h
# The forms that a weight may have for the kernels.
IN_PANELS, IN_ROWS, INT8_IN_ROWS, INT8_IN_PANELS, HALVES_IN_PANELS, HALVES_IN_TILES = range(6)
_KINDS = dict.fromkeys((IN_PANELS, IN_ROWS), torch.float32) | dict.fromkeys(
    (HALVES_IN_PANELS, HALVES_IN_TILES), torch.float16
)
ACTIVATIONS: dict[Callable[[Tensor], Tensor], int] = {F.relu: 1, gelu: 2}
REASONS = {
    1: "the layout points outside of the cache, or the source is empty",
    2: "a token is outside of the vocabulary, or a mask is fed nothing",
}


def packed(weight: Tensor, inputs: int = 1) -> Tensor:
    """A weight [outputs, I] in panels of 16 outputs, [outputs / 16, I / inputs, 16, inputs], filled up with zeros."""
    missing = (0, -weight.size(1) % inputs, 0, -weight.size(0) % PANEL)
    panels = F.pad(weight.detach(), missing).unflatten(1, (-1, inputs)).unflatten(0, (-1, PANEL))
    return panels.transpose(1, 2).contiguous()


def is_exact_in_half(weight: Tensor) -> bool:
    """Whether every number of a weight is one of float16 too, so that nothing is lost if it is kept so."""
    return bool((weight.half().to(weight.dtype) == weight).all())


def is_for_tiles(weight: Tensor) -> bool:
    """Whether the processor's tiles can hold a weight that `is_exact_in_half`: see tiles.h."""
    return weight.size(1) % _TILE_BLOCK == 0 and is_exact_in_half(weight * _TILE_SCALE)


# Sizes of layers are int32 there.
_MAX_SIZE = 2**31 - PANEL


def require(holds: bool, what: str | Callable[[], str]) -> None:
    """Refuse what the kernels would do wrongly.

    What is checked for every batch gives `what` as a function: to write it takes longer than to check.
    """
    if not holds:
        raise ValueError(f"kernels: {what if isinstance(what, str) else what()}")


def check(name: str, tensor: Tensor | None, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
    """Refuse a tensor that the kernels would read wrongly; None is for them to know."""
    if tensor is None:
        return
    is_plain = tensor.device.type == "cpu" and tensor.is_contiguous()
    if not (is_plain and tensor.shape == tuple(shape) and tensor.dtype == dtype):
        raise ValueError(
            f"kernels: {name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}, strides {tensor.stride()}; "
            f"wanted is contiguous {dtype} {list(shape)}"
        )


def _outputs(layer: Linear) -> int:
    return len(layer.weight if isinstance(layer, QuantizedLinear) else layer[0])


class NativeLinear:
    """A linear layer [outputs, inputs]; its weight is read where it is, or copied into the form that is asked for.

    Args:
        kernels: the compiled library.
        layer: weight and bias.
        form: IN_PANELS, IN_ROWS or INT8_IN_PANELS; a layer with rounded weights is INT8_IN_ROWS in any case, and panels
            are HALVES_IN_PANELS where that makes no difference but in speed. A caller who knows that says so himself,
            and one who wants HALVES_IN_TILES.

    Raises:
        ValueError: for tensors that the kernels cannot read.
    """

    def __init__(self, kernels: ctypes.CDLL, layer: Linear, form: int) -> None:
        self.kernels = kernels
        scale = sums = None
        if isinstance(layer, QuantizedLinear):
            form, weight, bias, scale = INT8_IN_ROWS, layer.weight, layer.bias, layer.scale
        else:
            weight, bias = layer
        require(weight.dim() == 2 and weight.numel() > 0, f"a linear layer's weight is {list(weight.shape)}")
        self.outputs, self.inputs = weight.shape
        require(max(weight.shape) < _MAX_SIZE, f"a linear layer's weight is {list(weight.shape)}")
        if form == INT8_IN_PANELS:
            require(bool(kernels.has_int8_products()), "this processor has no fast int8 products")
        if form == INT8_IN_PANELS:
            rounded = quantized(layer)
            scale, weight = rounded.scale, packed(rounded.weight, _INT8_INPUTS)
            sums = weight.sum((1, 3), dtype=torch.int32)
        elif form == IN_PANELS and kernels.has_halves() and is_exact_in_half(weight):
            form = HALVES_IN_PANELS
        if form == HALVES_IN_TILES:
            require(bool(kernels.has_tiles()) and is_for_tiles(weight), "tiles of this processor do not hold a weight")
            weight = packed((weight * _TILE_SCALE).half(), _TILE_INPUTS)
        elif form in (IN_PANELS, HALVES_IN_PANELS):
            weight = packed(weight.half() if form == HALVES_IN_PANELS else weight)
        # What the structure points to must stay, even if a module's parameter is given other memory.
        self.tensors = [
            None if tensor is None else tensor.detach().contiguous() for tensor in (weight, bias, scale, sums)
        ]
        weight, bias, scale, _ = self.tensors
        kind = _KINDS.get(form, torch.int8)
        check("weight", weight, weight.shape, kind)
        check("bias", bias, (self.outputs,))
        check("scale", scale, (self.outputs,))
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in self.tensors]
        self.structure = LinearStructure(*pointers, self.inputs, self.outputs, form)

    @property
    def in_panels(self) -> bool:
        """Whether this is one of the forms that are fastest to read."""
        return self.structure.form in (IN_PANELS, INT8_IN_PANELS, HALVES_IN_PANELS, HALVES_IN_TILES)

    @property
    def in_tiles(self) -> bool:
        """Whether this is the form that is fastest for any number of rows."""
        return self.structure.form == HALVES_IN_TILES

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to x [..., inputs]."""
        y = new_empty(x, (*x.shape[:-1], self.outputs))
        self.write(x, y)
        return y

    def write(self, x: Tensor, to: Tensor) -> None:
        """Apply to x [R, ..., inputs] and write the result to a contiguous tensor [R, ...] of as many numbers."""
        x = x.contiguous()
        rows = x.numel() // self.inputs
        check("input of a linear layer", x, (*x.shape[:-1], self.inputs))
        check("output of a linear layer", to, to.shape)
        require(to.numel() == rows * self.outputs, f"{rows} rows of {self.outputs} outputs go to {list(to.shape)}")
        self.kernels.set_threads(torch.get_num_threads())
        self.kernels.run_linear(ctypes.byref(self.structure), x.data_ptr(), rows, to.data_ptr())


@dataclass(frozen=True)
class Predicted:
    """The next token after every row of a step.

    Attributes:
        scores: [B, T, V] or [R, V], before softmax, of all tokens; along a path, with what that adds.
        best: [B, T] or [R], the first of the best that the limits allow, or the token of the path.
        log_probs: of the best, in the same shape.
    """

    scores: Tensor
    best: Tensor
    log_probs: Tensor


@dataclass(frozen=True)
class Prediction:
    """What is to be predicted after the rows of a step: the verifier's tokens within limits, or a draft along a path.

    Attributes:
        projection: to the tokens that are scored.
        limits: what they may be; the vocabulary's size only where a path is followed.
        path: how the tokens of a draft are chosen.
        first: [B] with a path, the token before every sentence's first row.
    """

    projection: "NativeLinear"
    limits: LimitsStructure
    path: PathStructure | None = None
    first: Tensor | None = None


@dataclass(frozen=True)
class Ends:
    """What stands before the first layer of a decoder, and after the last one.

    Attributes:
        embedding: [V, D]; the mask of a drafter is token V.
        scale: what it is multiplied by.
        positions: [P, D]; later positions get the last one. None for none.
        embedding_norm: of the input, None for none.
        final_norm: of the output, None for none.
    """

    embedding: Tensor
    scale: float
    positions: Tensor | None
    embedding_norm: Norm | None
    final_norm: Norm | None


class NativeLayers:
    """Layers of a Transformer's encoder or decoder.

    Args:
        kernels: the compiled library.
        layers: their weights.
        form_of: the form of each linear layer, see `NativeLinear`.
        ends: of a decoder, for `step`.

    Raises:
        ValueError: for weights that do not fit each other, or that the kernels cannot read.
    """

    def __init__(
        self,
        kernels: ctypes.CDLL,
        layers: Sequence[Layer],
        form_of: Callable[[Linear], int],
        ends: Ends | None = None,
    ) -> None:
        self.kernels = kernels
        self.form_of = form_of
        self.count = len(layers)
        self.heads = layers[0].heads
        self.has_cross = layers[0].cross_query is not None
        self.tensors: list[object] = []
        self.width = _outputs(layers[0].self_out)
        self.ends = None if ends is None else self._ends(ends)
        self.array = (LayerStructure * self.count)(*[self._structure(layer) for layer in layers])

    @property
    def in_tiles(self) -> bool:
        """Whether all weights have the form that is fastest for any number of rows."""
        return all(held.in_tiles for held in self.tensors if isinstance(held, NativeLinear))

    def _structure(self, layer: Layer) -> LayerStructure:
        structure = LayerStructure(
            heads=layer.heads,
            normalize_before=layer.normalize_before,
            activation=ACTIVATIONS[layer.activation],
            has_cross=layer.cross_query is not None,
        )
        require(layer.heads == self.heads, "layers differ in their heads")
        require(self.heads > 0 and self.width % self.heads == 0, f"{self.heads} heads do not divide {self.width}")
        require((layer.cross_query is not None) == self.has_cross, "only some layers have cross-attention")
        cross = (layer.cross_query, layer.cross_out, layer.cross_norm)
        require(all(x is None for x in cross) or None not in cross, "a layer lacks a part of its cross-attention")
        d, wide = self.width, _outputs(layer.fc1)
        shapes = {"self_qkv": (d, 3 * d), "self_out": (d, d), "cross_query": (d, d), "cross_out": (d, d)}
        shapes |= {"fc1": (d, wide), "fc2": (wide, d)}
        for name, kind in LayerStructure._fields_:
            value = getattr(layer, name, None)
            if value is not None and kind is NormStructure:
                setattr(structure, name, self._norm(value))
            elif value is not None and kind is LinearStructure:
                linear = NativeLinear(self.kernels, value, self.form_of(value))
                require(
                    (linear.inputs, linear.outputs) == shapes[name],
                    f"{name} is {linear.inputs} by {linear.outputs} in layers {d} wide",
                )
                setattr(structure, name, linear.structure)
                self.tensors.append(linear)
        return structure

    def _norm(self, norm: Norm | None) -> NormStructure:
        if norm is None:
            return NormStructure()
        weight, bias = norm.weight.detach().contiguous(), norm.bias.detach().contiguous()
        check("weight of a normalisation", weight, (self.width,))
        check("bias of a normalisation", bias, (self.width,))
        self.tensors += [weight, bias]
        return NormStructure(weight.data_ptr(), bias.data_ptr(), norm.eps)

    def _ends(self, ends: Ends) -> EndsStructure:
        embedding = ends.embedding.detach().contiguous()
        check("embedding", embedding, (len(embedding), self.width))
        require(len(embedding) > 0, "the vocabulary is empty")
        positions = None if ends.positions is None else ends.positions.detach().contiguous()
        if positions is not None:
            check("positions", positions, (len(positions), self.width))
            require(len(positions) > 0, "the table of positions is empty")
        self.tensors += [embedding, positions]
        return EndsStructure(
            embedding=embedding.data_ptr(),
            scale=ends.scale,
            mask_id=len(embedding),
            positions=None if positions is None else positions.data_ptr(),
            position_count=0 if positions is None else len(positions),
            embedding_norm=self._norm(ends.embedding_norm),
            final_norm=self._norm(ends.final_norm),
        )

    def step(
        self,
        tokens: Tensor,
        layout: Chain | StepLayout,
        cache: Tensor,
        cross: Tensor,
        cross_allowed: Tensor | None,
        keep_states: bool = False,
        masks: int = 0,
        fed: Tensor | None = None,
        added: Tensor | None = None,
        prediction: Prediction | None = None,
    ) -> tuple[Tensor, Tensor | None, Predicted | None]:
        """Embed tokens and run them through the layers.

        Args:
            tokens: [B, T - masks], or [R].
            layout: where the rows stand.
            cache: [layers, B, capacity, 2, H, D / H] keys and values of self-attention, written at the rows' slots.
            cross: [layers, B, S, 2, H, D / H] keys and values of cross-attention.
            cross_allowed: [B, S], False where nobody may attend; None where all may.
            keep_states: return what stands between the layers, too.
            masks: of a chain: so many masks stand after the tokens.
            fed: [B, positions, D] what masks are fed at each position, or [D] everywhere; None where there are none.
            added: of a chain: [B, 1, D] or [B, T, D], added to the embedded input; None for nothing.
            prediction: of the next tokens; None for none.

        Returns:
            the normalised output [B, T, D] or [R, D]; the states [layers + 1, B, T, D] or [layers + 1, R, D] before the
            first and after every layer (None unless they are kept); and the prediction.

        Raises:
            ValueError: for a layout that points outside of the cache, tokens outside of the vocabulary, masks without
                anything that they are fed, or tensors of the wrong shape or type.
        """
        assert self.ends is not None
        is_chain = isinstance(layout, Chain)
        kind, dim = ("a chain", 2) if is_chain else ("packed rows", 1)
        require(tokens.dim() == dim, f"tokens {list(tokens.shape)} in {kind}")
        require(masks >= 0 and (is_chain or masks == 0), f"{masks} masks after the tokens")
        require(is_chain or added is None, "something is added to packed rows")
        shape = (*tokens.shape[:-1], tokens.size(-1) + masks)
        x = cache.new_empty(*shape, self.width)
        tokens = tokens.contiguous()
        check("tokens", tokens, tokens.shape, torch.long)
        given = InputStructure(tokens=tokens.data_ptr(), masks=masks)
        if added is not None:
            added = added.contiguous()
            fits = is_chain and added.dim() == 3 and added.size(1) in (1, shape[1])
            require(fits, f"added are {list(added.shape)} to {list(shape)} rows of a {type(layout).__name__}")
            check("what is added", added, (shape[0], added.size(1), self.width))
            given.added, given.added_width = added.data_ptr(), added.size(1)
        if fed is not None:
            self.feed(fed, given)
        predicted, predict = (None, None) if prediction is None else self._predict(prediction, layout, x)
        states = x.new_empty(self.count + 1, *x.shape) if keep_states else None
        # The kernels are given addresses only: what they read is held until the call is over.
        where, held = _layout(layout, shape)
        own, source = self._memories(cache, layout.slots, cross, cross_allowed, held)
        if is_chain:
            require(len(x) == own.sentences, f"{len(x)} sentences, and {own.sentences} in the cache")
        # As PyTorch's operations, with as many threads as it is told to use.
        self.kernels.set_threads(torch.get_num_threads())
        failed = self.kernels.run_step(
            *(self.array, self.count, ctypes.byref(self.ends), ctypes.byref(given), x.data_ptr(), self.width),
            *(ctypes.byref(where), ctypes.byref(own), ctypes.byref(source)),
            None if states is None else states.data_ptr(),
            None if predict is None else ctypes.byref(predict),
        )
        require(not failed, REASONS.get(failed, "failed"))
        return x, states, predicted

    def _memories(
        self, cache: Tensor, used: int, cross: Tensor, cross_allowed: Tensor | None, held: list[Any]
    ) -> tuple[MemoryStructure, MemoryStructure]:
        """The structures of both memories of a decoder, with what must be held; arguments as for `step`."""
        require(self.has_cross and cross is not None, "cross-attention needs a source, and nothing else does")
        own, source = self.memory(cache, used, None, held), self.memory(cross, cross.size(2), cross_allowed, held)
        require(source.sentences == own.sentences, f"{REASONS[1]}, whose source is that of another batch")
        return own, source

    def stack(
        self, projection: NativeLinear, cache: Tensor, cross: Tensor, cross_allowed: Tensor | None
    ) -> tuple[StackStructure, list[object]]:
        """What the kernels need of a decoder to run steps of their own making, and what must be held meanwhile.

        Args:
            projection: of the last states.
            cache, cross, cross_allowed: as for `step`; all slots of the cache may be used.

        Raises:
            ValueError: for tensors of the wrong shape or type.
        """
        held: list[Any] = []
        own, source = self._memories(cache, cache.size(2), cross, cross_allowed, held)
        return self.stack_on(projection, own, source), [self, projection, own, source, *held]

    def stack_on(self, projection: NativeLinear, own: MemoryStructure, source: MemoryStructure) -> StackStructure:
        """`stack` with memories that the caller has made; all that is given must be held meanwhile, and these layers.

        Raises:
            ValueError: for a projection of other states.
        """
        assert self.ends is not None
        require(projection.inputs == self.width, lambda: f"the projection reads {projection.inputs} of {self.width}")
        parts = (self.ends, own, source, projection.structure)
        return StackStructure(
            ctypes.addressof(self.array), self.count, self.width, *[ctypes.addressof(part) for part in parts]
        )

    def memory(self, key_value: Tensor, used: int, allowed: Tensor | None, held: list[Any]) -> MemoryStructure:
        """Keys and values of all layers, [layers, B, slots, 2, H, D / H]; what must be held goes to `held`.

        Raises:
            ValueError: for tensors that the kernels cannot read.
        """
        require(key_value.dim() == 6, lambda: f"keys and values are {list(key_value.shape)}")
        count, sentences, capacity = key_value.shape[:3]
        inner = (2, self.heads, self.width // self.heads)
        # From one layer to the next it may go anywhere, and the encoder's do not move at all.
        stride = self.width
        strides = (capacity * 2 * stride, 2 * stride, stride, inner[2], 1)
        suits = count == self.count and key_value.shape[3:] == inner and key_value.dtype == torch.float32
        is_whole = suits and (key_value.stride()[1:] == strides or key_value[0].is_contiguous())
        is_whole = is_whole and key_value.device.type == "cpu"
        require(is_whole, lambda: f"keys and values {key_value.dtype} {list(key_value.shape)}")
        held.append(key_value)
        pointer = None
        if allowed is not None:
            allowed = allowed.contiguous()
            check("mask", allowed, (sentences, used), torch.bool)
            held.append(allowed)
            pointer = allowed.data_ptr()
        return MemoryStructure(key_value.data_ptr(), key_value.stride(0), sentences, capacity, used, pointer)

    def feed(self, fed: Tensor, given: InputStructure) -> None:
        """Let masks be fed [B, positions, D], or [D] everywhere.

        Raises:
            ValueError: for tensors that the kernels cannot read.
        """
        suits = fed.dtype == torch.float32 and fed.device.type == "cpu" and fed.stride(-1) == 1
        suits = suits and fed.dim() in (1, 3) and fed.size(-1) == self.width
        require(suits, lambda: f"masks are fed {fed.dtype} {list(fed.shape)} on {fed.device}")
        given.fed = fed.data_ptr()
        if fed.dim() == 3:
            given.sentence, given.position = fed.stride()[:2]
            given.fed_sentences, given.fed_positions = fed.shape[:2]

    def _predict(self, wanted: Prediction, layout: Chain | StepLayout, x: Tensor) -> tuple[Predicted, PredictStructure]:
        """Where a prediction after the rows x goes, and its structure; `wanted` and what is returned must be held."""
        projection, limits = wanted.projection, wanted.limits
        require(projection.inputs == self.width, f"the projection reads {projection.inputs} of {self.width}")
        require(projection.outputs == limits.vocabulary, "the projection has another vocabulary")
        special = (limits.pad, limits.unk, limits.eos)
        require(0 <= min(special) and max(special) < limits.vocabulary, f"no tokens {special} in the vocabulary")
        shape = x.shape[:-1]
        predicted = Predicted(
            scores=new_empty(x, (*shape, projection.outputs)),
            best=torch.empty(shape, dtype=torch.long),
            log_probs=x.new_empty(shape),
        )
        results = (predicted.scores.data_ptr(), predicted.best.data_ptr(), predicted.log_probs.data_ptr())
        predict = PredictStructure(projection.structure, limits, *results)
        if wanted.path is not None:
            require(isinstance(layout, Chain) and wanted.first is not None, "a path is for the rows of a chain")
            check("tokens before paths", wanted.first, shape[:1], torch.long)
            predict.path, predict.first = ctypes.addressof(wanted.path), wanted.first.data_ptr()
        return predicted, predict


def _layout(layout: Chain | StepLayout, shape: Sequence[int]) -> tuple[LayoutStructure, list[Tensor | None]]:
    """The structure of a layout for rows of this shape, and the tensors that it points to."""
    if isinstance(layout, Chain):
        require(len(shape) == 2, f"rows {list(shape)} in a chain")
        batch, width = shape
        require(width == layout.width, f"{width} rows of a sentence in a chain of {layout.width}")
        lengths, last = layout.lengths.contiguous(), layout.last_visible
        check("lengths", lengths, (batch,), torch.long)
        if last is not None:
            fits = last.dim() == 2 and last.size(0) in (1, batch) and last.size(1) in (1, width)
            require(fits, f"last visible slots {list(last.shape)} of rows {[batch, width]}")
            last = last.expand(batch, width).contiguous()
            check("last visible slots", last, (batch, width), torch.long)
        structure = LayoutStructure(
            rows=batch * width,
            width=width,
            lengths=lengths.data_ptr(),
            last_visible=None if last is None else last.data_ptr(),
        )
        return structure, [lengths] if last is None else [lengths, last]
    require(len(shape) == 1, f"rows [{', '.join(map(str, shape))}] in a layout of packed ones")
    arrays = [x.contiguous() for x in (layout.sentence, layout.position, layout.slot, layout.last_visible)]
    for array in arrays:
        check("layout", array, shape, torch.long)
    return LayoutStructure(shape[0], 0, None, *[array.data_ptr() for array in arrays]), arrays
