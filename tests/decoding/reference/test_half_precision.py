"""`--fp16` and `--bf16`: token ids equal those of our `greedy`, for any drafts and batches.

Lossless decoders are compared with `greedy` one sentence at a time, ids and scores bit for bit: if sums depended on the
shape of a step, scores would differ long before tokens do.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_plugins.decoding.native import model as native_model
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.fixed_shapes import ROWS, SLOTS, attention, in_row_blocks
from fairseq_plugins.decoding.reference.half_precision import with_rounded_weights
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.cases import Case, cases
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.decoding.reference.captured.test_graphed_decoder import Recorder, graphing
from tests.strategies import DETERMINISTIC, DRAFTERS, FEATURE_DRAFTERS, SEARCHES, SOURCES, UNSHRUNK, example_count
from tests.support import Options, decode, fairseq_greedy, ids, make_args, make_sample, make_task, make_transformer

HALF_DTYPES = [torch.float16, torch.bfloat16]


def one_by_one(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sentences of a batch one by one, without padding."""
    samples = []
    for number, row in enumerate(sample["net_input"]["src_tokens"]):
        tokens = row[row != 1][None]
        net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([tokens.size(1)])}
        samples.append({"id": torch.tensor([number]), "nsentences": 1, "ntokens": 1, "net_input": net_input})
    return samples


def outputs(generated: list) -> list[tuple[list[int], list[float]]]:
    """Return ids and scores of every sentence."""
    return [(best["tokens"].tolist(), best["positional_scores"].tolist()) for (best, *_) in generated]


def alone(models: list, task: SpecDecTask, sample: dict[str, Any], make: Any, how: Any = None, **search: Any) -> list:
    """Return ids and scores of every sentence, decoded one at a time, by default with `greedy`."""
    how = how or Options("greedy")
    return [outputs(decode(models, task, one, how, engine=make(), **search)[0])[0] for one in one_by_one(sample)]


# Engines: the kernels and PyTorch in fp32, as on a CPU, and PyTorch in half precision, as on a GPU.
ENGINES = {
    "kernels": (lambda: NativeWeights(batch_invariant=True), torch.float32),
    "kernels, weights in place": (lambda: NativeWeights(batch_invariant=True), torch.float32),
    "operations": (lambda: Engine(batch_invariant=True), torch.float32),
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


DECODERS = st.sampled_from(
    [
        Options("greedy"),
        Options("gad", 1),
        Options("gad", 3),
        Options("gad", 10),
        Options("iad"),
        Options("jacobi"),
        Options("gs-jacobi", 3),
        Options("hybrid-jacobi", 10, jacobi_length=9),
    ]
)


# The limit must not depend on the longest source; short outputs, since fixed shapes are slow in PyTorch.
SHORT = SEARCHES.map(lambda search: {**search, "max_len_a": 0, "max_len_b": min(search["max_len_b"], 14)})


@settings(UNSHRUNK, max_examples=6)
@given(
    case=cases(
        50, st.one_of(DRAFTERS, FEATURE_DRAFTERS), sources=SOURCES.map(lambda sources: sources[:5]), searches=SHORT
    ),
    decoder=DECODERS,
    active=st.sampled_from([0, 2]),
)
def test_output_equals_greedy_bit_for_bit(engine: str, case: Case, decoder: Options, active: int) -> None:
    make, dtype = ENGINES[engine]
    # Some drafters contain the verifier's weights: build both before rounding.
    for model in (case.verifier, case.drafter):
        model.to(dtype)
    together, _ = case.decode(decoder, engine=make(), active_sentences=active)
    assert outputs(together) == alone([case.verifier], case.task, case.sample, make, **case.search)


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
        assert outputs(together) == alone(verifiers, task, sample, make, max_len_b=30)


@pytest.mark.parametrize("identity", [True, False])
def test_blockwise_heads(engine: str, identity: bool) -> None:
    """Compare `blockwise` and `greedy` on the same model, with and without an identity first head.

    Without the identity `greedy` runs in PyTorch, so `blockwise` on one sentence at a time is the reference.
    """
    make, dtype = ENGINES[engine]
    task, model = make_blockwise(3, identity_first_head=identity)
    model.to(dtype)
    sample = make_sample(task, [5, 1, 0, 17], 3)
    expected = greedy = alone([model], task, sample, make, max_len_b=20)
    if "kernels" in engine and not identity:
        expected = alone([model], task, sample, make, Options("blockwise", 3), max_len_b=20)
    assert [tokens for tokens, _ in expected] == [tokens for tokens, _ in greedy]
    for block_size in (2, 4):
        together, _ = decode([model], task, sample, Options("blockwise", block_size), engine=make(), max_len_b=20)
        assert outputs(together) == expected


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


def test_an_unknown_encoder_sees_one_sentence_at_a_time(engine: str) -> None:
    make, dtype = ENGINES[engine]
    task = make_task(50)
    model = make_transformer(task, 3).to(dtype)
    model.encoder = Strange(model.encoder)
    sample = make_sample(task, [3, 14, 0, 6], 1)
    together, _ = decode([model], task, sample, Options("jacobi"), engine=make(), max_len_b=20)
    assert outputs(together) == alone([model], task, sample, make, max_len_b=20)


def test_half_precision_differs_without_fixed_shapes() -> None:
    """The comparison can fail: PyTorch's operations give other bits in other shapes."""
    task = make_task(50)
    model = make_transformer(task, 3).to(torch.bfloat16)
    sample = make_sample(task, [3, 14, 0, 6, 21], 1)
    together, _ = decode([model], task, sample, Options("jacobi"), engine=Engine(), max_len_b=30)
    assert outputs(together) != alone([model], task, sample, Engine, max_len_b=30)


@settings(DETERMINISTIC, max_examples=example_count(20))
@given(rows=st.integers(0, 3 * ROWS), dtype=st.sampled_from([torch.float32, *HALF_DTYPES]), seed=st.integers(0, 9))
def test_rows_in_fixed_shapes(rows: int, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, 24), (10, 24)))
    seen = []
    result = in_row_blocks(lambda part: seen.append(len(part)) or part @ weight.t())(x)
    assert result.shape == (rows, 10) and set(seen) <= {ROWS, 0}
    torch.testing.assert_close(result, x @ weight.t(), rtol=2e-2, atol=2e-2)


