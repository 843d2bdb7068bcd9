"""Who drafts: one small protocol, and the drafters that several methods use."""

from typing import Any, Protocol

from torch import Tensor

from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft


class Drafter(Protocol):
    """Guesses the next tokens. It sees the state, never the loop's bookkeeping."""

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        """Begin a batch.

        Args:
            sample: a fairseq batch with `net_input`.
            encoder_out: output of the (first) verifier's encoder, None when no verifier runs.
        """

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        """More sentences of the batch come in after those present, with no token yet: see `--active-sentences`.

        Args:
            sample: these sentences; their padded length may be another one than that of those before.
            encoder_out: as for `start`, of these sentences.
        """

    def draft(self, state: DecodingState) -> Draft:
        """Guess up to `state.max_len - state.span.shortest` tokens for every sentence."""

    def observe(self, advance: Advance) -> None:
        """Learn what was emitted; `state` has it already."""

    def select_rows(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows [B'] are indices into the current batch."""


class StatelessDrafter:
    """What a drafter does that keeps nothing of its sentences: nothing."""

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        pass

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        pass

    def observe(self, advance: Advance) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        pass
