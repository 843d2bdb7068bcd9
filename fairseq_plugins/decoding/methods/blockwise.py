"""Blockwise decoding: heads on the verifier propose the next tokens out of its last verification."""

import math
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_plugins.decoding.checks import check_thresholds
from fairseq_plugins.decoding.drafters.compiled import CompiledDrafter
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.engine.native.build import HeadsStructure, LinearStructure
from fairseq_plugins.decoding.engine.native.layers import NativeLinear, check
from fairseq_plugins.decoding.engine.weights import Precision, linear
from fairseq_plugins.decoding.method import Method, MethodOptions, MethodSpec, Parts, option
from fairseq_plugins.decoding.search import GreedySearch
from fairseq_plugins.decoding.search.rules import Rule, TopBeta, at_least, exact, within_distance
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft
from fairseq_plugins.decoding.verifier import Verifier
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.blockwise_transformer import BlockwiseDecoder, BlockwiseTransformer


class BlockwiseDrafter(CompiledDrafter):
    """Proposals of heads 2 .. k, from the verifier's state at the last accepted token (Stern et al. 2018, section 4).

    Verification and the next prediction are one call of the model: its head 1 verifies the proposals, and the state
    that it computed at the bifurcation is what the other heads read.

    Args:
        model: the verifier, with its heads.
        block_size: tokens per iteration, k: at most the number of heads.
        cached: the verifier's decoder, for compiled heads; None for none.
    """

    kernel_part = "heads"
    reads_encoder = False

    def __init__(self, model: BlockwiseTransformer, block_size: int, cached: CachedDecoder | None = None) -> None:
        self.decoder = model.decoder
        self.block_size = block_size
        self.compiled = None if cached is None else CompiledHeads.of(model.decoder, block_size, cached)
        self.projection = None if self.compiled is None else self.compiled.projection
        self.proposals = torch.empty(0, 0, dtype=torch.long)
        # How many of them are meant, None for all: of sentences that have just come in, none.
        self.num_proposed: Tensor | None = None

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        # Before the first call of the model there is nothing to propose.
        source = sample["net_input"]["src_tokens"]
        self.proposals = source.new_empty(source.size(0), 0)
        self.num_proposed = None

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        present, width = self.proposals.shape
        new = sample["net_input"]["src_tokens"].size(0)
        counts = self.proposals.new_full((present,), width) if self.num_proposed is None else self.num_proposed
        self.num_proposed = F.pad(counts, (0, new))
        self.proposals = F.pad(self.proposals, (0, 0, 0, new))

    def draft(self, state: DecodingState) -> Draft:
        proposals = self.proposals[:, : max(0, state.max_len - state.span.shortest)]
        return Draft(proposals, None if self.num_proposed is None else self.num_proposed.clamp(max=proposals.size(1)))

    def observe(self, advance: Advance) -> None:
        assert advance.hidden is not None
        states = self.decoder.head_states(advance.last(advance.hidden)[:, 0], 2, self.block_size)
        self.proposals = self.decoder.project(states).argmax(-1)
        self.num_proposed = None

    @property
    def widest(self) -> int:
        return self.block_size - 1

    @property
    def is_compiled(self) -> bool:
        return self.compiled is not None

    def structure(self, slots: int, batch: int, verifier_width: int) -> tuple[HeadsStructure, list[Any]] | None:
        if self.compiled is None:
            return None
        width = self.proposals.size(1)
        if self.num_proposed is None:
            self.num_proposed = self.proposals.new_full((batch,), width)
        # Before the first call there are none.
        self.proposals = F.pad(self.proposals, (0, self.block_size - 1 - width)).contiguous()
        return self.compiled.structure(self.proposals, self.num_proposed), [self.compiled]

    def select_rows(self, rows: Tensor) -> None:
        self.proposals = self.proposals.index_select(0, rows)
        self.num_proposed = None if self.num_proposed is None else self.num_proposed.index_select(0, rows)


