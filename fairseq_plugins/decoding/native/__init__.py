"""Run the layers of a decoding step in compiled code: `kernels.cpp`, built at first use and kept for later runs.

On a CPU a step over one sentence and a few tokens is many small operations, and PyTorch spends more time between them
than in them. Here a step is one call. It computes what the PyTorch path computes, up to the rounding of sums.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fairseq.modules import gelu
from torch import Tensor

from fairseq_plugins.decoding.memory import new_empty
from fairseq_plugins.decoding.native.build import (
    EndsStructure,
    InputStructure,
    LayerStructure,
    LinearStructure,
    MemoryStructure,
    NormStructure,
    library,
)
from fairseq_plugins.decoding.weights import Layer, Linear, Norm, Precision, QuantizedLinear, quantized

PANEL, _INT8_INPUTS = 16, 4  # as in kernels.cpp
_IN_PANELS, _IN_ROWS, _INT8_IN_ROWS, _INT8_IN_PANELS = range(4)
# A copy of a weight in panels is read faster than the weight itself where there are few inputs, and made of weights of
# few bytes; large models are read as they are, so that nothing of them is held twice.
_MOST_PACKED_INPUTS = 511
_SMALL_BYTES = 4 * 2**20
# Beyond so many rows the matrix products are large enough for PyTorch's own, which use all threads; int8 products are
# several times as fast as these.
MOST_ROWS = 256
_MOST_INT8_ROWS = 1024
_ACTIVATIONS: dict[Callable[[Tensor], Tensor], int] = {F.relu: 1, gelu: 2}

_enabled = True
_copies = False


def pays(rows: int, precision: Precision = Precision.FP32) -> bool:
    """Whether so many rows (sentences times tokens) are few enough to be run here."""
    most = _MOST_INT8_ROWS if precision is Precision.INT8_PRODUCTS else MOST_ROWS
    return rows <= most // torch.get_num_threads()


def may_be_copied(weight: Tensor) -> bool:
    """Whether a faster form of a weight may be held beside it: of all that was asked for, or it is next to nothing."""
    return _copies or weight.numel() * weight.element_size() <= _SMALL_BYTES


def has_int8_products(width: int, weight: Tensor) -> bool:
    """Whether a model can run with `Precision.INT8_PRODUCTS`.

    The kernels must be in use, and the processor multiply int8 numbers fast. Of a wide model the copies in int8 would
    take much memory, so they have to be asked for.

    Args:
        width: of the model.
        weight: one of its weights, which says where it is and of which type.
    """
    if not (_copies or width <= _MOST_PACKED_INPUTS):
        return False
    return _usable(weight) and bool(_kernels().has_int8_products())


def enable(wanted: bool, copies: bool = False) -> None:
    """Switch compiled steps on (as they are at first) or off, for what is built from now on.

    Args:
        wanted: whether to use the kernels.
        copies: whether to hold large weights a second time, in the order in which they are read fastest.
    """
    global _enabled, _copies
    _enabled, _copies = wanted, copies


def _pack(weight: Tensor, inputs: int = 1) -> Tensor:
    """A weight [outputs, I] in panels of 16 outputs, [outputs / 16, I / inputs, 16, inputs], filled up with zeros."""
    missing = (0, -weight.size(1) % inputs, 0, -weight.size(0) % PANEL)
    panels = F.pad(weight.detach(), missing).unflatten(1, (-1, inputs)).unflatten(0, (-1, PANEL))
    return panels.transpose(1, 2).contiguous()


def _in_kernels_form(
    layer: Linear, precision: Precision
) -> tuple[int, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Form, weight, bias, scale and sums of weights as the kernels read them."""
    if isinstance(layer, QuantizedLinear):
        return _INT8_IN_ROWS, layer.weight, layer.bias, layer.scale, None
    weight, bias = layer
    if precision is Precision.INT8_PRODUCTS:
        rounded = quantized(layer)
        panels = _pack(rounded.weight, _INT8_INPUTS)
        return _INT8_IN_PANELS, panels, bias, rounded.scale, panels.sum((1, 3), dtype=torch.int32)
    if _copies or (weight.size(1) <= _MOST_PACKED_INPUTS and may_be_copied(weight)):
        return _IN_PANELS, _pack(weight), bias, None, None
    return _IN_ROWS, weight, bias, None, None


