"""Reuse: the drafts are texts that users bring, such as an earlier translation of the same source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary

from fairseq_plugins.decoding.method import KernelMethod, Method, MethodContext, MethodSpec, draft_and_verify, option
from fairseq_plugins.decoding.reference.drafters.copying import NEAREST_MAX_MATCH, CopyDrafter, draft_texts
from fairseq_plugins.decoding.trained_drafter import (
    FallbackOptions,
    check_fallback,
    check_fallback_fit,
    drafted_tokens,
    has_fallback,
    kernel_with_fallback,
    with_fallback,
)
from fairseq_plugins.errors import ConfigurationError

DEFAULT_WIDTH = 32  # most tokens of a draft


def drafts_of(sample: Mapping[str, Any], target: Dictionary) -> list[list[list[int]]]:
    """Return the drafts of every sentence of a batch, `sample["drafts"]`, each up to its EOS, without empty ones.

    Raises ConfigurationError for ids that the target dictionary lacks.
    """
    eos = target.eos()
    given: Sequence[Sequence[Sequence[int]]] | None = sample.get("drafts")
    if given is None:
        return [[] for _ in range(len(sample["net_input"]["src_tokens"]))]
    found = []
    for some in given:
        cut = [list(draft[: draft.index(eos)] if eos in draft else draft) for draft in some]
        found.append([[*draft, eos] for draft in cut if draft])
        for draft in found[-1]:
            for token in draft:
                if not 0 <= token < len(target):
                    problem = f"token {token} is not in the dictionary of {len(target)} symbols"
                    raise ConfigurationError("--drafts", None, problem)
    return found


@dataclass(frozen=True)
class ReuseOptions(FallbackOptions):
    """Options of `reuse`."""

    drafts: Optional[str] = option(
        None,
        "file of drafts, a line for each sentence of --gen-subset or line of fairseq-interactive, empty for no draft: "
        "raw text with --bpe, else subwords of the target; join several files, each with a draft of every sentence, by "
        "colons",
    )


def _check(options: ReuseOptions) -> None:
    check_fallback(options)
    for path in () if options.drafts is None else str(options.drafts).split(":"):
        if not Path(path).is_file():
            raise ConfigurationError("--drafts", path, "no such file", "give a draft a line")


def _of_fallback(context: MethodContext, options: ReuseOptions) -> ReuseOptions:
    """Return the options of the trained drafter, which may draft fewer tokens than are copied."""
    if context.drafter is None or options.block_size is None:
        return options
    return replace(options, block_size=min(options.block_size, drafted_tokens(context.drafter, None)))


def _check_fit(context: MethodContext, options: ReuseOptions) -> None:
    check_fallback_fit(context, _of_fallback(context, options))


def reuse_drafter(target: Dictionary, width: int) -> CopyDrafter:
    """Make the drafter that copies the drafts of a batch, `sample["drafts"]`."""
    return CopyDrafter(
        lambda sample: draft_texts(drafts_of(sample, target)).to(sample["net_input"]["src_tokens"].device),
        "nearest",
        width,
    )


def _build(context: MethodContext, options: ReuseOptions) -> Method:
    drafter = reuse_drafter(context.target, options.block_size or DEFAULT_WIDTH)
    return draft_and_verify(context, with_fallback(drafter, context, _of_fallback(context, options)))


def _build_kernels(context: MethodContext, options: ReuseOptions) -> KernelMethod:
    module, longest = context.kernel_weights.module, context.models[0].max_decoder_positions()
    width = min(options.block_size or DEFAULT_WIDTH, longest)  # the policy takes memory for each
    drafter = module.CopyDrafter(module.Lookup.NEAREST, NEAREST_MAX_MATCH, width)
    return KernelMethod(
        context.kernel_weights,
        kernel_with_fallback(drafter, context, _of_fallback(context, options)),
        policy=None if options.fixed_width else module.Policy(width),
        drafts=lambda sample: drafts_of(sample, context.target),
    )


METHODS = [
    MethodSpec(
        name="reuse",
        summary="copy given drafts, such as an earlier translation, the output of --beam 1",
        drafts="copy of given drafts, from the position that matches the output",
        accepts="exact top-1",
        paper="this project",
        options=ReuseOptions,
        needs_drafter=has_fallback,
        check=_check,
        check_fit=_check_fit,
        build=_build,
        build_kernels=_build_kernels,
        accept_reason="reused draft",
        rows={},
        order=40,
    )
]
