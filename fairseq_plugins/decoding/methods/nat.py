"""The drafter alone: every draft is accepted, as in the papers' rows "NAT drafter"."""

from dataclasses import dataclass
from typing import Optional

from fairseq_plugins.decoding.drafters.nat import NatDrafter
from fairseq_plugins.decoding.drafters.trained import check_drafter, drafted_tokens
from fairseq_plugins.decoding.method import Method, MethodOptions, MethodSpec, Parts, option
from fairseq_plugins.decoding.search import GreedySearch
from fairseq_plugins.decoding.search.rules import everything
from fairseq_plugins.decoding.verifier import DrafterIsVerifier
from fairseq_plugins.errors import ConfigurationError


@dataclass(frozen=True)
class NatOptions(MethodOptions):
    """Options of `nat`."""

    block_size: Optional[int] = option(None)


def _check_fit(parts: Parts, options: NatOptions) -> None:
    assert parts.drafter is not None
    if parts.drafter.reads_features:
        raise ConfigurationError(
            "--decoder nat: this drafter (--drafter-context features) reads the verifier's states and cannot decode "
            "alone; use --decoder gad with --path VERIFIER.pt --drafter-path DRAFTER.pt"
        )
    check_drafter(parts, options.block_size)


def _build(parts: Parts, options: NatOptions) -> Method:
    assert parts.drafter is not None and not parts.drafter.reads_features
    width = drafted_tokens(parts.drafter, options.block_size)
    drafter = NatDrafter(parts.drafter, width, parts.engine, alone=True)
    return Method(DrafterIsVerifier(parts.engine), drafter, GreedySearch(everything))


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
        check_fit=_check_fit,
        build=_build,
        agreed="unverified",
        relaxed="unverified",
        order=20,
    )
]
