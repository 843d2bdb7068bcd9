"""The sentences of a batch: which are being decoded, which wait, and what became of those that are finished."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.state import DecodingState

# Of `active_sentences`, one in so many rows is free before others come in.
_ROOM_SHARE = 4


class Batch:
    """One batch on its way. Every row of the state is a sentence; rows come in, and go when they are finished.

    Args:
        sample: a fairseq batch.
        constraints: of this batch.
        first_token: what every output begins with.
        active_sentences: so many sentences are decoded at a time, 0 for all.
    """

    def __init__(
        self, sample: dict[str, Any], constraints: Constraints, first_token: int, active_sentences: int = 0
    ) -> None:
        source = sample["net_input"]["src_tokens"]
        size = source.size(0)
        self.sample = sample
        self.pad = constraints.pad
        self.first_token = first_token
        self.active_sentences = active_sentences
        self.waiting = list(range(size))
        if 0 < active_sentences < size:
            # The longest sources first, so that in the end no long sentence is left alone.
            self.waiting = (source == self.pad).sum(1).argsort(stable=True).tolist()
        # Room for max_len tokens, the symbols at both ends, and a last column where rows write what goes beyond.
        capacity = constraints.max_len + 3
        self.state = DecodingState(
            tokens=source.new_empty(0, capacity),
            lengths=source.new_empty(0),
            host_lengths=[],
            constraints=constraints,
            log_probs=torch.empty(0, capacity, device=source.device),
        )
        # Of every sentence: the tokens that each iteration emitted, and in the end tokens and their log-probabilities.
        self.emitted: list[list[int]] = [[] for _ in range(size)]
        self.outputs: list[tuple[Tensor, Tensor] | None] = [None] * size

    @property
    def _least_room(self) -> int:
        return max(1, (self.active_sentences or len(self.emitted)) // _ROOM_SHARE)

    @property
    def enough_finished(self) -> int:
        """How many of the sentences present may end before something has to be done about it."""
        return self._least_room if self.waiting else len(self.state.sentences)

    def admit(self, method: Method) -> bool:
        """Let waiting sentences in where there is room; returns whether any sentence is left to decode.

        A few at a time would cost as much to encode as many, so some room must have come together.
        """
        state = self.state
        limit = self.active_sentences or len(self.emitted)
        room = limit - len(state.sentences)
        if self.waiting and room >= self._least_room:
            coming, self.waiting = self.waiting[:room], self.waiting[room:]
            whole = len(coming) == len(self.emitted)
            sample = self.sample if whole else _select(self.sample, coming, self.pad)
            if state.sentences:
                method.drafter.append_rows(sample, method.verifier.append_rows(sample))
            else:
                method.drafter.start(sample, method.verifier.start(sample))
            self._append_rows(coming)
        return bool(state.sentences)

    def _append_rows(self, sentences: list[int]) -> None:
        state, count = self.state, len(sentences)
        tokens = state.tokens.new_full((count, state.tokens.size(1)), self.pad)
        tokens[:, 0] = self.first_token
        state.tokens = torch.cat([state.tokens, tokens])
        state.lengths = torch.cat([state.lengths, state.lengths.new_zeros(count)])
        state.host_lengths = state.host_lengths + [0] * count
        state.log_probs = torch.cat([state.log_probs, state.log_probs.new_zeros(tokens.shape)])
        state.sentences = state.sentences + sentences

    def retire(self, emitted: Sequence[Sequence[int]], finished: Sequence[bool], method: Method) -> None:
        """Note what every sentence gained; take the finished ones out of the batch, the drafter and the verifier.

        Args:
            emitted: of every row, the tokens that each iteration emitted.
            finished: which rows have ended.
            method: which decodes them.
        """
        state = self.state
        for sentence, counts in zip(state.sentences, emitted, strict=True):
            self.emitted[sentence].extend(counts)
        if not any(finished):
            return
        for row, sentence in enumerate(state.sentences):
            if finished[row]:
                columns = slice(1, state.host_lengths[row] + 1)
                self.outputs[sentence] = state.tokens[row, columns], state.log_probs[row, columns]
        stay = [row for row, has_ended in enumerate(finished) if not has_ended]
        rows = torch.tensor(stay, dtype=torch.long, device=state.tokens.device)
        state.tokens, state.lengths, state.log_probs = state.tokens[rows], state.lengths[rows], state.log_probs[rows]
        state.host_lengths = [state.host_lengths[row] for row in stay]
        state.sentences = [state.sentences[row] for row in stay]
        if stay:
            method.verifier.select_rows(rows)
            method.drafter.select_rows(rows)


def _select(sample: dict[str, Any], sentences: list[int], pad: int) -> dict[str, Any]:
    """Some sentences of a batch, without columns that are padding in all of them."""
    rows = torch.tensor(sentences, device=sample["net_input"]["src_tokens"].device)
    source = sample["net_input"]["src_tokens"][rows]
    inputs = {
        "src_tokens": source[:, (source != pad).any(0)],
        "src_lengths": sample["net_input"]["src_lengths"][rows],
    }
    return {"net_input": inputs, **({"id": sample["id"][rows]} if "id" in sample else {})}
