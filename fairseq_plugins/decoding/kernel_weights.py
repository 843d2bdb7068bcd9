"""Convert fairseq's modules for a module of kernels: Transformers and the parts of drafters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, overload

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase
from fairseq.modules import gelu
from torch import Tensor

from fairseq_plugins.checkpoint.compact_weights import ordinary
from fairseq_plugins.checkpoint.mapped_weights import release_pages
from fairseq_plugins.decoding.kernel_module import (
    AnyLinear,
    AnyMaskWeights,
    AnyNorm,
    AnyPath,
    AnyTransformer,
    KernelLayer,
    KernelModule,
    Unsupported,
)
from fairseq_plugins.decoding.reference.encoder import is_known_encoder
from fairseq_plugins.decoding.weights import (
    Layer,
    Linear,
    Norm,
    embeddings,
    linear,
    norm,
    read_decoder_layer,
    read_encoder_layer,
    vocabulary_projection,
)
from fairseq_plugins.models.block_nat import BlockNatDecoder
from fairseq_plugins.models.fairseq_parts import KNOWN_POSITIONS, position_table
from fairseq_plugins.models.support import unsupported_reason


@dataclass(frozen=True, kw_only=True)
class KernelWeights(ABC):
    """Converts fairseq's modules for a module of kernels, which its methods describe themselves against.

    Attributes:
        int8: round the weights and inputs of linear layers, and embeddings, to int8.
        batch_invariant: make the result of a row independent of the number of rows, to the last bit.
        many_rows: choose formats that are fast for steps of many rows.
        drafts_of_fp32: for the drafter of a verifier in fp32, with which it shares embeddings.
        shared: what was converted of models whose weights never change, for all generators; None shares nothing.
    """

    int8: bool = False
    batch_invariant: bool = False
    many_rows: bool = False
    drafts_of_fp32: bool = False
    shared: dict[Any, Any] | None = field(default=None, compare=False, repr=False)

    @property
    @abstractmethod
    def module(self) -> KernelModule:
        """The module of kernels."""

    @abstractmethod
    def linear(self, layer: Linear, exact: bool = False) -> AnyLinear:
        """Convert a linear layer, `exact` without rounding; raises Unsupported for weights that no kernel supports."""

    @abstractmethod
    def for_drafts(self) -> "KernelWeights":
        """Return the converter for a drafter, whose drafts are verified and need not be exact."""

    @abstractmethod
    def may_fuse(self, weight: Tensor) -> bool:
        """Return whether the reader of a drafter may be fused with the projections that follow it, in a copy."""

    @abstractmethod
    def check(self, tensor: Tensor, dtype: torch.dtype | None) -> None:
        """Raise Unsupported for a tensor on another device or of another type (None: that of the model)."""

    @overload
    def array(self, tensor: Tensor, dtype: torch.dtype | None = ...) -> Tensor: ...
    @overload
    def array(self, tensor: None, dtype: torch.dtype | None = ...) -> None: ...
    def array(self, tensor: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
        """Return a tensor as the kernels read it, contiguous; raises Unsupported as `check` does."""
        if tensor is None:
            return None
        self.check(tensor, dtype)
        return ordinary(tensor).detach().contiguous()

    @property
    def rounds_embeddings(self) -> bool:
        """Whether embeddings are in int8."""
        return self.int8 and not self.drafts_of_fp32

    def embedding(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a table of embeddings [V, D] as the kernels read it, with the scales [V] of its rows (None: fp32)."""
        return self.array(embeddings(weight, self.rounds_embeddings)), None

    def activations(self) -> dict[Callable[[Tensor], Tensor], Any]:
        """Map PyTorch's activation functions to those of the kernels."""
        known = self.module.Activation
        return {F.relu: known.RELU, gelu: known.GELU, F.silu: known.SILU}

    def norm(self, values: Norm | None) -> AnyNorm:
        """Convert a layer normalisation; None becomes an empty one."""
        if values is None:
            return self.module.Norm()
        return self.module.Norm(self.array(values.weight), self.array(values.bias), values.eps)

    def layer(self, weights: Layer) -> KernelLayer:
        """Convert a Transformer layer; raise Unsupported for an unsupported activation."""
        known = self.activations()
        if weights.activation not in known:
            name = getattr(weights.activation, "__name__", str(weights.activation))
            raise Unsupported(f"the kernels do not support the activation {name}")
        layer = self.module.Layer()
        layer.heads, layer.normalize_before = weights.heads, weights.normalize_before
        layer.activation = known[weights.activation]
        layer.self_norm, layer.final_norm = self.norm(weights.self_norm), self.norm(weights.final_norm)
        for name in ("self_qkv", "self_out", "fc1", "fc2"):
            setattr(layer, name, self.linear(getattr(weights, name)))
        if weights.cross_query is not None:
            layer.cross_norm = self.norm(weights.cross_norm)
            for name, own in (("cross_query", self), ("cross_key_value", self._for_sources), ("cross_out", self)):
                setattr(layer, name, own.linear(getattr(weights, name)))
        return layer

    def decoder(
        self, decoder: TransformerDecoderBase, projection: Linear | None = None, screens: bool = False
    ) -> AnyTransformer:
        """Convert the decoder of a fairseq Transformer; raise Unsupported for one that the kernels do not support.

        Args:
            decoder: of the model.
            projection: vocabulary projection; None for the decoder's own.
            screens: whether best tokens are looked for, without the scores of all others.
        """
        convert = partial(self._decoder, decoder, projection, screens)
        return self._shared((decoder, screens), convert) if projection is None else convert()

    def _decoder(self, decoder: TransformerDecoderBase, projection: Linear | None, screens: bool) -> AnyTransformer:
        reason = unsupported_reason(decoder)
        if reason is not None:
            raise Unsupported(reason)
        if decoder.project_in_dim is not None or decoder.project_out_dim is not None:
            raise Unsupported("the embeddings have another width than the layers")
        projection = vocabulary_projection(decoder) if projection is None else projection
        if projection is None:
            raise Unsupported(f"the vocabulary projection of {type(decoder).__name__} is not a linear layer")
        converted, screen = self.linear(projection), self.screen(projection) if screens else {}
        release_pages(decoder.parameters())
        return self._transformer(decoder, self._layers(read_decoder_layer, decoder), converted, **screen)

    def screen(self, projection: Linear) -> dict[str, Any]:
        """Return what finds best tokens faster, as arguments of `KernelModule.transformer`; empty for nothing."""
        return {}

    def _layers(self, read: Callable[[Any], Layer], module: Any) -> list[KernelLayer]:
        converted = []
        for layer in module.layers:
            converted.append(self.layer(read(layer)))
            release_pages(layer.parameters())
        return converted

    def encoder(self, encoder: FairseqEncoder) -> AnyTransformer | None:
        """Convert a fairseq encoder; return None for one that the kernels do not support, which runs in PyTorch."""
        if not is_known_encoder(encoder) or len(encoder.layers) == 0:
            return None
        if encoder.embed_positions is not None and not isinstance(encoder.embed_positions, KNOWN_POSITIONS):
            return None
        own = self._for_sources
        return own._shared(encoder, lambda: own._transformer(encoder, own._layers(read_encoder_layer, encoder), None))

    @property
    def _for_sources(self) -> Self:
        """The converter for layers whose rows are all tokens of the sources."""
        return replace(self, many_rows=True)

    def _shared(self, of: Hashable, convert: Callable[[], AnyTransformer]) -> AnyTransformer:
        """Return what another generator has converted with these settings, if they share that; else convert it."""
        if self.shared is None:
            return convert()
        if (self, of) not in self.shared:
            self.shared[self, of] = convert()
        converted: AnyTransformer = self.shared[self, of]
        return converted

    def _transformer(
        self,
        module: TransformerDecoderBase | TransformerEncoderBase,
        layers: Sequence[KernelLayer],
        projection: AnyLinear | None,
        **screen: Any,
    ) -> AnyTransformer:
        positions = position_table(module, module.max_positions())
        table, scales = self.embedding(module.embed_tokens.weight)
        return self.module.transformer(
            layers,
            table,
            float(module.embed_scale),
            self.array(positions),
            embedding_norm=self.norm(norm(getattr(module, "layernorm_embedding", None))),
            final_norm=self.norm(norm(getattr(module, "layer_norm", None))),
            projection=projection,
            embedding_scales=scales,
            **screen,
        )

    # ------------------------------------------------------------------------------- parts of trained drafters

    def drafter_decoder(self, decoder: BlockNatDecoder, vocabulary: Tensor | None) -> AnyTransformer:
        """Convert the decoder of a drafter, which scores only the tokens `vocabulary` [N] (None: all)."""
        own = vocabulary_projection(decoder)
        if own is None:
            raise Unsupported(f"the vocabulary projection of {type(decoder).__name__} is not a linear layer")
        weight, bias = own
        if vocabulary is not None:
            weight, bias = ordinary(weight)[vocabulary], None if bias is None else bias[vocabulary]
        # They are the most frequent tokens: as many are the same.
        size = None if vocabulary is None else len(vocabulary)
        return self._shared((decoder, size), lambda: self.decoder(decoder, (weight, bias)))

    def path(self, decoder: BlockNatDecoder, vocabulary: Tensor | None) -> AnyPath:
        """Convert the layers that choose a draft's tokens from their scores (drafters/path.py); a GRU stays in fp32."""
        transition, size = decoder.transition, decoder.embed_tokens.num_embeddings
        ids = torch.arange(size, device=decoder.embed_tokens.weight.device) if vocabulary is None else vocabulary
        layers: dict[str, AnyLinear] = {}
        before = None
        if transition is not None:
            before = transition.before.weight
            layers["after"] = self.linear((transition.after.weight[ids], None))
            cell, rank = transition.cell, before.size(1)
            if cell is not None:
                assert transition.of_state is not None
                width = cell.input_size - rank
                of_input, of_state, input_bias, state_bias = cell.all_weights[0]
                layers["gru_hidden"] = self.linear((of_input[:, :width], input_bias), exact=True)
                layers["gru_token"] = self.linear((of_input[:, width:], None), exact=True)
                layers["gru_recurrent"] = self.linear((of_state, state_bias), exact=True)
                layers["to_rank"] = self.linear((transition.of_state.weight, None), exact=True)
        names = ("after", "gru_hidden", "gru_token", "gru_recurrent", "to_rank")
        return self.module.Path(
            self.array(ids, torch.long), self.array(before), **{name: layers.get(name) for name in names}
        )

    def mask_weights(self, decoder: BlockNatDecoder) -> AnyMaskWeights:
        """Convert the layers that compute a drafter's mask embeddings (reference/mask_embeddings.py)."""
        copy = decoder.copy_attention
        positions = None if copy is None else position_table(decoder, decoder.max_positions())
        own = None if copy is None else self.linear(linear(copy), exact=True)
        return self.module.MaskWeights(self.array(decoder.mask_vector), own, self.array(positions))
