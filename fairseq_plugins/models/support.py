"""Check which of fairseq's Transformers the engine can run; it refuses all others."""

from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.speech_to_text.s2t_transformer import S2TTransformerModel, TransformerDecoderScriptable
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import nn

from fairseq_plugins.models.exact_types import changed_part, replaced_in_class, shared_part

# fairseq's overrides that compute the same.
_EQUIVALENT = {TransformerDecoderScriptable.extract_features}


def unsupported_reason(decoder: nn.Module) -> str | None:
    """Return why the cached decoder (decoding/reference) cannot run a fairseq decoder, or None if it can."""
    if not isinstance(decoder, TransformerDecoderBase):
        return f"its decoder is a {type(decoder).__name__}, not a Transformer decoder"
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
    known = type(decoder) if getattr(decoder, "runs_in_cached_decoder", False) else TransformerDecoderBase
    return changed_part(decoder, (known, TransformerDecoderLayerBase), _EQUIVALENT) or shared_part(decoder.layers)


def unsupported_model(model: nn.Module) -> str | None:
    """Return why the engine cannot run the decoder of a model, or changes its scores; None if it can."""
    # S2TTransformerModel only notes the order of the dimensions.
    stock = (TransformerModelBase, FairseqEncoderDecoderModel, S2TTransformerModel)
    names = ("get_normalized_probs", "get_normalized_probs_scriptable")
    replaced = replaced_in_class(type(model), names)
    if replaced is not None:
        return f"its class {type(model).__name__} has a replaced {replaced}()"
    for name in names:
        own = getattr(type(model), name, None)
        if own not in (None, *(getattr(model_class, name) for model_class in stock)):
            return f"its class {type(model).__name__} changes {name}()"
        if name in vars(model):
            return f"its {type(model).__name__} has a replaced {name}()"
    return unsupported_reason(getattr(model, "decoder", model))


def _unsupported_layer(layer: nn.Module) -> str | None:
    if not isinstance(layer, TransformerDecoderLayerBase):
        return f"one of its decoder layers is a {type(layer).__name__}"
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
    return None
