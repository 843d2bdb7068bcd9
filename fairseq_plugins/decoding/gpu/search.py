"""Greedy search on the device: encode, then draft, verify, accept and append, as launches without a wait."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.acceptance import Acceptance
from fairseq_plugins.decoding.gpu.batch import TILE, Batch, Sizes
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.kernels import rows, scores
from fairseq_plugins.decoding.gpu.kernels.arguments import Places
from fairseq_plugins.decoding.gpu.kernels.constants import Activation, OutputKind
from fairseq_plugins.decoding.gpu.runner import DecoderStep, Input, Runner
from fairseq_plugins.decoding.gpu.vocabulary import Scores, choose_best, make_scores, score
from fairseq_plugins.decoding.gpu.weights import Linear, Transformer


@dataclass(frozen=True)
class Encoded:
    """Sources that have just been encoded.

    Attributes:
        runner: of the encoder.
        step: the rows, in tiles of 16; a tile belongs to one source.
        state: the encoder's output, as the input of the next product.
        slots: [rows], the slot of each source token in the keys and values of a decoder; -1 for padding.
    """

    runner: Runner
    step: DecoderStep
    state: Input
    slots: Tensor

    def write_keys(self, projection: Linear, width: int, cache: Tensor) -> None:
        """Write keys and values of the sources for all layers of a decoder, into cache [L, slots, 2, width]."""
        new_x = self.runner.memory.free(self.step.rows, self.state.x)
        self.runner.linear(
            self.step, self.state, projection, self.state.x, new_x, OutputKind.SOURCE_KEY_VALUE, cache=cache,
            slots=self.slots, width=width, layer_stride=cache.stride(0),
        )  # fmt: skip


@dataclass(frozen=True)
class Verified:
    """The rows that verified an iteration's drafts.

    Attributes:
        step: the rows.
        features: [rows, F], states of the layers that the drafter reads; None for none.
        hidden: [rows, D], the last states.
        predicted: [rows], the best token after each row.
    """

    step: DecoderStep
    features: Tensor | None
    hidden: Tensor
    predicted: Tensor


class EncoderRunner:
    """Encodes packed sources of up to `most_tiles` tiles."""

    def __init__(self, model: Transformer, most_tiles: int, batch: Batch) -> None:
        self.model, self.batch = model, batch
        device = model.embedding.device
        most = most_tiles * TILE
        self.runner = Runner(model, most)

        def zeros(count: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        # Tokens; then for each tile the place, first row and length of its sentence.
        self.input = zeros(most + 3 * most_tiles)
        self.most_tiles = most_tiles
        self.x = torch.zeros(most, model.width, dtype=model.embedding.dtype, device=device)
        self.own_slots, self.slots, self.last_visible = (zeros(most) for _ in range(3))
        self.cache = torch.zeros(1, most, 2, model.width, dtype=model.embedding.dtype, device=device)

    def parts(self, tiles: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return views of the input: tokens, and the places, first rows and lengths of the tiles' sentences."""
        tokens, rest = self.input[: tiles * TILE], self.input[self.most_tiles * TILE :].view(3, -1)
        places, begins, sizes = rest[:, :tiles].unbind()
        return tokens, places, begins, sizes

    def encode(self, tiles: int) -> Encoded:
        """Launch the encoder for sources of this many tiles."""
        model, batch, count = self.model, self.batch, tiles * TILE
        tokens, places, begins, sizes = self.parts(tiles)
        rows.source_rows[(count,)](
            batch.arguments, tokens, places, begins, sizes, self.own_slots, self.slots, self.last_visible,
            num_warps=4, **self.runner.rows_arguments(self.x),
        )  # fmt: skip
        # The host writes the sizes before, and they are 0 where no sentence is.
        step = DecoderStep(
            count, TILE, sizes, self.own_slots[:count], begins, self.last_visible[:count],
        )  # fmt: skip
        # The keys of a layer are read before those of the next are written.
        cache = self.cache.expand(len(model.layers), -1, -1, -1)
        state = self.runner.run(step, self.x[:count], cache)
        return Encoded(self.runner, step, state, self.slots[:count])


