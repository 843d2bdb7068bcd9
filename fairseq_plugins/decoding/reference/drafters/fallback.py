"""A drafter and another one for sentences for which it drafts nothing."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft


class FallbackDrafter(Drafter):
    """Drafts with `first`, and with `second` for sentences whose first draft is empty."""

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self.drafters = first, second

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        for drafter in self.drafters:
            drafter.start(sample, encoder_out)

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        for drafter in self.drafters:
            drafter.append_rows(sample, encoder_out)

    def draft(self, state: DecodingState) -> Draft:
        drafts = [drafter.draft(state) for drafter in self.drafters]
        width = max(draft.tokens.size(1) for draft in drafts)
        first, second = (F.pad(draft.tokens, (0, width - draft.tokens.size(1))) for draft in drafts)
        num_first, num_second = map(Draft.counts, drafts)
        is_empty = num_first == 0
        tokens = torch.where(is_empty[:, None], second, first)
        return Draft(tokens, torch.where(is_empty, num_second, num_first), from_fallback=is_empty)

    def observe(self, advance: Advance) -> None:
        for drafter in self.drafters:
            drafter.observe(advance)

    def select_rows(self, rows: Tensor) -> None:
        for drafter in self.drafters:
            drafter.select_rows(rows)
