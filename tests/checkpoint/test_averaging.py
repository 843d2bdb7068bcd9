"""`spec-dec-average`: the mean, the written file, and errors."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_plugins.checkpoint import averaging
from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.errors import ConfigurationError
from tests.conftest import Corpus
from tests.support import run_in_process


def test_the_mean_of_checkpoints(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = torch.load(corpus.drafter)
    for updates, factor in ((5, 100.0), (10, 0.5), (20, 1.5)):
        weights = {key: value * factor if value.is_floating_point() else value for key, value in state["model"].items()}
        torch.save({**state, "model": weights}, tmp_path / f"checkpoint_1_{updates}.pt")
    torch.save(state, tmp_path / "checkpoint_best.pt")
    for epoch in range(1, 5):
        torch.save(state, tmp_path / f"checkpoint{epoch}.pt")
    assert averaging.main([str(tmp_path), "--last", "2", "--output", str(tmp_path / "mean.pt"), "--fp32"]) == 0
    assert capsys.readouterr().out == ""  # --output /dev/stdout is the checkpoint alone
    mean = torch.load(tmp_path / "mean.pt")
    for last, words in (
        ("5", "has 4 numbered checkpoints, not 5; give --last 4"),
        ("0", "not a whole number of at least 1"),
    ):
        assert averaging.main([str(tmp_path), "--last", last, "--output", str(tmp_path / "none.pt")]) == 2
        assert words in capsys.readouterr().err
    assert mean["extra_state"]["averaged"] == ["checkpoint_1_10.pt", "checkpoint_1_20.pt"]
    epochs = averaging.last_checkpoints(tmp_path, 4)  # there are not as many of updates
    assert [file.name for file in epochs] == [f"checkpoint{epoch}.pt" for epoch in range(1, 5)]
    assert mean["last_optimizer_state"] is None
    for name, value in state["model"].items():
        torch.testing.assert_close(mean["model"][name], value)


def test_a_half_precision_file_decodes_as_the_original(corpus: Corpus, tmp_path: Path) -> None:
    small = {name: tmp_path / f"{name}.pt" for name in ("verifier", "drafter")}
    for name, file in small.items():
        original = getattr(corpus, name)
        assert averaging.main([str(original), "--output", str(file)]) == 0
        # 2 bytes for 12, of which Adam has two thirds; the settings, which weigh as much here, are in both.
        assert file.stat().st_size < original.stat().st_size / 3
    outputs = []
    for verifier, drafter in ((corpus.verifier, corpus.drafter), (small["verifier"], small["drafter"])):
        log = run_in_process(
            "generate",
            f"{corpus.data} --task spec_dec --decoder gad --path {verifier} --drafter-path {drafter} --cpu",
        ).stdout
        outputs.append([line.split("\t")[::2] for line in log.splitlines() if line.startswith("H-")])
    assert outputs[0] == outputs[1] and len(outputs[0]) == 36


@pytest.mark.parametrize("extra", [{}, {"epoch": 3}, {"train_iterator": {}}])
def test_states_of_earlier_versions(corpus: Corpus, tmp_path: Path, extra: dict[str, Any]) -> None:
    torch.save({**torch.load(corpus.verifier), "extra_state": extra}, tmp_path / "old.pt")
    assert averaging.main([str(tmp_path / "old.pt"), "--output", str(tmp_path / "mean.pt")]) == 0
    read_checkpoint(str(tmp_path / "mean.pt"), "--path")


def test_tied_weights_are_written_once(corpus: Corpus, tmp_path: Path) -> None:
    state = torch.load(corpus.verifier)
    state["model"]["copy"] = state["model"]["tied"] = state["model"]["encoder.embed_tokens.weight"].clone()
    torch.save(state, tmp_path / "tied.pt")
    assert averaging.main([str(tmp_path / "tied.pt"), "--output", str(tmp_path / "half.pt")]) == 0
    weights = torch.load(tmp_path / "half.pt")["model"]
    assert weights["copy"].data_ptr() == weights["tied"].data_ptr()
    assert torch.equal(weights["copy"], state["model"]["copy"].half())


def test_invalid_input_is_refused(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """See also tests/faults/bad_input.txt."""
    for number, weights in enumerate(([1, 2], {"a": 3})):
        torch.save({**torch.load(corpus.verifier), "model": weights}, tmp_path / f"{number}.pt")
        assert averaging.main([str(tmp_path / f"{number}.pt"), "--output", str(tmp_path / "mean.pt")]) == 2
        assert "not a fairseq checkpoint (it lacks weights" in capsys.readouterr().err
    command = [str(corpus.verifier), str(corpus.drafter), "--output", str(tmp_path / "mean.pt")]
    assert averaging.main(command) == 2 and not (tmp_path / "mean.pt").exists()
    assert "its weights differ in name or shape" in capsys.readouterr().err
    for file, problem in ((corpus.verifier, "--last 1: is for a folder"), (tmp_path / "none", "none: no such file")):
        assert averaging.main([str(file), "--last", "1", "--output", str(tmp_path / "mean.pt")]) == 2
        assert problem in capsys.readouterr().err
    shutil.copy(corpus.verifier, tmp_path / "0.pt")
    (tmp_path / "link.pt").symlink_to("0.pt")
    before = (tmp_path / "0.pt").read_bytes()
    assert averaging.main([str(corpus.verifier), str(tmp_path / "0.pt"), "--output", str(tmp_path / "link.pt")]) == 2
    assert "link.pt: is an input of this command; give another file" in capsys.readouterr().err
    assert (tmp_path / "0.pt").read_bytes() == before
    state = torch.load(corpus.verifier)
    state["model"]["decoder.layers.0.fc1.bias"][1] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    nan = [str(corpus.verifier), str(tmp_path / "nan.pt"), "--fp32", "--output", str(tmp_path / "mean.pt")]
    assert averaging.main(nan) == 2 and not (tmp_path / "mean.pt").exists()
    assert "nan.pt: its decoder.layers.0.fc1.bias is not a number: the training diverged" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="big: not all of it fits half precision"):
        averaging.to_half({"model": {"big": torch.tensor([1e6])}})
