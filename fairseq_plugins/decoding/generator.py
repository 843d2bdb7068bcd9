"""Decoding by drafting and verifying, with the interface and output of fairseq's `SequenceGenerator`."""

import logging
import math
import time
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Any, NoReturn

import torch
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from fairseq_plugins.decoding.backends import Backend
from fairseq_plugins.decoding.constraints import Constraints, constraints_of
from fairseq_plugins.decoding.decoded import Decoded, StepOutput
from fairseq_plugins.decoding.method import MethodSpec
from fairseq_plugins.decoding.recording.stats import DecodingStats, SentenceStats
from fairseq_plugins.decoding.recording.trace_writer import TraceWriter
from fairseq_plugins.decoding.reference.alignment import Extract, align
from fairseq_plugins.decoding.reference.arithmetic import on_device
from fairseq_plugins.decoding.reference.encoder import is_known_encoder
from fairseq_plugins.decoding.reference.rows import from_host
from fairseq_plugins.decoding.reference.sampling import group_samples, with_samples
from fairseq_plugins.decoding.weight_changes import WeightSnapshot
from fairseq_plugins.errors import NAN_SCORES, ConfigurationError
from fairseq_plugins.shared.forks import ForkSafeLock

logger = logging.getLogger(__name__)


class CountedHypothesis(dict[str, Any]):
    """A hypothesis as fairseq has it; the best of a sentence also has the number of tokens of each iteration."""

    emitted: list[int] | None = None


Hypotheses = list[list[Any]]
"""The hypotheses of each sentence, `CountedHypothesis`."""


