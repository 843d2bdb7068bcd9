"""The decoding methods by name: their options, what they refuse, and the parts that make each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.decoding import native
from fairseq_plugins.decoding.acceptance import Rule, at_least, everything, exact, top_beta, within_distance
from fairseq_plugins.decoding.drafters import Drafter, DraftOptions, NoDrafter
from fairseq_plugins.decoding.drafters.blockwise import BlockwiseDrafter
from fairseq_plugins.decoding.drafters.features import FeatureDrafter
from fairseq_plugins.decoding.drafters.jacobi import JacobiDrafter
from fairseq_plugins.decoding.drafters.nat import NatDrafter
from fairseq_plugins.decoding.drafters.source_copy import SourceCopyDrafter
from fairseq_plugins.decoding.drafters.vocabulary import draft_vocabulary
from fairseq_plugins.decoding.generator import Method
from fairseq_plugins.decoding.verifier import DrafterIsVerifier, Verifier
from fairseq_plugins.decoding.weights import Precision
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat, dictionary_fingerprint
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer
from fairseq_plugins.models.supported import unsupported_reason

ALIASES = {
    "specdec": "gad",
    "specdec++": "gad++",
    "pj": "jacobi",
    "pgj": "gs-jacobi",
    "hgj": "hybrid-jacobi",
}
DRAFTED_BY_NAT = ("nat", "gad", "gad++")
JACOBI = ("jacobi", "gs-jacobi", "hybrid-jacobi")
# What they say depends on the drafter and on what is accepted, not on the verifier alone.
NOT_LOSSLESS = ("nat", "gad++", "blockwise")
DECODERS = ["beam", "greedy", *DRAFTED_BY_NAT, "blockwise", "iad", *JACOBI, *ALIASES]

# b of GS-Jacobi where --block-size does not say it, and h of hybrid GS-Jacobi.
JACOBI_BLOCK_SIZE = 5
JACOBI_LENGTH = 50

# The settings of GAD Table 1, (top-beta, tau).
PRESETS = {"high-quality": (3, 1.0), "high-efficiency": (5, 3.0)}


@dataclass
class Options:
    """How to decode, aliases and presets resolved."""

    decoder: str
    block_size: int | None = None
    auto_block_size: bool = False
    draft_vocabulary: float | None = None
    top_beta: int = 1
    tau: float = 0.0
    accept_score: str = "verifier"
    temperature: float = 1.0
    accept_distance: float | None = None
    min_block: int = 1
    iad_fallback: str = "none"
    iad_lookup: str = "unique"
    jacobi_init: str = "pad"
    jacobi_length: int = JACOBI_LENGTH
    jacobi_pool: bool = False
    int8: bool = False
    fp32_drafts: bool = False

    @property
    def label(self) -> str:
        """Name of the decoder for people, which says so where the output is not that of the model in fp32."""
        return f"{self.decoder} int8 (lossy: weights rounded)" if self.int8 else self.decoder

    @property
    def needs_drafter(self) -> bool:
        """Whether a NAT drafter takes part."""
        return self.decoder in DRAFTED_BY_NAT or (self.decoder == "iad" and self.iad_fallback == "gad")

    @property
    def reads_drafter_scores(self) -> bool:
        """Whether what is accepted depends on the drafter's scores, not on its tokens alone."""
        return self.decoder == "gad++" and self.accept_score == "drafter"

    @property
    def precision(self) -> Precision:
        """Of the verifier, and of a drafter that is not rounded further."""
        return Precision.INT8_WEIGHTS if self.int8 else Precision.FP32

    @classmethod
    def from_config(cls, cfg: Any) -> "Options":
        """Read the task's options."""
        beta, tau = PRESETS.get(str(cfg.preset), (cfg.top_beta, cfg.tau))
        decoder = str(cfg.decoding_method)
        return cls(
            decoder=ALIASES.get(decoder, decoder),
            block_size=cfg.block_size,
            auto_block_size=cfg.auto_block_size,
            draft_vocabulary=cfg.draft_vocabulary,
            top_beta=beta,
            tau=tau,
            accept_score=str(cfg.accept_score),
            accept_distance=cfg.accept_distance,
            min_block=cfg.min_block,
            iad_fallback=str(cfg.iad_fallback),
            iad_lookup=str(cfg.iad_lookup),
            jacobi_init=str(cfg.jacobi_init),
            jacobi_length=cfg.jacobi_length,
            jacobi_pool=cfg.jacobi_pool,
            int8=cfg.int8,
            fp32_drafts=cfg.fp32_drafts,
        )


