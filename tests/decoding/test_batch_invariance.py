"""A sentence has the bits that `greedy` gives it alone, whatever its drafts, batch, padding and number of threads.

Scores would differ long before tokens do if sums depended on the shape of a step.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_plugins.decoding.native import model as native_model
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from tests.cases import Case, cases
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.strategies import DRAFTERS, FEATURE_DRAFTERS, NATIVE, SEARCHES, SOURCES, UNSHRUNK, example_count
from tests.support import Options, decode, make_drafter, make_sample, make_task, make_transformer

# Engines: the kernels and PyTorch in fp32, as on a CPU, with int8 weights, and PyTorch in half precision, as on a GPU.
ENGINES: dict[str, tuple[Callable[[], Any], torch.dtype]] = {
    "kernels": (NativeWeights, torch.float32),
    "kernels, weights in place": (lambda: NativeWeights(batch_invariant=True), torch.float32),
    "kernels, int8": (lambda: NativeWeights(int8=True), torch.float32),
    "operations": (lambda: Engine(batch_invariant=True), torch.float32),
    "operations, int8": (lambda: Engine(int8=True, batch_invariant=True), torch.float32),
    "fp16": (lambda: Engine(batch_invariant=True), torch.float16),
    "bf16": (lambda: Engine(batch_invariant=True), torch.bfloat16),
}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of `ENGINES`."""
    if "in place" in request.param:
        # As without memory for copies; without `batch_invariant`, products of many rows would differ.
        monkeypatch.setattr(native_model, "NARROW", 0)
        monkeypatch.setattr(native_model, "available_memory", lambda: 0)
    return request.param


def bits(generated: list) -> list[list[tuple[list[int], list[float]]]]:
    """Return ids and scores of all hypotheses."""
    return [[(one["tokens"].tolist(), one["positional_scores"].tolist()) for one in each] for each in generated]


