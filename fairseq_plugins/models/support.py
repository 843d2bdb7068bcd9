"""Check which of fairseq's Transformers the engine can run; it refuses all others."""

from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.speech_to_text.s2t_transformer import S2TTransformerModel, TransformerDecoderScriptable
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from fairseq.modules import MultiheadAttention
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import nn

from fairseq_plugins.models.exact_types import changed_part, shared_part

# A subclass that overrides one of these methods computes something else.
_DECODER_METHODS = ("forward", "extract_features", "extract_features_scriptable", "output_layer")
# fairseq's overrides that compute the same.
_EQUIVALENT = {TransformerDecoderScriptable.extract_features}


def unsupported_reason(decoder: nn.Module) -> str | None:
    """Return why the cached decoder (decoding/reference) cannot run a fairseq decoder, or None if it can."""
    if not isinstance(decoder, TransformerDecoderBase):
        return f"its decoder is a {type(decoder).__name__}, not a Transformer decoder"
    if not getattr(decoder, "runs_in_cached_decoder", False):
        for name in _DECODER_METHODS:
            own = getattr(type(decoder), name)
            if own is not getattr(TransformerDecoderBase, name) and own not in _EQUIVALENT:
                return f"its decoder class {type(decoder).__name__} changes {name}()"
    if decoder.adaptive_softmax is not None:
        return "it uses an adaptive softmax"
    if decoder.cross_self_attention:
        return "it uses --cross-self-attention"
    if decoder.quant_noise is not None:
        return "it uses quantization noise on embeddings"
    if not isinstance(decoder.embed_tokens, nn.Embedding):
        return f"its token embedding is a {type(decoder.embed_tokens).__name__} (adaptive inputs?)"
    if len(decoder.layers) == 0:
        return "its decoder has no layers"
    for layer in decoder.layers:
        reason = _unsupported_layer(layer)
        if reason is not None:
            return reason
    if getattr(decoder, "runs_in_cached_decoder", False):
        return changed_part(decoder, (type(decoder), TransformerDecoderLayerBase)) or shared_part(decoder.layers)
    classes = (TransformerDecoderBase, TransformerDecoderLayerBase)
    return changed_part(decoder, classes, _EQUIVALENT) or shared_part(decoder.layers)


def unsupported_model(model: nn.Module) -> str | None:
    """Return why the engine cannot run the decoder of a model, or changes its scores; None if it can."""
    # S2TTransformerModel only notes the order of the dimensions.
    stock = (TransformerModelBase, FairseqEncoderDecoderModel, S2TTransformerModel)
    for name in ("get_normalized_probs", "get_normalized_probs_scriptable"):
        own = getattr(type(model), name, None)
        if own not in (None, *(getattr(model_class, name) for model_class in stock)):
            return f"its class {type(model).__name__} changes {name}()"
        if name in vars(model):
            return f"its {type(model).__name__} has a replaced {name}()"
    return unsupported_reason(getattr(model, "decoder", model))


def _unsupported_layer(layer: nn.Module) -> str | None:
    if not isinstance(layer, TransformerDecoderLayerBase):
        return f"one of its decoder layers is a {type(layer).__name__}"
    if type(layer).forward is not TransformerDecoderLayerBase.forward:
        return f"its decoder layer {type(layer).__name__} changes forward()"
    if layer.encoder_attn is None:
        return "it has no cross-attention (--no-cross-attention)"
    for part, option in (
        (layer.attn_ln, "--scale-attn"),
        (layer.c_attn, "--scale-heads"),
        (layer.ffn_layernorm, "--scale-fc"),
        (layer.w_resid, "--scale-resids"),
    ):
        if part is not None:
            return f"it uses {option}"
    for attention in (layer.self_attn, layer.encoder_attn):
        if not isinstance(attention, MultiheadAttention):
            return f"its attention is a {type(attention).__name__}"
        if attention.bias_k is not None or attention.add_zero_attn or attention.use_xformers:
            return "its attention uses bias_kv, add_zero_attn or xformers"
    return None
