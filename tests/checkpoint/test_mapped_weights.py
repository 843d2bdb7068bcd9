"""Models that `load` reads are views of their file: the same output, a part of the memory, and training as before."""

import mmap
import shutil
import sys
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fairseq import checkpoint_utils
from torch import Tensor, nn

import fairseq_plugins
from fairseq_plugins.checkpoint.loading import read_state
from fairseq_plugins.checkpoint.mapped_weights import TakeWeights, can_map, is_taken, release_pages
from fairseq_plugins.decoding import weight_changes
from fairseq_plugins.decoding.weight_changes import WeightSnapshot
from tests.conftest import Corpus
from tests.support import REPOSITORY

RELEASED = REPOSITORY / "checkpoints/multi30k.en-de"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/pagemap is Linux'")


def loaded(folder: Path = RELEASED, **options: Any) -> tuple[fairseq_plugins.Model, nn.Module]:
    model = fairseq_plugins.load(folder, device="cpu", **options)
    return model, model._session.models[0]


def in_memory(tensor: Tensor) -> int:
    """Return how many pages of a tensor take memory."""
    first, end = -(-tensor.data_ptr() // mmap.PAGESIZE), (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(8 * first)
        return int((numpy.frombuffer(pagemap.read(8 * (end - first)), numpy.uint64) >> 63).sum())


def mapped_linear(tmp_path: Path) -> nn.Linear:
    torch.save(nn.Linear(512, 512).state_dict(), tmp_path / "linear.pt")
    with TakeWeights():
        layer = nn.Linear(512, 512)
        layer.load_state_dict(torch.load(tmp_path / "linear.pt", mmap=True))
    return layer


@pytest.mark.parametrize("decoder", ["greedy", "beam"])
def test_parameters_are_those_of_fairseqs_loader(decoder: str) -> None:
    _, model = loaded(decoder=decoder)
    (stock,), _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(RELEASED / "verifier.pt")], arg_overrides={"data": str(RELEASED)}
    )
    expected = stock.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
    assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())


@linux_only
def test_decoding_leaves_few_pages_of_the_weights_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # After a step of an optimizer, as in other tests, all weights are read.
    monkeypatch.setattr(weight_changes._steps(), "count", 0)
    folder = tmp_path / "wide.en-de"
    shutil.copytree(RELEASED, folder, ignore=shutil.ignore_patterns("*.pt", "SHA256SUMS"))
    state = torch.load(RELEASED / "verifier.pt")
    state["model"] = {name: value.float() for name, value in state["model"].items()}
    torch.save(state, folder / "verifier.pt")
    model, module = loaded(folder)
    expected = loaded(decoder="greedy")[0].translate("A dog runs on the beach.")
    assert model.translate("A dog runs on the beach.") == expected
    layers = [value for name, value in module.named_parameters() if ".layers." in name and value.nbytes > mmap.PAGESIZE]
    # Reading an embedding may bring in what is near it in the file.
    pages = sum(value.nbytes for value in layers) / mmap.PAGESIZE
    assert all(map(is_taken, layers)) and sum(map(in_memory, layers)) < pages / 2


@linux_only
def test_released_pages_come_back_and_written_ones_stay(tmp_path: Path) -> None:
    layer = mapped_linear(tmp_path)
    before = layer.weight.detach().clone()
    assert in_memory(layer.weight) > 0
    release_pages(layer.parameters())
    assert in_memory(layer.weight) == 0
    assert torch.equal(layer.weight, before)
    for write in (lambda: layer.weight.data[7].mul_(2), lambda: layer.weight.detach().numpy()[9].fill(3)):
        write()
        changed = layer.weight.detach().clone()
        release_pages(layer.parameters())
        assert torch.equal(layer.weight, changed) and not torch.equal(changed, before)
    assert torch.equal(torch.load(tmp_path / "linear.pt")["weight"], before)  # the file is as it was


def test_changes_of_mapped_weights_are_noticed(tmp_path: Path) -> None:
    layer = mapped_linear(tmp_path)
    snapshot = WeightSnapshot([layer])
    assert snapshot.is_current()
    layer(torch.ones(2, 512)).sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.001).step()
    assert not snapshot.is_current()
    snapshot = WeightSnapshot([layer])
    layer.weight.data = layer.weight.detach().clone()
    assert not is_taken(layer.weight) and not snapshot.is_current()


def test_weights_of_another_type_or_shape_are_copied_or_refused() -> None:
    state = nn.Linear(4, 4).half().state_dict()
    with TakeWeights():
        layer, narrow = nn.Linear(4, 4), nn.Linear(4, 3)
        layer.load_state_dict(state)
        with pytest.raises(RuntimeError, match="size mismatch"):
            narrow.load_state_dict(state)
    assert layer.weight.dtype is torch.float32 and torch.equal(layer.weight.half(), state["weight"])
    assert not is_taken(layer.weight)


def test_only_files_that_nothing_overwrites_are_mapped(corpus: Corpus, tmp_path: Path) -> None:
    assert can_map(str(RELEASED / "verifier.pt"))
    assert not can_map(str(corpus.verifier))  # checkpoint_best.pt
    assert not can_map(str(tmp_path)) and not can_map(str(tmp_path / "missing.pt"))
    old, packed = tmp_path / "old.pt", tmp_path / "packed.pt"
    state = torch.load(RELEASED / "verifier.pt")
    torch.save(state, old, _use_new_zipfile_serialization=False)
    with zipfile.ZipFile(RELEASED / "verifier.pt") as source, zipfile.ZipFile(packed, "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry), zipfile.ZIP_DEFLATED)
    for file in (old, packed):
        assert not can_map(str(file))
        read, _ = read_state(str(file), "--path")
        assert all(torch.equal(value, state["model"][name]) for name, value in read["model"].items())


@pytest.mark.parametrize("kind", ["cfg", "args"])
def test_settings_are_overridden_as_by_fairseqs_loader(kind: str, corpus: Corpus, tmp_path: Path) -> None:
    state = torch.load(corpus.verifier)
    if kind == "args":
        state |= {"cfg": None, "args": Namespace(**state["cfg"]["model"].__dict__)}
    torch.save(state, tmp_path / "model.pt")
    overrides = {"dropout": 0.75, "data": "elsewhere", "new_option": 1}
    mapped, _ = read_state(str(tmp_path / "model.pt"), "--path", overrides)
    expected = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "model.pt"), overrides)
    assert mapped["cfg"] == expected["cfg"] and mapped["cfg"].model.dropout == 0.75
