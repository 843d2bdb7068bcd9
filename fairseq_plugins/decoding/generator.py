"""The loop: draft, verify, keep the longest accepted prefix and the verifier's own next token, repeat."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_plugins.decoding import native
from fairseq_plugins.decoding.acceptance import Rule, accepted_prefix, exact
from fairseq_plugins.decoding.drafters import DecodingState, Draft, Drafter, Verdict
from fairseq_plugins.decoding.stats import DecodingStats, SentenceStats
from fairseq_plugins.decoding.trace import TraceWriter
from fairseq_plugins.decoding.verifier import DrafterIsVerifier, Verifier
from fairseq_plugins.errors import ConfigurationError

# Of `active_sentences`, one in so many places is free before others come in.
_ROOM_SHARE = 4


@dataclass
class Method:
    """What makes one decoding method: who verifies, who drafts, what is accepted."""

    verifier: Verifier | DrafterIsVerifier
    drafter: Drafter
    rule: Rule


@dataclass
class _Batch:
    """One batch on its way: the decoder's state, for every row the sentence it belongs to, and those that wait."""

    sample: dict[str, Any]
    waiting: list[int]
    first_token: int
    state: DecodingState
    scores: Tensor
    prefix: Tensor | None
    sentences: list[int] = field(default_factory=list)
    gained: list[list[int]] = field(default_factory=list)
    hypotheses: list[list[dict[str, Tensor]]] = field(default_factory=list)


