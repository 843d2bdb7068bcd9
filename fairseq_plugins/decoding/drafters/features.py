"""A trained drafter that reads the verifier's states of the accepted tokens instead of the tokens."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.drafters.compiled import CompiledDrafter
from fairseq_plugins.decoding.drafters.masked_decoder import DraftOptions, MaskedDecoder
from fairseq_plugins.decoding.drafters.path import compiled_path, draft_maker
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.layout import Chain
from fairseq_plugins.decoding.engine.native.build import DrafterStructure, LinearStructure, StackStructure
from fairseq_plugins.decoding.engine.native.layers import NativeLinear
from fairseq_plugins.decoding.engine.weights import Linear, in_precision, is_small, linear, without_query
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.models.block_nat import BlockNat


class FeatureDrafter(CompiledDrafter):
    """Draft `block_size` tokens with a `block_nat` of `--drafter-context features`.

    One pass over the last token and k - 1 masks, through a shallow stack. What stands for the prefix are keys and
    values made of the verifier's states, which its last verification computed anyway (as DFlash, arXiv 2602.06036, does
    for decoder-only models); they are written once, when a token is accepted. The newest state is added to the input.

    Args:
        model: the drafter.
        block_size: tokens per draft, k; `width` may be set to fewer of the next ones.
        engine: what it runs on.
        options: how to draft.
    """

    kernel_part = "drafter"

    def __init__(self, model: BlockNat, block_size: int, engine: Engine, options: DraftOptions | None = None) -> None:
        options = options or DraftOptions()
        self.model = model
        self.block_size = self.width = block_size
        self.decoder = MaskedDecoder(model.decoder, engine, options.vocabulary)
        scored = self.decoder.cached.vocabulary
        self.make_draft = draft_maker(model.decoder, self.decoder.project, engine, options, scored)
        # Whole scores are for those who read them step by step.
        size = model.decoder.embed_tokens.num_embeddings
        self.path = None if options.keep_log_probs else compiled_path(model.decoder.transition, engine, scored, size)
        self.with_survival = options.with_survival
        cached, whole = self.decoder.cached, _one_matrix(model, self.decoder.cached, engine)
        # What reads the verifier's states: all at once; or first what fuses them, then what makes the keys and values
        # of each layer.
        layers = _reading(model, cached, engine) if whole is None else [whole]
        self.reading: list[NativeLinear] = []
        if engine.kernels is not None and all(map(engine.kernels.can_run, layers)):
            self.reading = [engine.kernels.compiled_linear(layer, engine.precision) for layer in layers]
            pairs = zip(self.reading, layers, strict=True)
            runs = [engine.kernels.where_it_pays(*pair, engine.precision) for pair in pairs]
        else:
            runs = [engine.linear(layer) for layer in layers]
        self.read = _read_at_once(runs[0], cached) if whole is not None else _read_in_steps(runs, model, cached)
        # What is added to the input of the next block, [B, 1, D].
        self.newest: Tensor | None = None

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        assert encoder_out is not None
        self.decoder.start(encoder_out)
        self.newest = None

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        assert encoder_out is not None
        self.decoder.append_rows(encoder_out)
        if self.newest is not None:
            new = sample["net_input"]["src_tokens"].size(0)
            self.newest = F.pad(self.newest, (0, 0, 0, 0, 0, new))

    def draft(self, state: DecodingState) -> Draft:
        span = state.span
        width = min(self.width, state.max_len - span.shortest)
        if width <= 0:
            return no_draft(state)
        layout = Chain(state.lengths, span, width)
        last, masks = state.last_tokens(), width - 1
        drafted = self.decoder.draft(last, layout, masks, self.newest, self.path)
        if drafted is not None:
            return Draft(drafted.best, survival=drafted.log_probs.cumsum(1).exp() if self.with_survival else None)
        return self.make_draft(self.decoder.step(last, layout, masks=masks, added=self.newest), state)

    def observe(self, advance: Advance) -> None:
        assert advance.features is not None
        key_value, added = self.read(advance.features)
        # Of sentences that gained less, the last ones are overwritten by the next block.
        self.decoder.write_kv(key_value, advance.before, advance.span_before)
        self.newest = advance.last(added)

    @property
    def widest(self) -> int:
        return self.width

    def structure(self, slots: int, batch: int, verifier_width: int) -> tuple[DrafterStructure, list[Any]] | None:
        stack = self.decoder.cached.stack(slots)
        if stack is None or not self.is_compiled:
            return None
        if self.newest is None:
            self.newest = self.decoder.cached.cache.new_zeros(batch, 1, self.model.decoder.embed_dim)
        self.newest = self.newest.contiguous()
        fed = self.decoder.inputs.table(batch, slots)
        structure, held = self.structure_on(stack[0], verifier_width)
        structure.newest = self.newest.data_ptr()
        self.decoder.cached.native_layers.feed(fed, structure.fed)
        return structure, [*stack[1], *held, fed, self.newest]

    @property
    def is_compiled(self) -> bool:
        return self.path is not None and len(self.reading) > 0

    def structure_on(self, stack: StackStructure, verifier_width: int) -> tuple[DrafterStructure, list[Any]]:
        """`structure` of a drafter that `is_compiled`, but for what masks are fed and what is added to the input.

        Args:
            stack: of its decoder, with memories.
            verifier_width: of the verifier's states.

        Raises:
            ValueError: for a verifier of other states.
        """
        assert self.path is not None
        layers, (reader, *projections) = self.model.decoder.reader.feature_layers, self.reading
        count, dim = stack.count, stack.dim
        outputs = (count + 1) * dim if projections else (2 * count + 1) * dim
        fits = (reader.inputs, reader.outputs) == (len(layers) * verifier_width, outputs)
        fits = fits and len(projections) in (0, count)
        if not (fits and all((each.inputs, each.outputs) == (dim, 2 * dim) for each in projections)):
            raise ValueError("kernels: the drafter reads other states than the verifier has")
        array = (LinearStructure * len(projections))(*[each.structure for each in projections])
        read = (ctypes.c_int32 * len(layers))(*layers)
        structure = DrafterStructure(
            stack=stack,
            path=ctypes.addressof(self.path.structure),
            reader=ctypes.addressof(reader.structure),
            projections=ctypes.addressof(array) if projections else None,
            layers_read=ctypes.addressof(read),
            layers_read_count=len(layers),
            width=self.width,
        )
        return structure, [read, array]

    def select_rows(self, rows: Tensor) -> None:
        self.decoder.select_rows(rows)
        if self.newest is not None:
            self.newest = self.newest.index_select(0, rows)


def _reading(model: BlockNat, cached: CachedDecoder, engine: Engine) -> list[Linear]:
    """The layers that read states: what fuses them, and what makes keys and values of every layer."""
    fuse = in_precision(linear(model.decoder.reader.linear), engine.precision)
    return [fuse, *(without_query(layer.self_qkv) for layer in cached.layers)]


def _read_in_steps(
    runs: Sequence[Callable[[Tensor], Tensor]], model: BlockNat, cached: CachedDecoder
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What makes keys and values [L, B, T, 2, H, D / H] of states [B, T, F], and what is added to the input [B, T, D].

    Args:
        runs: the layers of `_reading`.
        model, cached: the drafter.
    """
    reader, layers, (fuse, *projections) = model.decoder.reader, cached.layers, runs
    shape = (2, layers[0].heads, -1)

    def read_in_steps(features: Tensor) -> tuple[Tensor, Tensor]:
        states, added = reader.split(fuse(features))
        parts = [
            project(layer.self_norm(x) if layer.normalize_before else x).unflatten(-1, shape)
            for layer, project, x in zip(layers, projections, states, strict=True)
        ]
        return torch.stack(parts), added

    return read_in_steps


