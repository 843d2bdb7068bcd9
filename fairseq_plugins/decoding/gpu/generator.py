"""The GPU engine's generator: the interface of modules of kernels over the loop on the host."""

import time
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.acceptance import Acceptance
from fairseq_plugins.decoding.gpu.batch import Sizes
from fairseq_plugins.decoding.gpu.beam_search import BeamSearch
from fairseq_plugins.decoding.gpu.continuous_batch import ContinuousBatch
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.host_loop import PLACES, Flight, HostLoop, Scoring, Sentence
from fairseq_plugins.decoding.gpu.policy import Policy
from fairseq_plugins.decoding.gpu.search import GreedySearch
from fairseq_plugins.decoding.gpu.weights import Linear, Transformer
from fairseq_plugins.decoding.kernel_module import FoundEvent, FoundHypothesis, FoundOutput, GivenDrafts, Unsupported
from fairseq_plugins.decoding.reference.rows import from_host

MOST_OUTPUTS = 4096


class Generator(HostLoop):
    """Decodes batches with a method: a `KernelGenerator`, which says what arguments and results are."""

    def __init__(
        self,
        *,
        encoder: Transformer | None,
        verifier: Transformer,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        policy: Policy | None = None,
        head: tuple[Linear, Linear] | None = None,
        beam: int = 0,
        places: int = PLACES[-1],
        outputs: int = 1024,
        sources: int = 1024,
    ) -> None:
        assert encoder is not None, "sources are encoded on the device"
        widths = [0] if drafter is None else list(drafter.widths) if policy is None else policy.widths
        sizes = Sizes(places, min(outputs, MOST_OUTPUTS), min(sources, MOST_OUTPUTS), max(widths), beam)
        if beam > 0:
            super().__init__(BeamSearch(encoder, verifier, sizes), drafter, policy, widths)
        else:
            search = GreedySearch(encoder, verifier, sizes, drafter, acceptance, head)
            super().__init__(search, drafter, policy, widths)
        self.sentences: list[Sentence] = []
        self.running: ContinuousBatch | None = None

    def begin(
        self,
        source: Tensor,
        *,
        pad: int,
        unk: int,
        eos: int,
        first_token: int,
        min_len: int,
        max_len: int,
        unk_penalty: float,
        temperature: float,
        prefix: Tensor | None = None,
        drafts: GivenDrafts = (),
        noise_keys: Tensor | None = None,
        topk: int = 0,
        topp: float = 0.0,
        suppressed: Sequence[int] = (),
        begin_suppressed: Sequence[int] = (),
        needs_log_probs: bool = True,
    ) -> None:
        self._refuse_open()
        width = 0 if prefix is None else min(prefix.size(1), self.search.sizes.outputs)
        prefixes = [[]] * len(source) if prefix is None else prefix[:, :width].tolist()
        keys = [[]] * len(source) if noise_keys is None else noise_keys.tolist()
        self.sentences = [
            Sentence(number, [token for token in row if token != pad], min_len, max_len, own, noise_key=key)
            for number, (row, own, key) in enumerate(zip(source.tolist(), prefixes, keys, strict=True))
        ]
        longest = max((len(sentence.source) for sentence in self.sentences), default=1)
        for sentence in self.sentences:
            self.check(sentence)
        self._check_tokens("a special symbol", (pad, unk, eos, first_token))
        if not 0 <= min_len <= max_len or max_len > self.search.sizes.outputs:
            raise ValueError(f"outputs of {min_len} to {max_len} tokens do not fit the memory")
        self.waiting = deque(self.sentences)
        self.used = self.widths
        if self.drafter is not None:
            sources = [sentence.source for sentence in self.sentences]
            self.choose_widths(self.drafter.begin_batch(sources, max_len, drafts), max_len)
        self.take_places(len(source), max_len, longest)
        self.symbols = pad, unk, eos, first_token
        tokens = tuple(suppressed), tuple(begin_suppressed)
        self.set_scoring(Scoring(unk_penalty, temperature, topk, topp, noise_keys is not None, *tokens))
        limits = [pad, unk, eos, min_len, max_len, width, first_token, 0]
        self.batch.place_limits.copy_(from_host(limits, self.device, torch.int32))

    def check(self, sentence: Sentence) -> None:
        """Raise ValueError for a source, a prefix or drafts that do not fit."""
        size, most = self.search.encoder.model.embedding.size(0), self.search.sizes.sources
        if not sentence.source:
            raise ValueError("a source has no token")
        if any(not 0 <= token < size for token in sentence.source):
            raise ValueError("a source token is outside of the vocabulary")
        if len(sentence.source) > most:
            raise ValueError(f"a source has {len(sentence.source)} tokens, more than there is room for ({most})")
        self._check_tokens("a prefix", sentence.prefix)
        for draft in sentence.drafts:
            self._check_tokens("a token of a draft", draft)

    def _check_tokens(self, what: str, tokens: Sequence[int]) -> None:
        """Raise ValueError for ids that the verifier does not have: kernels would read beyond its embeddings."""
        if any(not 0 <= token < self.search.scores.outputs for token in tokens):
            raise ValueError(f"{what} is outside of the vocabulary")

    def run(self, iterations: int = -1) -> bool:
        began = time.perf_counter()
        self.lengths_before = [sentence.length for sentence in self.sentences]
        flights: deque[Flight] = deque()
        launched = 0
        while True:
            self.fill()
            may_launch = iterations < 0 or launched < iterations
            if may_launch and self.is_decoding() and len(flights) < self.ahead:
                flights.append(self.launch(launched, len(flights)))
                launched += 1
                continue
            if not flights:
                break
            for sentence in self.finish(flights.popleft()):
                if sentence.error is not None:
                    raise sentence.error
        if iterations < 0:
            self.collect([place for place, owner in enumerate(self.owners) if owner is not None])
        self.spent["decode"] += time.perf_counter() - began
        return all(sentence.has_ended for sentence in self.sentences)

    def outputs(self) -> list[FoundOutput]:
        self.collect([place for place, owner in enumerate(self.owners) if owner is not None])
        self.wait()
        return [sentence.found() for sentence in self.sentences]

    def run_beams(self) -> list[tuple[list[FoundHypothesis], int]]:
        self.run()
        self.wait()
        return [(sentence.hypotheses(), sentence.length) for sentence in self.sentences]

    def last_iteration(self) -> list[tuple[list[int], int, int, bool]]:
        place_of = {owner.number: place for place, owner in enumerate(self.owners) if owner is not None}
        tokens = self.batch.tokens[: self.places].cpu()
        results = []
        for number, sentence in enumerate(self.sentences):
            before = self.lengths_before[number]
            row = tokens[place_of[number]] if number in place_of else None
            if row is None and sentence.output:
                row = sentence.output[0]
            new = [] if row is None else row[1 + before : 1 + sentence.length].tolist()
            drafted, accepted = (sentence.drafted, sentence.accepted) if new else (0, 0)
            results.append((new, drafted, accepted, sentence.has_ended))
        return results

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part, on the host."""
        return dict(self.spent)

    @torch.inference_mode()
    def open(
        self,
        *,
        pad: int,
        unk: int,
        eos: int,
        first_token: int,
        threads: int,
        max_sentences: int,
        max_source: int,
        max_len: int,
    ) -> None:
        """Open a continuous batch; capture its graphs. `threads` has no meaning on a GPU."""
        if self.search.sizes.beam:
            raise Unsupported("all sentences of a beam search have the same beam on a GPU")
        self._refuse_open()
        if threads < 1 or max_sentences < 0 or max_source < 1:
            raise ValueError("a continuous batch needs threads and room")
        self._check_tokens("a special symbol", (pad, unk, eos, first_token))
        sizes = self.search.sizes
        self.max_source, self.used = min(max_source, sizes.sources), self.widths
        if not 0 <= max_len <= sizes.outputs:
            raise ValueError("the lengths are not possible")
        self.take_places(max_sentences or self.most_places, max_len, self.max_source)
        self.waiting = deque()
        most = self.search.encoder.most_tiles
        for power in range(1, most.bit_length() + 1):
            self.encoder_of(min(1 << power, most))
        self.is_open = True
        self.symbols = pad, unk, eos, first_token
        self.set_scoring(Scoring())
        self.running = ContinuousBatch(self)

    def admit(
        self,
        id: int,
        source: Sequence[int],
        *,
        min_len: int,
        max_len: int,
        unk_penalty: float,
        temperature: float,
        beam: int,
        prefix: Sequence[int],
        drafts: Sequence[Sequence[int]],
        streams: bool,
        noise_key: Sequence[int] = (),
        topk: int = 0,
        topp: float = 0.0,
        suppressed: Sequence[int] = (),
        begin_suppressed: Sequence[int] = (),
        needs_log_probs: bool = True,
    ) -> None:
        running = self._opened()
        scoring = Scoring(
            unk_penalty, temperature, topk, topp, len(noise_key) > 0, tuple(suppressed), tuple(begin_suppressed)
        )
        sentence = Sentence(
            0, list(source), min_len, max_len, list(prefix), list(drafts), noise_key, id, scoring, streams
        )
        self.check(sentence)
        if not 0 <= min_len <= max_len <= self.max_len:
            raise ValueError("the lengths are not possible")
        if len(source) > self.max_source:
            raise ValueError("a source has no token, or more than there is room for")
        if beam != 1:
            raise ValueError("the beam is wider than that of the batch")
        if len(prefix) > self.max_len:
            raise ValueError("a prefix is too long")
        running.admit(sentence)

    def cancel(self, id: int) -> None:
        self._opened().cancel(id)

    def take(self, seconds: float) -> list[FoundEvent]:
        return self._opened().take(seconds)

    def load(self) -> tuple[int, int]:
        return self._opened().load()

    def close(self) -> None:
        if self.running is not None:
            self.running.close()

    def _opened(self) -> ContinuousBatch:
        if self.running is None:
            raise ValueError("no continuous batch is open")
        return self.running

    def _refuse_open(self) -> None:
        if self.running is not None:
            raise ValueError("a generator with a continuous batch decodes nothing else")
