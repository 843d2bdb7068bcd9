"""Checks of greedy search and of the drafter that reads states, interpreted, against the loop in PyTorch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded
from fairseq_plugins.decoding.gpu import batch, runner
from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.gpu.weights import Layer, Linear, Norm, Transformer
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.engine import Engine
from tests.decoding.gpu.interpreter import multiply_by_rows
from tests.support import SMALL, Options, make_drafter, make_generator, make_sample, make_task, make_transformer

TASK = make_task(12)
PRE_NORM = {"encoder_normalize_before": True, "decoder_normalize_before": True}
MODELS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {**PRE_NORM, "encoder_layers": 2, "decoder_layers": 2, "decoder_learned_pos": True},
    "odd widths": {
        **PRE_NORM,
        "encoder_embed_dim": 36,
        "decoder_embed_dim": 36,
        "decoder_attention_heads": 3,
        "activation_fn": "gelu",
        "layernorm_embedding": True,
        "no_decoder_final_norm": True,
    },
}
LENGTHS = [3, 8, 17]


def decoded(
    model: nn.Module, how: Options, drafter: nn.Module | None, engine: type, lengths: list[int], prefix: Any = None,
    **given: Any,
) -> Decoded:  # fmt: skip
    """Decode on one of the backends; on the GPU engine's, a fourth place is idle beside three sentences."""
    generator, _ = make_generator([model], TASK, how, drafter, **{"max_len_b": 7, **given})
    context = how.context([model], drafter, TASK)
    sample = make_sample(TASK, lengths)
    request = generator.request(sample, prefix)
    if engine is GpuBackend:
        return GpuBackend(how.spec, how.options, context, active_sentences=4).decode(*request)
    return TorchBackend(how.build([model], drafter, TASK, Engine())).decode(*request)


def ids(output: Decoded) -> list[list[int]]:
    return [hypotheses[0].tokens.tolist() for hypotheses in output.outputs]


def scores(output: Decoded) -> Tensor:
    return torch.cat([hypotheses[0].log_probs.float() for hypotheses in output.outputs])


def check_greedy() -> None:
    """Ids and scores of several architectures."""
    for name, options in MODELS.items():
        model = make_transformer(TASK, 1, **{**SMALL, **options})
        how = Options("greedy")
        lengths, limit = (LENGTHS, 7) if name == "post-norm" else (LENGTHS[2:], 3)
        ours, theirs = (
            decoded(model, how, None, kind, lengths, max_len_b=limit) for kind in (GpuBackend, TorchBackend)
        )
        assert ids(ours) == ids(theirs), name
        torch.testing.assert_close(scores(ours), scores(theirs).cpu(), rtol=1e-4, atol=1e-4)


def check_features() -> None:
    """The same drafts as in PyTorch: tokens of each iteration are equal, not only ids."""
    for seed, options, drafter_options, lengths in (
        (10, {}, {"transition_rank": 3, "transition_state": 5, "src_embedding_copy": True}, LENGTHS),
        (15, PRE_NORM, {"decoder_normalize_before": True, "transition_rank": 3, "decoder_layers": 2}, LENGTHS[1:2]),
    ):
        model = make_transformer(TASK, 2, **{**SMALL, **options})
        sizes = {**SMALL, "decoder_layers": 1, "drafter_context": "features", **drafter_options}
        drafter = make_drafter(TASK, seed, 4, verifier=model, **sizes)
        how = Options("gad", fixed_width=True)
        ours, theirs = (decoded(model, how, drafter, kind, lengths) for kind in (GpuBackend, TorchBackend))
        assert ids(ours) == ids(theirs)
        assert ours.emitted == theirs.emitted
        assert max(map(max, ours.emitted)) > 1


def check_suppressed() -> None:
    """No output has suppressed tokens, with relaxed acceptance either."""
    model = make_transformer(TASK, 1, **SMALL)
    sizes = {**SMALL, "decoder_layers": 1, "drafter_context": "features"}
    drafter = make_drafter(TASK, 10, 4, verifier=model, **sizes)
    lengths = LENGTHS[:2]
    plain = ids(decoded(model, Options("greedy"), None, TorchBackend, lengths))
    used, first = sorted({token for output in plain for token in output[:-1]})[::2], {output[0] for output in plain}
    given = {
        "tokens_to_suppress": [TASK.target_dictionary[token] for token in used],
        "begin_suppressed": tuple(sorted(first)),
    }
    for how, own in (
        (Options("greedy"), None),
        (Options("gad++", top_beta=3, tau=5.0), drafter),
    ):
        ours, theirs = (decoded(model, how, own, kind, lengths, **given) for kind in (GpuBackend, TorchBackend))
        assert ids(ours) == ids(theirs)
        assert not {*used} & {token for output in ids(ours) for token in output}
        assert not first & {output[0] for output in ids(ours)}
        assert ids(ours) != plain


