"""GAD (SpecDec) and GAD++ (SpecDec++): a NAT model drafts, the verifier accepts exactly or with two thresholds."""

from dataclasses import dataclass, replace

from fairseq.dataclass import ChoiceEnum

from fairseq_plugins.decoding.checks import check_thresholds
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.method import (
    KernelMethod,
    Method,
    MethodContext,
    MethodSpec,
    draft_and_verify,
    fixed_width_option,
    option,
)
from fairseq_plugins.decoding.reference.search.rules import TopBeta
from fairseq_plugins.decoding.trained_drafter import (
    TrainedDrafterOptions,
    check_draft_vocabulary,
    check_drafter,
    kernel_drafter,
    kernel_policy,
    trained_drafter,
)
from fairseq_plugins.errors import ConfigurationError

# The settings of GAD Table 1, (top-beta, tau).
PRESETS = {"high-quality": (3, 1.0), "high-efficiency": (5, 3.0)}


@dataclass(frozen=True)
class ExactOptions(TrainedDrafterOptions):
    """Options of `gad`."""

    fixed_width: bool = fixed_width_option()


@dataclass(frozen=True)
class RelaxedOptions(TrainedDrafterOptions):
    """Options of `gad++`."""

    top_beta: int = option(1, "accept drafted tokens among the verifier's best BETA (GAD eq. 8)")
    tau: float = option(0.0, "accept drafted tokens whose log-probability is at most TAU below the best (GAD eq. 9)")
    accept_score: ChoiceEnum(["verifier", "drafter"]) = option(  # type: ignore[valid-type]
        "verifier",
        "model that scores the drafted token for --tau and --top-beta; drafter as in SpecDec eq. 6-7, read literally",
        ignored_by_other_methods=True,
    )
    preset: ChoiceEnum(["none", *PRESETS]) = option(  # type: ignore[valid-type]
        "none",
        "the papers' settings: high-quality = --top-beta 3 --tau 1, high-efficiency = --top-beta 5 --tau 3",
    )

    @property
    def resolved(self) -> "RelaxedOptions":
        if self.preset == "none":
            return self
        beta, tau = PRESETS[self.preset]
        return replace(self, top_beta=beta, tau=tau)


def _check_relaxed(options: RelaxedOptions) -> None:
    check_draft_vocabulary(options)
    check_thresholds(options.top_beta, options.tau)
    relaxed = options.top_beta != 1 or options.tau != 0
    if options.preset != "none" and relaxed:
        problem = "sets {--top-beta} and {--tau}"
        raise ConfigurationError("--preset", options.preset, problem, "give either the preset or these")
    if options.preset == "none" and not relaxed:
        remedy = "add {--preset high-quality}, {--preset high-efficiency}, or {--top-beta} and {--tau}"
        raise ConfigurationError("--decoder", "gad++", "accepts no more than gad without its settings", remedy)


def _check_fit(context: MethodContext, options: TrainedDrafterOptions) -> None:
    check_drafter(context, options.block_size, options.draft_vocabulary)


def _build(context: MethodContext, options: ExactOptions) -> Method:
    return draft_and_verify(context, trained_drafter(context, options))


def _build_kernels(context: MethodContext, options: ExactOptions) -> KernelMethod:
    policy = None if options.fixed_width else kernel_policy(context, options)
    return KernelMethod(context.kernel_weights, kernel_drafter(context, options), policy=policy)


def _build_relaxed(context: MethodContext, options: RelaxedOptions) -> Method:
    drafter = trained_drafter(context, options, is_exact=False, reads_log_probs=options.accept_score == "drafter")
    return draft_and_verify(context, drafter, TopBeta(options.top_beta, options.tau, options.accept_score))


def _build_relaxed_kernels(context: MethodContext, options: RelaxedOptions) -> KernelMethod:
    if options.accept_score == "drafter":
        raise Unsupported("--accept-score drafter: needs the drafter's scores of all tokens")
    # No policy: the output depends on the number of verified tokens and must not differ from run to run.
    acceptance = context.kernel_weights.module.accept_top_beta(options.top_beta, options.tau)
    return KernelMethod(context.kernel_weights, kernel_drafter(context, options), acceptance)


METHODS = [
    MethodSpec(
        name="gad",
        aliases=("specdec",),
        summary="draft with the model of --drafter-path and verify, the output of --beam 1",
        drafts="NAT model",
        accepts="exact top-1",
        paper="GAD, SpecDec",
        options=ExactOptions,
        needs_drafter=lambda options: True,
        check=check_draft_vocabulary,
        check_fit=_check_fit,
        build=_build,
        build_kernels=_build_kernels,
        rows={"gad": {}, "gad fixed width": {"fixed_width": True}},
        order=30,
    ),
    MethodSpec(
        name="gad++",
        aliases=("specdec++",),
        summary="the same, relaxed by --top-beta and --tau or a --preset",
        drafts="NAT model",
        accepts="top-β and score gap ≤ τ",
        paper="GAD++, SpecDec++",
        options=RelaxedOptions,
        is_lossless=False,
        accepts_exactly=lambda options: False,
        needs_drafter=lambda options: True,
        check=_check_relaxed,
        check_fit=_check_fit,
        build=_build_relaxed,
        build_kernels=_build_relaxed_kernels,
        relaxed_reason="top-beta",
        rows={f"gad++ {preset}": {"preset": preset} for preset in PRESETS},
        order=31,
    ),
]
