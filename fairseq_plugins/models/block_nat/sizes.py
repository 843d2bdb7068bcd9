"""Take a drafter's sizes from the verifier that it reads, and from the model that initialises it."""

from argparse import Namespace
from typing import Any

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.loading import read_checkpoint

# Options of an encoder or a decoder; the last two are a decoder's only.
_OF_PART = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "input_dim", "output_dim")
_DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
_OF_MODEL = ("activation_fn", *_DROPOUTS)


def remember_given(args: Namespace) -> None:
    """Record in `given_options` which size options were given, before defaults are set."""
    if not hasattr(args, "given_options"):
        names = {*_names("encoder"), *_names("decoder")}
        args.given_options = sorted(name for name in names if hasattr(args, name))


def take_sizes(args: Namespace, verifier: Any = None) -> None:
    """Set the sizes that were not given: from --init-encoder-from and --init-decoder-from, else from the verifier.

    Args:
        args: the drafter's options.
        verifier: the options of the verifier whose states it reads; None for a drafter that reads tokens.

    Raises:
        ConfigurationError: for an option that contradicts the model whose layers are copied.
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
                flag = "--" + name.replace("_", "-")
                instead = "" if isinstance(value, bool) else f", or give {flag} {value}"
                raise ConfigurationError(
                    f"{flag} {getattr(args, name)}: {option} {path} has {value}, and its layers are copied; leave the "
                    f"option out{instead}"
                )


def _sizes(part: str, options: Any) -> dict[str, Any]:
    """Return the size options of a model's encoder or decoder that are set."""
    return {name: getattr(options, name) for name in _names(part) if getattr(options, name, None) is not None}


def _names(part: str) -> tuple[str, ...]:
    return (*_OF_MODEL, *(f"{part}_{name}" for name in _OF_PART))