@settings(DETERMINISTIC, max_examples=example_count(25))
@given(
    rows=st.integers(1, ROWS // 2),
    slots=st.integers(1, 2 * SLOTS + 3),
    more=st.integers(0, SLOTS),
    dtype=st.sampled_from([torch.float32, *HALF_DTYPES]),
    seed=st.integers(0, 9),
)
def test_attention_in_fixed_shapes(rows: int, slots: int, more: int, dtype: torch.dtype, seed: int) -> None:
    """Equals PyTorch's attention; hidden slots and other rows change no bit."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(3, rows, 2, 8, generator=generator).to(dtype)
    key_value = torch.randn(3, slots + more, 2, 2, 8, generator=generator).to(dtype)
    last = torch.randint(0, slots, (3, rows), generator=generator)
    result = attention(query, key_value, last)
    assert torch.equal(attention(query, key_value[:, :slots], last), result)
    assert torch.equal(attention(query[1:], key_value[1:], last[1:]), result[1:])
    assert torch.equal(attention(query[:, rows // 2 :], key_value, last[:, rows // 2 :]), result[:, rows // 2 :])
    key, value = key_value.float().permute(2, 0, 3, 1, 4)
    mask = (torch.arange(slots + more) <= last[:, :, None])[:, None]
    theirs = nn.functional.scaled_dot_product_attention(query.float().transpose(1, 2), key, value, attn_mask=mask)
    torch.testing.assert_close(result.float(), theirs.transpose(1, 2).flatten(2), rtol=2e-2, atol=2e-2)


def generator_for(task: SpecDecTask, model: TransformerModel, decoder: str, **options: Any) -> Any:
    """Return a generator with these options of the task."""
    for name, value in {"decoding_method": decoder, **options}.items():
        setattr(task.cfg, name, value)
    return task.build_generator([model], make_args(beam=1, max_len_b=30))


def rounded(model: TransformerModel, dtype: torch.dtype) -> TransformerModel:
    """Return a copy with fp32 weights rounded to half precision."""
    again = make_transformer(make_task(50), 4)
    again.load_state_dict({name: value.to(dtype).to(value.dtype) for name, value in model.state_dict().items()})
    return again


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_a_cpu_computes_in_fp32_with_rounded_weights(dtype: torch.dtype, compiled: bool) -> None:
    task = make_task(50)
    plain = make_transformer(task, 4)
    half = make_transformer(task, 4).to(dtype)
    sample = make_sample(task, [4, 0, 12, 7], 1)
    expected, _ = decode([rounded(plain, dtype)], task, sample, Options("greedy"), max_len_b=30)
    for decoder in ("greedy", "jacobi"):
        generator = generator_for(task, half, decoder, no_compiled_steps=not compiled)
        assert ids(generator.generate([half], sample)) == ids(expected)
        method = generator.backend.method
        assert method.weights.batch_invariant if compiled else method.verifier.engine.batch_invariant
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}
    # One copy for both generators.
    assert len(task.decoding._computed) == 1


def test_precision_and_copies_are_a_generators_own() -> None:
    task = make_task(200)
    model = make_transformer(task, 1)
    sample = make_sample(task, [9, 4, 12, 7, 20, 15, 3, 30], 1)
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    plain = generator_for(task, model, "greedy")
    rounded = generator_for(task, model, "greedy", int8=True, no_packed_weights=True)
    for _ in range(2):
        assert ids(plain.generate([model], sample)) == ids(expected)
        assert ids(rounded.generate([model], sample)) != ids(expected)
    weights = [generator.backend.method.weights for generator in (plain, rounded)]
    assert [held.int8 for held in weights] == [False, True]
    assert [held.packed for held in weights] == [True, False]


def test_bf16_beside_fairseq_generate() -> None:
    """fairseq-generate ignores --bf16 and passes a model in fp32."""
    task = make_task(50)
    model = make_transformer(task, 4)
    sample = make_sample(task, [4, 0, 12, 7], 1)
    expected, _ = decode([rounded(model, torch.bfloat16)], task, sample, Options("greedy"), max_len_b=30)
    in_fp32 = generator_for(task, model, "greedy").generate([model], sample)
    generator = generator_for(task, model, "greedy", bf16=True)
    in_bf16 = generator.generate([model], sample)
    assert outputs(in_bf16) == outputs(expected) != outputs(in_fp32)
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("device", "held", "dtype", "computes_in"),
    [
        ("cpu", torch.float32, torch.float32, None),
        ("cpu", torch.float16, torch.float16, torch.float32),
        ("cpu", torch.float32, torch.bfloat16, torch.float32),
        # As on a GPU: products read half precision.
        ("meta", torch.float16, torch.float16, None),
        ("meta", torch.bfloat16, torch.bfloat16, None),
        ("meta", torch.float32, torch.bfloat16, torch.bfloat16),
    ],
)
def test_copied_weights(device: str, held: torch.dtype, dtype: torch.dtype, computes_in: torch.dtype | None) -> None:
    task = make_task(50)
    model = make_transformer(task, 4).to(device, held)
    context = Options("greedy").context([model], None, task)
    (used,) = with_rounded_weights(context, dtype, {}).models
    assert (used is model) == (computes_in is None)
    assert next(used.parameters()).dtype == (computes_in or held) and next(model.parameters()).dtype == held


def test_changed_weights_are_rounded_again() -> None:
    task = make_task(50)
    half = make_transformer(task, 4).half()
    sample = make_sample(task, [4, 0, 12, 7], 1)
    generator = generator_for(task, half, "greedy")
    before = ids(generator.generate([half], sample))
    half.load_state_dict(make_transformer(task, 5).half().state_dict())
    fresh = generator_for(make_task(50), half, "greedy").generate([half], sample)
    assert ids(generator.generate([half], sample)) == ids(fresh) != before


def test_from_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding steps up to powers of two changes no result."""
    task = make_task(50)
    model = make_transformer(task, 3)
    recorder = Recorder()
    engine = replace(graphing(monkeypatch, recorder, EAGER_USES=0), batch_invariant=True)
    sample = make_sample(task, [3, 14, 0], 1)
    together, _ = decode([model], task, sample, Options("gs-jacobi", 3), engine=engine, max_len_b=12)
    make = lambda: Engine(batch_invariant=True)  # noqa: E731
    assert outputs(together) == alone([model], task, sample, make, max_len_b=12) and recorder.replays > 3
