"""Adaptive verification: verify the drafted tokens that can win, draft only as many as pay, and none where none does.

A row of a verification costs time whether its token is accepted or not. How likely that is, the drafter says itself:
the product of its conditional probabilities up to the token, recalibrated by what became of earlier drafts. What a row
costs is measured while decoding. vLLM calls this adaptive verification. A drafted token costs time, too, before anybody
knows its probability: that of earlier drafts at the same position says whether it is worth it. With exact acceptance
the output is the same however many tokens are drafted and verified.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
from torch import Tensor

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.drafters.policy import Counting, Policy
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft

# So many iterations of the kernels the policy takes in at a time, with drafts and without.
_LEARNT_AT_ONCE, _STEPS_LEARNT_AT_ONCE = 32, 512


class AdaptiveDrafter:
    """Lets a trained drafter draft for the batches where it pays, and hands on the tokens that are worth a row.

    Args:
        inner: the drafter; its drafts have `survival`, and as many tokens as its `width` says.
        policy: what decides.
    """

    def __init__(self, inner: Drafter, policy: Policy) -> None:
        self.inner = inner
        self.policy = policy
        # Whether this batch is drafted for; its sentences, and what that took besides drafts, in seconds.
        self.drafts = True
        self.batch, self.preparation = 0, 0.0
        self.given: numpy.ndarray | None = None  # survival of the last draft
        self.verified: numpy.ndarray | None = None
        # When the verification of that draft began, and whether there was one.
        self.began: float | None = None
        self.drafted = False
        # What the policy does not know yet.
        self.counts: Counting | None = None

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        if self.begin(*sample["net_input"]["src_tokens"].shape):
            with self.preparing():
                self.inner.start(sample, encoder_out)

    def begin(self, batch: int, source: int) -> bool:
        """Whether to draft for a batch with sources [batch, source], be it for some iterations only."""
        if self.batch:
            self.policy.regime.prepared(self.batch, self.preparation)
        if batch > 1 or self.policy.batch > 1:
            self._learn()
        began = time.perf_counter()
        # Outputs are about as long as their sources.
        self.drafts = self.policy.begin(batch, source)
        # The first draft may be another's: that of --prefix-size.
        self.given = self.verified = self.began = None
        self.batch = batch if self.drafts else 0
        self.preparation = time.perf_counter() - began
        return self.drafts

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Counts the time of what is done for drafts besides them."""
        began = time.perf_counter()
        yield
        self.preparation += time.perf_counter() - began

    def counting(self, batch: int) -> Counting:
        """What the kernels are to count in while they decode so many sentences, with drafts of the width that pays."""
        counts = self.counts
        if counts is None or (counts.batch, counts.drafts) != (batch, self._drafts_now):
            with self.preparing():
                self._learn()
                counts = self.counts = self._new_counts(batch)
        return counts

    @property
    def _drafts_now(self) -> bool:
        """Whether the next iterations have drafts."""
        return self.drafts and self.policy.drafts_now()

    def _new_counts(self, batch: int) -> Counting:
        drafts = self._drafts_now
        if drafts:
            self.choose_width(batch)
        else:
            # Something may be ready to draft, and goes on reading what the verifier says.
            self.inner.width = 0
        return self.policy.counting(batch, drafts)

    def counted(self, batch: int) -> None:
        """The kernels have counted: learn from it, but not every time, for that takes longer than an iteration.

        No more is drafted for the batch in hand where a trial has shown that this does not pay.
        """
        assert self.counts is not None
        enough = _LEARNT_AT_ONCE if self.counts.drafts else _STEPS_LEARNT_AT_ONCE
        if self.counts.budget is not None or self.counts.iterations >= enough:
            with self.preparing():
                self._learn()
                self.drafts = self.drafts and self.policy.goes_on(batch)

    def _learn(self) -> None:
        if self.counts is not None:
            self.policy.learn(self.counts)
        self.counts = None

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        if self.drafts:
            self.inner.append_rows(sample, encoder_out)

    def draft(self, state: DecodingState) -> Draft:
        self.given = self.verified = None
        draft = no_draft(state)
        self.drafted = self._drafts_now
        if self.drafted:
            began = time.perf_counter()
            self.choose_width(len(state.host_lengths))
            draft = self.inner.draft(state)
            positions = draft.tokens.numel()
            if positions > 0:
                draft = self._worth_verifying(draft)
                self.policy.regime.draft_cost.observe(positions, time.perf_counter() - began)
        self.began = time.perf_counter()
        return draft

    def choose_width(self, batch: int) -> None:
        """Say how many tokens the next drafts are to have."""
        self.policy.choose_width(batch)
        self.inner.width = self.policy.width

    def _worth_verifying(self, draft: Draft) -> Draft:
        assert draft.survival is not None
        self.given = draft.survival.cpu().numpy()
        self.verified = self.policy.worth_verifying(self.given)
        width = int(self.verified.max())
        is_ragged = self.verified.min() < width
        counts = draft.tokens.new_tensor(self.verified) if is_ragged else None
        return Draft(draft.tokens[:, :width], counts, survival=draft.survival[:, :width])

    def observe(self, advance: Advance) -> None:
        if self.began is not None:
            rows = len(advance.host_emitted) + (0 if self.verified is None else int(self.verified.sum()))
            regime = self.policy.regime
            cost = regime.verify_cost if self.drafted else regime.step_cost
            cost.observe(rows, time.perf_counter() - self.began)
            self.policy.count_calls(1, len(advance.host_emitted), self.policy.width if self.drafted else 0)
        if not self.drafts:
            return
        if self.given is not None and self.verified is not None:
            emitted, accepted = numpy.array(advance.host_emitted), advance.num_accepted.cpu().numpy()
            self.policy.observe(self.given, self.verified, emitted, accepted)
        self.inner.observe(advance)

    def select_rows(self, rows: Tensor) -> None:
        if self.drafts:
            self.inner.select_rows(rows)


def inner_of(drafter: Drafter) -> Drafter:
    """The drafter that drafts: that of an `AdaptiveDrafter`, or the drafter itself."""
    return drafter.inner if isinstance(drafter, AdaptiveDrafter) else drafter