class Search:
    """The models of a search and the memory of its steps.

    Args:
        encoder, verifier: the models.
        sizes: of the memory.
        best: tokens that are kept of each tile of the vocabulary.
    """

    def __init__(self, encoder: Transformer, verifier: Transformer, sizes: Sizes, best: int) -> None:
        assert verifier.projection is not None
        self.verifier, self.sizes = verifier, sizes
        self.device, dtype = verifier.embedding.device, verifier.embedding.dtype
        self.batch = Batch(sizes, verifier.projection.outputs, self.device)
        most = sizes.rows
        self.encoder = EncoderRunner(encoder, max(64, triton.cdiv(sizes.sources, TILE)), self.batch)
        self.runner = Runner(verifier, most)
        width, count = verifier.width, len(verifier.layers)
        self.cache = torch.zeros(count, sizes.slots, 2, width, dtype=dtype, device=self.device)
        self.source_cache = torch.zeros(count, sizes.source_slots, 2, width, dtype=dtype, device=self.device)
        self.source_projection = verifier.source_key_value()
        self.x = torch.zeros(most * width, dtype=dtype, device=self.device)
        self.last_visible, self.slots = (torch.zeros(most, dtype=torch.int32, device=self.device) for _ in range(2))
        self.needed = torch.zeros_like(self.batch.active)
        self.kept_scores: list[Tensor] = []
        self.scores = make_scores(most, verifier.projection.outputs, width, best, self.device)

    def all_scores(self, into: Scores) -> Tensor | None:
        """Return memory [rows, V] for the scores of all tokens where --sampling-topk or --sampling-topp need them."""
        if not self.batch.keeps:
            return None
        rows = len(into.token)
        size = rows * into.outputs
        # Graphs hold the addresses of smaller ones.
        if not self.kept_scores or len(self.kept_scores[-1]) < size:
            self.kept_scores.append(torch.zeros(size, dtype=torch.float32, device=self.device))
        return self.kept_scores[-1][:size].view(rows, into.outputs)

    def begin_step(
        self, places: int, each: int, x: Tensor, into: Scores, arguments: Places, ancestors: Tensor | None = None
    ) -> DecoderStep:
        """Launch what begins a step of `each` rows of a place, and writes their inputs to x [rows, D]."""
        batch, count = self.batch, places * each
        last_visible, slots = self.last_visible[:count], self.slots[:count]
        rows.step_rows[(count,)](
            arguments, into, last_visible, slots, self.needed, each, OF_BEAMS=ancestors is not None,
            num_warps=4, **self.runner.rows_arguments(x),
        )  # fmt: skip
        return DecoderStep(
            count, each, self.needed[:places], slots, batch.bases, last_visible, batch.source_bases,
            batch.source_ends, ancestors, batch.parts, batch.active[:places],
        )  # fmt: skip

    def encode(self, tiles: int) -> Encoded:
        """Launch the encoder for new sentences."""
        encoded = self.encoder.encode(tiles)
        encoded.write_keys(self.source_projection, self.verifier.width, self.source_cache)
        return encoded


