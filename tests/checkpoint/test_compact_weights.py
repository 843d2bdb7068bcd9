"""Weights that stay in int8 or float16 compute as in fp32, and become ordinary ones for whatever runs in PyTorch."""

import copy
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fairseq_plugins
from fairseq_plugins.api.loading import with_decoder
from fairseq_plugins.checkpoint.compact_weights import CompactWeight, restore
from fairseq_plugins.checkpoint.int8_weights import round_to_int8
from fairseq_plugins.conversion.int8 import write_int8
from fairseq_plugins.decoding.weight_changes import WeightSnapshot
from tests.support import REPOSITORY

RELEASED = REPOSITORY / "checkpoints/multi30k.en-de"
TEXT = ["A dog runs on the beach.", "Two men are talking."]


@pytest.fixture(scope="module")
def int8_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8") / "model"
    write_int8(RELEASED, folder, ("en", "de"))
    return folder


@pytest.fixture(params=["int8", "float16"])
def weight(request: pytest.FixtureRequest) -> CompactWeight:
    numbers = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    return CompactWeight(*round_to_int8(numbers)) if request.param == "int8" else CompactWeight(numbers.half())


def compact(model: fairseq_plugins.Model) -> list[bool]:
    """Return of each weight [rows, columns] of the verifier whether it is compact."""
    return [isinstance(value, CompactWeight) for value in model._session.models[0].parameters() if value.dim() == 2]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operations_are_those_of_the_restored_weight(weight: CompactWeight, mode: Any) -> None:
    whole, x = weight.restored(), torch.randn(3, 4)
    with mode():
        assert (weight.dtype, weight.shape, weight.device) == (whole.dtype, whole.shape, whole.device)
        assert torch.equal(weight, whole) and torch.equal(weight.detach() + 1, whole + 1)
        assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, whole))
        assert torch.equal(weight[2:4].half(), whole[2:4].half())
        assert torch.equal(nn.functional.embedding(torch.tensor([5, 0]), weight), whole[[5, 0]])
        assert isinstance(weight.detach(), CompactWeight)


def test_writing_is_refused(weight: CompactWeight) -> None:
    for call in (lambda: weight.zero_(), lambda: weight.copy_(torch.ones(6, 4)), lambda: torch.abs(weight, out=weight)):
        with pytest.raises(TypeError, match="cannot be written; restore it first"):
            call()


def test_parameters_are_restored_in_place(weight: CompactWeight) -> None:
    first, second = nn.Linear(4, 6), nn.Embedding(6, 4)
    first.weight = second.weight = nn.Parameter(weight, requires_grad=False)
    kept, snapshot = first.weight, WeightSnapshot([first, second])
    assert isinstance(kept, CompactWeight) and isinstance(kept, nn.Parameter) and snapshot.is_current()
    restore([first, second])
    assert first.weight is second.weight is kept and type(kept) is nn.Parameter and not kept.requires_grad
    assert torch.equal(kept, weight.restored()) and not snapshot.is_current()
    with torch.no_grad():
        kept.add_(1)
    assert torch.equal(copy.deepcopy(first).weight, weight.restored() + 1)


@pytest.mark.parametrize("decoder", ["greedy", "gad", "fast-beam"])
@pytest.mark.parametrize("in_int8", [True, False])
def test_kernels_read_compact_weights(decoder: str, in_int8: bool, int8_folder: Path) -> None:
    folder = int8_folder if in_int8 else RELEASED
    model = fairseq_plugins.load(folder, device="cpu", decoder=decoder)
    outputs = model.translate(TEXT, return_scores=True)
    assert model.backend.startswith("native") and all(compact(model))
    in_pytorch = fairseq_plugins.load(folder, device="cpu", no_compiled_steps=True, decoder=decoder)
    expected = in_pytorch.translate(TEXT, return_scores=True)
    assert in_pytorch.backend.startswith("torch") and not any(compact(in_pytorch))
    assert [one.tokens for one in outputs] == [one.tokens for one in expected]


@pytest.mark.parametrize("options", [{"decoder": "beam"}, {"precision": "bf16"}, {"precision": "fp16"}, {}], ids=str)
def test_pytorch_has_ordinary_weights(options: dict[str, Any], int8_folder: Path) -> None:
    """Alignments are computed in PyTorch."""
    for folder in (int8_folder, RELEASED):
        model = fairseq_plugins.load(folder, **{"device": "cpu", "decoder": "greedy", **options})
        assert all(one.text for one in model.translate(TEXT, return_scores=True, alignments=not options))
        assert not any(compact(model))


def test_a_second_decoder_shares_the_weights() -> None:
    model = fairseq_plugins.load(RELEASED, device="cpu", decoder="greedy")
    before = model.translate(TEXT)
    with ThreadPoolExecutor(1) as pool:
        with model._weights:  # making the weights ordinary fails while another thread computes with them
            made = pool.submit(with_decoder, model, "beam")
            assert not wait([made], 0.5).done
        other = made.result(60)
    other.translate(TEXT, beam=1)
    assert not any(compact(model)) and model.translate(TEXT) == before
