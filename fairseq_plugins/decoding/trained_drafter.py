"""The trained drafter of `--drafter-path`, alone or as fallback: options, loading, checks and construction."""

from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from torch import nn

from fairseq_plugins.checkpoint.loading import build_model, read_checkpoint, unwrap
from fairseq_plugins.checkpoint.mapped_weights import TakeWeights
from fairseq_plugins.checkpoint.settings import model_name
from fairseq_plugins.decoding.kernel_module import AnyDrafter, KernelPolicy, Unsupported
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, fixed_width_option, option
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.drafters.fallback import FallbackDrafter
from fairseq_plugins.decoding.reference.drafters.features import FeatureDrafter, fused_reader
from fairseq_plugins.decoding.reference.drafters.nat import NatDrafter
from fairseq_plugins.decoding.reference.drafters.path import DEFAULT_SHARE, DraftOptions, draft_vocabulary
from fairseq_plugins.decoding.weights import linear, read_decoder_layer, without_query
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat, dictionary_fingerprint


@dataclass(frozen=True)
class TrainedDrafterOptions(MethodOptions):
    """Options of all methods that draft with a trained model."""

    block_size: Optional[int] = option(None)
    draft_vocabulary: Optional[float] = option(
        None,
        "limit drafts to the most frequent tokens, which make up this share of the drafter's training targets; fewer "
        f"tokens make drafts cheaper, 1 allows all (default: {DEFAULT_SHARE})",
    )
    fp32_drafts: bool = option(
        False,
        "CPU: draft in fp32. Without it, the drafter's weights and inputs are rounded to int8, which is faster. "
        "Drafts are verified in fp32, so only the output of gad++ may differ",
        ignored_by_other_methods=True,
    )


def drafter_in(model: nn.Module) -> BlockNat | None:
    """Return the drafter inside of fairseq's wrappers for distributed training, None for other models."""
    model = unwrap(model)
    return model if isinstance(model, BlockNat) else None


def load_drafter(path: str, verifier: nn.Module, task: Any) -> BlockNat:
    """Load a drafter for a verifier; raise ConfigurationError if they do not fit each other."""
    option = "--drafter-path"
    state, cfg = read_checkpoint(path, option)
    if model_name(cfg).startswith("block_nat"):
        if getattr(cfg, "tune_verifier", False):
            remedy = "part them with python -m train_scripts.tools split-verifier, and decode with both"
            raise ConfigurationError(option, path, "holds a verifier of its own ({--tune-verifier})", remedy)
        if getattr(cfg, "positions_every_layer", False):
            raise ConfigurationError(option, path, "was trained with --positions-every-layer, now gone", "train anew")
        try:
            # Before it is built: its options name layers and widths of its own verifier.
            BlockNat.check_verifier(state["model"], cfg, verifier)
        except ValueError as error:
            remedy = "give the verifier that it was trained with as {--path}, or train a drafter for this one"
            raise ConfigurationError(option, path, f"{error} than {{--path}}", remedy) from error
    with TakeWeights():
        drafter = build_model(state, cfg, path, task, option, required=BlockNat, verifier=verifier)
    assert isinstance(drafter, BlockNat)
    return drafter


def check_draft_vocabulary(options: TrainedDrafterOptions) -> None:
    """Raise ConfigurationError for a share outside (0, 1]."""
    if options.draft_vocabulary is not None and not 0 < options.draft_vocabulary <= 1:
        problem = "must be in (0, 1], a share of the training targets"
        raise ConfigurationError("--draft-vocabulary", options.draft_vocabulary, problem)


def check_drafter(context: MethodContext, block_size: int | None, vocabulary_share: float | None = None) -> None:
    """Raise ConfigurationError if drafter, dictionaries and options do not fit each other."""
    assert context.drafter is not None
    decoder = context.drafter.decoder
    if int(decoder.dictionary_fingerprint) != int(dictionary_fingerprint(context.target)):
        problem = "the drafter was trained with another target dictionary than this data folder's"
        remedy = "binarise both with the same dictionaries (fairseq-preprocess --srcdict/--tgtdict)"
        raise ConfigurationError("--drafter-path", None, problem, remedy)
    if (vocabulary_share or 1) < 1 and not decoder.target_counts.any():
        problem = "this drafter was trained before its targets were counted"
        remedy = "train it on for an epoch, or leave the option out"
        raise ConfigurationError("--draft-vocabulary", vocabulary_share, problem, remedy)
    trained = int(decoder.trained_block_size)
    if block_size is not None and block_size > trained:
        remedy = f"give at most {trained} or train a drafter with {{--block-size {block_size}}}"
        raise ConfigurationError("--block-size", block_size, f"the drafter was trained for blocks of {trained}", remedy)


def drafted_tokens(drafter: BlockNat, block_size: int | None) -> int:
    """Return tokens per draft, k: `--block-size`, or the block size of training."""
    return block_size or int(drafter.decoder.trained_block_size)


