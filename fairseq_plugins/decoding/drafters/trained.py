"""The drafter of `--drafter-path`, for every method that has one: its options, what it must fit, how it is made."""

from dataclasses import dataclass, replace
from typing import Optional

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.drafters.adaptive import AdaptiveDrafter
from fairseq_plugins.decoding.drafters.features import FeatureDrafter
from fairseq_plugins.decoding.drafters.masked_decoder import DraftOptions
from fairseq_plugins.decoding.drafters.nat import NatDrafter
from fairseq_plugins.decoding.drafters.policy import Policy
from fairseq_plugins.decoding.drafters.vocabulary import DEFAULT_SHARE, draft_vocabulary
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.native.kernels import sentences_together
from fairseq_plugins.decoding.engine.weights import Precision
from fairseq_plugins.decoding.method import MethodOptions, Parts, option
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
        "on a CPU: draft in fp32. Where the processor multiplies int8 numbers (AVX2, AVX-512, with VNNI or not), "
        "models less than 512 wide draft with those otherwise, and wider ones that are packed. What is drafted is "
        "verified in fp32: lossless output stays the same, that of gad++ may differ a little",
        lenient=True,
    )


def check_draft_vocabulary(options: TrainedDrafterOptions) -> None:
    """Refuse a share that is none.

    Raises:
        ConfigurationError: naming the option.
    """
    if options.draft_vocabulary is not None and not 0 < options.draft_vocabulary <= 1:
        raise ConfigurationError(
            f"--draft-vocabulary {options.draft_vocabulary}: a share of the training targets; give above 0, to 1"
        )


def check_drafter(parts: Parts, block_size: int | None, vocabulary_share: float | None = None) -> None:
    """Check that drafter, dictionaries and options can decode together.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    assert parts.drafter is not None
    decoder = parts.drafter.decoder
    if int(decoder.dictionary_fingerprint) != int(dictionary_fingerprint(parts.target)):
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
    """Tokens per draft, k: of `--block-size`, or as many as the drafter was trained with."""
    return block_size or int(drafter.decoder.trained_block_size)


def feature_layers(drafter: BlockNat | None) -> tuple[int, ...]:
    """Layers of the verifier whose states the drafter reads, none for a drafter that reads tokens."""
    return tuple(drafter.decoder.reader.feature_layers) if drafter is not None and drafter.reads_features else ()


def trained_drafter(
    parts: Parts, options: TrainedDrafterOptions, reads_log_probs: bool = False, adaptive: bool = False
) -> Drafter:
    """Make the drafter of these parts.

    Args:
        parts: with a drafter.
        options: of the method.
        reads_log_probs: what is accepted depends on the drafter's scores, not on its tokens alone.
        adaptive: verify only what pays.
    """
    model = parts.drafter
    assert model is not None
    vocabulary = draft_vocabulary(model.decoder.target_counts, options.draft_vocabulary)
    how = DraftOptions(reads_log_probs, adaptive or parts.is_traced, vocabulary)
    # What is verified may depend on how many rows a step has.
    engine = replace(parts.engine, steady=False)
    if not (options.fp32_drafts or reads_log_probs):
        engine = _rounding(engine, model)
    kind = FeatureDrafter if model.reads_features else NatDrafter
    drafter = kind(model, drafted_tokens(model, options.block_size), engine, how)
    if not adaptive:
        return drafter
    return AdaptiveDrafter(drafter, Policy(drafter.block_size, sentences_together(model.decoder.embed_dim)))


def _rounding(engine: Engine, drafter: BlockNat) -> Engine:
    """An engine for drafts alone: tokens may come from rounded products, since they are verified."""
    decoder, kernels = drafter.decoder, engine.kernels
    if kernels is None or not kernels.has_int8_products(decoder.embed_dim, decoder.embed_tokens.weight):
        return engine
    return replace(engine, precision=Precision.INT8_PRODUCTS)
