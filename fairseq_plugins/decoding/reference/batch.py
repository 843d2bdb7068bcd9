"""The sentences of a batch: active, waiting and finished ones."""

from typing import Any

import torch

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Hypothesis
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.reference.rows import from_host
from fairseq_plugins.decoding.reference.state import Advance, BeamAdvance, Beams, DecodingState

# Admitting and removing sentences copies the whole cache, so both wait until one row in 4 is free or ended.
_FREE_ROWS_DIVISOR = 4


class Batch:
    """A batch being decoded: removes finished rows of the state and admits waiting ones.

    A row is a sentence, in beam search a hypothesis.

    Args:
        active_sentences: number of sentences decoded at a time, 0 for all.
        beam: hypotheses per sentence; None for greedy search.
        delays_removal: mark rows of ended sentences and remove several at a time. Removal copies all keys and values,
            which on a GPU costs more than running the rows.
    """

    def __init__(
        self,
        sample: dict[str, Any],
        constraints: Constraints,
        first_token: int,
        active_sentences: int = 0,
        beam: int | None = None,
        delays_removal: bool = False,
    ) -> None:
        source = sample["net_input"]["src_tokens"]
        size, device = source.size(0), source.device
        self.sample = sample
        self.pad = constraints.pad
        self.first_token = first_token
        self.active_sentences = active_sentences
        self.beam = beam or 1
        self.delays_removal = delays_removal
        self.waiting = list(range(size))
        if 0 < active_sentences < size:
            # Longest sources first, so that the last sentences are short ones, which end together.
            self.waiting = sample["net_input"]["src_lengths"].argsort(descending=True, stable=True).tolist()
        # max_len tokens, the symbols at both ends, and a last column that takes writes beyond them.
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
        if "noise_keys" in sample:
            self.state.noise_keys = sample["noise_keys"][:0]
        # For every sentence the number of tokens that each iteration emitted, and its ended outputs.
        self.emitted: list[list[int]] = [[] for _ in range(size)]
        self.outputs: list[list[Hypothesis]] = [[] for _ in range(size)]

    def admit(self, method: Method) -> bool:
        """Admit waiting sentences if enough rows are free; returns whether any sentence is left to decode."""
        state = self.state
        limit = self.active_sentences or len(self.emitted)
        num_free = limit - state.host_ended.count(False) // self.beam
        if self.waiting and num_free >= max(1, limit // _FREE_ROWS_DIVISOR):
            if any(state.host_ended):
                self._remove_ended(method)
            admitted, self.waiting = self.waiting[:num_free], self.waiting[num_free:]
            is_whole_batch = len(admitted) == len(self.emitted)
            sample = self.sample if is_whole_batch else _select(self.sample, admitted, self.pad)
            if state.sentences:
                method.drafter.append_rows(sample, method.verifier.append_rows(sample))
            else:
                method.drafter.start(sample, method.verifier.start(sample))
            self._append_rows(admitted)
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
            state.beams = state.beams.concat(Beams.begin(self.beam, len(sentences), tokens))
        if state.noise_keys is not None:
            keys = self.sample["noise_keys"]
            added = keys if len(sentences) == len(keys) else keys[from_host(sentences, keys.device)]
            state.noise_keys = torch.cat([state.noise_keys, added])

    def retire(self, advance: Advance | BeamAdvance, method: Method) -> None:
        """Record the emitted tokens; remove finished sentences from the batch, the drafter and the verifier.

        Ended rows that are not removed yet are marked in the state.
        """
        state, finished = self.state, advance.finished
        for row in range(0, len(state.sentences), self.beam):
            if not state.host_ended[row]:
                self.emitted[state.sentences[row]].append(advance.host_emitted[row])
        if isinstance(advance, BeamAdvance):
            for index, hypothesis in advance.hypotheses:
                self.outputs[state.sentences[index * self.beam]].append(hypothesis)
        if not any(finished):
            return
        for row, sentence in enumerate(state.sentences):
            if finished[row] and state.beams is None:
                columns = slice(1, state.host_lengths[row] + 1)
                tokens, log_probs = state.tokens[row, columns], state.log_probs[row, columns]
                self.outputs[sentence].append(Hypothesis(tokens, log_probs, log_probs.sum()))
        state.host_ended = [before or now for before, now in zip(state.host_ended, finished, strict=True)]
        ended = None if isinstance(advance, BeamAdvance) else advance.ended
        if ended is None and self.delays_removal:
            ended = from_host([int(has_ended) for has_ended in finished], state.tokens.device)
        if ended is not None:
            # A copy, because `ended` may be an output of a CUDA graph, which the next iteration overwrites.
            state.ended = ended.clone() if state.ended is None else state.ended | ended
        if not self.delays_removal or _FREE_ROWS_DIVISOR * sum(state.host_ended) >= len(finished):
            self._remove_ended(method)

    def _remove_ended(self, method: Method) -> None:
        """Remove rows of ended sentences from the batch, the drafter and the verifier."""
        state = self.state
        remaining = [row for row, has_ended in enumerate(state.host_ended) if not has_ended]
        if not remaining:
            rows = state.lengths[:0]
        elif state.ended is None:
            rows = from_host(remaining, state.tokens.device)
        else:
            # On the device, to avoid a copy from the host.
            rows = state.ended.argsort(stable=True)[: len(remaining)]
        state.ended, state.host_ended = None, [False] * len(remaining)
        state.tokens, state.lengths, state.log_probs = state.tokens[rows], state.lengths[rows], state.log_probs[rows]
        state.noise_keys = None if state.noise_keys is None else state.noise_keys[rows]
        state.host_lengths = [state.host_lengths[row] for row in remaining]
        state.sentences = [state.sentences[row] for row in remaining]
        if state.beams is not None:
            rows = rows[:: self.beam] // self.beam
            state.beams = state.beams.select(rows, [row // self.beam for row in remaining[:: self.beam]])
        if remaining:
            # An empty batch needs no call: `start` resets verifier and drafter for the next one.
            method.verifier.select_rows(rows)
            method.drafter.select_rows(rows)


def _select(sample: dict[str, Any], sentences: list[int], pad: int) -> dict[str, Any]:
    """Select sentences of a batch, without columns that are padding in all of them."""
    rows = from_host(sentences, sample["net_input"]["src_tokens"].device)
    source, lengths = sample["net_input"]["src_tokens"][rows], sample["net_input"]["src_lengths"][rows]
    # Speech frames are padded with zeros on the right.
    used = (source != pad).any(0) if source.dim() == 2 else slice(int(lengths.max()))
    inputs = {"src_tokens": source[:, used], "src_lengths": lengths}
    selected = {"net_input": inputs, **({"id": sample["id"][rows]} if "id" in sample else {})}
    # Drafts given by the user (methods/reuse.py).
    if "drafts" in sample:
        selected["drafts"] = [sample["drafts"][sentence] for sentence in sentences]
    return selected