def trained_drafter(
    context: MethodContext, options: TrainedDrafterOptions, is_exact: bool = True, reads_log_probs: bool = False
) -> FeatureDrafter | NatDrafter:
    """Make the drafter of a context.

    Unless acceptance `is_exact` the output depends on the drafts, and may on their scores (`reads_log_probs`).
    """
    model = context.drafter
    assert model is not None
    vocabulary = draft_vocabulary(model.decoder.target_counts, options.draft_vocabulary)
    draft_options = DraftOptions(reads_log_probs, context.is_traced, vocabulary, context.sampling)
    engine = replace(context.engine, batch_invariant=context.engine.batch_invariant and not is_exact)
    kind = FeatureDrafter if model.reads_features else NatDrafter
    return kind(model, drafted_tokens(model, options.block_size), engine, draft_options)


def kernel_drafter(context: MethodContext, options: TrainedDrafterOptions) -> AnyDrafter:
    """Make the drafter of a context for kernels; raise Unsupported if they do not support it."""
    model, weights = context.drafter, context.weights
    assert model is not None and weights is not None
    decoder = model.decoder
    vocabulary = draft_vocabulary(decoder.target_counts, options.draft_vocabulary)
    if not options.fp32_drafts:
        weights = weights.for_drafts()
    transformer = weights.drafter_decoder(decoder, vocabulary)
    path, mask = weights.path(decoder, vocabulary), weights.mask_weights(decoder)
    width, module = drafted_tokens(model, options.block_size), weights.module
    if not model.reads_features:
        encoder = None if model.shares_encoder else weights.encoder(model.encoder)
        if encoder is None and not model.shares_encoder:
            raise Unsupported("the drafter's encoder is not a plain Transformer")
        caches_prefix = decoder.drafter_attention == "prefix-causal"
        return module.token_drafter(transformer, encoder, path, mask, caches_prefix=caches_prefix, width=width)
    layers = [read_decoder_layer(layer) for layer in decoder.layers]
    fused = fused_reader(decoder.reader, layers, weights.may_fuse)
    separate = [linear(decoder.reader.linear), *(without_query(layer.self_qkv) for layer in layers)]
    reader, *projections = map(weights.linear, separate if fused is None else [fused])
    return module.feature_drafter(
        transformer,
        path,
        mask,
        layers=decoder.reader.feature_layers,
        reader=reader,
        projections=projections,
        width=width,
    )


def kernel_policy(context: MethodContext, options: TrainedDrafterOptions) -> KernelPolicy:
    """Return the policy, initialised with the acceptance counts of the drafter's validation set if it has them."""
    model, weights = context.drafter, context.weights
    assert model is not None and weights is not None
    policy = weights.module.Policy(drafted_tokens(model, options.block_size), context.counts_survival)
    drafted, accepted = model.decoder.survival_counts.double().cpu()
    if drafted.any() and not context.counts_survival:
        # Validation verifies every draft in full.
        policy.learn(drafted, accepted)
    return policy


def store_survival(policy: Any, drafter: BlockNat) -> None:
    """Store the counts of a policy (`MethodContext.counts_survival`) in the drafter, for its checkpoint."""
    _, _, drafted, accepted = policy.counts()
    counts = drafter.decoder.survival_counts
    counts.copy_(torch.tensor([drafted, accepted]).view_as(counts).round())


@dataclass(frozen=True)
class FallbackOptions(TrainedDrafterOptions):
    """Options of methods that copy, and of their fallback drafter."""

    iad_fallback: ChoiceEnum(["none", "gad"]) = option(  # type: ignore[valid-type]
        "none", "drafter for iterations with nothing to copy; gad is the model of --drafter-path"
    )
    fixed_width: bool = fixed_width_option()


def has_fallback(options: FallbackOptions) -> bool:
    """Return whether a trained drafter is the fallback."""
    return str(options.iad_fallback) == "gad"


def check_fallback(options: FallbackOptions) -> None:
    """Raise ConfigurationError for options of a trained drafter without one."""
    check_draft_vocabulary(options)
    if options.draft_vocabulary is not None and not has_fallback(options):
        remedy = "add {--iad-fallback gad}, or leave it out"
        raise ConfigurationError("--draft-vocabulary", options.draft_vocabulary, "is for trained drafters", remedy)


def check_fallback_fit(context: MethodContext, options: FallbackOptions) -> None:
    """Check the trained drafter, if there is one."""
    if has_fallback(options):
        check_drafter(context, options.block_size, options.draft_vocabulary)


def with_fallback(drafter: Drafter, context: MethodContext, options: FallbackOptions) -> Drafter:
    """Return the drafter, with a trained one as fallback if the options name one."""
    return FallbackDrafter(drafter, trained_drafter(context, options)) if has_fallback(options) else drafter


def kernel_with_fallback(drafter: AnyDrafter, context: MethodContext, options: FallbackOptions) -> AnyDrafter:
    """As `with_fallback`, for kernels."""
    if not has_fallback(options):
        return drafter
    return context.kernel_weights.module.fallback_drafter(drafter, kernel_drafter(context, options))