def _one_matrix(model: BlockNat, cached: CachedDecoder, engine: Engine) -> Linear | None:
    """All that `_read_in_steps` computes as one linear layer, keys and values first; None where it is not one.

    Where nothing stands between fusion and projection (post-norm) it is, unless that is a large one which a CPU would
    hold for the sake of fewer operations.
    """
    reader, layers = model.decoder.reader, cached.layers
    weight = reader.linear.weight
    may_be_copied = is_small if engine.kernels is None else engine.kernels.may_be_copied
    is_one = weight.device.type != "cpu" or may_be_copied(weight)
    if not is_one or any(layer.normalize_before for layer in layers):
        return None
    width = model.decoder.embed_dim
    *fusions, added_weight = reader.linear.weight.detach().float().unflatten(0, (-1, width))
    *offsets, added_bias = reader.linear.bias.detach().float().unflatten(0, (-1, width))
    weights, biases = [], []
    for layer, fusion, offset in zip(layers, fusions, offsets, strict=True):
        weight, bias = without_query(layer.self_qkv)
        weights.append(weight.detach().float() @ fusion)
        biases.append(weight.detach().float() @ offset + (0 if bias is None else bias.detach().float()))
    dtype = reader.linear.weight.dtype
    whole = (torch.cat([*weights, added_weight]).to(dtype), torch.cat([*biases, added_bias]).to(dtype))
    return in_precision(whole, engine.precision)


def _read_at_once(
    both: Callable[[Tensor], Tensor], cached: CachedDecoder
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """As `_read_in_steps`, with the layer of `_one_matrix`."""
    shape, width = (len(cached.layers), 2, cached.layers[0].heads, -1), cached.decoder.embed_dim

    def read(features: Tensor) -> tuple[Tensor, Tensor]:
        result = both(features)
        key_value = result[..., :-width].unflatten(-1, shape)
        return key_value.permute(2, 0, 1, 3, 4, 5), result[..., -width:]

    return read
