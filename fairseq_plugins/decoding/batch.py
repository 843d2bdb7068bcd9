"""The sentences of a batch: which are being decoded, which wait, and what became of those that are finished."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.rows import from_host
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.state import Beams, DecodingState, Hypothesis

# Of `active_sentences`, one in so many rows is free before others come in; of rows that are kept when their sentences
# have ended, one in so many is one of these before they go.
_ROOM_SHARE = 4


class Batch:
    """One batch on its way. Every row of the state is a sentence; rows come in, and go when they are finished.

    In beam search a sentence has as many rows as it has hypotheses.

    Args:
        sample: a fairseq batch.
        constraints: of this batch.
        first_token: what every output begins with.
        active_sentences: so many sentences are decoded at a time, 0 for all.
        beam: hypotheses of every sentence; None for a greedy search, which has one.
        keeps_ended: to take rows out costs more than to run them: all keys and values are copied. So rows of sentences
            that have ended are marked as such, and go several at a time.
    """

    def __init__(
        self,
        sample: dict[str, Any],
        constraints: Constraints,
        first_token: int,
        active_sentences: int = 0,
        beam: int | None = None,
        keeps_ended: bool = False,
    ) -> None:
        source = sample["net_input"]["src_tokens"]
        size, device = source.size(0), source.device
        self.sample = sample
        self.pad = constraints.pad
        self.first_token = first_token
        self.active_sentences = active_sentences
        self.beam = beam or 1
        self.keeps_ended = keeps_ended
        self.waiting = list(range(size))
        if 0 < active_sentences < size:
            # The longest sources first, so that in the end no long sentence is left alone.
            self.waiting = sample["net_input"]["src_lengths"].argsort(descending=True, stable=True).tolist()
        # Room for max_len tokens, the symbols at both ends, and a last column where rows write what goes beyond.
        capacity = constraints.max_len + 3
        self.state = DecodingState(
            # The source may be speech, whose numbers are no token ids.
            tokens=torch.empty(0, capacity, dtype=torch.long, device=device),
            lengths=torch.empty(0, dtype=torch.long, device=device),
            host_lengths=[],
            constraints=constraints,
            log_probs=torch.empty(0, capacity, device=device),
        )
        if beam is not None:
            self.state.beams = Beams.begin(beam, 0, self.state.tokens)
        # Of every sentence: the tokens that each iteration emitted, and the outputs that have ended.
        self.emitted: list[list[int]] = [[] for _ in range(size)]
        self.outputs: list[list[Hypothesis]] = [[] for _ in range(size)]

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
        room = limit - state.host_ended.count(False) // self.beam
        if self.waiting and room >= self._least_room:
            if any(state.host_ended):
                self._take_out(method)
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
        state, count = self.state, len(sentences) * self.beam
        tokens = state.tokens.new_full((count, state.tokens.size(1)), self.pad)
        tokens[:, 0] = self.first_token
        new = [tokens, state.lengths.new_zeros(count), state.log_probs.new_zeros(tokens.shape)]
        if state.sentences:
            present = (state.tokens, state.lengths, state.log_probs)
            new = [torch.cat(pair) for pair in zip(present, new, strict=True)]
        state.tokens, state.lengths, state.log_probs = new
        state.host_lengths = state.host_lengths + [0] * count
        state.sentences = state.sentences + [sentence for sentence in sentences for _ in range(self.beam)]
        state.host_ended = state.host_ended + [False] * count
        if state.beams is not None:
            state.beams = state.beams.and_then(Beams.begin(self.beam, len(sentences), tokens))

    def retire(
        self,
        emitted: Sequence[Sequence[int]],
        finished: Sequence[bool],
        method: Method,
        hypotheses: Sequence[tuple[int, Hypothesis]] = (),
        ended: Tensor | None = None,
    ) -> None:
        """Note what every sentence gained; take the finished ones out of the batch, the drafter and the verifier.

        Those that are kept until there are more of them are marked in the state.

        Args:
            emitted: of every row, the tokens that each iteration emitted.
            finished: which rows have ended.
            method: which decodes them.
            hypotheses: of beam search, what has ended, with the place of its sentence among those present.
            ended: [B], `finished` on the device, other than 0; None where nobody has it there.
        """
        state = self.state
        for row in range(0, len(state.sentences), self.beam):
            if not state.host_ended[row]:
                self.emitted[state.sentences[row]].extend(emitted[row])
        for place, hypothesis in hypotheses:
            self.outputs[state.sentences[place * self.beam]].append(hypothesis)
        if not any(finished):
            return
        for row, sentence in enumerate(state.sentences):
            if finished[row] and state.beams is None:
                columns = slice(1, state.host_lengths[row] + 1)
                tokens, log_probs = state.tokens[row, columns], state.log_probs[row, columns]
                self.outputs[sentence].append(Hypothesis(tokens, log_probs, log_probs.sum()))
        state.host_ended = [before or now for before, now in zip(state.host_ended, finished, strict=True)]
        if ended is None and self.keeps_ended:
            ended = from_host([int(has_ended) for has_ended in finished], state.tokens.device)
        if ended is not None:
            state.ended = ended != 0 if state.ended is None else state.ended | (ended != 0)
        if not self.keeps_ended or _ROOM_SHARE * sum(state.host_ended) >= len(finished):
            self._take_out(method)

    def _take_out(self, method: Method) -> None:
        """Take the rows whose sentences have ended out of the batch, the drafter and the verifier."""
        state = self.state
        stay = [row for row, has_ended in enumerate(state.host_ended) if not has_ended]
        if not stay:
            return self._empty()
        if state.ended is None:
            rows = from_host(stay, state.tokens.device)
        else:
            # The device knows by itself.
            rows = state.ended.long().argsort(stable=True)[: len(stay)]
        state.ended, state.host_ended = None, [False] * len(stay)
        state.tokens, state.lengths, state.log_probs = state.tokens[rows], state.lengths[rows], state.log_probs[rows]
        state.host_lengths = [state.host_lengths[row] for row in stay]
        state.sentences = [state.sentences[row] for row in stay]
        if state.beams is not None:
            rows = rows[:: self.beam] // self.beam
            state.beams = state.beams.select(rows, [row // self.beam for row in stay[:: self.beam]])
        method.verifier.select_rows(rows)
        method.drafter.select_rows(rows)

    def _empty(self) -> None:
        """No sentence is left; a verifier and a drafter that start again forget all by themselves."""
        state = self.state
        state.tokens, state.lengths, state.log_probs = state.tokens[:0], state.lengths[:0], state.log_probs[:0]
        state.host_lengths, state.sentences, state.ended, state.host_ended = [], [], None, []
        if state.beams is not None:
            state.beams = Beams.begin(self.beam, 0, state.tokens)


def _select(sample: dict[str, Any], sentences: list[int], pad: int) -> dict[str, Any]:
    """Some sentences of a batch, without columns that are padding in all of them."""
    rows = from_host(sentences, sample["net_input"]["src_tokens"].device)
    source, lengths = sample["net_input"]["src_tokens"][rows], sample["net_input"]["src_lengths"][rows]
    # Frames of speech are padded with zeros, to the right.
    used = (source != pad).any(0) if source.dim() == 2 else slice(int(lengths.max()))
    inputs = {"src_tokens": source[:, used], "src_lengths": lengths}
    selected = {"net_input": inputs, **({"id": sample["id"][rows]} if "id" in sample else {})}
    # Drafts that users bring (methods/reuse.py).
    if "drafts" in sample:
        selected["drafts"] = [sample["drafts"][sentence] for sentence in sentences]
    return selected