def _usable(*tensors: Tensor | None) -> bool:
    """Whether the kernels are in use and can read these tensors."""
    given = [tensor for tensor in tensors if tensor is not None]
    suitable = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in given)
    return _enabled and suitable and library() is not None


def _usable_layer(layer: Linear) -> bool:
    return _usable(*((layer.scale, layer.bias) if isinstance(layer, QuantizedLinear) else layer))


class NativeLinear:
    """A linear layer [outputs, inputs]; its weight is read where it is, a small one packed.

    Args:
        layer: weight and bias.
        precision: INT8_PRODUCTS only where `has_int8_products`; what else there is, the layer is already.
    """

    def __init__(self, layer: Linear, precision: Precision = Precision.FP32) -> None:
        form, *tensors = _in_kernels_form(layer, precision)
        # What the structure points to must stay, even if a module's parameter is given other memory.
        self.tensors = [None if tensor is None else tensor.detach().contiguous() for tensor in tensors]
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in self.tensors]
        self.outputs, inputs = layer.weight.shape if isinstance(layer, QuantizedLinear) else layer[0].shape
        self.structure = LinearStructure(*pointers, inputs, self.outputs, form)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to x [..., inputs]."""
        x = x.contiguous()
        y = new_empty(x, (*x.shape[:-1], self.outputs))
        rows = x.numel() // x.size(-1)
        _kernels().run_linear(ctypes.byref(self.structure), x.data_ptr(), rows, y.data_ptr())
        return y


@dataclass(frozen=True)
class Ends:
    """What stands before the first layer of a decoder, and behind the last one.

    Attributes:
        embedding: [V, D]; the mask of a drafter is token V.
        scale: what it is multiplied by.
        positions: [places, D]; later places get the last one. None for none.
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
        layers: their weights.
        precision: as for `NativeLinear`.
        ends: of a decoder, for `step`.
    """

    def __init__(
        self, layers: Sequence[Layer], precision: Precision = Precision.FP32, ends: Ends | None = None
    ) -> None:
        self.count = len(layers)
        self.precision = precision
        self.tensors: list[object] = []
        self.ends = None if ends is None else self._ends(ends)
        self.array = (LayerStructure * self.count)(*[self._structure(layer) for layer in layers])

    def pays(self, rows: int) -> bool:
        """Whether so many rows (sentences times tokens) are few enough to be run here."""
        return pays(rows, self.precision)

    def _structure(self, layer: Layer) -> LayerStructure:
        structure = LayerStructure(
            heads=layer.heads,
            normalize_before=layer.normalize_before,
            activation=_ACTIVATIONS[layer.activation],
            has_cross=layer.cross_query is not None,
        )
        for name, kind in LayerStructure._fields_:
            value = getattr(layer, name, None)
            if value is not None and kind is NormStructure:
                setattr(structure, name, self._norm(value))
            elif value is not None and kind is LinearStructure:
                linear = NativeLinear(value, self.precision)
                setattr(structure, name, linear.structure)
                self.tensors.append(linear)
        return structure

    def _norm(self, norm: Norm | None) -> NormStructure:
        if norm is None:
            return NormStructure()
        weight, bias = norm.weight.detach(), norm.bias.detach()
        self.tensors += [weight, bias]
        return NormStructure(weight.data_ptr(), bias.data_ptr(), norm.eps)

    def _ends(self, ends: Ends) -> EndsStructure:
        embedding = ends.embedding.detach().contiguous()
        positions = None if ends.positions is None else ends.positions.detach().contiguous()
        self.tensors += [embedding, positions]
        return EndsStructure(
            embedding=embedding.data_ptr(),
            scale=ends.scale,
            mask_id=len(embedding),
            positions=None if positions is None else positions.data_ptr(),
            places=0 if positions is None else len(positions),
            embedding_norm=self._norm(ends.embedding_norm),
            final_norm=self._norm(ends.final_norm),
        )

    def run(
        self,
        x: Tensor,
        lengths: Tensor,
        cache: Tensor,
        used: int,
        allowed: Tensor | None = None,
        visible: Tensor | None = None,
        cross: Tensor | None = None,
        cross_allowed: Tensor | None = None,
        keep_states: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run T rows of each of B sentences.

        Args:
            x: [B, T, D] input of the first layer.
            lengths: [B] where each sentence's first row stands.
            cache: [layers, B, capacity, 2, H, D / H] keys and values of self-attention, written at the rows' places.
            used: places of the cache that any row may attend to.
            allowed: [B, used], False where nobody may attend; None where all may.
            visible: [B, T] or [1, T], last place that each row attends to; None for its own.
            cross: [layers, B, S, 2, H, D / H] keys and values of cross-attention, None without.
            cross_allowed: [B, S], as `allowed`.
            keep_states: return what stands between the layers, too.

        Returns:
            the output [B, T, D] of the last layer, and the states [layers + 1, B, T, D] before the first and behind
            every layer (None unless they are kept).
        """
        x = x.clone(memory_format=torch.contiguous_format)
        states = self._call(
            _kernels().run_layers, (), x, lengths, visible, (cache, used, allowed), cross, cross_allowed, keep_states
        )
        return x, states

    def step(
        self,
        tokens: Tensor,
        lengths: Tensor,
        cache: Tensor,
        used: int,
        visible: Tensor | None,
        cross: Tensor,
        cross_allowed: Tensor | None,
        keep_states: bool = False,
        masks: int = 0,
        fed: Tensor | None = None,
        added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Embed T tokens of each of B sentences and run them; what `run` has too is the same.

        Args:
            tokens: [B, T - masks].
            masks: so many masks stand behind them.
            fed: [B, places, D] what masks are fed at each place, or [D] everywhere; None where there are none.
            added: [B, 1, D] or [B, T, D], added to the embedded input; None for nothing.

        Returns:
            the normalised output [B, T, D], and the states as `run` does.
        """
        assert self.ends is not None
        batch, width = tokens.size(0), tokens.size(1) + masks
        x = cache.new_empty(batch, width, cache.size(4) * cache.size(5))
        tokens = tokens.contiguous()
        added = None if added is None else added.contiguous()
        strides = (0, 0) if fed is None or fed.dim() == 1 else fed.stride()
        given = InputStructure(
            tokens=tokens.data_ptr(),
            masks=masks,
            fed=None if fed is None else fed.data_ptr(),
            sentence=strides[0],
            place=strides[1],
            added=None if added is None else added.data_ptr(),
            added_width=0 if added is None else added.size(1),
        )
        ends = (ctypes.byref(self.ends), ctypes.byref(given))
        own = (cache, used, None)
        return x, self._call(_kernels().run_step, ends, x, lengths, visible, own, cross, cross_allowed, keep_states)

    def _call(
        self,
        kernel: Callable[..., None],
        before: tuple,
        x: Tensor,
        lengths: Tensor,
        visible: Tensor | None,
        own: tuple[Tensor, int, Tensor | None],
        cross: Tensor | None,
        cross_allowed: Tensor | None,
        keep_states: bool,
    ) -> Tensor | None:
        """Run a kernel in place in x; returns the states, if they are kept."""
        batch, width, dim = x.shape
        states = x.new_empty(self.count + 1, batch, width, dim) if keep_states else None
        if visible is not None and visible.shape != (batch, width):
            visible = visible.expand(batch, width)
        # Held until the call is over: it is given their addresses only.
        cache, used, allowed = own
        lengths, visible, allowed, cross_allowed = (
            None if tensor is None else tensor.contiguous() for tensor in (lengths, visible, allowed, cross_allowed)
        )
        memory = _memory(cache, used, allowed)
        other = None if cross is None else ctypes.byref(_memory(cross, cross.size(2), cross_allowed))
        kernel(
            *(self.array, self.count, *before, x.data_ptr(), batch, width, dim, lengths.data_ptr()),
            *(None if visible is None else visible.data_ptr(), ctypes.byref(memory), other),
            None if states is None else states.data_ptr(),
        )
        return states


def _memory(key_value: Tensor, used: int, allowed: Tensor | None) -> MemoryStructure:
    mask = None if allowed is None else allowed.data_ptr()
    return MemoryStructure(key_value.data_ptr(), key_value.stride(0), key_value.size(2), used, mask)


def _kernels() -> ctypes.CDLL:
    kernels = library()
    assert kernels is not None
    return kernels


def fastest(layer: Linear, precision: Precision = Precision.FP32) -> Callable[[Tensor], Tensor]:
    """A linear layer as a function of x [..., inputs]: on the kernels where they can run it and pay, else PyTorch's.

    Args:
        layer: weight and bias.
        precision: as for `NativeLinear`.
    """
    if not _usable_layer(layer):
        return lambda x: F.linear(x, *layer)
    compiled = NativeLinear(layer, precision)
    return lambda x: compiled(x) if pays(x.numel() // x.size(-1), precision) else F.linear(x, *layer)


def native_layers(
    layers: Sequence[Layer], precision: Precision = Precision.FP32, ends: Ends | None = None
) -> NativeLayers | None:
    """Layers for the kernels, None where these cannot run them (other devices, types and activations, no compiler).

    Args:
        layers: their weights.
        precision: as for `NativeLinear`.
        ends: as for `NativeLayers`.
    """
    if not layers or any(layer.activation not in _ACTIVATIONS for layer in layers):
        return None
    return NativeLayers(layers, precision, ends) if _usable_layer(layers[0].self_qkv) else None


def log_softmax(scores: Tensor) -> Tensor:
    """Log-probabilities of scores [..., V]; on a CPU in their place, since but for the weights nothing is as large."""
    if scores.device.type != "cpu":
        return scores.float().log_softmax(-1)
    scores = scores.float().contiguous()
    if _in_kernels(scores):
        _kernels().log_softmax(scores.data_ptr(), scores.numel() // scores.size(-1), scores.size(-1))
        return scores
    for part in scores:
        part.copy_(part.log_softmax(-1))
    return scores


def argmax(scores: Tensor) -> Tensor:
    """Indices [...] of the highest of scores [..., V], the first ones."""
    if not (_in_kernels(scores) and scores.is_contiguous()):
        return scores.argmax(-1)
    best = torch.empty(scores.shape[:-1], dtype=torch.long)
    _kernels().choose_best(scores.data_ptr(), best.numel(), scores.size(-1), best.data_ptr())
    return best


def _in_kernels(scores: Tensor) -> bool:
    rows = scores.numel() // scores.size(-1)
    return _usable(scores) and pays(rows)


def path_chooser(
    before: Tensor, after: Tensor, vocabulary: Tensor | None, candidates: int
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """`models.transition.TransitionScores.choose` on the kernels, None where these cannot run it.

    Args:
        before: [V, R], of the token before.
        after: [N, R], of the token.
        vocabulary: ids [N] of the tokens that have scores, None for all.
        candidates: how many tokens of every place to choose among.
    """
    if not _usable(before, after):
        return None
    before, after = before.detach().contiguous(), after.detach().contiguous()
    ids = None if vocabulary is None else vocabulary.contiguous()

    def choose(scores: Tensor, first: Tensor) -> Tensor:
        scores, first = scores.contiguous(), first.contiguous()
        batch, width, size = scores.shape
        chosen = first.new_empty(batch, width)
        _kernels().choose_paths(
            *(scores.data_ptr(), batch, width, size, before.data_ptr(), after.data_ptr(), before.size(1)),
            *(None if ids is None else ids.data_ptr(), first.data_ptr(), min(candidates, size), chosen.data_ptr()),
        )
        return chosen

    return choose
