"""Who drafts: one file per drafter, one small protocol."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fairseq_plugins.decoding.cached_decoder import Span
from fairseq_plugins.decoding.weights import Precision


@dataclass
class DecodingState:
    """What is decoded so far, of the sentences still in the batch.

    Attributes:
        tokens: [B, capacity], the beginning-of-sentence symbol and then the output; valid up to `lengths`.
        lengths: [B], number of output tokens so far, which is also the place of the last token in `tokens`.
        host_lengths: the same numbers on the host.
        max_len: no output may have more tokens than this before its EOS.
    """

    tokens: Tensor
    lengths: Tensor
    host_lengths: list[int]
    max_len: int

    @property
    def span(self) -> Span:
        return Span(min(self.host_lengths), max(self.host_lengths))

    def last_tokens(self) -> Tensor:
        """The last token of every sentence, [B, 1]: the verifier's next input."""
        span = self.span
        if span.uniform:
            return self.tokens[:, span.longest : span.longest + 1]
        return self.tokens.gather(1, self.lengths[:, None])


@dataclass
class Draft:
    """Guesses for the tokens after the last one.

    Attributes:
        tokens: [B, K].
        widths: [B], how many of the K columns are meant (None: all).
        logits: [B, K, V], the drafter's scores, kept only for rules that ask for them.
    """

    tokens: Tensor
    widths: Tensor | None = None
    logits: Tensor | None = None


@dataclass
class Verdict:
    """What became of a draft, for drafters that learn from it.

    Attributes:
        draft: what was drafted.
        choice: [B, K+1], the verifier's own token at every position, given the drafted tokens before it.
        accepted: [B], how many drafted tokens were accepted; `choice[b, accepted[b]]` follows them.
        hidden: [B, K+1, D], the verifier's states at these positions (None where no verifier runs).
        features: [B, K+1, F], the states of those of its layers that the drafter reads, None for drafters that do not.
        lengths: [B], the lengths before this draft.
        span: shortest and longest of `lengths`.
        gained: how many tokens each sentence gained, on the host.
    """

    draft: Draft
    choice: Tensor
    accepted: Tensor
    hidden: Tensor | None
    features: Tensor | None
    lengths: Tensor
    span: Span
    gained: list[int]

    @property
    def newest(self) -> int:
        """The most tokens that any sentence gained."""
        return max(self.gained)


@dataclass(frozen=True)
class DraftOptions:
    """What both kinds of trained drafters heed.

    Attributes:
        keep_logits: hand the scores on in `Draft.logits`.
        adapt: draft as many of `block_size` tokens as pay.
        vocabulary: ids [N] of the tokens to choose among, None for all.
        precision: of the drafter's linear layers.
    """

    keep_logits: bool = False
    adapt: bool = False
    vocabulary: Tensor | None = None
    precision: Precision = Precision.FP32


class Drafter(Protocol):
    """Guesses the next tokens. It sees the state, never the loop's bookkeeping."""

    def start(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        """Begin a batch.

        Args:
            sample: a fairseq batch with `net_input`.
            encoder_out: output of the (first) verifier's encoder, None when no verifier runs.
        """

    def join(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        """More sentences of the batch come in behind those present, with no token yet: see `--active-sentences`.

        Args:
            sample: these sentences; their padded length may be another one than that of those before.
            encoder_out: as for `start`, of these sentences.
        """

    def draft(self, state: DecodingState) -> Draft:
        """Guess up to `state.max_len - state.span.shortest` tokens for every sentence."""

    def observe(self, verdict: Verdict) -> None:
        """Learn what became of the last draft."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows [B'] are indices into the current batch."""


class NoDrafter:
    """Drafts nothing: greedy decoding, one verified token an iteration."""

    def start(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        pass

    join = start

    def draft(self, state: DecodingState) -> Draft:
        return Draft(torch.empty(state.tokens.size(0), 0, dtype=torch.long, device=state.tokens.device))

    def observe(self, verdict: Verdict) -> None:
        pass

    def keep(self, rows: Tensor) -> None:
        pass
