"""The Jacobi family: the draft is the verifier's own prediction of an iteration ago."""

from dataclasses import dataclass, replace
from typing import Optional

from fairseq.dataclass import ChoiceEnum

from fairseq_plugins.decoding.method import (
    KernelMethod,
    Method,
    MethodContext,
    MethodOptions,
    MethodSpec,
    draft_and_verify,
    fixed_width_option,
    option,
)
from fairseq_plugins.decoding.reference.drafters.jacobi import WINDOW_RATIO, JacobiDrafter
from fairseq_plugins.errors import ConfigurationError

# b of GS-Jacobi, and h of hybrid GS-Jacobi.
DEFAULT_BLOCK_SIZE = 5
DEFAULT_LENGTH = 50
# Most tokens of a draft that the policy chooses.
_MAX_WIDTH = 64


@dataclass(frozen=True)
class JacobiOptions(MethodOptions):
    """Options of `jacobi`."""

    jacobi_init: ChoiceEnum(["pad", "source", "unk"]) = option(  # type: ignore[valid-type]
        "pad", "first guess of each token: padding, the source token at the same position, or the unknown word"
    )
    fixed_width: bool = fixed_width_option()


@dataclass(frozen=True)
class BlockJacobiOptions(JacobiOptions):
    """Options of `gs-jacobi`: blocks of b."""

    block_size: Optional[int] = option(None)


@dataclass(frozen=True)
class HybridJacobiOptions(BlockJacobiOptions):
    """Options of `hybrid-jacobi`: parallel up to h."""

    jacobi_length: int = option(
        DEFAULT_LENGTH,
        "h: decode the first h tokens in parallel, and all later ones one by one",
        ignored_by_other_methods=True,
    )


def _check_length(options: HybridJacobiOptions) -> None:
    if options.jacobi_length < 1:
        remedy = "give at least 1 token to solve in parallel"
        raise ConfigurationError("--jacobi-length", options.jacobi_length, remedy=remedy)


def _starts_from_source(options: JacobiOptions) -> tuple[str, str] | None:
    return ("--jacobi-init", "source") if options.jacobi_init == "source" else None


def _initial(context: MethodContext, options: JacobiOptions) -> int | None:
    """Return the first guess of every position, None for the source token there."""
    guesses: dict[str, int | None] = {"pad": context.target.pad(), "unk": context.target.unk(), "source": None}
    return guesses[options.jacobi_init]


def _block(options: JacobiOptions) -> int | None:
    """Return the number of positions solved in parallel, None for the whole sentence."""
    return (options.block_size or DEFAULT_BLOCK_SIZE) if isinstance(options, BlockJacobiOptions) else None


def _build(context: MethodContext, options: JacobiOptions) -> Method:
    length = getattr(options, "jacobi_length", None)
    drafter = JacobiDrafter(context.target.pad(), _block(options), length, _initial(context, options))
    return draft_and_verify(context, drafter)


def _build_kernels(context: MethodContext, options: JacobiOptions) -> KernelMethod:
    initial, length = _initial(context, options), getattr(options, "jacobi_length", None)
    longest = context.models[0].max_decoder_positions() + 2  # larger numbers change nothing, and may not fit int64
    drafter = context.kernel_weights.module.jacobi_drafter(
        block=min(_block(options) or 0, longest),
        window_ratio=WINDOW_RATIO,
        length=-1 if length is None else min(length, longest),
        initial=-1 if initial is None else initial,
    )
    width = min(_block(options) or _MAX_WIDTH + 1, _MAX_WIDTH + 1) - 1
    has_policy = not options.fixed_width and width > 0
    return KernelMethod(
        context.kernel_weights, drafter, policy=context.kernel_weights.module.Policy(width) if has_policy else None
    )


_JACOBI = MethodSpec(
    name="jacobi",
    aliases=("pj",),
    summary="the verifier's own earlier predictions, whole sentence at once, the output of --beam 1",
    drafts="the verifier's own previous predictions, whole sentence",
    accepts="exact top-1",
    paper="Santilli et al. 2023, Algorithm 1",
    options=JacobiOptions,
    copies_source=_starts_from_source,
    build=_build,
    build_kernels=_build_kernels,
    accept_reason="fixed point",
    order=42,
)
METHODS = [
    _JACOBI,
    replace(
        _JACOBI,
        name="gs-jacobi",
        aliases=("pgj",),
        summary="the same in blocks of --block-size",
        drafts="the same, block of b",
        paper="Algorithm 2",
        options=BlockJacobiOptions,
        order=43,
    ),
    replace(
        _JACOBI,
        name="hybrid-jacobi",
        aliases=("hgj",),
        summary="the same up to --jacobi-length tokens, then one by one",
        drafts="the same up to length h, then none",
        paper="Algorithm 3",
        options=HybridJacobiOptions,
        check=_check_length,
        order=44,
    ),
]
