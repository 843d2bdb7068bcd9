"""Named drafter sizes: --arch block_nat_base, _tiny, _big, _12_2."""

from argparse import Namespace

from fairseq.models import register_model_architecture

# The model must be registered before its architectures.
from fairseq_plugins.models.block_nat import model  # noqa: F401
from fairseq_plugins.models.block_nat.options import remember_given, set_defaults


@register_model_architecture("block_nat", "block_nat")
@register_model_architecture("block_nat", "block_nat_base")
def block_nat_base(args: Namespace) -> None:
    """Transformer-base: 6-6 layers, 512/2048, 8 heads (GAD section 5.1)."""
    set_defaults(args)


@register_model_architecture("block_nat", "block_nat_tiny")
def block_nat_tiny(args: Namespace) -> None:
    """4-4 layers, 128/256, 4 heads: for some ten thousand sentences."""
    _set_sizes(args, embed_dim=128, ffn_embed_dim=256, layers=4, attention_heads=4)


@register_model_architecture("block_nat", "block_nat_big")
def block_nat_big(args: Namespace) -> None:
    """Transformer-big: 6-6 layers, 1024/4096, 16 heads (GAD section 5.3.2)."""
    _set_sizes(args, embed_dim=1024, ffn_embed_dim=4096, attention_heads=16)


@register_model_architecture("block_nat", "block_nat_12_2")
def block_nat_12_2(args: Namespace) -> None:
    """Deep encoder, shallow decoder: 12-2 layers of base size (SpecDec Appendix B.5)."""
    args.encoder_layers = getattr(args, "encoder_layers", 12)
    args.decoder_layers = getattr(args, "decoder_layers", 2)
    set_defaults(args)


def _set_sizes(args: Namespace, **sizes: int) -> None:
    """Set the sizes of encoder and decoder that were not given."""
    remember_given(args)
    for side in ("encoder", "decoder"):
        for name, value in sizes.items():
            setattr(args, f"{side}_{name}", getattr(args, f"{side}_{name}", value))
    set_defaults(args)