def check_options(cfg: Any) -> None:
    """Refuse decoding options that contradict each other or make no sense.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    decoder = Options.from_config(cfg).decoder
    if cfg.block_size is not None and cfg.block_size < 1:
        raise ConfigurationError(f"--block-size {cfg.block_size}: give at least 1 token per draft")
    if cfg.active_sentences < 0:
        raise ConfigurationError(f"--active-sentences {cfg.active_sentences}: give a number of sentences, or 0 for all")
    if cfg.active_sentences and decoder == "beam":
        raise ConfigurationError(
            f"--active-sentences {cfg.active_sentences}: fairseq's own search decodes whole batches; choose another "
            "--decoder"
        )
    if cfg.int8 and decoder == "beam":
        raise ConfigurationError("--int8: fairseq's own search runs in fp32; choose another --decoder")
    if cfg.top_beta < 1:
        raise ConfigurationError(f"--top-beta {cfg.top_beta}: give at least 1, which accepts the verifier's best only")
    if not cfg.tau >= 0:
        raise ConfigurationError(f"--tau {cfg.tau}: a gap of log-probabilities; give 0 or more")
    if cfg.auto_block_size and not Options.from_config(cfg).needs_drafter:
        raise ConfigurationError(f"--auto-block-size: is for trained drafters (gad, gad++), not --decoder {decoder}")
    if cfg.auto_block_size and decoder == "nat":
        raise ConfigurationError("--auto-block-size: --decoder nat has no verifier to say how many tokens pay")
    if cfg.draft_vocabulary is not None:
        if not 0 < cfg.draft_vocabulary <= 1:
            raise ConfigurationError(
                f"--draft-vocabulary {cfg.draft_vocabulary}: a share of the training targets; give above 0, to 1"
            )
        if not Options.from_config(cfg).needs_drafter or decoder == "nat":
            raise ConfigurationError(
                f"--draft-vocabulary {cfg.draft_vocabulary}: is for trained drafters and a verifier (gad, gad++), not "
                f"--decoder {decoder}"
            )
    relaxed = cfg.top_beta != 1 or cfg.tau != 0
    if str(cfg.preset) != "none" and relaxed:
        raise ConfigurationError(f"--preset {cfg.preset}: sets --top-beta and --tau; give either the preset or these")
    if decoder == "gad++" and str(cfg.preset) == "none" and not relaxed:
        raise ConfigurationError(
            "--decoder gad++: accepts no more than gad without its settings; add --preset high-quality, "
            "--preset high-efficiency, or --top-beta and --tau"
        )
    if str(cfg.preset) != "none" and decoder != "gad++":
        raise ConfigurationError(f"--preset {cfg.preset}: is for --decoder gad++, not {decoder}")
    if relaxed and decoder not in ("gad++", "blockwise"):
        raise ConfigurationError(
            f"--top-beta {cfg.top_beta} --tau {cfg.tau}: only --decoder gad++ and blockwise accept more than the best "
            f"token, not {decoder}"
        )
    _check_blockwise(cfg, decoder)
    if cfg.drafter_path is not None and not Options.from_config(cfg).needs_drafter:
        raise ConfigurationError(
            f"--drafter-path {cfg.drafter_path}: --decoder {decoder} uses no drafter; add --decoder gad"
        )
    if cfg.jacobi_length < 1:
        raise ConfigurationError(f"--jacobi-length {cfg.jacobi_length}: give at least 1 token to solve in parallel")
    if decoder != "iad" and (str(cfg.iad_fallback), str(cfg.iad_lookup)) != ("none", "unique"):
        raise ConfigurationError(f"--iad-fallback, --iad-lookup: are for --decoder iad, not {decoder}")
    if decoder not in JACOBI and (str(cfg.jacobi_init) != "pad" or cfg.jacobi_pool):
        raise ConfigurationError(f"--jacobi-init, --jacobi-pool: are for the Jacobi decoders, not {decoder}")


def _check_blockwise(cfg: Any, decoder: str) -> None:
    if decoder != "blockwise" and (cfg.accept_distance is not None or cfg.min_block != 1):
        raise ConfigurationError(f"--accept-distance, --min-block: are for --decoder blockwise, not {decoder}")
    if cfg.accept_distance is not None and not cfg.accept_distance >= 0:
        raise ConfigurationError(f"--accept-distance {cfg.accept_distance}: a difference of numbers; give 0 or more")
    if cfg.accept_distance is not None and cfg.top_beta > 1:
        raise ConfigurationError("--accept-distance, --top-beta: two ways to accept more; give one of them")
    if cfg.min_block < 1 or (cfg.block_size is not None and cfg.min_block > cfg.block_size):
        raise ConfigurationError(
            f"--min-block {cfg.min_block}: give at least 1, and at most the block size ({cfg.block_size})"
        )


def refuse_search_options(args: Any, prefix_allowed_tokens_fn: Any) -> None:
    """Refuse generation options that ask for another search than greedy, or for what drafting does not compute.

    Args:
        args: fairseq's generation options.
        prefix_allowed_tokens_fn: as for fairseq's `build_generator`.

    Raises:
        ConfigurationError: naming the option.
    """
    refused = {
        "sampling": getattr(args, "sampling", False),
        "diverse-beam-groups": getattr(args, "diverse_beam_groups", -1) > 0,
        "diversity-rate": getattr(args, "diversity_rate", -1) > -1,
        "match-source-len": getattr(args, "match_source_len", False),
        "constraints": getattr(args, "constraints", None),
        "print-alignment": getattr(args, "print_alignment", None),
        "retain-dropout": getattr(args, "retain_dropout", False),
        "nbest": getattr(args, "nbest", 1) > 1,
        "prefix-allowed-tokens-fn": prefix_allowed_tokens_fn is not None,
    }
    for option, given in refused.items():
        if given:
            raise ConfigurationError(f"--{option}: is not supported when drafting; leave it out or use --decoder beam")


def check_fit(
    models: Sequence[nn.Module],
    drafter: BlockNat | None,
    options: Options,
    source_dictionary: Dictionary,
    target_dictionary: Dictionary,
) -> None:
    """Check that verifiers, drafter and dictionaries can decode together.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    if options.decoder != "nat":
        for model in models:
            reason = unsupported_reason(getattr(model, "decoder", model))
            if reason is not None:
                raise ConfigurationError(
                    f"--path: this {type(model).__name__} cannot be decoded with --decoder {options.decoder}: "
                    f"{reason}; use --decoder beam"
                )
    if options.int8:
        _check_int8(models)
    copies_source = options.decoder == "iad" or (options.decoder in JACOBI and options.jacobi_init == "source")
    if copies_source and source_dictionary != target_dictionary:
        raise ConfigurationError(
            f"--decoder {options.decoder}: copies source tokens into the output, but the dictionaries of source and "
            "target differ; binarise with fairseq-preprocess --joined-dictionary, or use another decoder"
        )
    if options.decoder == "blockwise":
        _check_heads(models, options, target_dictionary)
    if drafter is None:
        return
    if options.decoder == "nat" and drafter.reads_features:
        raise ConfigurationError(
            "--decoder nat: this drafter (--drafter-context features) reads the verifier's states and cannot decode "
            "alone; use --decoder gad with --path VERIFIER.pt --drafter-path DRAFTER.pt"
        )
    if int(drafter.decoder.dictionary_fingerprint) != int(dictionary_fingerprint(target_dictionary)):
        raise ConfigurationError(
            "--drafter-path: the drafter was trained with another target dictionary than this data folder's; "
            "binarise both with the same dictionaries (fairseq-preprocess --srcdict/--tgtdict)"
        )
    if (options.draft_vocabulary or 1) < 1 and not drafter.decoder.target_counts.any():
        raise ConfigurationError(
            f"--draft-vocabulary {options.draft_vocabulary}: this drafter was trained before its targets were counted; "
            "train it on for an epoch, or leave the option out"
        )
    trained = int(drafter.decoder.trained_block_size)
    if options.block_size is not None and options.block_size > trained:
        raise ConfigurationError(
            f"--block-size {options.block_size}: the drafter was trained for blocks of {trained}; give at most "
            f"{trained} or train a drafter with --block-size {options.block_size}"
        )


