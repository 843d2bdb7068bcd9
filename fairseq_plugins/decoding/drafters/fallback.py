"""A trained drafter for sentences without anything to copy (--iad-fallback)."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.drafters.trained import (
    TrainedDrafterOptions,
    check_draft_vocabulary,
    check_drafter,
    native_drafter,
    trained_drafter,
)
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.method import MethodContext, option
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft
from fairseq_plugins.errors import ConfigurationError


class FallbackDrafter:
    """Drafts with `first`, and with `second` for sentences whose first draft is empty."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.first, self.second = first, second

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.first.start(sample, encoder_out)
        self.second.start(sample, encoder_out)

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.first.append_rows(sample, encoder_out)
        self.second.append_rows(sample, encoder_out)

    def draft(self, state: DecodingState) -> Draft:
        drafts = self.first.draft(state), self.second.draft(state)
        width = max(draft.tokens.size(1) for draft in drafts)
        first, second = (F.pad(draft.tokens, (0, width - draft.tokens.size(1))) for draft in drafts)
        num_first, num_second = map(_counts, drafts)
        is_empty = num_first == 0
        tokens = torch.where(is_empty[:, None], second, first)
        return Draft(tokens, torch.where(is_empty, num_second, num_first), from_fallback=is_empty)

    def observe(self, advance: Advance) -> None:
        self.first.observe(advance)
        self.second.observe(advance)

    def select_rows(self, rows: Tensor) -> None:
        self.first.select_rows(rows)
        self.second.select_rows(rows)


def _counts(draft: Draft) -> Tensor:
    """Return the number of tokens of every draft, [B]."""
    counts = draft.num_drafted
    return draft.tokens.new_full((draft.tokens.size(0),), draft.tokens.size(1)) if counts is None else counts


@dataclass(frozen=True)
class FallbackOptions(TrainedDrafterOptions):
    """Options of methods that copy, and of their fallback drafter."""

    iad_fallback: ChoiceEnum(["none", "gad"]) = option(  # type: ignore[valid-type]
        "none", "drafter for sentences without anything to copy; gad = the model of --drafter-path"
    )


def has_fallback(options: FallbackOptions) -> bool:
    """Return whether a trained drafter is the fallback."""
    return str(options.iad_fallback) == "gad"


def check_fallback(options: FallbackOptions) -> None:
    """Refuse options of a trained drafter without one.

    Raises:
        ConfigurationError: naming the option.
    """
    check_draft_vocabulary(options)
    if options.draft_vocabulary is not None and not has_fallback(options):
        raise ConfigurationError(
            f"--draft-vocabulary {options.draft_vocabulary}: is for trained drafters; add --iad-fallback gad, or leave "
            "it out"
        )


def check_fallback_fit(context: MethodContext, options: FallbackOptions) -> None:
    """Check that the trained drafter, if there is one, fits dictionaries and options.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    if has_fallback(options):
        check_drafter(context, options.block_size, options.draft_vocabulary)


def with_fallback(drafter: Drafter, context: MethodContext, options: FallbackOptions) -> Drafter:
    """Return the drafter, with a trained one as fallback if the options name one."""
    return FallbackDrafter(drafter, trained_drafter(context, options)) if has_fallback(options) else drafter


def native_with_fallback(drafter: Any, context: MethodContext, options: FallbackOptions) -> Any:
    """Return the drafter for the compiled kernels, with a trained one as fallback if the options name one.

    Raises:
        NotNative: for a drafter that the kernels do not support.
    """
    if not has_fallback(options):
        return drafter
    return context.native_weights.module.fallback_drafter(drafter, native_drafter(context, options))
