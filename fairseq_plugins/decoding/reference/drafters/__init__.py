"""Drafters: their interface, and the one that drafts nothing."""

from typing import Any

from torch import Tensor

from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft, no_draft


class Drafter:
    """Guesses the next tokens from the state of a batch. The other methods are for drafters that keep a state."""

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        """Begin a fairseq batch; `encoder_out` is that of the (first) verifier's encoder, None without a verifier."""

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        """Append admitted sentences, which have no tokens yet, after the active ones: see `--active-sentences`.

        Their padded length may differ from that of the active ones. Arguments as for `start`, of the admitted
        sentences.
        """

    def draft(self, state: DecodingState) -> Draft:
        """Guess up to `state.remaining` tokens for every sentence."""
        raise NotImplementedError

    def observe(self, advance: Advance) -> None:
        """Update the drafter after an iteration, whose tokens are already in the state."""

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows [B'], indices into the current batch."""


class NoDrafter(Drafter):
    """Drafts nothing: each iteration is a step of greedy decoding or beam search."""

    def draft(self, state: DecodingState) -> Draft:
        return no_draft(state)