def _check_int8(models: Sequence[nn.Module]) -> None:
    for parameter in (next(model.parameters()) for model in models):
        if parameter.device.type != "cpu":
            raise ConfigurationError(
                f"--int8: is for the CPU, and this model is on {parameter.device.type}; add --cpu, or use --fp16 there"
            )
        if parameter.dtype != torch.float32:
            name = str(parameter.dtype).removeprefix("torch.")
            raise ConfigurationError(f"--int8: rounds fp32 weights, and this model is in {name}; leave out --fp16")


def _check_heads(models: Sequence[nn.Module], options: Options, dictionary: Dictionary) -> None:
    if len(models) > 1 or not isinstance(models[0], BlockwiseTransformer):
        what = "several models" if len(models) > 1 else f"a {type(models[0]).__name__} without heads"
        raise ConfigurationError(
            f"--decoder blockwise: --path holds {what}; give one blockwise_transformer (train one with fairseq-train "
            "--arch blockwise_transformer --base-path MODEL.pt)"
        )
    heads = models[0].decoder.heads
    width = options.block_size or heads
    if width > heads:
        raise ConfigurationError(f"--block-size {width}: the model has {heads} heads; give at most {heads}")
    if options.min_block > width:
        raise ConfigurationError(f"--min-block {options.min_block}: more than the block size; give at most {width}")
    if options.accept_distance is not None and _numbers(dictionary).isnan().all():
        raise ConfigurationError(
            f"--accept-distance {options.accept_distance}: no symbol of the target dictionary is a number; leave it out"
        )


