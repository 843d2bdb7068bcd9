"""Searches: turn a verified draft into the tokens that every sentence gains."""

from typing import Any, Protocol

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.search.rules import Rule, accepted_prefix, exact
from fairseq_plugins.decoding.reference.state import Accepted, Advance, BeamAdvance, DecodingState, Draft, Verification


class Search(Protocol):
    """Decides which tokens of a verified draft are emitted."""

    def advance(self, state: DecodingState, draft: Draft, verification: Any) -> Advance | BeamAdvance:
        """Advance every sentence by at least one token; in beam search every hypothesis by one.

        Sentences that have already ended gain no tokens.

        Args:
            state: before the iteration.
            draft: K columns.
            verification: K + 1 columns, K without a verifier; in beam search a `Selection`.
        """


class GreedySearch:
    """Keeps one hypothesis per sentence.

    Emits the longest accepted prefix of the draft and the verifier's next token.
    """

    def __init__(self, rule: Rule = exact) -> None:
        self.rule = rule

    def advance(self, state: DecodingState, draft: Draft, verification: Verification) -> Advance:
        accepted = verification.accepted or self.accept(draft, verification, state.constraints.eos, state.ended)
        tokens, counts = accepted.tokens, accepted.counts
        # The one synchronisation of an iteration.
        emitted, _, finished = map(list, zip(*counts.tolist(), strict=True))
        longest = max(emitted)
        path = slice(longest)
        log_probs = accepted.log_probs
        return Advance(
            tokens=tokens[:, path],
            log_probs=verification.log_probs_of(tokens, longest) if log_probs is None else log_probs[:, path],
            num_emitted=counts[:, 0],
            host_emitted=emitted,
            num_accepted=counts[:, 1],
            finished=[end == 1 for end in finished],
            hidden=None if verification.hidden is None else verification.hidden[:, path],
            features=None if verification.features is None else verification.features[:, path],
            draft=draft,
            verification=verification,
            before=state.lengths,
            span_before=state.span,
            ended=counts[:, 2],
        )

    def accept(self, draft: Draft, verification: Verification, eos: int, ended: Tensor | None) -> Accepted:
        """Return what is emitted, without waiting for the device; `ended` [B] is 1 for sentences that have ended."""
        best = verification.best
        width = best.size(1)
        # Without a verifier the last drafted token takes the position of the verifier's own.
        compared = Draft(draft.tokens[:, : width - 1], draft.num_drafted, draft.log_probs)
        accepted = accepted_prefix(self.rule(compared, verification), compared.num_drafted)
        tokens = best
        if self.rule is not exact:
            drafted = torch.cat([compared.tokens, best[:, -1:]], dim=1)
            columns = torch.arange(width, device=best.device)
            tokens = torch.where(columns < accepted[:, None], drafted, best)
        # Accepted tokens before the first EOS; the token after them is the last one emitted.
        before_last = torch.minimum(accepted, (tokens != eos).long().cumprod(1).sum(1))
        emitted = before_last + 1
        finished = tokens.gather(1, before_last[:, None])[:, 0] == eos
        counts = torch.stack([emitted, torch.minimum(accepted, emitted), finished.long()], dim=1)
        return Accepted(tokens, counts if ended is None else counts * (1 - ended)[:, None])
