"""The best continuations of hypotheses, out of the log-probabilities of all tokens: what fairseq's search is given."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.rows import from_host
from fairseq_plugins.decoding.state import Beams, Candidates, DecodingState


def best_candidates(state: DecodingState, log_probs: Tensor) -> Candidates:
    """The best 2 * beam continuations of every sentence, in case half of them end.

    Args:
        state: before them; all hypotheses of a sentence have the same length.
        log_probs: [R, V] of the token after every hypothesis, with the model's and the ensemble's last word; changed.
    """
    constraints, beams, span = state.constraints, state.beams, state.span
    assert beams is not None
    log_probs.masked_fill_(log_probs.isnan(), -torch.inf)
    constraints.apply(log_probs[:, None], state.lengths, span.shortest, span.longest)
    ends = None if constraints.prefix is None else _force(state, log_probs)
    if constraints.repeat_blocker is not None:
        _forbid_repetition(state, log_probs)
    total = (log_probs + beams.scores[:, None]).unflatten(0, (-1, beams.size))
    if ends is not None:
        # fairseq gives all hypotheses of a sentence what its first one has.
        total[ends] = total[ends, :1]
    found = _best(total, beams, state.host_lengths[:: beams.size])
    if ends is not None:
        found.parents = found.parents.masked_fill(ends[:, None] & (found.parents > 0), 0)
    return found


def _best(total: Tensor, beams: Beams, lengths: list[int]) -> Candidates:
    """Of total [B, beam, V]. Of sentences that have no token yet the first hypothesis counts: all are the same."""
    vocabulary = total.size(2)
    first = [length == 0 for length in lengths]
    most = min(2 * beams.size, total[0].numel() - 1)
    # One less than there are, for padding is never chosen.
    at_first = min(2 * beams.size, vocabulary - 1)
    if all(first):
        return _top(total[:, :1], at_first, vocabulary)
    if not any(first):
        return _top(total, most, vocabulary)
    begins = from_host([place for place, is_first in enumerate(first) if is_first], total.device)
    goes_on = from_host([place for place, is_first in enumerate(first) if not is_first], total.device)
    begun, others = _top(total[begins, :1], at_first, vocabulary), _top(total[goes_on], most, vocabulary)
    together = []
    for early, late, nothing in (
        (begun.scores, others.scores, -torch.inf),
        (begun.tokens, others.tokens, 0),
        (begun.parents, others.parents, -1),
    ):
        values = late.new_full((len(first), most), nothing)
        values[begins] = F.pad(early, (0, most - at_first), value=nothing)
        values[goes_on] = late
        together.append(values)
    return Candidates(*together)


def _top(total: Tensor, count: int, vocabulary: int) -> Candidates:
    # One search over all, as fairseq has it: among equal scores it is this call that decides.
    scores, places = total.flatten(1).topk(count)
    return Candidates(scores, places % vocabulary, places // vocabulary)


def _force(state: DecodingState, log_probs: Tensor) -> Tensor | None:
    """Leave what `--prefix-size` gives as the only token, in place; returns of which sentences [B] that is EOS."""
    constraints, beams = state.constraints, state.beams
    prefix, position = constraints.prefix, state.span.longest
    assert beams is not None and prefix is not None
    if position >= min(prefix.size(1), constraints.max_len):
        return None
    given = prefix[from_host(state.sentences, prefix.device), position]
    others = torch.ones_like(log_probs, dtype=torch.bool).scatter_(1, given[:, None], False)
    log_probs.masked_fill_(others & (given != constraints.pad)[:, None], -torch.inf)
    return (given == constraints.eos)[:: beams.size]


def _forbid_repetition(state: DecodingState, log_probs: Tensor) -> None:
    """`--no-repeat-ngram-size` in place, by fairseq itself, which takes hypotheses of one length at a time."""
    constraints, beams = state.constraints, state.beams
    blocker = constraints.repeat_blocker
    assert blocker is not None and beams is not None
    # As wide as fairseq's own.
    tokens = torch.full_like(state.tokens[:, : state.max_len + 2], constraints.pad)
    tokens[:, 0] = state.tokens[:, 0]
    for length in sorted(set(state.host_lengths)):
        rows = (state.lengths == length).nonzero()[:, 0]
        tokens[rows, 1 : length + 1] = state.tokens[beams.where(rows, length)]
        sentences = len(rows) // beams.size
        log_probs[rows] = blocker(tokens[rows], log_probs[rows], sentences, beams.size, length)