def _numbers(dictionary: Dictionary) -> Tensor:
    """The number [V] that each symbol stands for, NaN for those that are none."""

    def number(symbol: str) -> float:
        try:
            return float(symbol)
        except ValueError:
            return math.nan

    return torch.tensor([number(symbol) for symbol in dictionary.symbols])


def _blockwise_rule(options: Options, dictionary: Dictionary) -> Rule:
    rule = exact
    if options.accept_distance is not None:
        rule = within_distance(options.accept_distance, _numbers(dictionary))
    elif options.top_beta > 1:
        # Stern et al. ask for the rank only (section 5.1); a gap counts where one was given.
        rule = top_beta(options.top_beta, options.tau or math.inf)
    return at_least(options.min_block, rule) if options.min_block > 1 else rule


def build(models: Sequence[nn.Module], drafter: BlockNat | None, options: Options, dictionary: Dictionary) -> Method:
    """Make the method that the options name.

    Args:
        models: the verifier, or several as an ensemble; unused by `nat`.
        drafter: for methods that need one.
        options: the method and its settings.
        dictionary: target dictionary.
    """
    if options.decoder == "nat":
        assert drafter is not None and not drafter.reads_features
        alone = NatDrafter(drafter, _width(drafter, options), DraftOptions(precision=options.precision), alone=True)
        return Method(DrafterIsVerifier(), alone, everything)
    rule = exact
    if options.decoder == "blockwise":
        heads = BlockwiseDrafter(models[0], options.block_size or models[0].decoder.heads)
        verifier = Verifier(models, options.temperature, precision=options.precision)
        return Method(verifier, heads, _blockwise_rule(options, dictionary))
    if options.decoder == "gad++":
        rule = top_beta(options.top_beta, options.tau, options.accept_score)
    feature_layers = drafter.decoder.reader.feature_layers if drafter is not None and drafter.reads_features else ()
    verifier = Verifier(models, options.temperature, feature_layers, options.precision)
    return Method(verifier, _drafter(drafter, options, dictionary), rule)


def _drafter(model: BlockNat | None, options: Options, dictionary: Dictionary) -> Drafter:
    if options.decoder == "greedy":
        return NoDrafter()
    if options.decoder in JACOBI:
        initial = {"pad": dictionary.pad(), "unk": dictionary.unk(), "source": None}[options.jacobi_init]
        block_size = None if options.decoder == "jacobi" else options.block_size or JACOBI_BLOCK_SIZE
        length = options.jacobi_length if options.decoder == "hybrid-jacobi" else None
        pool = len(dictionary) if options.jacobi_pool else 0
        return JacobiDrafter(dictionary.pad(), block_size, length, initial, pool)
    trained: Drafter | None = None
    if options.needs_drafter:
        assert model is not None
        kind = FeatureDrafter if model.reads_features else NatDrafter
        vocabulary = draft_vocabulary(model.decoder.target_counts, options.draft_vocabulary)
        precision = _draft_precision(model, options)
        how = DraftOptions(options.reads_drafter_scores, options.auto_block_size, vocabulary, precision)
        trained = kind(model, _width(model, options), how)
    if options.decoder == "iad":
        return SourceCopyDrafter(dictionary.pad(), options.iad_lookup == "recent", trained)
    assert trained is not None
    return trained


def _draft_precision(drafter: BlockNat, options: Options) -> Precision:
    """Tokens may come from rounded products, since they are verified; scores that count may not."""
    decoder = drafter.decoder
    may_round = not (options.fp32_drafts or options.reads_drafter_scores)
    if may_round and native.has_int8_products(decoder.embed_dim, decoder.embed_tokens.weight):
        return Precision.INT8_PRODUCTS
    return options.precision


def _width(drafter: BlockNat, options: Options) -> int:
    return options.block_size or int(drafter.decoder.trained_block_size)
