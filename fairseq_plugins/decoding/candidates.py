"""Select the best continuations of hypotheses from the log-probabilities of all tokens, as fairseq's search does."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.rows import from_host
from fairseq_plugins.decoding.repetition import forbid_repetition
from fairseq_plugins.decoding.state import Beams, Candidates, DecodingState


def best_candidates(state: DecodingState, log_probs: Tensor) -> Candidates:
    """Return the best 2 * beam continuations of every sentence: half of them may end.

    Args:
        state: before the step; all hypotheses of a sentence have the same length.
        log_probs: [R, V] of the token after every hypothesis, averaged over an ensemble; changed in place.
    """
    constraints, beams, span = state.constraints, state.beams, state.span
    assert beams is not None
    log_probs.masked_fill_(log_probs.isnan(), -torch.inf)
    constraints.apply(log_probs[:, None], state.lengths, span.shortest, span.longest)
    ends = None if constraints.prefix is None else _force(state, log_probs)
    if constraints.no_repeat_ngram_size:
        _forbid_repetition(state, log_probs)
    total = (log_probs + beams.scores[:, None]).unflatten(0, (-1, beams.size))
    if ends is not None:
        # fairseq copies the first hypothesis of a sentence to all others.
        total[ends] = total[ends, :1]
    candidates = _best(total, beams, state.host_lengths[:: beams.size])
    if ends is not None:
        candidates.parents = candidates.parents.masked_fill(ends[:, None] & (candidates.parents > 0), 0)
    return candidates


def _best(total: Tensor, beams: Beams, lengths: list[int]) -> Candidates:
    """Select from total [B, beam, V]; only the first hypothesis of sentences without tokens, since all are equal."""
    vocabulary = total.size(2)
    is_new = [length == 0 for length in lengths]
    count = min(2 * beams.size, total[0].numel() - 1)
    # Without padding, which is never chosen.
    new_count = min(2 * beams.size, vocabulary - 1)
    if all(is_new):
        return _top(total[:, :1], new_count, vocabulary)
    if not any(is_new):
        return _top(total, count, vocabulary)
    new = from_host([index for index, new in enumerate(is_new) if new], total.device)
    old = from_host([index for index, new in enumerate(is_new) if not new], total.device)
    of_new, of_old = _top(total[new, :1], new_count, vocabulary), _top(total[old], count, vocabulary)
    merged = []
    for new_values, old_values, padding in (
        (of_new.scores, of_old.scores, -torch.inf),
        (of_new.tokens, of_old.tokens, 0),
        (of_new.parents, of_old.parents, -1),
    ):
        values = old_values.new_full((len(is_new), count), padding)
        values[new] = F.pad(new_values, (0, count - new_count), value=padding)
        values[old] = old_values
        merged.append(values)
    return Candidates(*merged)


def _top(total: Tensor, count: int, vocabulary: int) -> Candidates:
    # The same single topk as fairseq's, so that ties are broken alike.
    scores, index = total.flatten(1).topk(count)
    return Candidates(scores, index % vocabulary, index // vocabulary)


def _force(state: DecodingState, log_probs: Tensor) -> Tensor | None:
    """Forbid all but the token of `--prefix-size`, in place; return the sentences [B] whose forced token is EOS."""
    constraints, beams = state.constraints, state.beams
    prefix, position = constraints.prefix, state.span.longest
    assert beams is not None and prefix is not None
    if position >= min(prefix.size(1), constraints.max_len):
        return None
    forced = prefix[from_host(state.sentences, prefix.device), position]
    others = torch.ones_like(log_probs, dtype=torch.bool).scatter_(1, forced[:, None], False)
    log_probs.masked_fill_(others & (forced != constraints.pad)[:, None], -torch.inf)
    return (forced == constraints.eos)[:: beams.size]


def _forbid_repetition(state: DecodingState, log_probs: Tensor) -> None:
    """Apply `--no-repeat-ngram-size` in place."""
    beams = state.beams
    assert beams is not None
    tokens = state.tokens[:, : state.span.longest + 1].clone()
    for length in sorted(set(state.host_lengths)):
        rows = (state.lengths == length).nonzero()[:, 0]
        tokens[rows, 1 : length + 1] = state.tokens[beams.token_index(rows, length)]
    forbid_repetition(log_probs[:, None], tokens, state.lengths, state.constraints.no_repeat_ngram_size)