class DraftVerifyGenerator(SequenceGenerator):
    """A `SequenceGenerator` that decodes on one of our backends.

    With exact acceptance the output equals fairseq's own at `--beam 1`, token by token; with beam search it equals
    fairseq's own with the same beam. Threads may share a generator: their calls of `generate` take turns.

    Args:
        models, tgt_dict, kwargs: as for `SequenceGenerator`.
        spec: the method.
        choose: chooses the backend; called at the first batch, and when the weights have changed since.
        stats: records counts and times.
        trace: records every iteration; None for no trace.
        active_sentences: number of sentences decoded at a time, 0 for all.
        drafter: the trained drafter, whose weights may change too; None without one.
        samples: number of outputs that sampling draws for each sentence; 0 for the best output.
        seed: of sampling.
        extract_alignment: makes the alignments of `--print-alignment`; None for none.
        begin_suppressed: as `SuppressedTokens.at_beginning`; `tokens_to_suppress` of fairseq are suppressed everywhere.
    """

    def __init__(
        self,
        models: Sequence[FairseqEncoderDecoderModel],
        tgt_dict: Any,
        spec: MethodSpec,
        choose: Callable[[], Backend],
        stats: DecodingStats,
        trace: TraceWriter | None = None,
        active_sentences: int = 0,
        drafter: nn.Module | None = None,
        samples: int = 0,
        seed: int = 1,
        extract_alignment: Extract | None = None,
        begin_suppressed: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(models, tgt_dict, **kwargs)
        self.spec = spec
        self.stats = stats
        self.trace = trace
        self.active_sentences = active_sentences
        self.samples, self.seed = samples, seed
        self.extract_alignment = extract_alignment
        # Hypotheses of a sentence that get an alignment, the best ones; None for all, as fairseq's have.
        self.most_aligned: int | None = None
        self.begin_suppressed = begin_suppressed
        # Whether scores are read; without them greedy search is faster. Those that were not computed are 0.
        self.needs_scores = True
        # Numbers the sentences of batches without `id`.
        self.number: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self.choose = choose
        # Returns token ids of the user's drafts for every sentence of a batch (methods/reuse.py).
        self.drafts: Callable[[dict[str, Any]], Sequence[Sequence[Sequence[int]]]] | None = None
        # Whether the models are ours alone. Comparing weights takes up to a tenth of the time of a short sentence.
        self.weights_are_fixed = False
        # The position tables that the engine reads end there; other encoders check this themselves.
        known = [model.encoder.max_positions() for model in models if is_known_encoder(model.encoder)]
        self._max_source = min(known, default=math.inf)
        self._max_target = self.model.max_decoder_positions()
        # A list, since an attribute of this module would make the drafter a part of it.
        self._read_from = [*models, *([] if drafter is None else [drafter])]
        self._chosen: tuple[Backend, WeightSnapshot] | None = None
        self._lock = ForkSafeLock()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a generator is not copied or pickled; build one for each copy of the models, from their task")

    @property
    def backend(self) -> Backend:
        """The backend, chosen on first use and when the weights have changed."""
        chosen = self._chosen
        if chosen is None or not (self.weights_are_fixed or chosen[1].is_current()):
            self._chosen = chosen = None  # frees the memory
            with torch.inference_mode(), on_device(next(self.model.parameters()).device):
                backend = self.choose()
            # Afterwards: joining layers moves their weights.
            chosen = self._chosen = backend, WeightSnapshot(self._read_from)
            self.stats.backend = f"{backend.name}: {backend.reason}"
        return chosen[0]

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> Hypotheses:
        with self._lock:
            request = self.request(sample, prefix_tokens, constraints, bos_token)
            backend = self.backend  # set up before the clock starts
            started = time.perf_counter()
            return self._finish(request, backend.decode(*request), started, prefix_tokens is not None)

    def steps(self, sample: dict[str, Any], **kwargs: Any) -> Generator[list[StepOutput], None, Hypotheses]:
        """Decode as `generate` does, and yield each iteration's result for every sentence."""
        request = self.request(sample, **kwargs)
        backend = self.backend
        started = time.perf_counter()
        decoded = yield from backend.steps(*request)
        return self._finish(request, decoded, started, False)

    def request(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> tuple[dict[str, Any], Constraints, int]:
        """Return the arguments of `Backend.decode`; raise ConfigurationError for unsupported options."""
        if constraints is not None:
            if not self.search.supports_constraints:
                remedy = "use {--decoder fast-beam} without {--match-source-len}, {--diverse-beam-groups} and "
                remedy += "{--diversity-rate}"
                raise ConfigurationError("--constraints", None, "are not for this search", remedy)
            sample = {**sample, "constraints": constraints}
        source = sample["net_input"]["src_tokens"]
        if source.dim() == 2 and source.size(1) > self._max_source:
            problem = f"a source has {source.size(1)} tokens, and the model reads at most {self._max_source} "
            problem += "({--max-source-positions})"
            raise ConfigurationError(None, None, problem, "split it or leave it out")
        if self.number is not None:
            sample = self.number(sample)
        if self.drafts is not None:
            sample = {**sample, "drafts": self.drafts(sample)}
        if not self.needs_scores:
            sample = {**sample, "needs_scores": False}
        if self.samples:
            sample = with_samples(sample, self.samples, self.seed)
            prefix_tokens = None if prefix_tokens is None else prefix_tokens.repeat_interleave(self.samples, 0)
        limits = constraints_of(self, sample["net_input"], prefix_tokens)
        if limits.max_len >= self._max_target:
            problem = f"an output may have {limits.max_len} tokens, and the model writes at most "
            problem += f"{self._max_target - 1} ({{--max-target-positions}})"
            raise ConfigurationError(None, None, problem, "leave out longer sources or {--match-source-len}")
        return sample, limits, self.eos if bos_token is None else bos_token

    def _finish(
        self, request: tuple[dict[str, Any], Constraints, int], decoded: Decoded, started: float, has_prefix: bool
    ) -> Hypotheses:
        sample, _, first_token = request
        if self.match_source_len:
            # As fairseq does, rank outputs that are longer than their source last.
            for longest, outputs in zip(sample["net_input"]["src_lengths"].tolist(), decoded.outputs, strict=True):
                for output in outputs:
                    if len(output.tokens) - 1 > longest:
                        output.score = torch.full_like(output.score, -torch.inf)
        hypotheses = self.hypotheses(decoded)
        if self.extract_alignment is not None:
            best = [of_sentence[: self.most_aligned] for of_sentence in hypotheses]
            align(self.model.models, sample, best, self.extract_alignment, (self.pad, self.eos), first_token)
        self._record(sample, hypotheses, time.perf_counter() - started)
        if self.trace is not None:
            self.trace.write(sample, hypotheses, has_prefix=has_prefix)
        return group_samples(hypotheses, self.samples) if self.samples > 1 else hypotheses

    def hypotheses(self, decoded: Decoded) -> Hypotheses:
        """Return outputs in fairseq's format, the best of a sentence first; equal scores keep the order of ending.

        In beam search each step counts as one token of the best one.
        """
        outputs = decoded.outputs
        flat = [output for of_sentence in outputs for output in of_sentence]
        if not flat:
            return [[] for _ in outputs]
        # Copies, because fairseq-generate changes the scores in place: these are no inference tensors.
        with torch.inference_mode(False):
            none = torch.empty(0)
            scores = torch.stack([output.score for output in flat])
            if self.normalize_scores:
                penalties = [len(output.tokens) ** self.len_penalty for output in flat]
                scores = scores / from_host(penalties, scores.device, scores.dtype)
            # One copy to the host, which waits for the device.
            host_scores = scores.tolist()
            if any(map(math.isnan, host_scores)):  # the compiled kernels check this themselves
                raise RuntimeError(NAN_SCORES)
            hypotheses = [
                CountedHypothesis(
                    tokens=output.tokens.clone(),
                    score=score,
                    positional_scores=output.log_probs.clone(),
                    attention=none,
                    alignment=none,
                )
                for output, score in zip(flat, scores.unbind(), strict=True)
            ]
        scored = iter(zip(host_scores, hypotheses, strict=True))
        ranked = [sorted(islice(scored, len(of_sentence)), key=lambda pair: -pair[0]) for of_sentence in outputs]
        for ((_, best), *_), emitted in zip(ranked, decoded.emitted, strict=True):
            length = len(best["tokens"])
            best.emitted = [1] * length + [0] * (sum(emitted) - length) if self.spec.searches_beams else emitted
        return [[hypothesis for _, hypothesis in of_sentence] for of_sentence in ranked]

    def _record(self, sample: dict[str, Any], hypotheses: Hypotheses, seconds: float) -> None:
        """Record the statistics of a batch."""
        lengths = sample["net_input"]["src_lengths"]
        size = len(lengths)
        ids = sample["id"].to(lengths) if "id" in sample else torch.arange(size).to(lengths)
        # One copy to the host, which waits for the device.
        numbers = torch.stack([ids, lengths], dim=1).tolist()
        batch_size = min(size, self.active_sentences or size)
        sentences = []
        for (number, length), (best, *_) in zip(numbers, hypotheses, strict=True):
            emitted = best.emitted or []
            sentences.append(
                SentenceStats(number, length, sum(emitted), len(emitted), emitted, batch_size, seconds / size)
            )
        self.stats.record(sentences, seconds)
