"""Beam search as fairseq has it: what ends in a step, and which hypotheses go on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.engine.rows import from_host
from fairseq_plugins.decoding.state import BeamAdvance, Beams, Candidates, DecodingState, Draft, Hypothesis
from fairseq_plugins.errors import ConfigurationError


@dataclass(frozen=True)
class Chosen:
    """What of the candidates ends and what goes on, R = B * size hypotheses.

    Attributes:
        tokens, scores, log_probs: [R], of what goes on; scores are sums.
        parents: [R], the row that each row continues.
        ignored: [B, size], ranks from which nothing ends in the next step.
        ends: [B, size], which of the best candidates end.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    log_probs: Tensor
    ignored: Tensor
    ends: Tensor


class BeamSearch:
    """Keeps the best `size` hypotheses of every sentence until as many have ended.

    What ends with EOS among the best `size` candidates is an output; the best `size` of the others go on. A sentence
    is finished when `size` outputs are there, or with those of the last step that `--max-len-a/b` allow. Outputs are
    collected in this order, and sorted by their normalised scores in the end.

    Args:
        size: hypotheses of every sentence.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def advance(self, state: DecodingState, draft: Draft, candidates: Candidates) -> BeamAdvance:
        """What every hypothesis advances by: one token.

        Args:
            state: before it.
            draft: of nothing: where hypotheses part, there is nothing to draft.
            candidates: the best continuations of every sentence.

        Raises:
            ConfigurationError: where the longest output is reached and nothing may end, at which fairseq breaks off.
        """
        beams, eos = state.beams, state.constraints.eos
        gone = state.host_ended or [False] * len(state.sentences)
        assert beams is not None and beams.size == self.size
        chosen = choose(candidates, beams, eos)
        hypotheses: list[tuple[int, Hypothesis]] = []
        finished, ended = [False] * len(state.sentences), beams.ended
        # The one synchronisation of a step.
        ends = [(place, rank) for place, row in enumerate(chosen.ends.tolist()) for rank, end in enumerate(row) if end]
        if ends or state.span.longest >= state.max_len:
            hypotheses, finished, ended = self._end(state, candidates, ends)
        return BeamAdvance(
            tokens=chosen.tokens[:, None],
            log_probs=chosen.log_probs[:, None],
            num_emitted=1 if state.ended is None else (~state.ended).long(),
            host_emitted=[0 if has_ended else 1 for has_ended in gone],
            finished=finished,
            parents=chosen.parents,
            scores=chosen.scores,
            ignored=chosen.ignored,
            ended=ended,
            hypotheses=hypotheses,
        )

    def _end(
        self, state: DecodingState, candidates: Candidates, ends: list[tuple[int, int]]
    ) -> tuple[list[tuple[int, Hypothesis]], list[bool], list[int]]:
        """The hypotheses that end, of every row whether its sentence does, and how many have ended of each."""
        beams = state.beams
        assert beams is not None
        taken, has_end, counts = [], set(), list(beams.ended)
        gone = state.host_ended[:: self.size] or [False] * len(counts)
        for place, rank in ends:
            if gone[place]:
                continue  # it has all its outputs, if fewer than there may be
            has_end.add(place)
            if counts[place] < self.size:
                counts[place] += 1
                taken.append((place, rank))
        found = _outputs(state, beams, candidates, taken)
        finished = []
        for place, count in enumerate(counts):
            is_last = not gone[place] and state.host_lengths[place * self.size] >= state.max_len
            is_finished = place in has_end and (count == self.size or is_last)
            if is_last and not is_finished:
                raise nothing_may_end(state.max_len)
            finished += [is_finished] * self.size
        return found, finished, counts


def nothing_may_end(max_len: int) -> ConfigurationError:
    """What is said where the longest output is reached and EOS is forbidden."""
    return ConfigurationError(
        f"--decoder fast-beam: nothing may end after {max_len} tokens, where --max-len-a/b end all; "
        "look at --no-repeat-ngram-size and at the prefixes of --prefix-size"
    )


def choose(candidates: Candidates, beams: Beams, eos: int) -> Chosen:
    """Choose what ends and what goes on."""
    size, count = beams.size, candidates.tokens.size(1)
    ends = (candidates.tokens == eos) & (candidates.scores != -torch.inf)
    ends[:, :size] &= ~beams.ignored
    # Candidates in their order, then those that end, then those that are none.
    late = ends.clone()
    late[:, :size] |= beams.ignored
    order = torch.arange(count, device=ends.device) + late * (2 * size) + (candidates.parents < 0) * (4 * size)
    rank, places = order.topk(size, largest=False)
    tokens, scores, parents = (
        values.gather(1, places).flatten() for values in (candidates.tokens, candidates.scores, candidates.parents)
    )
    first = torch.arange(0, len(beams.scores), size, device=parents.device)
    parents = parents.clamp(min=0) + first.repeat_interleave(size)
    log_probs = scores - beams.scores[parents]
    return Chosen(tokens, parents, scores, log_probs, rank >= 2 * size, ends[:, :size])


def _outputs(
    state: DecodingState, beams: Beams, candidates: Candidates, taken: list[tuple[int, int]]
) -> list[tuple[int, Hypothesis]]:
    """The outputs that end with these candidates, each given by its sentence's place and its rank there."""
    found: dict[tuple[int, int], Hypothesis] = {}
    lengths = {place: state.host_lengths[place * beams.size] for place, _ in taken}
    for length in sorted(set(lengths.values())):
        some = [pair for pair in taken if lengths[pair[0]] == length]
        places, ranks = (from_host(list(numbers), beams.scores.device) for numbers in zip(*some, strict=True))
        rows = places * beams.size + candidates.parents[places, ranks].clamp(min=0)
        where = beams.where(rows, length)
        scores, ends = candidates.scores[places, ranks], candidates.tokens[places, ranks]
        tokens = torch.cat([state.tokens[where], ends[:, None]], dim=1)
        log_probs = torch.cat([state.log_probs[where], (scores - beams.scores[rows])[:, None]], dim=1)
        found |= zip(some, map(Hypothesis, tokens, log_probs, scores), strict=True)
    return [(place, found[place, rank]) for place, rank in taken]
