"""The drafter alone: every draft is accepted, as in the papers' rows "NAT drafter"."""

from dataclasses import dataclass
from typing import Optional

from fairseq_plugins.decoding.method import Method, MethodContext, MethodOptions, MethodSpec, option
from fairseq_plugins.decoding.reference.drafters.nat import NatDrafter
from fairseq_plugins.decoding.reference.drafters.path import DraftOptions
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.rules import accept_all
from fairseq_plugins.decoding.reference.verifier import DrafterIsVerifier
from fairseq_plugins.decoding.trained_drafter import check_drafter, drafted_tokens
from fairseq_plugins.errors import ConfigurationError


@dataclass(frozen=True)
class NatOptions(MethodOptions):
    """Options of `nat`."""

    block_size: Optional[int] = option(None)


def _check_fit(context: MethodContext, options: NatOptions) -> None:
    assert context.drafter is not None
    if context.drafter.reads_features:
        problem = "this drafter ({--drafter-context features}) reads the verifier's states and cannot decode alone"
        remedy = "use {--decoder gad} with {--path VERIFIER.pt} {--drafter-path DRAFTER.pt}; in training leave out "
        remedy += "{--eval-bleu}"
        raise ConfigurationError("--decoder", "nat", problem, remedy)
    check_drafter(context, options.block_size)


def _build(context: MethodContext, options: NatOptions) -> Method:
    assert context.drafter is not None and not context.drafter.reads_features
    width = drafted_tokens(context.drafter, options.block_size)
    with_scores = DraftOptions(keep_log_probs=True)
    drafter = NatDrafter(context.drafter, width, context.engine, with_scores, without_verifier=True)
    return Method(DrafterIsVerifier(context.engine), drafter, GreedySearch(accept_all))


METHODS = [
    MethodSpec(
        name="nat",
        summary="the drafter alone",
        drafts="NAT model",
        accepts="every draft",
        paper='"NAT drafter" rows',
        options=NatOptions,
        is_lossless=False,
        needs_drafter=lambda options: True,
        runs_verifier=False,
        accepts_exactly=lambda options: False,
        check_fit=_check_fit,
        build=_build,
        accept_reason="unverified",
        relaxed_reason="unverified",
        order=20,
    )
]
