"""A drafter has the sizes of the verifier that it reads, and of the model that it begins as."""

from argparse import Namespace
from typing import Any

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.loading import read_checkpoint

# Of an encoder or a decoder; the last two only a decoder has.
_OF_PART = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before", "input_dim", "output_dim")
_DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
_OF_MODEL = ("activation_fn", *_DROPOUTS)


def remember_given(args: Namespace) -> None:
    """Note in `given_options` which of these options were given, before defaults are filled in."""
    if not hasattr(args, "given_options"):
        names = {*_names("encoder"), *_names("decoder")}
        args.given_options = sorted(name for name in names if hasattr(args, name))


def take_sizes(args: Namespace, verifier: Any = None) -> None:
    """Fill in what was not given: from the verifier, and before it from --init-encoder-from and --init-decoder-from.

    Args:
        args: the drafter's options.
        verifier: the options of the verifier whose states it reads; None where it reads none.

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
    """What the options of a model say of its encoder or decoder, as far as they say it."""
    return {name: getattr(options, name) for name in _names(part) if getattr(options, name, None) is not None}


def _names(part: str) -> tuple[str, ...]:
    return (*_OF_MODEL, *(f"{part}_{name}" for name in _OF_PART))
