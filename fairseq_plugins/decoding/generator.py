"""The loop: draft, verify, keep the longest accepted prefix and the verifier's own next token, repeat."""

import logging
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any

import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_plugins.decoding.batch import Batch
from fairseq_plugins.decoding.constraints import (
    Constraints,
    constraints_of,
    refuse_unless_honoured,
    working_repeat_blocker,
)
from fairseq_plugins.decoding.engine.arithmetic import exact_arithmetic
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.one_call import OneCall, runs_in_one_call
from fairseq_plugins.decoding.one_call_of_beams import BeamsInOneCall, searches_in_one_call
from fairseq_plugins.decoding.one_sentence import OneSentence
from fairseq_plugins.decoding.state import Advance, BeamAdvance, Draft, Hypothesis
from fairseq_plugins.decoding.stats import DecodingStats, SentenceStats
from fairseq_plugins.decoding.trace import TracedSearch, TraceWriter
from fairseq_plugins.decoding.verifier import DrafterIsVerifier
from fairseq_plugins.errors import ConfigurationError

logger = logging.getLogger(__name__)

Hypotheses = list[list[dict[str, Tensor]]]


def _in_one_call(method: Method) -> OneCall | BeamsInOneCall | None:
    """What runs the loop in compiled code; None for what is not for it."""
    if runs_in_one_call(method):
        return OneCall(method)
    return BeamsInOneCall(method) if searches_in_one_call(method) else None


def _as_fairseq(tokens: Tensor, score: Tensor, log_probs: Tensor, nothing: Tensor) -> dict[str, Tensor]:
    """A hypothesis as fairseq has it; `nothing` stands for what is not computed."""
    unknown = {"attention": nothing, "alignment": nothing}
    return {"tokens": tokens, "score": score, "positional_scores": log_probs, **unknown}


