"""The loop on the host: it launches iterations ahead, learns what has ended, and fills free places.

Nothing inside a sentence waits for the device: an iteration is one CUDA graph, its results go to a ring in pinned
memory with an event behind each, and the host reads them some iterations later. Graphs differ by the number of places,
the length of drafts, whether long outputs or sources are split, and whether tokens are drawn.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import product

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import TILE
from fairseq_plugins.decoding.gpu.beam_search import BeamSearch, EosForbidden
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.kernels.constants import ALL_ROWS, EOS_IS_FORBIDDEN, STATUS
from fairseq_plugins.decoding.gpu.policy import Policy
from fairseq_plugins.decoding.gpu.search import GreedySearch, packed
from fairseq_plugins.decoding.kernel_module import FoundHypothesis, FoundOutput
from fairseq_plugins.decoding.reference.arithmetic import on_device
from fairseq_plugins.decoding.reference.captured.graph_capture import capture_on_cuda
from fairseq_plugins.decoding.reference.rows import from_host
from fairseq_plugins.errors import NAN_SCORES

# Numbers of places that have graphs of their own.
PLACES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
# Iterations in flight: enough that the device never waits for the host.
AHEAD = 4
# Free places are filled once they are a quarter of all: each filling runs the encoder.
_REFILL_SHARE = 4
_LOST = "an iteration emitted no token of a sentence, or more than it may have"
_EOS_FORBIDDEN = "EOS is forbidden at the maximum length"

# Places, length of drafts, parts of attention, whether tokens are drawn, and whether from some only.
_Key = tuple[int, int, tuple[int, int], bool, bool]


@dataclass(frozen=True)
class Scoring:
    """What all sentences of the places share: penalties, how tokens are drawn, and which never are."""

    unk_penalty: float = 0.0
    temperature: float = 1.0
    topk: int = 0
    topp: float = 0.0
    draws: bool = False
    suppressed: tuple[int, ...] = ()
    begin_suppressed: tuple[int, ...] = ()


@dataclass(eq=False)
class Sentence:
    """A sentence on the host: the arguments of `KernelModule.Sentence`, and what becomes of it while it is decoded."""

    source: Sequence[int]
    _: KW_ONLY
    min_len: int
    max_len: int
    unk_penalty: float = 0.0
    temperature: float = 1.0
    beam: int = 1
    prefix: Sequence[int] = ()
    drafts: Sequence[Sequence[int]] = ()
    noise_key: Sequence[int] = ()
    topk: int = 0
    topp: float = 0.0
    suppressed: Sequence[int] = ()
    begin_suppressed: Sequence[int] = ()
    needs_log_probs: bool = True
    number: int = field(default=0, init=False)  # among those of which the drafter knows
    # In a continuous batch: what names it, and whether its iterations are events.
    id: int = field(default=-1, init=False)
    streams: bool = field(default=False, init=False)
    emitted: list[int] = field(default_factory=list, init=False)
    drafted: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)
    length: int = field(default=0, init=False)
    has_ended: bool = field(default=False, init=False)
    error: Exception | None = field(default=None, init=False)  # why it has no output
    output: tuple[Tensor, ...] = field(default=(), init=False)  # the results of its place (`results` of the search)
    place: int = field(default=-1, init=False)  # negative while it waits
    reported: int = field(default=0, init=False)  # tokens that were in events

    @property
    def scoring(self) -> Scoring:
        """How it is scored."""
        tokens = tuple(self.suppressed), tuple(self.begin_suppressed)
        return Scoring(self.unk_penalty, self.temperature, self.topk, self.topp, len(self.noise_key) > 0, *tokens)

    def found(self) -> FoundOutput:
        """Return the output of greedy search."""
        tokens, log_probs = (values[1 : self.length + 1] for values in self.output)
        # Copies, as users may keep them: the memory of a whole batch is pinned.
        return tokens.long().numpy(), log_probs.clone().numpy(), self.emitted

    def hypotheses(self) -> list[FoundHypothesis]:
        """Return the hypotheses of beam search."""
        tokens, log_probs, scores, lengths, count = self.output
        ended = zip(tokens, log_probs, scores.tolist(), lengths.tolist(), strict=True)
        found = [(row[:size].long().numpy(), each[:size].clone().numpy(), score) for row, each, score, size in ended]
        return found[: int(count)]


@dataclass
class Flight:
    """An iteration that has been launched."""

    status: Tensor  # [places, STATUS] in the ring
    event: torch.cuda.Event | None
    owners: list[Sentence | None]  # at each place
    width: int


class HostLoop:
    """Sentences at places, and the graphs that decode them.

    Args:
        search: with the memory of all places.
        drafter, policy: those of the generator.
        widths: lengths of drafts that have graphs.

    Attributes:
        symbols: pad, unk, EOS and the first token of all sentences.
        is_open: whether sentences join the batch while it is decoded (continuous_batch.py).
        waiting: sentences without a place.
        owners: the sentence at each place; one that has ended leaves it when its output has been collected.
    """

    def __init__(
        self, search: GreedySearch | BeamSearch, drafter: Drafter | None, policy: Policy | None, widths: list[int]
    ) -> None:
        self.search, self.drafter, self.policy, self.widths = search, drafter, policy, widths
        sizes = search.sizes
        self.batch, self.device, self.most_places = search.batch, search.device, search.sizes.places
        self.iterations: dict[_Key, Callable[[], object]] = {}
        self.encoders: dict[int, Callable[[], object]] = {}
        self.ahead, self.is_gpu = AHEAD, self.device.type == "cuda"
        self.ring = torch.zeros(AHEAD + 1, self.most_places, STATUS.value, dtype=torch.int32, pin_memory=self.is_gpu)
        self.waiting: deque[Sentence] = deque()
        self.owners: list[Sentence | None] = []
        self.is_open, self.max_source = False, sizes.sources
        self.symbols, self.scoring = (-1, -1, -1, -1), Scoring()
        self.spent = dict.fromkeys(("encode", "decode"), 0.0)

    def take_places(self, sentences: int, max_len: int, longest: int) -> None:
        """Divide the memory among places for this many sentences, or as many as fit, and empty them."""
        most = min(self.most_places, self.search.sizes.rows // (1 + max(self.used)))
        wanted = min(sentences, self.batch.fitting(max_len, longest), most)
        self.max_len, self.longest = max_len, longest
        self.places = next((count for count in PLACES if wanted <= count <= most), most)
        self.usable = min(wanted, self.places)
        self.owners = [None] * self.places
        self.batch.set_bases(max_len, longest)
        self.batch.active.zero_()

    def graph_for(self, wanted: int) -> int:
        """Return the places of the smallest graph that has the wanted ones."""
        return next((count for count in PLACES if wanted <= count <= len(self.owners)), len(self.owners))

    def set_scoring(self, scoring: Scoring) -> None:
        """Set how all places score, and capture their graphs; no sentence may be active."""
        topk, topp = scoring.topk, scoring.topp
        self.batch.draws, self.batch.keeps = scoring.draws, scoring.draws and (topk > 0 or topp > 0)
        self.scoring = scoring
        self.prepare_places()
        self.batch.penalties.copy_(
            from_host([scoring.unk_penalty, scoring.temperature, topp], self.device, torch.float32)
        )
        suppressed = scoring.suppressed, scoring.begin_suppressed
        self.batch.set_limits(*self.symbols[:3], suppressed, topk)

    def prepare_places(self) -> None:
        """Capture the graphs of a batch: of all numbers of places and lengths of sources if sentences join it."""
        if not self.is_open:
            return self.prepare()
        for places in sorted({self.graph_for(count + 1) for count in range(self.usable)}):
            for longest in (1, self.max_source):
                self.places, self.longest = places, longest
                self.prepare()

    def _key(self, width: int) -> _Key:
        """Return what the graph of an iteration depends on."""
        return self.places, width, self.batch.parts, self.batch.draws, self.batch.keeps

    def prepare(self) -> None:
        """Capture the graphs of this number of places."""
        for width, length in product(self.used, (1, self.max_len + 1)):
            self.batch.parts = self.search.sizes.parts(length, self.longest)
            key = self._key(width)
            if key not in self.iterations:
                self.iterations[key] = replayed(partial(self.search.iterate, self.places, width), self.device)
        # Triton's interpreter has no costs to compare: there, all drafts have the full length.
        if self.policy is not None and self.is_gpu:
            self.batch.parts = self.search.sizes.parts(1, self.longest)
            self.policy.measure(self.places, partial(self.seconds_of, self.places))

    def seconds_of(self, places: int, width: int) -> float:
        """Return the seconds of an iteration of greedy search, measured; ends the batch and changes its limits.

        Args:
            places: of the graph; those with memory have outputs of 8 and sources of 24 tokens.
            width: length of drafts; its graph has been captured.
        """
        batch, replay = self.batch, self.iterations[self._key(width)]
        batch.set_limits(1, 3, -1)
        batch.place_limits.copy_(from_host([1, 3, -1, 0, self.max_len, 0, 0, 0], self.device, torch.int32))
        batch.penalties.copy_(from_host([0.0, 1.0, 0.0], self.device, torch.float32))
        # Places beyond the usable ones have no slots in the caches.
        used = slice(min(places, self.usable))
        batch.source_lengths[used] = source = min(24, self.search.sizes.sources)
        batch.source_ends[used] = source - 1
        times, stream = [], torch.cuda.current_stream(self.device)
        for _ in range(5):
            batch.lengths[used] = min(8, self.max_len)
            batch.active[used] = ALL_ROWS.value
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record(stream)
            replay()
            ended.record(stream)
            ended.synchronize()
            times.append(float(began.elapsed_time(ended)) / 1e3)
        batch.active.zero_()
        return min(times)

    def fill(self) -> None:
        """Give free places to waiting sentences."""
        free = [place for place in range(self.usable) if self._is_free(place)]
        is_few = len(free) < min(len(self.waiting), self.usable) and len(free) * _REFILL_SHARE < self.usable
        if not self.waiting or not free or is_few:
            return
        began = time.perf_counter()
        self.collect([place for place in free if self.owners[place] is not None])
        taken = [(place, self.waiting.popleft()) for place, _ in zip(free, list(self.waiting), strict=False)]
        for place, sentence in taken:
            self.owners[place], sentence.place = sentence, place
        self._write_limits(taken)
        if self.drafter is not None:
            if self.is_open:
                self.begin_drafts(self.drafter, [owner for owner in self.owners if owner is not None])
            self.drafter.take_places(self.batch, [(place, sentence.number) for place, sentence in taken])
        most = self.search.encoder.most_tiles
        while taken:
            part, count = [], 0
            while taken and count + _tiles(taken[0][1].source) <= most:
                count += _tiles(taken[0][1].source)
                part.append(taken.pop(0))
            self._encode(part, count)
        self.spent["encode"] += time.perf_counter() - began

    def _write_limits(self, taken: Sequence[tuple[int, Sentence]]) -> None:
        pad, unk, eos, first_token = self.symbols
        limits = []
        for _, sentence in taken:
            forced = sentence.prefix[: sentence.max_len]
            leading = list(forced).index(pad) if pad in forced else len(forced)
            lengths = [sentence.min_len, sentence.max_len, len(sentence.prefix)]
            limits.append([pad, unk, eos, *lengths, first_token, leading])
        places = from_host([place for place, _ in taken], self.device)
        self.batch.place_limits.index_copy_(0, places, from_host(limits, self.device, torch.int32))

    def begin_drafts(self, drafter: Drafter, sentences: Sequence[Sentence]) -> None:
        """Number sentences for the drafter, and choose the graphs: without a policy, the shortest that suffice."""
        for number, sentence in enumerate(sentences):
            sentence.number = number
        max_len = max((sentence.max_len for sentence in sentences), default=0)
        sources, drafts = [sentence.source for sentence in sentences], [sentence.drafts for sentence in sentences]
        most = min(drafter.begin_batch(sources, max_len, drafts), max_len)
        if self.policy is None:
            self.used = [next((length for length in self.widths if length >= most), self.widths[-1])]

    def is_decoding(self) -> bool:
        """Return whether a sentence at a place has not ended."""
        return any(owner is not None and not owner.has_ended for owner in self.owners)

    def _is_free(self, place: int) -> bool:
        owner = self.owners[place]
        return owner is None or owner.has_ended

    def _encode(self, taken: Sequence[tuple[int, Sentence]], count: int) -> None:
        """Encode sentences at their places."""
        places, pad = [place for place, _ in taken], self.symbols[0]
        numbers = from_host(places, self.device)
        width = max(len(sentence.prefix) for _, sentence in taken)
        if width:
            rows = [[*sentence.prefix, *[pad] * (width - len(sentence.prefix))] for _, sentence in taken]
            self.batch.prefix[:, :width].index_copy_(0, numbers, from_host(rows, self.device, torch.int32))
        if self.batch.draws:
            keys = torch.tensor([list(sentence.noise_key) for _, sentence in taken]).to(torch.int32)
            self.batch.noise_keys.index_copy_(0, numbers, from_host(keys, self.device, torch.int32))
        tiles = min(max(1 << (count - 1).bit_length(), 2), self.search.encoder.most_tiles)
        tokens, of_tiles = packed([sentence.source for _, sentence in taken], places, pad)
        tokens += [pad] * (tiles * TILE - len(tokens))
        of_tiles += [[-1, 0, 0]] * (tiles - len(of_tiles))
        encode, encoder = self.encoder_of(tiles), self.search.encoder
        encoder.parts(tiles)[0].copy_(from_host(tokens, self.device, torch.int32))
        into = encoder.input[encoder.most_tiles * TILE :].view(3, -1)[:, :tiles]
        into.copy_(from_host(list(zip(*of_tiles, strict=True)), self.device, torch.int32))
        encode()

    def encoder_of(self, tiles: int) -> Callable[[], object]:
        """Return the graph that encodes sources of this many tiles."""
        if tiles not in self.encoders:
            encoder = self.search.encoder
            encoder.input[encoder.most_tiles * TILE :].fill_(-1)
            self.encoders[tiles] = replayed(partial(self.search.encode, tiles), self.device)
        return self.encoders[tiles]

    def launch(self, number: int, flights: int) -> Flight:
        """Launch an iteration after others that are in flight, and the copy of its results."""
        active = [owner for owner in self.owners if owner is not None and not owner.has_ended]
        if self.is_open:
            self.places = self.graph_for(max(owner.place for owner in active) + 1)
            self.longest = max(len(owner.source) for owner in active)
        width = self.policy.width(self.places) if self.policy is not None and self.is_gpu else self.used[-1]
        # At least the length of each output, with its draft.
        length = max(owner.length for owner in active)
        length = min(length + (flights + 1) * (1 + max(self.used)), self.max_len + 1)
        self.batch.parts = self.search.sizes.parts(length, self.longest)
        self.iterations[self._key(width)]()
        status = self.ring[number % len(self.ring), : self.places]
        status.copy_(self.batch.status[: self.places], non_blocking=True)
        event = None
        if self.is_gpu:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.device))
        return Flight(status, event, self.owners[: self.places], width)

    def finish(self, flight: Flight) -> list[Sentence]:
        """Read the results of an iteration; return the sentences that it changed."""
        if flight.event is not None:
            flight.event.synchronize()
        changed = []
        for sentence, (emitted, accepted, drafted, has_ended, error) in zip(
            flight.owners, flight.status.tolist(), strict=True
        ):
            if sentence is None or sentence.has_ended:
                continue
            changed.append(sentence)
            sentence.emitted.append(emitted)
            sentence.length += emitted
            if error:
                is_eos = error == EOS_IS_FORBIDDEN.value
                sentence.error = EosForbidden(_EOS_FORBIDDEN) if is_eos else RuntimeError(NAN_SCORES)
            elif not emitted or sentence.length > sentence.max_len + 1:
                # Without this, a fault of a kernel would be a loop without an end.
                sentence.error = RuntimeError(_LOST)
            ended = has_ended or sentence.error is not None
            sentence.drafted, sentence.accepted, sentence.has_ended = drafted, accepted, bool(ended)
            if self.policy is not None and flight.width:
                self.policy.count(drafted, accepted)
        return changed

    def wait(self) -> None:
        """Wait until copies to the host are complete."""
        if self.is_gpu:
            torch.cuda.current_stream(self.device).synchronize()

    def collect(self, places: list[int]) -> None:
        """Copy the outputs of places to the host, and free those of ended sentences."""
        owners = [self.owners[place] for place in places]
        longest = max((owner.length for owner in owners if owner is not None), default=0)
        if not longest:
            return
        numbers = from_host(places, self.device, torch.int32)
        copies = [_to_host(values.index_select(0, numbers)) for values in self.search.results(longest + 1)]
        for row, (place, owner) in enumerate(zip(places, owners, strict=True)):
            assert owner is not None
            owner.output = tuple(values[row] for values in copies)
            if owner.has_ended:
                self.owners[place] = None


def replayed(launch: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return launches at fixed addresses, captured once as a CUDA graph; without a GPU, as they are.

    The first call of `launch` compiles its kernels, so it must change nothing: all places that it reads are idle.
    """
    if device.type != "cuda":
        return launch
    with on_device(device):
        return capture_on_cuda(launch)


def _tiles(source: Sequence[int]) -> int:
    return -(-len(source) // TILE)


def _to_host(values: Tensor) -> Tensor:
    """Copy to the host; the copy is complete once the stream is synchronised."""
    if values.device.type == "cpu":
        return values.clone()
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