def check_half() -> None:
    """In half precision bits are the same alone, in a batch, and with drafts."""
    for dtype in (torch.float16, torch.bfloat16):
        model = make_transformer(TASK, 4, **SMALL)
        drafter = make_drafter(TASK, 5, 4, verifier=model, **SMALL, drafter_context="features").to(dtype)
        model.to(dtype)
        lengths, limit = LENGTHS[:2], {"max_len_b": 4}
        outputs = [decoded(model, Options("greedy"), None, GpuBackend, lengths, **limit)]
        outputs.append(decoded(model, Options("gad", fixed_width=True), drafter, GpuBackend, lengths, **limit))
        assert ids(outputs[0]) == ids(outputs[1])
        assert torch.equal(scores(outputs[0]), scores(outputs[1]))
        alone = decoded(model, Options("greedy"), None, GpuBackend, lengths[:1], **limit)
        assert ids(alone) == ids(outputs[0])[:1]
        assert torch.equal(scores(alone), scores(outputs[0])[: len(scores(alone))])


def check_unknown_tokens() -> None:
    """Ids that the vocabulary does not have are refused: kernels would read beyond the embeddings."""
    model, how, sample = make_transformer(TASK, 1, **SMALL), Options("greedy"), make_sample(TASK, [3])
    backend = GpuBackend(how.spec, how.options, how.context([model], None, TASK), active_sentences=1)
    limits = Constraints(pad=1, unk=3, eos=2, max_len=4)
    with pytest.raises(ValueError, match="a special symbol"):
        backend.decode(sample, limits, 12)
    with pytest.raises(ValueError, match="a prefix"):
        backend.decode(sample, replace(limits, prefix=torch.tensor([[12]])), 2)


def check_long_outputs() -> None:
    """An output in three parts, after a long prefix, and a source in two."""
    model = make_transformer(TASK, 1, **SMALL)
    how = Options("gs-jacobi", 20)
    prefix = torch.arange(33)[None] % 6 + 4
    ours, theirs = (
        decoded(model, how, None, kind, [20], prefix, max_len_b=35, min_len=35) for kind in (GpuBackend, TorchBackend)
    )
    assert ids(ours) == ids(theirs) and len(ids(ours)[0]) == 36
    torch.testing.assert_close(scores(ours), scores(theirs).cpu(), rtol=1e-4, atol=1e-4)


def check_parts() -> None:
    """A row's attention in half precision has the same bits with parts and without, if it sees one part only."""
    torch.manual_seed(1)
    width, heads, rows = 32, 2, 3
    layer = Layer(heads=heads, self_out=Linear(torch.randn(width, width).half()))
    layer.fc1 = Linear(torch.randn(width, width).half())
    model = Transformer([layer], torch.zeros(1, width).half(), 1.0, None, False, Norm(), Norm(), None)
    own = runner.Runner(model, rows * 2)
    cache = torch.randn(100, 2, width).half()
    query = torch.randn(rows * 2, width).half()
    bases, active = torch.tensor([0, 50]), torch.full((2,), rows, dtype=torch.int32)
    last = torch.tensor([14, 15, 16, 2, 3, 49], dtype=torch.int32)
    results = []
    for count in (1, 4):
        step = runner.DecoderStep(rows * 2, rows, active, last, bases, last, parts=(count, 1))
        result = own.attend(step, layer, runner.Input(query), query, cache, bases, last, layer.self_out)
        results.append(result.clone())
    is_short = last < runner.PART
    assert torch.equal(*(result[:, is_short] for result in results))
    torch.testing.assert_close(*results, rtol=2e-3, atol=2e-3)
    for row, (begin, end) in enumerate(zip(bases.repeat_interleave(rows).tolist(), last.tolist(), strict=True)):
        keys, values = cache[begin : begin + end + 1].float().unflatten(2, (heads, -1)).unbind(1)
        context = torch.nn.functional.scaled_dot_product_attention(
            query[row].float().view(heads, 1, -1), keys.transpose(0, 1), values.transpose(0, 1)
        ).flatten()
        expected = context @ layer.self_out.weight.float().t()
        torch.testing.assert_close(results[1][:, row].sum(0), expected, rtol=1e-2, atol=1e-2)


def prepare() -> None:
    """Short sources and outputs take several tiles and parts."""
    multiply_by_rows()
    runner._SLOTS = runner.PART = batch.PART = 16
