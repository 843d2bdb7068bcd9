"""The worker on the host: it launches iterations ahead, learns what has ended, and fills free places.

It has the interface of the compiled module's `Generator`. Nothing inside a sentence waits for the device: an iteration
is one CUDA graph, its results go to a ring in pinned memory with an event behind each, and the host reads them some
iterations later. Graphs differ by the number of places, the length of drafts, whether long outputs or sources are
split, and whether tokens are drawn.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.acceptance import Acceptance
from fairseq_plugins.decoding.gpu.batch import TILE, Sizes
from fairseq_plugins.decoding.gpu.beam_search import BeamSearch, EosForbidden
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.graphs import Replayed
from fairseq_plugins.decoding.gpu.kernels.constants import ALL_ROWS, EOS_IS_FORBIDDEN, STATUS
from fairseq_plugins.decoding.gpu.policy import Policy
from fairseq_plugins.decoding.gpu.search import GreedySearch, packed
from fairseq_plugins.decoding.gpu.weights import Linear, Transformer
from fairseq_plugins.decoding.kernel_module import FoundHypothesis, FoundOutput, GivenDrafts
from fairseq_plugins.shared.explanations import NAN_SCORES

# Numbers of places that have graphs of their own.
PLACES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
MOST_OUTPUTS = 4096
# Iterations in flight: enough that the device never waits for the host.
_AHEAD = 4
# Free places are filled once they are a quarter of all: each filling runs the encoder.
_REFILL_SHARE = 4

# Places, length of drafts, parts of attention, whether tokens are drawn, and whether from some only.
_Key = tuple[int, int, tuple[int, int], bool, bool]


@dataclass
class Sentence:
    """A sentence of a batch, on the host."""

    source: list[int]
    emitted: list[int]
    drafted: int = 0
    accepted: int = 0
    length: int = 0
    has_ended: bool = False
    output: tuple[Tensor, ...] = ()  # the results of its place (`results` of the search)


@dataclass
class _Flight:
    """An iteration that has been launched."""

    status: Tensor  # [places, STATUS] in the ring
    event: torch.cuda.Event | None
    owners: list[int | None]  # the sentence at each place
    width: int


class Generator:
    """Decodes batches with a method. See csrc/python/generator.cpp for the meaning of arguments and results."""

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
        self.drafter, self.policy = drafter, policy
        self.widths = [0] if drafter is None else list(drafter.widths) if policy is None else policy.widths
        sizes = Sizes(places, min(outputs, MOST_OUTPUTS), min(sources, MOST_OUTPUTS), max(self.widths), beam)
        self.search: GreedySearch | BeamSearch
        if beam > 0:
            self.search = BeamSearch(encoder, verifier, sizes)
        else:
            self.search = GreedySearch(encoder, verifier, sizes, drafter, acceptance, head)
        self.batch, self.device = self.search.batch, self.search.device
        self.most_places = places
        self.iterations: dict[_Key, Replayed] = {}
        self.encoders: dict[int, Replayed] = {}
        self.ring = torch.zeros(
            _AHEAD + 1, places, STATUS.value, dtype=torch.int32, pin_memory=self.device.type == "cuda"
        )
        self.sentences: list[Sentence] = []
        self.spent = dict.fromkeys(("encode", "decode"), 0.0)

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
    ) -> None:
        """Begin a batch of sources [B, S], padded. With `noise_keys` [B, 4], tokens are drawn (reference/noise.py).

        Raises:
            ValueError: for lengths or symbols that are out of range.
        """
        batch, sizes = self.batch, self.search.sizes
        rows = source.tolist()
        self.sentences = [Sentence([token for token in row if token != pad], []) for row in rows]
        longest = max((len(sentence.source) for sentence in self.sentences), default=1)
        size = self.search.encoder.model.embedding.size(0)
        if any(not sentence.source for sentence in self.sentences):
            raise ValueError("a source has no token")
        if any(not 0 <= token < size for sentence in self.sentences for token in sentence.source):
            raise ValueError("a source token is outside of the vocabulary")
        if not 0 <= min_len <= max_len or max_len > sizes.outputs or longest > sizes.sources:
            raise ValueError(f"a source of {longest} tokens and outputs of {max_len} do not fit the memory")
        self.pad, self.prefix = pad, prefix
        width = 0 if prefix is None else min(prefix.size(1), sizes.outputs)
        self.waiting = deque(range(len(rows)))
        self.max_len, self.longest = max_len, longest
        self.used = self.widths
        if self.drafter is not None:
            sources = [sentence.source for sentence in self.sentences]
            most_drafted = min(self.drafter.begin_batch(sources, max_len, drafts), max_len)
            if self.policy is None:
                self.used = [next((length for length in self.widths if length >= most_drafted), self.widths[-1])]
        most = min(self.most_places, sizes.rows // (1 + max(self.used)))
        wanted = min(len(rows), batch.fitting(max_len, longest), most)
        self.places = next((count for count in PLACES if wanted <= count <= most), most)
        self.usable = min(wanted, self.places)
        self.owners: list[int | None] = [None] * self.places
        batch.set_bases(max_len, longest)
        batch.active.zero_()
        self.noise_keys = noise_keys
        batch.draw = None if noise_keys is None else batch.draws(topk > 0 or topp > 0)
        self._prepare()
        tokens = tuple(suppressed), tuple(begin_suppressed)
        batch.set_limits(pad, unk, eos, (min_len, max_len), tokens, width, first_token, topk)
        batch.penalties.copy_(torch.tensor([unk_penalty, temperature, topp]))

    def run(self, iterations: int = -1) -> bool:
        """Decode until all sentences have ended, at most `iterations` (negative: no limit); return whether all have."""
        began = time.perf_counter()
        self.lengths_before = [sentence.length for sentence in self.sentences]
        flights: deque[_Flight] = deque()
        launched = 0
        while True:
            self._fill()
            may_launch = iterations < 0 or launched < iterations
            if may_launch and self._is_decoding() and len(flights) < _AHEAD:
                flights.append(self._launch(launched, len(flights)))
                launched += 1
                continue
            if not flights:
                break
            self._finish(flights.popleft())
        if iterations < 0:
            self._collect([place for place, owner in enumerate(self.owners) if owner is not None])
        self.spent["decode"] += time.perf_counter() - began
        return all(sentence.has_ended for sentence in self.sentences)

    def outputs(self) -> list[FoundOutput]:
        """Return tokens, log-probabilities and emitted tokens of each sentence."""
        self._collect([place for place, owner in enumerate(self.owners) if owner is not None])
        self._wait()
        return [_output(sentence) for sentence in self.sentences]

    def run_beams(self) -> list[tuple[list[FoundHypothesis], int]]:
        """Decode by beam search; return hypotheses and the number of steps of each sentence.

        Raises:
            RuntimeError: if scores are NaN.
            EosForbidden: if EOS is forbidden at the maximum length.
        """
        self.run()
        self._wait()
        return [(_hypotheses(sentence), sentence.length) for sentence in self.sentences]

    def last_iteration(self) -> list[tuple[list[int], int, int, bool]]:
        """Return for each sentence the tokens of the last `run`, and the counts of its last iteration."""
        place_of = {owner: place for place, owner in enumerate(self.owners) if owner is not None}
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

    # ------------------------------------------------------------------------------------------------ host loop

    def _key(self, width: int) -> _Key:
        """Return what the graph of an iteration depends on."""
        draw = self.batch.draw
        return self.places, width, self.batch.parts, draw is not None, draw is not None and draw.keeps

    def _prepare(self) -> None:
        """Capture the graphs of this number of places."""
        for width, length in product(self.used, (1, self.max_len + 1)):
            self.batch.parts = self.search.sizes.parts(length, self.longest)
            key = self._key(width)
            if key not in self.iterations:
                self.iterations[key] = Replayed(partial(self.search.iterate, self.places, width), self.device)
        # Triton's interpreter has no costs to compare: there, all drafts have the full length.
        if self.policy is not None and self.device.type == "cuda":
            self.batch.parts = self.search.sizes.parts(1, self.longest)
            self.policy.measure(self.places, partial(self.seconds_of, self.places))

    def seconds_of(self, places: int, width: int) -> float:
        """Return the seconds of an iteration of greedy search, measured; ends the batch.

        Args:
            places: as many sentences have outputs of 8 and sources of 24 tokens.
            width: length of drafts; its graph has been captured.
        """
        batch, replay = self.batch, self.iterations[self._key(width)]
        batch.set_limits(1, 3, -1, (0, self.max_len))
        batch.penalties.copy_(torch.tensor([0.0, 1.0, 0.0]))
        batch.source_ends[:places] = min(23, self.search.sizes.sources - 1)
        times = []
        for _ in range(5):
            batch.lengths[:places] = min(8, self.max_len)
            batch.active[:places] = ALL_ROWS.value
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            replay()
            ended.record()
            ended.synchronize()
            times.append(float(began.elapsed_time(ended)) / 1e3)
        batch.active.zero_()
        return min(times)

    def _fill(self) -> None:
        """Give free places to waiting sentences."""
        free = [place for place in range(self.usable) if self._is_free(place)]
        if not self.waiting or (len(free) * _REFILL_SHARE < self.usable and len(free) < self.usable):
            return
        began = time.perf_counter()
        self._collect([place for place in free if self.owners[place] is not None])
        taken = [(place, self.waiting.popleft()) for place, _ in zip(free, list(self.waiting), strict=False)]
        for place, number in taken:
            self.owners[place] = number
        most = self.search.encoder.most_tiles
        while taken:
            part, count = [], 0
            while taken and count + _tiles(self.sentences[taken[0][1]].source) <= most:
                count += _tiles(self.sentences[taken[0][1]].source)
                part.append(taken.pop(0))
            self._encode(part, count)
        self.spent["encode"] += time.perf_counter() - began

    def _is_decoding(self) -> bool:
        return any(owner is not None and not self.sentences[owner].has_ended for owner in self.owners)

    def _is_free(self, place: int) -> bool:
        owner = self.owners[place]
        return owner is None or self.sentences[owner].has_ended

    def _encode(self, taken: Sequence[tuple[int, int]], count: int) -> None:
        """Encode sentences at their places."""
        sources = [self.sentences[number].source for _, number in taken]
        places = [place for place, _ in taken]
        if self.drafter is not None:
            self.drafter.take_places(self.batch, taken)
        if self.prefix is not None:
            width = min(self.prefix.size(1), self.search.sizes.outputs)
            numbers = torch.tensor([number for _, number in taken])
            self.batch.prefix[places, :width] = self.prefix[numbers, :width].to(self.batch.prefix)
        if self.noise_keys is not None:
            keys = self.noise_keys[[number for _, number in taken]]
            self.batch.noise_keys[places] = keys.to(self.batch.noise_keys)
        tiles = 1 << (count - 1).bit_length()
        tiles = min(max(tiles, 2), self.search.encoder.most_tiles)
        tokens, of_tiles = packed(sources, places, self.pad)
        tokens += [self.pad] * (tiles * TILE - len(tokens))
        of_tiles += [[-1, 0, 0]] * (tiles - len(of_tiles))
        staged = torch.tensor([*tokens, *(row[n] for n in range(3) for row in of_tiles)], dtype=torch.int32)
        if self.device.type == "cuda":
            staged = staged.pin_memory()
        encoder = self.search.encoder
        if tiles not in self.encoders:
            encoder.input[encoder.most_tiles * TILE :].fill_(-1)
            self.encoders[tiles] = Replayed(partial(self.search.encode, tiles), self.device)
        split = tiles * TILE
        to = encoder.parts(tiles)
        to[0].copy_(staged[:split], non_blocking=True)
        encoder.input[encoder.most_tiles * TILE :].view(3, -1)[:, :tiles].copy_(
            staged[split:].view(3, tiles), non_blocking=True
        )
        self.encoders[tiles]()

    def _launch(self, number: int, flights: int) -> _Flight:
        """Launch an iteration after others that are in flight, and the copy of its results."""
        chooses = self.policy is not None and self.device.type == "cuda"
        width = self.policy.width(self.places) if self.policy is not None and chooses else self.used[-1]
        # At least the length of each output, with its draft.
        length = max(self.sentences[owner].length for owner in self.owners if owner is not None)
        length = min(length + (flights + 1) * (1 + max(self.used)), self.max_len + 1)
        self.batch.parts = self.search.sizes.parts(length, self.longest)
        self.iterations[self._key(width)]()
        status = self.ring[number % len(self.ring), : self.places]
        status.copy_(self.batch.status[: self.places], non_blocking=True)
        event = None
        if self.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
        return _Flight(status, event, list(self.owners), width)

    def _finish(self, flight: _Flight) -> None:
        """Read the results of an iteration."""
        if flight.event is not None:
            flight.event.synchronize()
        for owner, (emitted, accepted, drafted, has_ended, error) in zip(
            flight.owners, flight.status.tolist(), strict=True
        ):
            if owner is None or not emitted:
                continue
            if error == EOS_IS_FORBIDDEN.value:
                raise EosForbidden("EOS is forbidden at the maximum length")
            if error:
                raise RuntimeError(NAN_SCORES)
            sentence = self.sentences[owner]
            sentence.emitted.append(emitted)
            sentence.length += emitted
            sentence.drafted, sentence.accepted, sentence.has_ended = drafted, accepted, bool(has_ended)
            if self.policy is not None and flight.width:
                self.policy.count(drafted, accepted)

    def _wait(self) -> None:
        """Wait until copies to the host are complete."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _collect(self, places: list[int]) -> None:
        """Copy the outputs of places to the host."""
        if not places:
            return
        numbers = torch.tensor(places, device=self.device)
        # An output has max_len tokens and EOS.
        results = self.search.results(self.max_len + 1 + max(self.widths))
        copies = [_to_host(values.index_select(0, numbers)) for values in results]
        for row, place in enumerate(places):
            owner = self.owners[place]
            assert owner is not None
            self.sentences[owner].output = tuple(values[row] for values in copies)
            if self.sentences[owner].has_ended:
                self.owners[place] = None


def _output(sentence: Sentence) -> FoundOutput:
    tokens, log_probs = (values[1 : sentence.length + 1] for values in sentence.output)
    return tokens.long().numpy(), log_probs.numpy(), sentence.emitted


def _hypotheses(sentence: Sentence) -> list[FoundHypothesis]:
    tokens, log_probs, scores, lengths, count = sentence.output
    ended = zip(tokens, log_probs, scores.tolist(), lengths.tolist(), strict=True)
    found = [(row[:size].long().numpy(), each[:size].numpy(), score) for row, each, score, size in ended]
    return found[: int(count)]


def _tiles(source: list[int]) -> int:
    return -(-len(source) // TILE)


def _to_host(values: Tensor) -> Tensor:
    """Copy to the host; the copy is complete once the stream is synchronised."""
    if values.device.type == "cpu":
        return values.clone()
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