class DraftVerifyGenerator(SequenceGenerator):
    """Greedy decoding by drafting and verifying, with the interface and output of fairseq's `SequenceGenerator`.

    With an exact rule the output equals fairseq's own at `--beam 1`, token by token. Batches are ragged: every
    sentence advances by its own accepted count, and finished sentences leave the batch. With `active_sentences` others
    of the batch then come in, so that it does not drain.

    Args:
        models: fairseq models, as for `SequenceGenerator`.
        tgt_dict: target dictionary.
        build_method: makes the `Method`; called at the first batch and after `refresh()`, so that the weights, the
            device and the precision of that time are used.
        stats: where counts and times are recorded.
        trace: takes down every iteration; None for no trace.
        active_sentences: so many sentences of a batch are decoded at a time, 0 for all.
        kwargs: as for `SequenceGenerator`; `beam_size` must be 1.

    Raises:
        ConfigurationError: for options that change greedy output and are not honoured here.
    """

    def __init__(
        self,
        models: list,
        tgt_dict: Any,
        build_method: Callable[[], Method],
        stats: DecodingStats,
        trace: TraceWriter | None = None,
        active_sentences: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(models, tgt_dict, **kwargs)
        for given, option in (
            (self.beam_size > 1, "--beam above 1"),
            (self.repeat_ngram_blocker is not None, "--no-repeat-ngram-size"),
            (self.lm_model is not None, "--lm-path"),
            (self.match_source_len, "--match-source-len"),
            (self.token_indices_to_suppress is not None, "tokens_to_suppress"),
        ):
            if given:
                raise ConfigurationError(f"{option} is not supported when drafting; use --decoder beam")
        self.stats = stats
        self.trace = trace
        self.active_sentences = active_sentences
        self.build_method = build_method
        self.method: Method | None = None

    def refresh(self) -> None:
        """Read the models' weights anew at the next batch, as validation during training must."""
        self.method = None

    @torch.inference_mode()
    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        if constraints is not None:
            raise ConfigurationError("--constraints is not supported when drafting; use --decoder beam")
        if prefix_tokens is not None and self.active_sentences:
            raise ConfigurationError("--active-sentences: is not supported with --prefix-size; leave one of them out")
        started = time.perf_counter()
        if self.method is None:
            self.method = self.build_method()
        batch = self._begin(sample, prefix_tokens, self.eos if bos_token is None else bos_token)
        self._admit(batch)
        if prefix_tokens is not None:
            self._iterate(batch, self._forced_draft(batch))
        while batch.sentences:
            self._iterate(batch, self.method.drafter.draft(batch.state))
            if batch.waiting:
                self._admit(batch)
        self._record(sample, batch, time.perf_counter() - started)
        return batch.hypotheses

    def _begin(self, sample: dict[str, Any], prefix: Tensor | None, first_token: int) -> _Batch:
        source = sample["net_input"]["src_tokens"]
        size = source.size(0)
        max_len = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
        if self.min_len > max_len:
            raise ConfigurationError(
                f"--min-len {self.min_len}: longer than the longest output allowed ({max_len}); "
                "lower it or raise --max-len-b"
            )
        waiting = list(range(size))
        if 0 < self.active_sentences < size:
            # The longest sources first, so that in the end no long sentence is left alone.
            waiting = (source == self.pad).sum(1).argsort(stable=True).tolist()
        # Room for max_len tokens, the symbols at both ends, and a last column where rows write what goes beyond.
        return _Batch(
            sample=sample,
            waiting=waiting,
            first_token=first_token,
            state=DecodingState(source.new_empty(0, max_len + 3), source.new_empty(0), [], max_len),
            scores=torch.empty(0, max_len + 3, device=source.device),
            prefix=prefix,
            gained=[[] for _ in range(size)],
            hypotheses=[[] for _ in range(size)],
        )

    def _admit(self, batch: _Batch) -> None:
        """Let waiting sentences in where there is room; a few at a time would cost as much to encode as many."""
        assert self.method is not None
        most = self.active_sentences or len(batch.waiting)
        room = most - len(batch.sentences)
        if room < max(1, most // _ROOM_SHARE):
            return
        coming, batch.waiting = batch.waiting[:room], batch.waiting[room:]
        sample = batch.sample if len(coming) == len(batch.hypotheses) else _select(batch.sample, coming, self.pad)
        verifier, drafter, state = self.method.verifier, self.method.drafter, batch.state
        if batch.sentences:
            drafter.join(sample, verifier.join(sample))
        else:
            drafter.start(sample, verifier.start(sample))
        new = (len(coming), state.tokens.size(1))
        tokens = state.tokens.new_full(new, self.pad)
        tokens[:, 0] = batch.first_token
        state.tokens = torch.cat([state.tokens, tokens])
        state.lengths = torch.cat([state.lengths, state.lengths.new_zeros(new[0])])
        state.host_lengths = state.host_lengths + [0] * new[0]
        batch.scores = torch.cat([batch.scores, batch.scores.new_zeros(new)])
        batch.sentences = batch.sentences + coming

    def _forced_draft(self, batch: _Batch) -> Draft:
        """`--prefix-size`: the given tokens are the first draft, and what the verifier must choose."""
        assert batch.prefix is not None and self.method is not None
        if isinstance(self.method.verifier, DrafterIsVerifier):
            raise ConfigurationError("--prefix-size is not supported by --decoder nat; use --decoder gad")
        tokens = batch.prefix[:, : batch.state.max_len]
        return Draft(tokens, widths=(tokens != self.pad).long().cumprod(1).sum(1))

    def _iterate(self, batch: _Batch, draft: Draft) -> None:
        """One iteration for every sentence of the batch; finished ones get their hypothesis and leave."""
        assert self.method is not None
        state = batch.state
        verification = self.method.verifier.verify(state, draft)
        self._constrain(verification.scores, batch)
        choice = native.argmax(verification.scores)
        width = choice.size(1)
        # Without a verifier there is no token of its own to add: the last drafted one takes that place.
        compared = Draft(draft.tokens[:, : width - 1], draft.widths, draft.logits)
        if batch.prefix is not None and state.host_lengths[0] == 0:
            choice = self._force(choice, draft)
        accepted = accepted_prefix(self.method.rule(compared, verification.scores, choice), compared.widths)

        columns = torch.arange(width, device=choice.device)
        block = choice
        if self.method.rule is not exact:
            drafted = torch.cat([compared.tokens, choice[:, -1:]], dim=1)
            block = torch.where(columns < accepted[:, None], drafted, choice)
        ends = (block == self.eos) & (columns <= accepted[:, None])
        first_end = torch.where(ends, columns, width).amin(1)
        counts = torch.minimum(accepted, first_end) + 1
        _write(state, state.tokens, block)
        _write(state, batch.scores, verification.log_probs(block))

        # The one synchronisation of an iteration.
        gained, finished = torch.stack([counts, (first_end < width).long()]).tolist()
        before, span, state.lengths = state.lengths, state.span, state.lengths + counts
        state.host_lengths = [length + count for length, count in zip(state.host_lengths, gained, strict=True)]
        for sentence, count in zip(batch.sentences, gained, strict=True):
            batch.gained[sentence].append(count)
        self.method.drafter.observe(
            Verdict(
                draft, choice, accepted, verification.hidden, verification.features, before, span, gained
            )
        )
        if self.trace is not None:
            self.trace.iteration(batch.sentences, draft, verification, choice, accepted, gained)
        if any(finished):
            self._drop_finished(batch, finished)

    def _constrain(self, scores: Tensor, batch: _Batch) -> None:
        """Forbid in `scores` [B, T, V], in place, what fairseq's generator forbids at these places."""
        state = batch.state
        scores.select(2, self.pad).fill_(-torch.inf)
        if self.unk_penalty != 0:
            scores[..., self.unk] -= self.unk_penalty
        span, width = state.span, scores.size(1)
        if span.shortest >= self.min_len and span.longest + width <= state.max_len:
            return
        place = state.lengths[:, None] + torch.arange(width, device=scores.device)
        # Inside a given prefix fairseq does not apply the minimum length.
        forced_until = 0 if batch.prefix is None else min(batch.prefix.size(1), state.max_len)
        too_early = (place < self.min_len) & (place >= forced_until)
        end = scores[..., self.eos].masked_fill(too_early, -torch.inf)
        scores.masked_fill_((place >= state.max_len)[:, :, None], -torch.inf)
        scores[..., self.eos] = end

    def _force(self, choice: Tensor, draft: Draft) -> Tensor:
        assert draft.widths is not None
        given = torch.arange(draft.tokens.size(1), device=choice.device) < draft.widths[:, None]
        return torch.cat([torch.where(given, draft.tokens, choice[:, :-1]), choice[:, -1:]], dim=1)

    def _drop_finished(self, batch: _Batch, finished: list[int]) -> None:
        """Make hypotheses of the finished rows and take them out of the batch, the drafter and the verifier."""
        assert self.method is not None
        state = batch.state
        for row, sentence in enumerate(batch.sentences):
            if finished[row]:
                length = state.host_lengths[row]
                batch.hypotheses[sentence] = [
                    self._hypothesis(state.tokens[row, 1 : length + 1], batch.scores[row, 1 : length + 1])
                ]
        stay = [row for row, is_finished in enumerate(finished) if not is_finished]
        batch.sentences = [batch.sentences[row] for row in stay]
        rows = torch.tensor(stay, dtype=torch.long, device=state.tokens.device)
        state.tokens, state.lengths = state.tokens[rows], state.lengths[rows]
        state.host_lengths = [state.host_lengths[row] for row in stay]
        batch.scores = batch.scores[rows]
        if not stay:
            return
        self.method.verifier.keep(rows)
        self.method.drafter.keep(rows)

    def _hypothesis(self, tokens: Tensor, scores: Tensor) -> dict[str, Tensor]:
        # Ordinary tensors: fairseq-generate changes the scores in place.
        with torch.inference_mode(False):
            tokens, scores = tokens.clone(), scores.clone()
            score = scores.sum()
            if self.normalize_scores:
                score = score / len(tokens) ** self.len_penalty
            return {
                "tokens": tokens,
                "score": score,
                "attention": torch.empty(0),
                "alignment": torch.empty(0),
                "positional_scores": scores,
            }

    def _record(self, sample: dict[str, Any], batch: _Batch, seconds: float) -> None:
        source = sample["net_input"]["src_tokens"]
        size = source.size(0)
        ids = sample["id"].tolist() if "id" in sample else list(range(size))
        source_tokens = (source != self.pad).sum(1).tolist()
        together = min(size, self.active_sentences or size)
        self.stats.record(
            [
                SentenceStats(ids[i], source_tokens[i], sum(gained), len(gained), gained, together, seconds / size)
                for i, gained in enumerate(batch.gained)
            ],
            seconds,
        )
        if self.trace is not None:
            self.trace.write(sample, batch.hypotheses, has_prefix=batch.prefix is not None)


def _select(sample: dict[str, Any], sentences: list[int], pad: int) -> dict[str, Any]:
    """Some sentences of a batch, without columns that are padding in all of them."""
    rows = torch.tensor(sentences, device=sample["net_input"]["src_tokens"].device)
    source = sample["net_input"]["src_tokens"][rows]
    inputs = {
        "src_tokens": source[:, (source != pad).any(0)],
        "src_lengths": sample["net_input"]["src_lengths"][rows],
    }
    return {"net_input": inputs, **({"id": sample["id"][rows]} if "id" in sample else {})}


def _write(state: DecodingState, buffer: Tensor, block: Tensor) -> None:
    """Put `block` [B, T] behind the last token of every row; what follows an accepted part is overwritten later."""
    span, width = state.span, block.size(1)
    if span.uniform:
        buffer[:, span.longest + 1 : span.longest + 1 + width] = block
    else:
        place = state.lengths[:, None] + torch.arange(1, width + 1, device=block.device)
        buffer.scatter_(1, place.clamp(max=buffer.size(1) - 1), block)