def alone(models: list, task: Any, sample: dict[str, Any], make: Any, how: Any = None, **search: Any) -> list:
    """Return the bits of each sentence without padding, decoded one at a time, by default with `greedy`."""
    found = []
    for number, row in zip(sample["id"], sample["net_input"]["src_tokens"], strict=True):
        tokens = row[row != 1][None]
        one = {"id": number[None], "net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.size(1)])}}
        found += decode(models, task, one, how or Options("greedy"), engine=make(), **search)[0]
    return bits(found)


DECODERS = st.sampled_from(
    [
        Options("greedy"),
        Options("gad", 1),
        Options("gad", 10),
        Options("iad"),
        Options("jacobi"),
        Options("gs-jacobi", 3),
        Options("hybrid-jacobi", 10, jacobi_length=9),
        Options("fast-beam"),
    ]
)
# The limit must not depend on the longest source; short outputs, since fixed shapes are slow in PyTorch.
SHORT = SEARCHES.map(lambda search: {**search, "max_len_a": 0, "max_len_b": min(search["max_len_b"], 14)})
FEW = SOURCES.map(lambda sources: sources[:5])


@settings(UNSHRUNK, max_examples=example_count(16))
@given(
    case=cases(50, st.one_of(DRAFTERS, FEATURE_DRAFTERS), NATIVE, FEW, SHORT),
    how=DECODERS,
    active=st.sampled_from([0, 2]),
    moves=st.booleans(),
)
def test_sentences_are_decoded_as_alone(engine: str, case: Case, how: Options, active: int, moves: bool) -> None:
    make, dtype = ENGINES[engine]
    assume("kernels" in engine or not how.spec.searches_beams)
    # Some drafters contain the verifier's weights: build both before rounding.
    for model in (case.verifier, case.drafter):
        model.to(dtype)
    if moves and "kernels" in engine:
        source = case.sample["net_input"]["src_tokens"]
        source[:] = torch.stack([torch.cat([row[row != 1], row[row == 1]]) for row in source])
    reference, beam = (how, {"beam_size": 3}) if how.spec.searches_beams else (None, {})
    torch.set_num_threads(1)
    expected = alone([case.verifier], case.task, case.sample, make, reference, **beam, **case.search)
    torch.set_num_threads(3 if "kernels" in engine else 1)
    together, _ = case.decode(how, engine=make(), active_sentences=active, **beam)
    assert bits(together) == expected


def test_ensembles_and_many_rows(engine: str) -> None:
    """Steps with enough rows for another product of weights in place (csrc/isa/linear_float.cpp)."""
    make, dtype = ENGINES[engine]
    task = make_task(50)
    models = [make_transformer(task, seed, decoder_layers=1).to(dtype) for seed in (1, 2)]
    lengths = [3, 30, 7, 0, 12, 25, 1, 18, 5, 5]
    assert sum(lengths) + len(lengths) < 257 < 5 * sum(lengths)
    # PyTorch takes its time.
    sample = make_sample(task, 5 * lengths if "kernels" in engine else lengths[:5], 1)
    # Ensembles run in PyTorch.
    for verifiers in (models[:1],) if "kernels" in engine else (models[:1], models):
        together, _ = decode(verifiers, task, sample, Options("jacobi"), engine=make(), max_len_b=30)
        assert bits(together) == alone(verifiers, task, sample, make, max_len_b=30)


@pytest.mark.parametrize("decoder", ["greedy", "iad", "jacobi"])
def test_layers_that_fill_tiles(engine: str, decoder: str) -> None:
    """AMX tiles take 32 inputs, and the other models here have 16."""
    make, dtype = ENGINES[engine]
    task = make_task(50)
    widths = dict.fromkeys(("encoder_embed_dim", "decoder_embed_dim"), 32)
    model = make_transformer(task, 1, decoder_layers=1, **widths).to(dtype)
    sample = make_sample(task, [3, 30, 7, 0, 12], 1)
    together, _ = decode([model], task, sample, Options(decoder), engine=make(), max_len_b=30)
    assert bits(together) == alone([model], task, sample, make, max_len_b=30)


@pytest.mark.parametrize("identity", [True, False])
def test_blockwise_heads(engine: str, identity: bool) -> None:
    """Compared with `greedy`, which without an identity first head runs in PyTorch: then one sentence at a time."""
    make, dtype = ENGINES[engine]
    task, model = make_blockwise(3, identity_first_head=identity)
    model.to(dtype)
    sample, how = make_sample(task, [5, 1, 0, 17], 3), Options("greedy" if identity else "blockwise")
    expected = alone([model], task, sample, make, how, max_len_b=20)
    for block_size in (2, 4):
        together, _ = decode([model], task, sample, Options("blockwise", block_size), engine=make(), max_len_b=20)
        assert bits(together) == expected


@pytest.mark.parametrize(
    "kind",
    [
        {"drafter_attention": "prefix-causal"},
        {"drafter_attention": "full"},
        {"drafter_context": "features", "transition_rank": 3, "transition_state": 5},
        {"drafter_attention": "prefix-causal", "transition_rank": 20, "transition_state": 40},
        {"drafter_attention": "full", "src_embedding_copy": True},
    ],
    ids=lambda kind: "-".join(map(str, kind.values())),
)
def test_masks_beyond_the_maximum_length_are_not_seen(engine: str, kind: dict[str, Any]) -> None:
    """Where not only exact drafts are accepted, the output shows what masks a row saw; other rows may need more."""
    make, dtype = ENGINES[engine]
    task = make_task(100)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 6, 6, verifier, **kind)
    for layer in drafter.decoder.layers:
        layer.self_attn.out_proj.weight.data *= 10
    drafter.decoder.output_projection.weight.data[task.target_dictionary.eos()] *= 3
    for model in (verifier, drafter):
        model.to(dtype)
    sample, search = make_sample(task, [5, 1, 0, 17, 9, 3, 4, 12, 2, 8], 2), {"max_len_b": 14, "min_len": 5}
    methods = [(verifier, Options("gad++", 6, top_beta=30, tau=4.0))]
    if "kernels" not in engine and not drafter.reads_features:
        methods.append((drafter, Options("nat", 6)))
    for model, how in methods:
        expected = alone([model], task, sample, make, how, model=drafter, **search)
        together, _ = decode([model], task, sample, how, drafter, engine=make(), active_sentences=3, **search)
        assert bits(together) == expected


class Strange(nn.Module):
    """An encoder without a fused version, whose output depends on padding."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.dictionary = inner.dictionary

    def forward_torchscript(self, net_input: dict[str, Tensor]) -> dict[str, list[Tensor]]:
        result = self.inner.forward_torchscript(net_input)
        padded = net_input["src_tokens"].size(1)
        return {**result, "encoder_out": [result["encoder_out"][0] * (1 + padded / 64)]}


@pytest.mark.parametrize("engine", ["kernels, weights in place", "operations", "fp16", "bf16"], indirect=True)
def test_an_unknown_encoder_sees_one_sentence_at_a_time(engine: str) -> None:
    make, dtype = ENGINES[engine]
    task = make_task(50)
    model = make_transformer(task, 3).to(dtype)
    model.encoder = Strange(model.encoder)
    sample = make_sample(task, [3, 14, 0, 6], 1)
    together, _ = decode([model], task, sample, Options("jacobi"), engine=make(), max_len_b=20)
    assert bits(together) == alone([model], task, sample, make, max_len_b=20)


def test_half_precision_differs_without_fixed_shapes() -> None:
    """The comparison can fail: PyTorch's operations give other bits in other shapes."""
    task = make_task(50)
    model = make_transformer(task, 3).to(torch.bfloat16)
    sample = make_sample(task, [3, 14, 0, 6, 21], 1)
    together, _ = decode([model], task, sample, Options("jacobi"), engine=Engine(), max_len_b=30)
    assert bits(together) != alone([model], task, sample, Engine, max_len_b=30)
