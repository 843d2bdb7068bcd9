"""Input-guided aggressive decoding: the draft is the rest of the source, for tasks that rewrite their input."""

from dataclasses import dataclass, replace

from fairseq.dataclass import ChoiceEnum

from fairseq_plugins.decoding.method import KernelMethod, Method, MethodContext, MethodSpec, draft_and_verify, option
from fairseq_plugins.decoding.reference.drafters.copying import MAX_MATCH, CopyDrafter, source_texts
from fairseq_plugins.decoding.trained_drafter import (
    FallbackOptions,
    check_fallback,
    check_fallback_fit,
    has_fallback,
    kernel_with_fallback,
    with_fallback,
)

_MAX_WIDTH = 64  # most tokens of a draft that the policy chooses


@dataclass(frozen=True)
class SourceCopyOptions(FallbackOptions):
    """Options of `iad`."""

    iad_lookup: ChoiceEnum(["unique", "recent"]) = option(  # type: ignore[valid-type]
        "unique",
        "where to copy from: unique = after the last output tokens, if they occur once in the source (Algorithm 1); "
        "recent = after their most recent longest match in source and output",
    )


def source_copy_drafter(pad: int, lookup: str = "unique") -> CopyDrafter:
    """Make the drafter that copies the source."""
    return CopyDrafter(lambda sample: source_texts(sample, pad), lookup)


def _build(context: MethodContext, options: SourceCopyOptions) -> Method:
    drafter = source_copy_drafter(context.target.pad(), str(options.iad_lookup))
    return draft_and_verify(context, with_fallback(drafter, context, options))


def _build_kernels(context: MethodContext, options: SourceCopyOptions) -> KernelMethod:
    # Where text stays as it is, a whole sentence is verified at once.
    weights = replace(context.kernel_weights, many_rows=True)
    lookup = getattr(weights.module.Lookup, str(options.iad_lookup).upper())
    drafter = weights.module.CopyDrafter(lookup, MAX_MATCH)
    policy = None if options.fixed_width else weights.module.Policy(_MAX_WIDTH)
    return KernelMethod(weights, kernel_with_fallback(drafter, context, options), policy=policy)


METHODS = [
    MethodSpec(
        name="iad",
        summary="copy the input, for tasks that rewrite it, the output of --beam 1",
        drafts="copy of the source after a unique suffix match",
        accepts="exact top-1",
        paper="Aggressive Decoding, Algorithm 1",
        options=SourceCopyOptions,
        needs_drafter=has_fallback,
        copies_source=lambda options: ("--decoder", "iad"),
        check=check_fallback,
        check_fit=check_fallback_fit,
        build=_build,
        build_kernels=_build_kernels,
        accept_reason="source copy",
        order=41,
    )
]
