"""`--fp16` and `--bf16`: on a CPU fp32 with rounded weights, on a GPU products in fixed shapes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.fixed_shapes import ROWS, SLOTS, attention, in_row_blocks
from fairseq_plugins.decoding.reference.half_precision import with_rounded_weights
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.decoding.reference.captured.test_graphed_decoder import Recorder, graphing
from tests.decoding.test_batch_invariance import alone, bits
from tests.strategies import DETERMINISTIC, example_count
from tests.support import Options, decode, fairseq_greedy, ids, make_all, make_args, make_task, make_transformer

HALF_DTYPES = [torch.float16, torch.bfloat16]


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
    task, half, sample = make_all(50, 4, [4, 0, 12, 7], 1)
    expected, _ = decode([rounded(half, dtype)], task, sample, Options("greedy"), max_len_b=30)
    half.to(dtype)
    for decoder in ("greedy", "jacobi"):
        generator = generator_for(task, half, decoder, no_compiled_steps=not compiled)
        assert ids(generator.generate([half], sample)) == ids(expected)
        method = generator.backend.method
        assert method.weights.batch_invariant if compiled else method.verifier.engine.batch_invariant
    assert {parameter.dtype for parameter in half.parameters()} == {dtype}
    # One copy for both generators.
    assert len(task.decoding._computed) == 1


def test_precision_and_copies_are_a_generators_own() -> None:
    task, model, sample = make_all(200, 1, [9, 4, 12, 7, 20, 15, 3, 30], 1)
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    plain = generator_for(task, model, "greedy")
    rounded = generator_for(task, model, "greedy", int8=True, no_packed_weights=True)
    for _ in range(2):
        assert ids(plain.generate([model], sample)) == ids(expected)
        assert ids(rounded.generate([model], sample)) != ids(expected)
    weights = [generator.backend.method.weights for generator in (plain, rounded)]
    assert [(held.int8, held.packed) for held in weights] == [(False, True), (True, False)]


def test_int8_in_pytorch_does_not_depend_on_the_batch() -> None:
    """Rounding to int8 makes much of little: sums in another order would change scores by hundredths, and tokens."""
    task, model, sample = make_all(200, 1, [9, 4, 12, 7, 20, 15, 3, 30], 1)
    options = {"int8": True, "no_compiled_steps": True}
    expected = bits(generator_for(task, model, "greedy", **options).generate([model], sample))
    assert bits(generator_for(task, model, "jacobi", **options).generate([model], sample)) == expected
    source, lengths = (value[1:2] for value in sample["net_input"].values())
    one = {"id": sample["id"][1:2], "net_input": {"src_tokens": source[:, -5:], "src_lengths": lengths}}
    assert bits(generator_for(task, model, "greedy", **options).generate([model], one)) == expected[1:2]


def test_bf16_beside_fairseq_generate() -> None:
    """fairseq-generate ignores --bf16 and passes a model in fp32."""
    task, model, sample = make_all(50, 4, [4, 0, 12, 7], 1)
    expected, _ = decode([rounded(model, torch.bfloat16)], task, sample, Options("greedy"), max_len_b=30)
    in_fp32 = generator_for(task, model, "greedy").generate([model], sample)
    generator = generator_for(task, model, "greedy", bf16=True)
    in_bf16 = generator.generate([model], sample)
    assert bits(in_bf16) == bits(expected) != bits(in_fp32)
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
    model, copies = make_transformer(task, 4).half(), {}
    context = Options("greedy").context([model], None, task)
    with_rounded_weights(context, torch.float16, copies)  # before the model moves
    model.to(device, held)
    (used,) = with_rounded_weights(context, dtype, copies).models
    assert (used is model) == (computes_in is None)
    assert next(used.parameters()).dtype == (computes_in or held) and next(model.parameters()).dtype == held
    assert next(used.parameters()).device.type == device


def test_from_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding steps up to powers of two changes no result."""
    task, model, sample = make_all(50, 3, [3, 14, 0], 1)
    recorder = Recorder()
    engine = replace(graphing(monkeypatch, recorder, EAGER_USES=0), batch_invariant=True)
    together, _ = decode([model], task, sample, Options("gs-jacobi", 3), engine=engine, max_len_b=12)
    make = lambda: Engine(batch_invariant=True)  # noqa: E731
    assert bits(together) == alone([model], task, sample, make, max_len_b=12) and recorder.replays > 3
