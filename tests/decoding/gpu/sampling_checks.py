"""Checks of sampling on the GPU engine interpreted, against the loop in PyTorch and the compiled kernels."""

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

from fairseq_plugins.decoding.decoded import Decoded
from fairseq_plugins.decoding.gpu import vocabulary
from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.gpu.drafters import path
from fairseq_plugins.decoding.gpu.kernels.noise import noise
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.reference import noise as reference
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.sampling import Sampling
from tests.decoding.gpu.drafter_checks import blockwise
from tests.decoding.gpu.interpreter import multiply_by_rows
from tests.support import SMALL, Options, make_drafter, make_generator, make_sample, make_task, make_transformer

# Two tiles of the vocabulary.
TASK = make_task(100)
# With much noise, most drafts that share it are accepted.
PLAIN, BEST, LIKELY = Sampling(temperature=9.0), Sampling(topk=60, temperature=9.0), Sampling(topp=0.7, temperature=9.0)
LENGTHS = [3, 1, 5, 2, 4, 6, 1, 3]


@triton.jit
def _store_noise(keys, positions, out, vocabulary, ROWS: tl.constexpr, TOKENS: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS))[None, :]
    values = noise(keys, row, tl.load(positions + row), token, row < ROWS)
    tl.store(out + row * vocabulary + token, values, token < vocabulary)


def check_bits() -> None:
    """The noise has the bits of its definition, for large seeds, sentences, samples and positions."""
    vocabulary = 5000
    keys = reference.noise_keys(
        2**63 + 12345678901, torch.tensor([0, 1, 2**32 - 1, 77]), torch.tensor([0, 3, 2**31, 9])
    )
    positions, found = torch.tensor([0, 5, 4095, 17]), torch.zeros(4, vocabulary)
    grid = (triton.cdiv(vocabulary, 128),)
    _store_noise[grid](keys.to(torch.int32), positions.int(), found, vocabulary, ROWS=4, TOKENS=128)
    assert torch.equal(found, reference.noise(keys, positions[:, None], vocabulary)[:, 0])


def drawn(
    how: Options,
    sampling: Sampling,
    engine: type,
    drafter: nn.Module | None = None,
    lengths: list[int] = LENGTHS[:2],
    places: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Decoded:
    """Draw outputs on one of the backends."""
    model: nn.Module = blockwise(3, TASK) if how.spec.name == "blockwise" else make_transformer(TASK, 1, **SMALL)
    model.to(dtype)
    options: dict[str, Any] = {"max_len_b": 4, "seed": 2**40 + 5, "temperature": sampling.temperature}
    generator, _ = make_generator([model], TASK, how, drafter, sampling=sampling, **options)
    request = generator.request(make_sample(TASK, lengths))
    own = Engine() if engine is TorchBackend else None
    context = how.context([model], drafter, TASK, own, sampling.temperature)
    context = replace(context, sampling=sampling)
    if engine is TorchBackend:
        assert how.spec.build is not None
        return TorchBackend(how.spec.build(context, how.options)).decode(*request)
    settings = {"active_sentences": places} if engine is GpuBackend else {}
    backend: Any = engine(how.spec, how.options, context, **settings)
    return backend.decode(*request)


def same(ours: Decoded, theirs: Decoded, counts: bool = True) -> None:
    for [own], [other] in zip(ours.outputs, theirs.outputs, strict=True):
        assert own.tokens.tolist() == other.tokens.tolist()
        torch.testing.assert_close(own.log_probs, other.log_probs.cpu(), rtol=0, atol=1e-4)
    assert not counts or ours.emitted == theirs.emitted, (ours.emitted, theirs.emitted)


def check_without_drafts() -> None:
    """Ids and scores, in batches of 3 and of 8, and alone."""
    for sampling, count in ((PLAIN, 3), (replace(LIKELY, temperature=0.5), 8)):
        ours = drawn(Options("greedy"), sampling, GpuBackend, lengths=LENGTHS[:count], places=count)
        for engine in (TorchBackend, NativeBackend):
            same(ours, drawn(Options("greedy"), sampling, engine, lengths=LENGTHS[:count]))
    alone = drawn(Options("greedy"), sampling, GpuBackend, lengths=LENGTHS[:1])
    assert alone.outputs[0][0].tokens.tolist() == ours.outputs[0][0].tokens.tolist()


def check_drafts() -> None:
    """The ids are those without drafts, and drafts have the verifier's noise: as many tokens are accepted.

    With one place, the second sentence waits for the first.
    """
    along, alone = drafters()
    for sampling, how, drafter, count, places in (
        (PLAIN, Options("gad"), along, 8, 8),
        (LIKELY, Options("gad"), along, 3, 3),
        (BEST, Options("gad"), alone, 1, 1),
        (PLAIN, Options("blockwise"), None, 2, 1),
        (PLAIN, Options("gs-jacobi", 3), None, 2, 1),
    ):
        lengths = LENGTHS[:count]
        ours = drawn(how, sampling, GpuBackend, drafter, lengths, places)
        same(ours, drawn(how, sampling, NativeBackend, drafter, lengths))
        assert max(map(max, ours.emitted)) > 1, (how, sampling, ours.emitted)
        if how.spec.name != "blockwise":
            same(ours, drawn(Options("greedy"), sampling, NativeBackend, None, lengths), counts=False)


def check_half() -> None:
    """In half precision, ids and the bits of scores are the same in a batch of 3 and alone with drafts."""
    multiply_by_rows()
    batch = drawn(Options("greedy"), LIKELY, GpuBackend, None, LENGTHS[:3], 3, torch.float16)
    alone = drawn(Options("gad"), LIKELY, GpuBackend, drafters()[0].half(), LENGTHS[:1], 1, torch.float16)
    [one], [other] = batch.outputs[0], alone.outputs[0]
    assert max(alone.emitted[0]) > 1
    assert one.tokens.tolist() == other.tokens.tolist()
    assert torch.equal(one.log_probs, other.log_probs)


def drafters() -> tuple[nn.Module, nn.Module]:
    """Return random drafters with transition scores and a path, and without."""
    features: dict[str, Any] = {"verifier": make_transformer(TASK, 1, **SMALL), "drafter_context": "features", **SMALL}
    along = make_drafter(TASK, 5, 3, transition_rank=3, transition_state=4, **features)
    return along, make_drafter(TASK, 6, 3, transition_rank=0, **features)


def prepare() -> None:
    """Small vocabularies take several tiles."""
    vocabulary.DRAWN = path.DRAWN = path._TILE = 64