@dataclass(frozen=True)
class CompiledHeads:
    """The layers of the heads for the kernels.

    Attributes:
        expand: what all heads read of a state.
        first: what head 1 adds to the state, None where it is the state itself.
        others: the same of heads 2 .. k.
        projection: to the vocabulary.
    """

    expand: NativeLinear
    first: NativeLinear | None
    others: NativeLinear
    projection: NativeLinear

    @classmethod
    def of(cls, decoder: BlockwiseDecoder, block_size: int, cached: CachedDecoder) -> "CompiledHeads | None":
        """The heads 1 .. k of a decoder; None where the kernels cannot run them."""
        kernels, output, width = cached.engine.kernels, decoder.output_projection, decoder.output_embed_dim
        expand, shrink = linear(decoder.head_expand), linear(decoder.head_shrink)
        is_plain = decoder.project_out_dim is None and isinstance(output, nn.Linear) and block_size > 1
        is_rounded = cached.engine.precision is not Precision.FP32
        if kernels is None or not is_plain or is_rounded or not kernels.can_run(expand):
            return None

        def heads(first: int, last: int) -> NativeLinear:
            rows = slice((first - 1) * width, last * width)
            return kernels.compiled_linear((shrink[0][rows], shrink[1][rows]))

        return cls(
            kernels.compiled_linear(expand),
            None if decoder.identity_first_head else heads(1, 1),
            heads(2, block_size),
            cached.native_output or kernels.compiled_linear(linear(output)),
        )

    def structure(self, proposals: Tensor, num_proposed: Tensor) -> HeadsStructure:
        """For proposals [B, k - 1], of which so many [B] are meant."""
        check("proposals", proposals, (len(num_proposed), proposals.size(1)), torch.long)
        check("numbers of proposals", num_proposed, (len(proposals),), torch.long)
        first = LinearStructure() if self.first is None else self.first.structure
        return HeadsStructure(
            self.expand.structure, first, self.others.structure, proposals.data_ptr(), num_proposed.data_ptr()
        )


@dataclass(frozen=True)
class BlockwiseOptions(MethodOptions):
    """Options of `blockwise`: three ways to accept more, of Stern et al. 2018, section 5."""

    block_size: Optional[int] = option(None)
    top_beta: int = option(
        1,
        "accept proposals among the verifier's best BETA (Stern et al. 2018, section 5.1), without a gap unless --tau "
        "is given",
    )
    tau: float = option(0.0, "with --top-beta: and whose log-probability is at most TAU below the best")
    accept_distance: Optional[float] = option(
        None, "dictionaries of numbers: accept |drafted - best| up to this (Stern et al. 2018, section 5.2)"
    )
    min_block: int = option(1, "add at least this many tokens an iteration (Stern et al. 2018, section 5.3)")


def _check(options: BlockwiseOptions) -> None:
    check_thresholds(options.top_beta, options.tau)
    if options.accept_distance is not None and not options.accept_distance >= 0:
        raise ConfigurationError(
            f"--accept-distance {options.accept_distance}: a difference of numbers; give 0 or more"
        )
    if options.accept_distance is not None and options.top_beta > 1:
        raise ConfigurationError("--accept-distance, --top-beta: two ways to accept more; give one of them")
    if options.min_block < 1 or (options.block_size is not None and options.min_block > options.block_size):
        most = "" if options.block_size is None else f", and at most the block size ({options.block_size})"
        raise ConfigurationError(f"--min-block {options.min_block}: give at least 1{most}")


def _check_fit(parts: Parts, options: BlockwiseOptions) -> None:
    models = parts.models
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
    if options.accept_distance is not None and _numbers(parts.target).isnan().all():
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


def _rule(options: BlockwiseOptions, dictionary: Dictionary) -> Rule:
    rule = exact
    if options.accept_distance is not None:
        rule = within_distance(options.accept_distance, _numbers(dictionary))
    elif options.top_beta > 1:
        # Stern et al. ask for the rank only (section 5.1); a gap counts where one was given.
        rule = TopBeta(options.top_beta, options.tau or math.inf)
    return at_least(options.min_block, rule) if options.min_block > 1 else rule


def _build(parts: Parts, options: BlockwiseOptions) -> Method:
    verifier = Verifier(parts.models, parts.engine, parts.temperature)
    block_size = options.block_size or parts.models[0].decoder.heads
    heads = BlockwiseDrafter(parts.models[0], block_size, verifier.decoders[0])
    return Method(verifier, heads, GreedySearch(_rule(options, parts.target)))


METHODS = [
    MethodSpec(
        name="blockwise",
        summary="the heads of a blockwise_transformer draft, its head 1 verifies",
        drafts="heads on the verifier, out of its last verification",
        accepts="exact, top-β, distance ≤ ε, minimum block",
        paper="Stern et al. 2018",
        options=BlockwiseOptions,
        # Its head 1 need not be the model that the heads were trained on.
        is_lossless=False,
        verifier_class=BlockwiseTransformer,
        check=_check,
        check_fit=_check_fit,
        build=_build,
        agreed="head",
        order=40,
    )
]
