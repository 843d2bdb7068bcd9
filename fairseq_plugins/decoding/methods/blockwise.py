"""Blockwise decoding: heads on the verifier draft the next tokens from its last verification."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.decoding.checks import check_thresholds
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.method import (
    KernelMethod,
    Method,
    MethodContext,
    MethodOptions,
    MethodSpec,
    draft_and_verify,
    option,
)
from fairseq_plugins.decoding.reference.drafters.heads import BlockwiseDrafter
from fairseq_plugins.decoding.reference.search.rules import TopBeta, exact, with_min_block, within_distance
from fairseq_plugins.decoding.weights import Linear, linear
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer


@dataclass(frozen=True)
class BlockwiseOptions(MethodOptions):
    """Options of `blockwise`: three relaxed acceptance rules (Stern et al. 2018, section 5)."""

    block_size: Optional[int] = option(None)
    top_beta: int = option(
        1,
        "accept drafted tokens among the verifier's best BETA (Stern et al. 2018, section 5.1); their log-probability "
        "counts only with --tau",
    )
    tau: float = option(0.0, "with --top-beta, also limit the gap of log-probability to the best token to TAU")
    accept_distance: Optional[float] = option(
        None, "accept numbers that differ from the verifier's best by at most this (Stern et al. 2018, section 5.2)"
    )
    min_block: int = option(1, "minimum of tokens that an iteration emits (Stern et al. 2018, section 5.3)")
    fixed_width: bool = option(
        False,
        "verify what all heads propose, as in the paper. Without it, on a CPU and with exact acceptance, only what "
        "saves time (the output is the same)",
    )


def _check(options: BlockwiseOptions) -> None:
    check_thresholds(options.top_beta, options.tau)
    if options.accept_distance is not None and not options.accept_distance >= 0:
        problem = "a difference of numbers"
        raise ConfigurationError("--accept-distance", options.accept_distance, problem, "give 0 or more")
    if options.accept_distance is not None and options.top_beta > 1:
        problem = "and {--top-beta} are two ways to accept more"
        raise ConfigurationError("--accept-distance", None, problem, "give one of them")
    if options.min_block < 1 or (options.block_size is not None and options.min_block > options.block_size):
        limit = "" if options.block_size is None else f", and at most the block size ({options.block_size})"
        raise ConfigurationError("--min-block", options.min_block, remedy=f"give at least 1{limit}")


def _check_fit(context: MethodContext, options: BlockwiseOptions) -> None:
    models = context.models
    if len(models) > 1 or not isinstance(models[0], BlockwiseTransformer):
        what = "several models" if len(models) > 1 else f"a {type(models[0]).__name__} without heads"
        remedy = "give one blockwise_transformer (train one with fairseq-train --arch blockwise_transformer "
        remedy += "--base-path MODEL.pt)"
        raise ConfigurationError("--decoder", "blockwise", f"{{--path}} holds {what}", remedy)
    heads = models[0].decoder.heads
    width = options.block_size or heads
    if width > heads:
        raise ConfigurationError("--block-size", width, f"the model has {heads} heads", f"give at most {heads}")
    if options.min_block > width:
        raise ConfigurationError("--min-block", options.min_block, "more than the block size", f"give at most {width}")
    if options.accept_distance is not None and _numbers(context.target).isnan().all():
        problem = "no symbol of the target dictionary is a number"
        raise ConfigurationError("--accept-distance", options.accept_distance, problem, "leave it out")


def _numbers(dictionary: Dictionary) -> Tensor:
    """Return the number [V] that each symbol stands for, NaN for symbols that are not numbers."""

    def number(symbol: str) -> float:
        try:
            return float(symbol)
        except ValueError:
            return math.nan

    return torch.tensor([number(symbol) for symbol in dictionary.symbols])


def _acceptance(
    options: BlockwiseOptions, dictionary: Dictionary, distance: Any, top_beta: Any, at_least: Any, rule: Any
) -> Any:
    """Return the acceptance rule, made by the constructors of a backend; `rule` is exact acceptance."""
    if options.accept_distance is not None:
        rule = distance(options.accept_distance, _numbers(dictionary))
    elif options.top_beta > 1:
        # Stern et al. use the rank only (section 5.1); --tau adds a gap.
        rule = top_beta(options.top_beta, options.tau or math.inf)
    return at_least(options.min_block, rule) if options.min_block > 1 else rule


def _build(context: MethodContext, options: BlockwiseOptions) -> Method:
    width = options.block_size or context.models[0].decoder.heads
    heads = BlockwiseDrafter(context.models[0], width, context.sampling)
    rule = _acceptance(options, context.target, within_distance, TopBeta, with_min_block, exact)
    return draft_and_verify(context, heads, rule)


def _build_kernels(context: MethodContext, options: BlockwiseOptions) -> KernelMethod:
    weights, decoder = context.kernel_weights, context.models[0].decoder
    block_size = options.block_size or decoder.heads
    output, (weight, bias) = decoder.output_projection, linear(decoder.head_shrink)
    if not isinstance(output, nn.Linear):
        raise Unsupported("the vocabulary projection is not a linear layer")
    if block_size < 2:
        raise Unsupported("--block-size 1: drafts nothing")

    def heads(first: int, last: int) -> Linear:
        rows = slice((first - 1) * decoder.output_embed_dim, last * decoder.output_embed_dim)
        return weight[rows], None if bias is None else bias[rows]

    module, projection, expand = weights.module, linear(output), linear(decoder.head_expand)
    rules = module.accept_within_distance, module.accept_top_beta, module.accept_at_least
    acceptance = _acceptance(options, context.target, *rules, None)
    has_policy = acceptance is None and not options.fixed_width
    drafts = weights.for_drafts() if has_policy else weights
    drafter = module.heads_drafter(*map(drafts.linear, (expand, heads(2, block_size), projection)))
    head = None if decoder.identity_first_head else (weights.linear(expand), weights.linear(heads(1, 1)))
    policy = module.Policy(block_size - 1, context.counts_survival) if has_policy else None
    return KernelMethod(weights, drafter, acceptance, policy=policy, projection=projection, head=head)


METHODS = [
    MethodSpec(
        name="blockwise",
        summary="the heads of a blockwise_transformer draft, its head 1 verifies",
        drafts="heads on the verifier, from its last verification",
        accepts="exact, top-β, distance ≤ ε, minimum block",
        paper="Stern et al. 2018",
        options=BlockwiseOptions,
        # Head 1 may differ from the base model: without a frozen base it is trained, too.
        is_lossless=False,
        verifier_class=BlockwiseTransformer,
        check=_check,
        check_fit=_check_fit,
        build=_build,
        build_kernels=_build_kernels,
        accepts_exactly=lambda options: (options.top_beta, options.accept_distance, options.min_block) == (1, None, 1),
        accept_reason="head",
        rows={"blockwise": {}, "blockwise fixed width": {"fixed_width": True}},
        order=40,
    )
]
