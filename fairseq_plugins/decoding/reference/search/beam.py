"""fairseq's beam search: the best continuations of hypotheses, which of them end and which continue."""

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import forbid_repetition
from fairseq_plugins.decoding.decoded import Hypothesis
from fairseq_plugins.decoding.reference.rows import from_host
from fairseq_plugins.decoding.reference.search.strategy import SearchStrategy
from fairseq_plugins.decoding.reference.state import BeamAdvance, Beams, Candidates, DecodingState, Draft, Selection
from fairseq_plugins.errors import ConfigurationError


class BeamSearch:
    """Keeps the best `size` hypotheses of every sentence until `size` of them have ended.

    Candidates among the best `size` that end with EOS are outputs; the best `size` of the others continue. A sentence
    is finished when it has `size` outputs, or at the last step that `--max-len-a/b` allow. The generator sorts outputs
    by normalised score.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def advance(self, state: DecodingState, draft: Draft, chosen: Selection) -> BeamAdvance:
        """Advance every hypothesis by one token; the draft is empty.

        Raises ConfigurationError if the longest output is reached and EOS is forbidden; fairseq fails there, too.
        """
        beams = state.beams
        already_ended = state.host_ended or [False] * len(state.sentences)
        assert beams is not None and beams.size == self.size
        hypotheses: list[tuple[int, Hypothesis]] = []
        finished, ended = [False] * len(state.sentences), beams.ended
        # The one synchronisation of a step.
        ends = [(index, rank) for index, row in enumerate(chosen.ends.tolist()) for rank, end in enumerate(row) if end]
        if ends or state.span.longest >= state.max_len:
            hypotheses, finished, ended = self._end(state, chosen, ends)
        return BeamAdvance(
            tokens=chosen.tokens[:, None],
            log_probs=chosen.log_probs[:, None],
            num_emitted=1 if state.ended is None else 1 - state.ended,
            host_emitted=[0 if has_ended else 1 for has_ended in already_ended],
            finished=finished,
            parents=chosen.parents,
            scores=chosen.scores,
            ignored=chosen.ignored,
            ended=ended,
            hypotheses=hypotheses,
        )

    def _end(
        self, state: DecodingState, chosen: Selection, ends: list[tuple[int, int]]
    ) -> tuple[list[tuple[int, Hypothesis]], list[bool], list[int]]:
        """Return the ended hypotheses, for each row whether its sentence is finished, and counts of ended ones."""
        beams = state.beams
        assert beams is not None
        accepted, has_end, counts = [], set(), list(beams.ended)
        already_ended = state.host_ended[:: self.size] or [False] * len(counts)
        for index, rank in ends:
            if already_ended[index]:
                continue
            has_end.add(index)
            if counts[index] < self.size:
                counts[index] += 1
                accepted.append((index, rank))
        outputs = _outputs(state, beams, chosen, accepted)
        finished = []
        for index, count in enumerate(counts):
            is_last = not already_ended[index] and state.host_lengths[index * self.size] >= state.max_len
            is_finished = index in has_end and (count == self.size or is_last)
            if is_last and not is_finished:
                raise eos_forbidden_error(state.max_len)
            finished += [is_finished] * self.size
        return outputs, finished, counts


def eos_forbidden_error(max_len: int) -> ConfigurationError:
    """Return the error for a longest output at which EOS is forbidden."""
    problem = f"nothing may end after {max_len} tokens, where {{--max-len-a}} and {{--max-len-b}} end all"
    remedy = "look at {--no-repeat-ngram-size}, {--constraints} and the prefixes of {--prefix-size}"
    return ConfigurationError("--decoder", "fast-beam", problem, remedy)


def select_candidates(
    candidates: Candidates, before: Tensor, ignored: Tensor, eos: int, strategy: SearchStrategy | None = None
) -> Selection:
    """Select the candidates that end and those that continue; `before` and `ignored` are those of `Beams`."""
    size, count = ignored.size(1), candidates.tokens.size(1)
    ends = (candidates.tokens == eos) & (candidates.scores != -torch.inf)
    ends[:, :size] &= ~ignored
    # Continuing candidates first, then ending ones.
    cannot_continue = ends.clone()
    cannot_continue[:, :size] |= ignored
    order = torch.arange(count, device=ends.device) + cannot_continue * (2 * size)
    rank, columns = order.topk(size, largest=False)
    if strategy is not None:
        strategy.continued = columns
    first = torch.arange(0, len(before), size, device=ends.device)
    rows = candidates.parents + first[:, None]
    best = candidates.tokens, rows, candidates.scores, candidates.scores - before[rows]
    tokens, parents, scores, log_probs = (values.gather(1, columns).flatten() for values in best)
    return Selection(*best, tokens, parents, scores, log_probs, rank >= 2 * size, ends[:, :size])


def _outputs(
    state: DecodingState, beams: Beams, chosen: Selection, ended: list[tuple[int, int]]
) -> list[tuple[int, Hypothesis]]:
    """Return the outputs that end with candidates, each given by the index of its sentence and its rank there."""
    outputs: dict[tuple[int, int], Hypothesis] = {}
    lengths = {index: state.host_lengths[index * beams.size] for index, _ in ended}
    for length in sorted(set(lengths.values())):
        of_length = [pair for pair in ended if lengths[pair[0]] == length]
        indices, ranks = from_host([n for pair in of_length for n in pair], beams.scores.device).view(-1, 2).t()
        last_tokens, rows, scores, last_log_probs = (values[indices, ranks] for values in chosen[:4])
        prefix = beams.token_index(rows, length)
        tokens = torch.cat([state.tokens[prefix], last_tokens[:, None]], dim=1)
        log_probs = torch.cat([state.log_probs[prefix], last_log_probs[:, None]], dim=1)
        outputs |= zip(of_length, map(Hypothesis, tokens, log_probs, scores), strict=True)
    return [(index, outputs[index, rank]) for index, rank in ended]


def best_candidates(state: DecodingState, log_probs: Tensor, strategy: SearchStrategy | None = None) -> Candidates:
    """Return the best 2 * beam continuations of every sentence: half of them may end.

    Args:
        state: before the step; all hypotheses of a sentence have the same length.
        log_probs: [R, V] of the token after every hypothesis, averaged over an ensemble; changed in place.
        strategy: another search of fairseq's; None for plain beam search.
    """
    constraints, beams, span = state.constraints, state.beams, state.span
    assert beams is not None
    if strategy is not None:
        strategy.add_language_model(state, log_probs)
    forced = state.forced_tokens(1)
    given = None if forced is None else constraints.penalised(log_probs.gather(1, forced), forced)
    constraints.apply(log_probs[:, None], state.lengths, span.shortest, span.longest)
    ends = None if forced is None or given is None else _force(state, log_probs, forced, given)
    if constraints.no_repeat_ngram_size:
        _forbid_repetition(state, log_probs)
    own, before = log_probs.unflatten(0, (-1, beams.size)), beams.scores.view(-1, beams.size)
    if ends is not None:
        # fairseq copies the first hypothesis of a sentence to all others.
        before = torch.where(ends[:, None], before[:, :1], before)
        own[ends] = own[ends, :1].clone()
    if strategy is not None and strategy.search is not None:
        candidates = strategy.candidates(state, own, before)
    else:
        candidates = _best(own + before[:, :, None], beams, state.host_lengths[:: beams.size])
    if ends is not None:
        candidates.parents = candidates.parents.masked_fill(ends[:, None] & (candidates.parents > 0), 0)
    return candidates


def _best(total: Tensor, beams: Beams, lengths: list[int]) -> Candidates:
    """Select from total [B, beam, V]; of new sentences only from the first hypothesis, since all are equal."""
    vocabulary = total.size(2)
    count = min(2 * beams.size, total[0].numel() - 1)
    if not any(lengths):
        # Without padding, which is never chosen.
        return top(total[:, :1], min(count, vocabulary - 1), vocabulary)
    if 0 in lengths:
        is_new = from_host([length == 0 for length in lengths], total.device, torch.bool)
        total[:, 1:].masked_fill_(is_new[:, None, None], -torch.inf)
    return top(total, count, vocabulary)


def top(total: Tensor, count: int, vocabulary: int) -> Candidates:
    """Return the best continuations by total [B, any, V], with the same topk as fairseq's: ties are broken alike."""
    scores, index = total.flatten(1).topk(count)
    return Candidates(scores, index % vocabulary, index // vocabulary)


def _force(state: DecodingState, log_probs: Tensor, forced: Tensor, given: Tensor) -> Tensor:
    """Forbid all but forced tokens [R, 1], in place; return the sentences [B] whose forced token is EOS.

    `given` [R, 1] are the log-probabilities of forced tokens, which may be suppressed ones.
    """
    assert state.beams is not None
    only = torch.full_like(log_probs, -torch.inf).scatter_(1, forced, given)
    log_probs.copy_(torch.where(forced == state.constraints.pad, log_probs, only))
    return (forced == state.constraints.eos)[:: state.beams.size, 0]


def _forbid_repetition(state: DecodingState, log_probs: Tensor) -> None:
    """Apply `--no-repeat-ngram-size` in place."""
    beams = state.beams
    assert beams is not None
    tokens = state.tokens[:, : state.span.longest + 1].clone()
    for length in sorted(set(state.host_lengths)):
        rows = (state.lengths == length).nonzero()[:, 0]
        tokens[rows, 1 : length + 1] = state.tokens[beams.token_index(rows, length)]
    forbid_repetition(log_probs[:, None], tokens, state.lengths, state.constraints.no_repeat_ngram_size)