class GreedySearch(Search):
    """Draft, verify, accept and append, for all places at once.

    Args:
        encoder, verifier, sizes: those of `Search`.
        drafter: None to decode one token at a time.
        acceptance: a relaxed rule, None for exact acceptance.
        head: two layers before the projection (head 1 of blockwise decoding).
    """

    def __init__(
        self,
        encoder: Transformer,
        verifier: Transformer,
        sizes: Sizes,
        drafter: Drafter | None = None,
        acceptance: Acceptance | None = None,
        head: tuple[Linear, Linear] | None = None,
    ) -> None:
        self.drafter, self.head, self.acceptance = drafter, head, acceptance or Acceptance()
        super().__init__(encoder, verifier, sizes, max(self.acceptance.top_beta, 1))
        assert verifier.projection is not None
        self.layers_read = () if drafter is None else tuple(drafter.layers_read)
        dtype = verifier.embedding.dtype

        def zeros(width: int) -> Tensor:
            return torch.zeros(sizes.rows * width, dtype=dtype, device=self.device)

        self.features = zeros(max(len(self.layers_read), 1) * verifier.width)
        self.hidden = zeros(verifier.width)
        self.no_drafts = torch.zeros_like(self.batch.num_drafted)
        self.wide: Tensor | None = None if head is None else zeros(head[0].outputs)
        self.projected: Tensor | None = None if head is None else zeros(head[1].outputs)
        self.values = None
        if self.acceptance.values is not None:
            # NaN for outputs of the projection that are no symbols.
            missing = verifier.projection.outputs - len(self.acceptance.values)
            values = self.acceptance.values.to(self.device, torch.float32)
            self.values = torch.nn.functional.pad(values, (0, missing), value=float("nan"))
        if drafter is not None:
            drafter.allocate(self)

    def encode(self, tiles: int) -> Encoded:
        """Launch the encoder for new sentences, and what begins them."""
        encoded = super().encode(tiles)
        if self.drafter is not None:
            self.drafter.begin(self.batch, encoded)
        return encoded

    def results(self, length: int) -> tuple[Tensor, ...]:
        """Return tokens and log-probabilities [B, length + 1] of all places; the first token is no output."""
        return self.batch.tokens[:, : length + 1], self.batch.log_probs[:, : length + 1]

    def iterate(self, places: int, width: int) -> None:
        """Launch an iteration of the first `places` places with drafts of up to `width` tokens."""
        if self.drafter is not None and width > 0:
            self.drafter.draft(self.batch, places, width)
        verified = self.verify(places, width)
        self.accept(places, width)
        if self.drafter is not None:
            self.drafter.observe(self.batch, verified)

    def verify(self, places: int, width: int) -> Verified:
        """Launch the verifier on the last token of each sentence and its draft."""
        model, batch, count = self.verifier, self.batch, places * (width + 1)
        features, kept = self._kept(count)
        x = kept.get(0, self.x[: count * model.width].view(count, model.width))
        into = self.scores.of_rows(count)
        step = self.begin_step(places, width + 1, x, into, self._arguments(width))
        state = self.runner.run(step, x, self.cache, self.source_cache, kept)
        hidden = self.hidden[: count * model.width].view(count, model.width)
        new_x = kept.get(len(model.layers))
        assert model.projection is not None
        if self.head is not None:
            state = self._head(step, state, hidden, new_x)
            new_x = state.x
        all_scores = self.all_scores(into)
        score(
            self.runner, step, state, model.projection, into, batch, batch.draws, True, new_x,
            hidden if self.head is None else None, all_scores=all_scores,
        )  # fmt: skip
        choose_best(self.runner, step, into, batch, batch.draws, True, all_scores)
        return Verified(step, features, hidden, into.token)

    def accept(self, places: int, width: int) -> None:
        """Launch acceptance, which appends tokens and ends sentences."""
        into, rule = self.scores, self.acceptance
        scores.accept[(places,)](
            self._arguments(width), into, self.batch.penalties if self.values is None else self.values,
            width + 1, rule.tau, rule.epsilon, MIN_BLOCK=rule.min_block, BETA=rule.top_beta,
            DISTANCE=self.values is not None, BEST=into.best, STEPS=triton.next_power_of_2(width + 1),
            CHUNK=64, num_warps=4, **self.runner.launch,
        )  # fmt: skip

    def _arguments(self, width: int) -> Places:
        """Return the places for a step with drafts of this width."""
        places = self.batch.arguments
        return places if width > 0 else places._replace(num_drafted=self.no_drafts)

    def _kept(self, count: int) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Return memory for the states that the drafter reads: [rows, F], and its views by layer."""
        if not self.layers_read:
            return None, {}
        width, number = self.verifier.width, len(self.layers_read)
        features = self.features[: count * number * width].view(count, number, width)
        return features.flatten(1), {layer: features[:, n] for n, layer in enumerate(self.layers_read)}

    def _head(self, step: DecoderStep, state: Input, hidden: Tensor, new_x: Tensor | None) -> Input:
        """Launch head 1 of blockwise decoding, a layer with a residual; return the input of the projection."""
        assert self.head is not None and self.wide is not None and self.projected is not None
        expand, shrink = self.head
        wide = self.wide[: step.rows * expand.outputs].view(step.rows, expand.outputs)
        projected = self.projected[: step.rows * shrink.outputs].view(step.rows, shrink.outputs)
        new_x = self.runner.memory.free(step.rows, state.x) if new_x is None else new_x
        self.runner.linear(step, state, expand, wide, new_x, activation=Activation.RELU, normal=hidden)
        self.runner.linear(step, Input(wide), shrink, projected, residual=hidden)
        return Input(projected)


def packed(sources: Sequence[Sequence[int]], places: Sequence[int], pad: int) -> tuple[list[int], list[list[int]]]:
    """Pack sources into tiles: tokens, and for each tile the place, first row and length of its sentence."""
    tokens: list[int] = []
    tiles: list[list[int]] = []
    for source, place in zip(sources, places, strict=True):
        begin = len(tokens)
        tokens += source
        tokens += [pad] * (-len(tokens) % TILE)
        tiles += [[place, begin, len(source)] for _ in range((len(tokens) - begin) // TILE)]
    return tokens, tiles
