"""The GPU engine's generator: the interface of modules of kernels over the loop on the host."""

import time
from collections import deque
from collections.abc import Sequence

import torch

from fairseq_plugins.decoding.gpu.acceptance import Acceptance
from fairseq_plugins.decoding.gpu.batch import Sizes
from fairseq_plugins.decoding.gpu.beam_search import BeamSearch
from fairseq_plugins.decoding.gpu.continuous_batch import ContinuousBatch
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.host_loop import PLACES, Flight, HostLoop, Scoring, Sentence
from fairseq_plugins.decoding.gpu.policy import Policy
from fairseq_plugins.decoding.gpu.search import GreedySearch
from fairseq_plugins.decoding.gpu.weights import Linear, Transformer
from fairseq_plugins.decoding.kernel_module import FoundEvent, FoundHypothesis, FoundOutput, Unsupported

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

    def begin(self, sentences: Sequence[Sentence], *, pad: int, unk: int, eos: int, first_token: int) -> None:
        self._refuse_open()
        self._check_tokens("a special symbol", (pad, unk, eos, first_token))
        sizes, self.sentences = self.search.sizes, list(sentences)
        max_len = max((sentence.max_len for sentence in sentences), default=0)
        for sentence in sentences:
            self.check(sentence, sizes.outputs, sizes.sources)
        self.waiting, self.used = deque(sentences), self.widths
        if self.drafter is not None:
            self.begin_drafts(self.drafter, self.sentences)
        self.take_places(len(sentences), max_len, max((len(sentence.source) for sentence in sentences), default=1))
        self.symbols = pad, unk, eos, first_token
        self.set_scoring(sentences[0].scoring if sentences else Scoring())

    def check(self, sentence: Sentence, max_len: int, max_source: int) -> None:
        """Raise ValueError for a sentence that does not fit."""
        words = self.search.encoder.model.embedding.size(0)
        if not 0 < len(sentence.source) <= max_source:
            raise ValueError("a source has no token, or more than there is room for")
        if any(not 0 <= token < words for token in sentence.source):
            raise ValueError("a source token is outside of the vocabulary")
        if not 0 <= sentence.min_len <= sentence.max_len <= max_len:
            raise ValueError("the lengths are not possible")
        if sentence.beam != max(self.search.sizes.beam, 1):
            raise ValueError("the beam is wider than that of the batch")
        if len(sentence.prefix) > max_len:
            raise ValueError("a prefix is too long")
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
        self.wait()  # the thread of the batch has another stream
        self.running = ContinuousBatch(self)

    def admit(self, id: int, sentence: Sentence, streams: bool) -> None:
        running = self._opened()
        self.check(sentence, self.max_len, self.max_source)
        sentence.id, sentence.streams = id, streams
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
