"""What the compiled kernels offer to the engine, and for which sizes they pay."""

import ctypes
import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.native.build import LimitsStructure, library
from fairseq_plugins.decoding.engine.native.layers import (
    ACTIVATIONS,
    HALVES_IN_PANELS,
    HALVES_IN_TILES,
    IN_PANELS,
    IN_ROWS,
    INT8_IN_PANELS,
    Ends,
    NativeLayers,
    NativeLinear,
    check,
    is_exact_in_half,
    is_for_tiles,
)
from fairseq_plugins.decoding.engine.native.path import NativePath
from fairseq_plugins.decoding.engine.native.source import SourceCopy
from fairseq_plugins.decoding.engine.weights import Layer, Linear, Precision, QuantizedLinear, is_small
from fairseq_plugins.models.block_nat import BlockNatDecoder
from fairseq_plugins.models.transition import TransitionScores

# A copy of a weight in panels is read faster than the weight itself, and made of narrow weights of few bytes; large
# models are read as they are, so that nothing of them is held twice.
MAX_PACKED_WIDTH = 511
# With more rows matrix products are large enough for PyTorch; int8 products are several times as fast as its own.
MAX_ROWS = 256
_MAX_INT8_ROWS = 1024

# Sentences that are decoded together: products of few rows are slow, and the scores of many leave the processor's
# cache, in which a narrow model's weights are. A wide one's are read from memory, for every part of a batch anew.
_LEAST_TOGETHER, _ROWS_TOGETHER, _ROWS_TOGETHER_IF_WIDE = 8, 24, 128