class DraftVerifyGenerator(SequenceGenerator):
    """Decoding by drafting and verifying, with the interface and output of fairseq's `SequenceGenerator`.

    With an exact rule the output equals fairseq's own at `--beam 1`, token by token; that of beam search equals
    fairseq's own with as many beams. Batches are ragged: every
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
        searches_beams: the method keeps `beam_size` hypotheses of every sentence, instead of one.
        kwargs: as for `SequenceGenerator`; `beam_size` must be 1 without `searches_beams`.

    Raises:
        ConfigurationError: for options that change the output and are not honoured here.
    """

    def __init__(
        self,
        models: list,
        tgt_dict: Any,
        build_method: Callable[[], Method],
        stats: DecodingStats,
        trace: TraceWriter | None = None,
        active_sentences: int = 0,
        searches_beams: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(models, tgt_dict, **kwargs)
        refuse_unless_honoured(self, searches_beams)
        self.searches_beams = searches_beams
        if self.repeat_ngram_blocker is not None and working_repeat_blocker(self) is None:
            logger.warning(
                "--no-repeat-ngram-size: forbids nothing, as in fairseq 0.12's own search without its CUDA extension"
            )
        self.stats = stats
        self.trace = trace
        self.active_sentences = active_sentences
        self.build_method = build_method
        self.method: Method | None = None
        # What runs the method in compiled code, where that knows it.
        self.in_one_call: OneCall | BeamsInOneCall | None = None
        self.one_sentence: OneSentence | None = None

    def refresh(self) -> None:
        """Read the models' weights anew at the next batch, as validation during training must."""
        self.method = None

    def _generate(self, sample: dict[str, Any], *args: Any, **kwargs: Any) -> Hypotheses:
        alone = self._alone(sample, *args, **kwargs)
        if alone is not None:
            return alone
        iterations = self.iterate(sample, *args, every_one=False, **kwargs)
        with torch.inference_mode(), exact_arithmetic(sample["net_input"]["src_tokens"].device):
            while True:
                try:
                    next(iterations)
                except StopIteration as end:
                    return end.value

    def _alone(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> Hypotheses | None:
        """Decode a batch of one sentence that is for `OneSentence`; None for others."""
        source = sample["net_input"]["src_tokens"]
        if len(source) != 1 or self.trace is not None:
            return None
        started = time.perf_counter()
        limits = self._begin(source, prefix_tokens, constraints)
        if self.one_sentence is None or not self.method.in_one_call:
            return None
        done = self.one_sentence.run(sample, limits, self.eos if bos_token is None else bos_token)
        if done is None:
            return None
        output, emitted = done
        hypotheses = [[self._hypothesis(output)]]
        self._record(sample, [emitted], hypotheses, time.perf_counter() - started)
        return hypotheses

    def _begin(self, source: Tensor, prefix_tokens: Tensor | None, constraints: Tensor | None) -> Constraints:
        """Refuse what is not for this decoder, and have a method; returns what the options forbid in a batch."""
        if constraints is not None:
            raise ConfigurationError("--constraints is not supported by this decoder; use --decoder beam")
        if prefix_tokens is not None and self.active_sentences:
            raise ConfigurationError("--active-sentences: is not supported with --prefix-size; leave one of them out")
        if self.method is None:
            with torch.inference_mode():
                self.method = self.build_method()
                self.in_one_call = _in_one_call(self.method)
                whole = self.in_one_call if isinstance(self.in_one_call, OneCall) else None
                self.one_sentence = None if whole is None else OneSentence.of(self.method, whole)
        return constraints_of(self, source, prefix_tokens)

    def iterate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
        every_one: bool = True,
    ) -> Generator[Advance, None, Hypotheses]:
        """Decode as `generate` does, and yield what every iteration adds; returns what `generate` returns.

        Those that the kernels run by themselves are not yielded, unless `every_one` is wanted.

        The caller sees to it that every step runs under `torch.inference_mode` and `exact_arithmetic`.
        """
        started = time.perf_counter()
        source = sample["net_input"]["src_tokens"]
        limits = self._begin(source, prefix_tokens, constraints)
        assert self.method is not None
        beam = self.beam_size if self.searches_beams else None
        first_token = self.eos if bos_token is None else bos_token
        keeps_ended = self.method.verifier.engine.has_graphs(source.device)
        batch = Batch(sample, limits, first_token, self.active_sentences, beam, keeps_ended)
        yield from self._decode(batch, self.method, every_one)
        hypotheses = self._hypotheses(batch.outputs)
        self._record(sample, batch.emitted, hypotheses, time.perf_counter() - started)
        if self.trace is not None:
            self.trace.write(sample, hypotheses, has_prefix=prefix_tokens is not None)
        return hypotheses

    def _decode(self, batch: Batch, method: Method, every_one: bool) -> Iterator[Advance]:
        """Run the loop until every sentence of the batch has ended; yield what every iteration adds."""
        verifier, drafter, search, state = method.verifier, method.drafter, method.search, batch.state
        if self.trace is not None:
            search = TracedSearch(search, self.trace)
        given = self._given_draft(batch, method)
        is_watched = every_one or given is not None or self.trace is not None
        # Somebody may have come to watch since this was made.
        in_one_call = self.in_one_call if method.in_one_call and not is_watched else None
        while batch.admit(method):
            done = None if in_one_call is None else in_one_call.run(state, batch.enough_finished)
            if done is not None:
                emitted, finished, hypotheses = done
                batch.retire(emitted, finished, method, hypotheses)
                continue
            draft = given or drafter.draft(state)
            verification = verifier.verify(state, draft)
            advance = search.advance(state, draft, verification)
            state.append(advance)
            drafter.observe(advance)
            yield advance
            searched = isinstance(advance, BeamAdvance)
            hypotheses, ended = (advance.hypotheses, None) if searched else ((), advance.ended)
            batch.retire([[count] for count in advance.host_emitted], advance.finished, method, hypotheses, ended)
            # Scores of a whole vocabulary: not two iterations' at a time.
            del draft, verification, advance
            given = None

    def _given_draft(self, batch: Batch, method: Method) -> Draft | None:
        """`--prefix-size`: the given tokens are the first draft, and what the verifier must choose."""
        # Beam search takes them one by one, as fairseq does.
        given = None if self.searches_beams else batch.state.constraints.given()
        if given is not None and isinstance(method.verifier, DrafterIsVerifier):
            raise ConfigurationError("--prefix-size is not supported where no verifier runs; use --decoder gad")
        return None if given is None else Draft(*given)

    def _hypotheses(self, outputs: list[list[Hypothesis]]) -> Hypotheses:
        """As fairseq returns them, of every sentence the best first; of equal ones that which ended first."""
        every = [output for found in outputs for output in found]
        if not every:
            return [[] for _ in outputs]
        if len(outputs) == len(every) == 1:
            with torch.inference_mode(False):
                return [[self._hypothesis(every[0])]]
        lengths = [len(output.tokens) for output in every]
        # Ordinary tensors: fairseq-generate changes the scores in place.
        with torch.inference_mode(False):
            nothing = torch.empty(0)
            tokens = torch.cat([output.tokens for output in every]).split_with_sizes(lengths)
            log_probs = torch.cat([output.log_probs for output in every]).split_with_sizes(lengths)
            scores = torch.stack([output.score for output in every])
            if self.normalize_scores:
                scores = scores / torch.tensor([length**self.len_penalty for length in lengths]).to(scores)
            found = [
                _as_fairseq(ids, score, positional, nothing)
                for ids, score, positional in zip(tokens, scores.unbind(), log_probs, strict=True)
            ]
        if all(len(some) == 1 for some in outputs):
            return [[hypothesis] for hypothesis in found]
        scored = iter(zip(scores.tolist(), found, strict=True))
        in_order = [sorted(islice(scored, len(some)), key=lambda pair: -pair[0]) for some in outputs]
        return [[hypothesis for _, hypothesis in some] for some in in_order]

    def _hypothesis(self, output: Hypothesis) -> dict[str, Tensor]:
        """`_hypotheses` of one output by itself, outside of `torch.inference_mode`: it takes fewer operations."""
        score, length = output.score, len(output.tokens)
        score = score / length**self.len_penalty if self.normalize_scores else score.clone()
        return _as_fairseq(output.tokens.clone(), score, output.log_probs.clone(), torch.empty(0))

    def _record(
        self, sample: dict[str, Any], emitted: list[list[int]], hypotheses: Hypotheses, seconds: float
    ) -> None:
        """Note what decoding a batch took, of every sentence the tokens that each iteration emitted."""
        source_tokens = sample["net_input"]["src_lengths"].tolist()
        size = len(source_tokens)
        ids = sample["id"].tolist() if "id" in sample else list(range(size))
        together = min(size, self.active_sentences or size)
        if self.searches_beams:
            # Every step adds a token to the hypotheses that go on: to the best one, until it ends.
            lengths = [len(found[0]["tokens"]) for found in hypotheses]
            emitted = [
                [1] * length + [0] * (sum(each) - length) for length, each in zip(lengths, emitted, strict=True)
            ]
        self.stats.record(
            [
                SentenceStats(ids[i], source_tokens[i], sum(each), len(each), each, together, seconds / size)
                for i, each in enumerate(emitted)
            ],
            seconds,
        )
