"""`spec-dec-convert --int8`: a quarter of the size, and the output of `--int8` in decoding."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_plugins
from fairseq_plugins.checkpoint.int8_weights import Int8Weight, restored, round_to_int8
from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.conversion import cli
from tests.api.released import CLDR, interactive
from tests.conversion.support import converted, save_model
from tests.support import REPOSITORY

TEXT = ["Monday", "United States", "the day before yesterday", "in 3 hours", "Central European Time", "Swiss franc"]


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released folder in int8, under a name that does not tell the languages."""
    folder = tmp_path_factory.mktemp("int8") / "small"
    assert cli.main([str(CLDR), str(folder), "--int8"]) == 0
    return folder


def test_rounding_again_changes_nothing() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3000, 40) * torch.randn(3000, 1).exp()
    weight[0] = 0
    rounded, scale = round_to_int8(weight)
    again = restored(rounded, scale)
    assert (again.double() == rounded.double() * scale.double()[:, None]).all()
    assert all(map(torch.equal, round_to_int8(again), (rounded, scale)))
    assert ((again - weight).abs() <= scale[:, None] * 0.501).all() and (rounded.abs().amax(1)[1:] == 127).all()


@pytest.mark.parametrize(
    ("rounded", "scale"),
    [
        (torch.ones(2, 3).to(torch.int8), torch.ones(1)),  # which kernels would read beyond its end
        (torch.ones(2, 3).to(torch.int8), torch.ones(2).half()),
        (torch.ones(2, 3), torch.ones(2)),
        (torch.ones(2).to(torch.int8), torch.ones(2)),
        (3, 4.0),
    ],
)
def test_damaged_weights_are_refused(rounded: Any, scale: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="not int8 with a scale of each row"):
        restored(rounded, scale)


@pytest.mark.parametrize(
    ("decoder", "no_compiled_steps"), [("greedy", True), ("fast-beam", False), ("gad", False), ("gad", True)]
)
def test_output_is_that_of_int8_in_decoding(int8: Path, decoder: str, no_compiled_steps: bool) -> None:
    more = {"decoder": decoder, "device": "cpu", "no_compiled_steps": no_compiled_steps}
    expected = fairseq_plugins.load(CLDR, int8=True, **more).translate(TEXT, return_scores=True)
    model = fairseq_plugins.load(int8, **more)
    assert not model.is_lossless and (model.source_lang, model.target_lang) == ("en", "de")
    for ours, theirs in zip(model.translate(TEXT, return_scores=True), expected, strict=True):
        assert (ours.tokens, ours.token_scores) == (theirs.tokens, theirs.token_scores)


def test_weights_are_a_quarter_of_fp32(int8: Path) -> None:
    numbers = sum(value.numel() for value in _once(CLDR / "verifier.pt"))
    assert (int8 / "verifier.pt").stat().st_size < 0.3 * 4 * numbers
    assert len(_once(int8 / "verifier.pt")) == len(_once(CLDR / "verifier.pt")), "tied weights stay tied"
    assert not list(int8.parent.glob("*partial*"))


def _once(file: Path) -> list[torch.Tensor]:
    weights = read_checkpoint(str(file), "--path")[0]["model"].values()
    return list({value.data_ptr(): value for value in weights}.values())


def test_fairseqs_commands_read_it(int8: Path) -> None:
    options = "--task spec_dec --decoder gad --int8 --drafter-path"
    first, second = (interactive(folder, TEXT, f"{options} {folder}/drafter.pt") for folder in (CLDR, int8))
    assert first == second and len(first) == len(TEXT)


def test_other_decoders_read_the_weights_in_fp32(int8: Path) -> None:
    exact = fairseq_plugins.load(int8, decoder="beam", device="cpu").translate(TEXT)
    assert fairseq_plugins.load(int8, decoder="fast-beam", device="cpu", int8=False).translate(TEXT) == exact
    assert fairseq_plugins.load(int8, decoder="greedy", device="cpu", precision="bf16").translate(TEXT[0])


def test_models_of_hugging_face(tmp_path: Path) -> None:
    save_model("nllb", tmp_path / "hf")
    save_model("marian", tmp_path / "marian")
    (tmp_path / "marian/tokenizer_config.json").write_text('{"source_lang": "deu", "target_lang": "en-GB"}')
    for source, target in (("marian", "marian.fp32"), ("marian", "marian.int8"), ("marian.fp32", "marian.again")):
        option = [] if target == "marian.fp32" else ["--int8"]
        assert cli.main([str(tmp_path / source), str(tmp_path / target), *option]) == 0
        model = fairseq_plugins.load(tmp_path / target, device="cpu")
        assert (model.source_lang, model.target_lang) == ("deu", "en-GB")
    for folder in tmp_path.iterdir():
        if folder.name != "hf":
            shutil.rmtree(folder)
    outputs = []
    for name, option in (("fp32", []), ("int8", ["--int8"])):
        assert cli.main([str(tmp_path / "hf"), str(tmp_path / name), *option]) == 0
        outputs.append(converted("nllb", tmp_path / name, **({} if option else {"int8": True})))
    assert outputs[0] == outputs[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fp32", "hf", "int8"]


def test_what_is_refused(int8: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.en-de"
    shutil.copytree(CLDR, other, ignore=shutil.ignore_patterns("SHA256SUMS"))
    (other / "drafter.pt").unlink()
    (other / "drafter.pt").symlink_to(REPOSITORY / "checkpoints/ua-gec/drafter.pt")
    none = tmp_path / "none"
    none.mkdir()
    for source, target, message in (
        (CLDR, int8, f"{int8}: exists already"),
        (int8, tmp_path / "again", f"{int8}: its weights are in int8 already"),
        (CLDR / "verifier.pt", tmp_path / "again", "verifier.pt: is a file; give a folder, that of a model"),
        (other, tmp_path / "out", f"{other}/drafter.pt: was trained with another verifier"),
        (none, tmp_path / "out", f"{none}: has no dictionaries"),
        (tmp_path / "missing", tmp_path / "out", "missing: no such folder"),
    ):
        assert cli.main([str(source), str(target), "--int8"]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("int8", [[], ["--int8"]])
def test_languages_without_effect(int8: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for option in ("--source-lang", "--target-lang"):
        assert cli.main([str(folder), str(tmp_path / "out"), *int8, option, "en"]) == 2
        assert f"error: {option} en: is for --int8 and a folder of fairseq's" in capsys.readouterr().err


def test_other_calls_in_a_checkpoint_are_refused(tmp_path: Path) -> None:
    weight = Int8Weight(torch.ones(2, 3))
    for wrong in (weight.rounded.float(), weight.rounded[0]):
        weight.rounded = wrong
        torch.save({"model": weight, "cfg": {}}, tmp_path / "model.pt")
        with pytest.raises(fairseq_plugins.ConfigurationError, match="truncated or not a fairseq checkpoint"):
            read_checkpoint(str(tmp_path / "model.pt"), "--path")