class Together(NamedTuple):
    """How many sentences one call decodes together: the least, and the rows of more of them."""

    least: int
    rows: int

    def of(self, batch: int, each: int) -> int:
        """How many of a batch of sentences that have so many rows each."""
        return min(batch, max(self.least, self.rows // each))


def sentences_together(width: int) -> Together:
    """How many sentences one call decodes together in a model so wide."""
    return Together(_LEAST_TOGETHER, _ROWS_TOGETHER if width <= 256 else _ROWS_TOGETHER_IF_WIDE)


class Packing(enum.Enum):
    """Which large weights are held a second time, in the order in which they are read fastest; small ones always are.

    AUTO: those that float16 holds exactly, in float16, for half as much memory again.
    """

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Kernels:
    """The compiled kernels with one way of using them.

    Args:
        packing: which large weights are held a second time.
        functions: the library.
        any_size: run steps of any number of rows, also where PyTorch would be faster: see `Engine.steady`.
        many_rows: steps seldom have few rows.
    """

    def __init__(
        self, packing: Packing, functions: ctypes.CDLL, any_size: bool = False, many_rows: bool = False
    ) -> None:
        self.packing = packing
        self.functions = functions
        self.any_size = any_size
        self.many_rows = many_rows

    @classmethod
    def build(cls, packing: Packing = Packing.AUTO, any_size: bool = False) -> "Kernels | None":
        """The kernels for this machine, compiled if need be; None, after a line in the log, where they cannot be."""
        functions = library()
        return None if functions is None else cls(packing, functions, any_size)

    def pays_in_layers(self, layers: NativeLayers, rows: int, precision: Precision) -> bool:
        """Whether so many rows are for the kernels in these layers; of narrow ones, or in tiles, any number is."""
        return layers.width <= MAX_PACKED_WIDTH or layers.in_tiles or self.pays(rows, precision)

    def pays(self, rows: int, precision: Precision = Precision.FP32) -> bool:
        """Whether so many rows (sentences times tokens) are few enough to be run here."""
        limit = _MAX_INT8_ROWS if precision is Precision.INT8_PRODUCTS else MAX_ROWS
        return self.any_size or rows <= limit

    def can_read(self, *tensors: Tensor | None) -> bool:
        """Whether all of these are fp32 tensors on the CPU; None is nothing to read."""
        given = [tensor for tensor in tensors if tensor is not None]
        return all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in given)

    def can_run(self, layer: Linear) -> bool:
        """Whether the kernels can run a linear layer."""
        return self.can_read(*((layer.scale, layer.bias) if isinstance(layer, QuantizedLinear) else layer))

    def may_be_copied(self, weight: Tensor) -> bool:
        """Whether a weight may be held a second time: that was asked for, or it is next to nothing."""
        return self.packing is Packing.ALWAYS or is_small(weight)

    def has_int8_products(self, width: int, weight: Tensor) -> bool:
        """Whether a model can run with `Precision.INT8_PRODUCTS`: if the processor multiplies int8 numbers fast.

        A wide model is rounded where it is held a second time anyway.

        Args:
            width: of the model.
            weight: one of its weights, which says where it is and of which type.
        """
        if not (self.can_read(weight) and self.functions.has_int8_products()):
            return False
        return width <= MAX_PACKED_WIDTH or self.packing is Packing.ALWAYS or self._takes_halves(weight)

    def _takes_halves(self, weight: Tensor) -> bool:
        """Whether a weight, however large, is copied because float16 holds it."""
        return self.packing is Packing.AUTO and bool(self.functions.has_halves()) and is_exact_in_half(weight)

    def _form(self, layer: Linear, precision: Precision) -> int:
        if precision is Precision.INT8_PRODUCTS:
            return INT8_IN_PANELS
        weight = layer.weight if isinstance(layer, QuantizedLinear) else layer[0]
        is_copied = self.packing is Packing.ALWAYS or (min(weight.shape) <= MAX_PACKED_WIDTH and is_small(weight))
        takes_halves = isinstance(layer, tuple) and self._takes_halves(weight)
        # A row by itself takes tiles twice the time where weights are near, which those of large layers are not.
        if takes_halves and (self.many_rows or not is_copied) and self.functions.has_tiles() and is_for_tiles(weight):
            return HALVES_IN_TILES
        if is_copied:
            return IN_PANELS
        return HALVES_IN_PANELS if takes_halves else IN_ROWS

    def linear(self, layer: Linear, precision: Precision = Precision.FP32) -> Callable[[Tensor], Tensor]:
        """A linear layer that `can_run`, as a function of x [..., inputs]; PyTorch's own where the kernels do not pay.

        Args:
            layer: weight and bias.
            precision: INT8_PRODUCTS only where `has_int8_products`; what else there is, the layer is already.
        """
        return self.where_it_pays(self.compiled_linear(layer, precision), layer, precision)

    def where_it_pays(
        self, compiled: NativeLinear, layer: Linear, precision: Precision = Precision.FP32
    ) -> Callable[[Tensor], Tensor]:
        """A compiled layer where the kernels pay, PyTorch's own with the same weights where they do not."""
        if compiled.in_tiles or (compiled.in_panels and min(compiled.inputs, compiled.outputs) <= MAX_PACKED_WIDTH):
            return compiled
        return lambda x: compiled(x) if self.pays(x.numel() // x.size(-1), precision) else F.linear(x, *layer)

    def compiled_linear(self, layer: Linear, precision: Precision = Precision.FP32) -> NativeLinear:
        """The same for the kernels alone."""
        return NativeLinear(self.functions, layer, self._form(layer, precision))

    def layers(
        self, layers: Sequence[Layer], precision: Precision = Precision.FP32, ends: Ends | None = None
    ) -> NativeLayers | None:
        """Transformer layers, None where the kernels cannot run them (other devices, types and activations).

        Args:
            layers: their weights.
            precision: as for `linear`.
            ends: what stands before and after the layers of a decoder.
        """
        if not layers or any(layer.activation not in ACTIVATIONS for layer in layers):
            return None
        if not self.can_run(layers[0].self_qkv):
            return None
        return NativeLayers(self.functions, layers, lambda layer: self._form(layer, precision), ends)

    def limits(self, vocabulary: int, constraints: Constraints) -> LimitsStructure | None:
        """What `NativeLayers.step` may predict; None for constraints that it does not know."""
        if constraints.prefix is not None or constraints.repeat_blocker is not None:
            return None
        return LimitsStructure(
            *(vocabulary, constraints.pad, constraints.unk, constraints.eos, constraints.min_len, constraints.max_len),
            constraints.unk_penalty,
        )

    def log_softmax(self, scores: Tensor) -> bool:
        """Turn scores [..., V] into log-probabilities in place; False where that is not for the kernels."""
        if not self._can_score(scores):
            return False
        self.functions.log_softmax(scores.data_ptr(), scores.numel() // scores.size(-1), scores.size(-1))
        return True

    def accept_exact(self, best: Tensor, drafted: Tensor, num_drafted: Tensor | None, eos: int) -> Tensor | None:
        """What exact acceptance makes of a chain, see `search.GreedySearch`; None where that is not for the kernels.

        Args:
            best: [B, T], the verifier's tokens.
            drafted: [B, T - 1], the tokens that were verified.
            num_drafted: [B], how many of these are meant, None for all.
            eos: this symbol.

        Returns:
            [3, B]: emitted tokens, accepted ones among them, and whether the output has ended (0 or 1).

        Raises:
            ValueError: for tensors of the wrong shape or type.
        """
        if best.device.type != "cpu" or drafted.size(1) != best.size(1) - 1:
            return None
        best, drafted = best.contiguous(), drafted.contiguous()
        num_drafted = None if num_drafted is None else num_drafted.contiguous()
        batch, width = best.shape
        check("best tokens", best, (batch, width), torch.long)
        check("drafted tokens", drafted, (batch, width - 1), torch.long)
        check("numbers of drafted tokens", num_drafted, (batch,), torch.long)
        counts = best.new_empty(3, len(best))
        self.functions.accept_exact(
            *(best.data_ptr(), drafted.data_ptr(), None if num_drafted is None else num_drafted.data_ptr()),
            *(batch, width, eos, *(count.data_ptr() for count in counts)),
        )
        return counts

    def argmax(self, scores: Tensor) -> Tensor | None:
        """Indices [...] of the first highest of scores [..., V]; None where that is not for the kernels."""
        if not self._can_score(scores):
            return None
        best = torch.empty(scores.shape[:-1], dtype=torch.long)
        self.functions.choose_best(scores.data_ptr(), best.numel(), scores.size(-1), best.data_ptr())
        return best

    def _can_score(self, scores: Tensor) -> bool:
        rows = scores.numel() // max(scores.size(-1), 1)
        return scores.is_contiguous() and scores.size(-1) > 0 and self.can_read(scores) and self.pays(rows)

    def path(
        self, transition: TransitionScores | None, ids: Tensor, precision: Precision = Precision.FP32
    ) -> NativePath | None:
        """The choice of a draft among the tokens `ids` [N]; None where the kernels cannot read the scores.

        Args:
            transition, ids: as for `NativePath`.
            precision: of the scores of all tokens, most of what is multiplied.
        """
        if transition is not None and not self.can_read(*transition.parameters()):
            return None
        return NativePath(self.functions, transition, ids, self.compiled_linear, precision)

    def source_copy(self, decoder: BlockNatDecoder) -> SourceCopy | None:
        """What the masks of a drafter are fed; None where nothing is copied, or the kernels cannot read the weights."""
        if decoder.copy_attention is None or not self.can_read(decoder.mask_vector, decoder.copy_attention.weight):
            return None
        return SourceCopy(self.functions, decoder)
