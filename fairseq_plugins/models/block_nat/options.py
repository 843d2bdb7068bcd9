"""The options of a drafter besides those of fairseq's Transformer."""

from argparse import ArgumentParser, Namespace

from fairseq.models.transformer import base_architecture

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat.sizes import remember_given


def add_options(parser: ArgumentParser) -> None:
    """Add the drafter's own options."""
    parser.add_argument(
        "--drafter-attention",
        choices=["full", "prefix-causal"],
        help="what tokens of the prefix attend to: full = all tokens and masks, as in the papers, computed in every "
        "iteration; prefix-causal = earlier tokens only, so that the prefix is cached (default: prefix-causal)",
    )
    parser.add_argument(
        "--drafter-context",
        choices=["tokens", "features"],
        help="how the drafter reads the prefix: tokens = embeds and runs its tokens, as in the papers; features = "
        "reads the verifier's states of them (--verifier-path) and uses its embeddings and vocabulary projection, so "
        "that a shallow drafter suffices (default: tokens)",
    )
    parser.add_argument(
        "--drafter-layers",
        dest="decoder_layers",
        type=int,
        metavar="N",
        help="the same as --decoder-layers (default with --drafter-context features: 2)",
    )
    parser.add_argument(
        "--feature-layers",
        metavar="N,N,...",
        help="--drafter-context features: which of the verifier's decoder layers to read, 0 for the embedding "
        "(default: the inputs of its first layers, as many as the drafter has, and the output of its last)",
    )
    parser.add_argument(
        "--tune-verifier",
        action="store_true",
        help="--drafter-context features: train the verifier, too, so that its states predict further tokens "
        "(--verifier-loss); the checkpoint holds both, and split-verifier separates them (docs/training.md)",
    )
    parser.add_argument(
        "--share-encoder",
        action="store_true",
        help="read the frozen encoder of --verifier-path instead of training one; the checkpoint then holds "
        "the decoder only, and the drafter works with this verifier only",
    )
    parser.add_argument("--init-encoder-from", metavar="VERIFIER.pt", help="start the encoder from this checkpoint's")
    parser.add_argument(
        "--init-decoder-from",
        metavar="MODEL.pt",
        help="start the decoder from this checkpoint's embeddings and first layers: the verifier's, or those of a "
        "drafter of any verifier and depth. Sizes, activation, norm and dropout are this model's unless given",
    )
    parser.add_argument(
        "--src-embedding-copy",
        action="store_true",
        help="add a soft copy of the source embeddings to the mask vector, as GLAT does",
    )
    parser.add_argument(
        "--transition-rank",
        type=int,
        metavar="R",
        help="learn scores of a token given the drafted one before it, a V x V matrix of this rank, and choose a "
        "draft's tokens one after the other (default: 0, all positions independently)",
    )
    parser.add_argument(
        "--transition-state",
        type=int,
        metavar="WIDTH",
        help="make these scores depend on all earlier drafted tokens, with a recurrent state of this width; needs "
        "--transition-rank (default: 0, none)",
    )
    parser.add_argument(
        "--transition-dropout",
        type=float,
        metavar="P",
        help="dropout of the recurrent state's input and output (default: 0.3)",
    )
    parser.add_argument(
        "--positions-every-layer",
        action="store_true",
        help="add position embeddings before every decoder layer, not only the first",
    )


def set_defaults(args: Namespace) -> None:
    """Set the defaults: Transformer-base, 6-6 layers, 512/2048, 8 heads (GAD section 5.1)."""
    remember_given(args)
    args.drafter_context = getattr(args, "drafter_context", None) or "tokens"
    args.feature_layers = getattr(args, "feature_layers", None)
    args.drafter_attention = getattr(args, "drafter_attention", None) or "prefix-causal"
    args.transition_rank = getattr(args, "transition_rank", None) or 0
    args.transition_state = getattr(args, "transition_state", None) or 0
    dropout = getattr(args, "transition_dropout", None)
    args.transition_dropout = 0.3 if dropout is None else dropout
    for name in ("share_encoder", "src_embedding_copy", "positions_every_layer", "tune_verifier"):
        setattr(args, name, getattr(args, name, False))
    if args.drafter_context == "features":
        args.share_encoder = True
        args.decoder_layers = getattr(args, "decoder_layers", 2)
    args.activation_fn = getattr(args, "activation_fn", "gelu")
    base_architecture(args)


def check_options(args: Namespace) -> None:
    """Refuse invalid options and combinations.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    if args.transition_rank < 0:
        raise ConfigurationError(f"--transition-rank {args.transition_rank}: give 0 (none) or more")
    if args.transition_state < 0:
        raise ConfigurationError(f"--transition-state {args.transition_state}: give 0 (none) or more")
    if args.transition_state and not args.transition_rank:
        raise ConfigurationError(
            f"--transition-state {args.transition_state}: goes into transition scores; add --transition-rank 32"
        )
    if args.tune_verifier and args.drafter_context != "features":
        raise ConfigurationError(
            "--tune-verifier: is for drafters that read its states; add --drafter-context features"
        )
    if not 0 <= args.transition_dropout < 1:
        raise ConfigurationError(f"--transition-dropout {args.transition_dropout}: give 0 to less than 1")
