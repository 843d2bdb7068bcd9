"""The trained drafter of `--drafter-path`: its options, checks and construction for all methods that use one."""

from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.drafters.features import FeatureDrafter, fused_reader
from fairseq_plugins.decoding.drafters.masked_decoder import DraftOptions
from fairseq_plugins.decoding.drafters.nat import NatDrafter
from fairseq_plugins.decoding.drafters.vocabulary import DEFAULT_SHARE, draft_vocabulary
from fairseq_plugins.decoding.engine.native import NotNative
from fairseq_plugins.decoding.engine.weights import linear, read_decoder_layer, without_query
from fairseq_plugins.decoding.method import Method, MethodContext, MethodOptions, option
from fairseq_plugins.decoding.search import GreedySearch
from fairseq_plugins.decoding.search.rules import Rule, exact
from fairseq_plugins.decoding.verifier import Verifier
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat, dictionary_fingerprint


@dataclass(frozen=True)
class TrainedDrafterOptions(MethodOptions):
    """Options of all methods that draft with a trained model."""

    block_size: Optional[int] = option(None)
    draft_vocabulary: Optional[float] = option(
        None,
        "draft only the most frequent tokens that make up this share of what the drafter was trained on, 1 for all "
        f"(default: {DEFAULT_SHARE}); fewer make a draft cheaper; lossless output is the same",
    )
    fp32_drafts: bool = option(
        False,
        "on a CPU: draft in fp32. Without it, processors with AVX2 or AVX-512 draft with int8 weights where that is "
        "faster. Drafts are verified in fp32: lossless output stays the same, that of gad++ may differ a little",
        ignored_by_other_methods=True,
    )


def check_draft_vocabulary(options: TrainedDrafterOptions) -> None:
    """Refuse a share outside (0, 1].

    Raises:
        ConfigurationError: naming the option.
    """
    if options.draft_vocabulary is not None and not 0 < options.draft_vocabulary <= 1:
        raise ConfigurationError(
            f"--draft-vocabulary {options.draft_vocabulary}: must be in (0, 1], a share of the training targets"
        )


def check_drafter(context: MethodContext, block_size: int | None, vocabulary_share: float | None = None) -> None:
    """Check that drafter, dictionaries and options fit each other.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    assert context.drafter is not None
    decoder = context.drafter.decoder
    if int(decoder.dictionary_fingerprint) != int(dictionary_fingerprint(context.target)):
        raise ConfigurationError(
            "--drafter-path: the drafter was trained with another target dictionary than this data folder's; "
            "binarise both with the same dictionaries (fairseq-preprocess --srcdict/--tgtdict)"
        )
    if (vocabulary_share or 1) < 1 and not decoder.target_counts.any():
        raise ConfigurationError(
            f"--draft-vocabulary {vocabulary_share}: this drafter was trained before its targets were counted; "
            "train it on for an epoch, or leave the option out"
        )
    trained = int(decoder.trained_block_size)
    if block_size is not None and block_size > trained:
        raise ConfigurationError(
            f"--block-size {block_size}: the drafter was trained for blocks of {trained}; give at most "
            f"{trained} or train a drafter with --block-size {block_size}"
        )


def drafted_tokens(drafter: BlockNat, block_size: int | None) -> int:
    """Return tokens per draft, k: `--block-size`, or the block size of training."""
    return block_size or int(drafter.decoder.trained_block_size)


def verified(context: MethodContext, drafter: Drafter, rule: Rule = exact) -> Method:
    """Return the method that verifies what a drafter drafts.

    Args:
        context: whose trained drafter, if there is one, may read the verifier's states.
        drafter: drafts.
        rule: of acceptance.
    """
    trained = context.drafter
    layers = tuple(trained.decoder.reader.feature_layers) if trained is not None and trained.reads_features else ()
    verifier = Verifier(context.models, context.engine, context.temperature, layers)
    return Method(verifier, drafter, GreedySearch(rule))


def trained_drafter(
    context: MethodContext, options: TrainedDrafterOptions, reads_log_probs: bool = False
) -> FeatureDrafter | NatDrafter:
    """Make the drafter of a context.

    Args:
        context: with a drafter.
        options: of the method.
        reads_log_probs: acceptance depends on the drafter's scores, not only on its tokens.
    """
    model = context.drafter
    assert model is not None
    draft_options = DraftOptions(reads_log_probs, context.is_traced, _vocabulary(model, options))
    # Drafts are verified, so they need not be batch-invariant.
    engine = replace(context.engine, batch_invariant=False)
    kind = FeatureDrafter if model.reads_features else NatDrafter
    return kind(model, drafted_tokens(model, options.block_size), engine, draft_options)


def native_drafter(context: MethodContext, options: TrainedDrafterOptions) -> Any:
    """Make the drafter of a context for the compiled kernels.

    Raises:
        NotNative: for a drafter that the kernels do not support.
    """
    model, weights = context.drafter, context.weights
    assert model is not None and weights is not None
    decoder, vocabulary = model.decoder, _vocabulary(model, options)
    if not options.fp32_drafts:
        weights = weights.for_drafts(decoder.embed_dim, decoder.embed_tokens.weight)
    transformer = weights.drafter_decoder(decoder, vocabulary)
    path, feed = weights.path(decoder, vocabulary), weights.mask_feed(decoder)
    width, module = drafted_tokens(model, options.block_size), weights.module
    if not model.reads_features:
        encoder = None if model.shares_encoder else weights.encoder(model.encoder)
        if encoder is None and not model.shares_encoder:
            raise NotNative("the drafter's encoder is not a plain Transformer")
        caches_prefix = decoder.drafter_attention == "prefix-causal"
        return module.token_drafter(transformer, encoder, path, feed, caches_prefix=caches_prefix, width=width)
    layers = [read_decoder_layer(layer) for layer in decoder.layers]
    fused = fused_reader(decoder.reader, layers, weights.may_be_copied)
    separate = [linear(decoder.reader.linear), *(without_query(layer.self_qkv) for layer in layers)]
    reader, *projections = map(weights.linear, separate if fused is None else [fused])
    return module.feature_drafter(
        transformer,
        path,
        feed,
        layers=decoder.reader.feature_layers,
        reader=reader,
        projections=projections,
        width=width,
    )


def native_policy(context: MethodContext, options: TrainedDrafterOptions) -> Any:
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


def _vocabulary(model: BlockNat, options: TrainedDrafterOptions) -> Tensor | None:
    """Return ids [N] of the tokens that may be drafted, None for all."""
    return draft_vocabulary(model.decoder.target_counts, options.draft_vocabulary)
