"""Beam search as fairseq has it: what ends in a step, and which hypotheses go on."""

import torch
from torch import Tensor

from fairseq_plugins.decoding.state import BeamAdvance, Beams, Candidates, DecodingState, Draft, Hypothesis
from fairseq_plugins.errors import ConfigurationError


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
        beams = state.beams
        assert beams is not None and beams.size == self.size
        size, eos = self.size, state.constraints.eos
        ends = (candidates.tokens == eos) & (candidates.scores != -torch.inf)
        ends[:, :size] &= ~beams.ignored
        hypotheses, finished = self._end(state, beams, candidates, ends[:, :size])
        # Candidates in their order, then those that end, then those that are none.
        count = candidates.tokens.size(1)
        late = ends.clone()
        late[:, :size] |= beams.ignored
        order = torch.arange(count, device=ends.device) + late * (2 * size) + (candidates.parents < 0) * (4 * size)
        rank, places = order.topk(size, largest=False)
        tokens, scores, parents = (
            values.gather(1, places).flatten() for values in (candidates.tokens, candidates.scores, candidates.parents)
        )
        parents = parents + _first_rows(beams).repeat_interleave(size)
        ended = beams.ended.tolist()
        for place, _ in hypotheses:
            ended[place] += 1
        return BeamAdvance(
            tokens=tokens[:, None],
            log_probs=(scores - beams.scores[parents])[:, None],
            num_emitted=torch.ones_like(parents),
            host_emitted=[1] * len(parents),
            finished=[end for end in finished for _ in range(size)],
            parents=parents,
            scores=scores,
            ignored=rank >= 2 * size,
            ended=beams.ended.new_tensor(ended),
            hypotheses=hypotheses,
        )

    def _end(
        self, state: DecodingState, beams: Beams, candidates: Candidates, ends: Tensor
    ) -> tuple[list[tuple[int, Hypothesis]], list[bool]]:
        """The hypotheses that end, and whether their sentences do; `ends` [B, size] says which candidates."""
        found, has_end = [], set()
        counts = beams.ended.tolist()
        # The one synchronisation of a step.
        for place, rank in ends.nonzero().tolist():
            has_end.add(place)
            if counts[place] < self.size:
                counts[place] += 1
                found.append((place, _hypothesis(state, beams, candidates, place, rank)))
        finished = []
        for place, count in enumerate(counts):
            is_last = state.host_lengths[place * self.size] >= state.max_len
            finished.append(place in has_end and (count == self.size or is_last))
            if is_last and not finished[-1]:
                raise ConfigurationError(
                    f"--decoder fast-beam: nothing may end after {state.max_len} tokens, where --max-len-a/b end all; "
                    "look at --no-repeat-ngram-size and at the prefixes of --prefix-size"
                )
        return found, finished


def _hypothesis(
    state: DecodingState, beams: Beams, candidates: Candidates, place: int, rank: int
) -> Hypothesis:
    """The output that ends with a candidate."""
    row = place * beams.size + int(candidates.parents[place, rank])
    before = slice(1, state.host_lengths[row] + 1)
    score = candidates.scores[place, rank]
    return Hypothesis(
        torch.cat([state.tokens[row, before], candidates.tokens[place, rank : rank + 1]]),
        torch.cat([state.log_probs[row, before], (score - beams.scores[row])[None]]),
        score,
    )


def _first_rows(beams: Beams) -> Tensor:
    """The first row [B] of every sentence."""
    return torch.arange(0, len(beams.scores), beams.size, device=beams.scores.device)
