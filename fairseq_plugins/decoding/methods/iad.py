"""Input-guided aggressive decoding: the draft is the rest of the source, for tasks that rewrite their input."""

from fairseq_plugins.decoding.method import KernelMethod, Method, MethodContext, MethodSpec, draft_and_verify
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


def source_copy_drafter(pad: int) -> CopyDrafter:
    """Make the drafter that copies the source."""
    return CopyDrafter(lambda sample: source_texts(sample, pad), "unique")


def _build(context: MethodContext, options: FallbackOptions) -> Method:
    drafter = source_copy_drafter(context.target.pad())
    return draft_and_verify(context, with_fallback(drafter, context, options))


def _build_kernels(context: MethodContext, options: FallbackOptions) -> KernelMethod:
    weights = context.kernel_weights
    drafter = weights.module.CopyDrafter(weights.module.Lookup.UNIQUE, MAX_MATCH)
    policy = None if options.fixed_width else weights.module.Policy(_MAX_WIDTH)
    return KernelMethod(weights, kernel_with_fallback(drafter, context, options), policy=policy)


METHODS = [
    MethodSpec(
        name="iad",
        summary="copy the input, for tasks that rewrite it, the output of --beam 1",
        drafts="copy of the source after a unique suffix match",
        accepts="exact top-1",
        paper="Aggressive Decoding, Algorithm 1",
        options=FallbackOptions,
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
