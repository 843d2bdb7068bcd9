"""The options of a drafter besides those of fairseq's Transformer; sizes taken from other models."""

from argparse import ArgumentParser, Namespace
from typing import Any

from fairseq.models.transformer import base_architecture

from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.errors import ConfigurationError, flag

# Options of an encoder or a decoder; the last two are a decoder's only.
_OF_PART = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "input_dim", "output_dim")
_DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
_OF_MODEL = ("activation_fn", *_DROPOUTS)
_DEFAULTS: dict[str, Any] = {
    "drafter_context": "tokens",
    "feature_layers": None,
    "drafter_attention": "prefix-causal",
    "transition_rank": 0,
    "transition_state": 0,
    "transition_dropout": 0.3,
    **dict.fromkeys(("share_encoder", "src_embedding_copy", "tune_verifier"), False),
}


def add_options(parser: ArgumentParser) -> None:
    """Add the drafter's own options."""
    add = parser.add_argument
    attention = "what tokens of the prefix attend to: full = all tokens and masks, as in the papers, computed in every "
    attention += "iteration; prefix-causal = earlier tokens only, so that the prefix is cached (default: prefix-causal)"
    add("--drafter-attention", choices=["full", "prefix-causal"], help=attention)
    context = "how the drafter reads the prefix: tokens = embeds and runs its tokens, as in the papers; features = "
    context += "reads the verifier's states of them (--verifier-path) and uses its embeddings and vocabulary "
    context += "projection, so that a shallow drafter suffices (default: tokens)"
    add("--drafter-context", choices=["tokens", "features"], help=context)
    layers = "the same as --decoder-layers (default with --drafter-context features: 2)"
    add("--drafter-layers", dest="decoder_layers", type=int, metavar="N", help=layers)
    read = "--drafter-context features: which of the verifier's decoder layers to read, 0 for the embedding (default: "
    read += "the inputs of its first layers, as many as the drafter has, and the output of its last)"
    add("--feature-layers", metavar="N,N,...", help=read)
    tune = "--drafter-context features: train the verifier, too, so that its states predict further tokens "
    tune += "(--verifier-loss); the checkpoint holds both, and split-verifier separates them (docs/training.md)"
    add("--tune-verifier", action="store_true", help=tune)
    share = "read the frozen encoder of --verifier-path instead of training one; the checkpoint then holds the decoder "
    share += "only, and the drafter works with this verifier only"
    add("--share-encoder", action="store_true", help=share)
    add("--init-encoder-from", metavar="VERIFIER.pt", help="start the encoder from this checkpoint's")
    start = "start the decoder from this checkpoint's embeddings and first layers: the verifier's, or those of a "
    start += "drafter of any verifier and depth. Sizes, activation, norm and dropout are this model's unless given"
    add("--init-decoder-from", metavar="MODEL.pt", help=start)
    copy = "add a soft copy of the source embeddings to the mask vector, as GLAT does"
    add("--src-embedding-copy", action="store_true", help=copy)
    rank = "learn scores of a token given the drafted one before it, a V x V matrix of this rank, and choose a draft's "
    rank += "tokens one after the other (default: 0, all positions independently)"
    add("--transition-rank", type=int, metavar="R", help=rank)
    state = "make these scores depend on all earlier drafted tokens, with a recurrent state of this width; needs "
    state += "--transition-rank (default: 0, none)"
    add("--transition-state", type=int, metavar="WIDTH", help=state)
    dropout = "dropout of the recurrent state's input and output (default: 0.3)"
    add("--transition-dropout", type=float, metavar="P", help=dropout)


def set_defaults(args: Namespace) -> None:
    """Set the defaults: Transformer-base, 6-6 layers, 512/2048, 8 heads (GAD section 5.1)."""
    remember_given(args)
    for name, default in _DEFAULTS.items():
        given = getattr(args, name, None)
        setattr(args, name, default if given is None else given)
    if args.drafter_context == "features":
        args.share_encoder = True
        args.decoder_layers = getattr(args, "decoder_layers", 2)
    args.activation_fn = getattr(args, "activation_fn", "gelu")
    base_architecture(args)


def check_options(args: Namespace) -> None:
    """Raise ConfigurationError for invalid options and combinations."""
    for option, value in ("rank", args.transition_rank), ("state", args.transition_state):
        if value < 0:
            raise ConfigurationError(f"--transition-{option}", value, remedy="give 0 (none) or more")
    if args.transition_state and not args.transition_rank:
        problem = "goes into transition scores"
        raise ConfigurationError("--transition-state", args.transition_state, problem, "add {--transition-rank 32}")
    if args.tune_verifier and args.drafter_context != "features":
        problem = "is for drafters that read its states"
        raise ConfigurationError("--tune-verifier", None, problem, "add {--drafter-context features}")
    if args.checkpoint_activations and args.drafter_context == "features":
        problem = "is not for {--drafter-context features}"  # fairseq's wrapper knows no gradient of these states
        option = "--offload-activations" if args.offload_activations else "--checkpoint-activations"
        raise ConfigurationError(option, None, problem, "leave it out")
    if not 0 <= args.transition_dropout < 1:
        raise ConfigurationError("--transition-dropout", args.transition_dropout, remedy="give 0 to less than 1")


def remember_given(args: Namespace) -> None:
    """Record in `given_options` which size options were given, before defaults are set."""
    if not hasattr(args, "given_options"):
        names = {*_names("encoder"), *_names("decoder")}
        args.given_options = sorted(name for name in names if hasattr(args, name))


def take_sizes(args: Namespace, verifier: Any = None) -> None:
    """Set the sizes that were not given: from --init-encoder-from and --init-decoder-from, else from the verifier.

    `verifier` are the options of the verifier whose states the drafter reads; None for a drafter that reads tokens.
    Raises ConfigurationError for an option that contradicts the model whose layers are copied.
    """
    if verifier is not None:
        for name, value in {**_sizes("encoder", verifier), **_sizes("decoder", verifier)}.items():
            if name not in args.given_options:
                setattr(args, name, value)
    for part in ("encoder", "decoder"):
        path = getattr(args, f"init_{part}_from", None)
        if not path:
            continue
        option = f"--init-{part}-from"
        for name, value in _sizes(part, read_checkpoint(path, option)[1]).items():
            if name not in args.given_options:
                setattr(args, name, value)
            elif name not in _DROPOUTS and getattr(args, name) != value:
                instead = "" if isinstance(value, bool) else f", or give {{{flag(name)} {value}}}"
                problem = f"{option} {path} has {value}, and its layers are copied"
                raise ConfigurationError(flag(name), getattr(args, name), problem, f"leave the option out{instead}")


def _sizes(part: str, options: Any) -> dict[str, Any]:
    """Return the size options of a model's encoder or decoder that are set."""
    return {name: getattr(options, name) for name in _names(part) if getattr(options, name, None) is not None}


def _names(part: str) -> tuple[str, ...]:
    return (*_OF_MODEL, *(f"{part}_{name}" for name in _OF_PART))
