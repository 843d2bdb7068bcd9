"""Checkpoints of tasks that add their own tokens are refused, wherever they are loaded."""

from argparse import Namespace
from pathlib import Path
from unittest import mock

import pytest
import torch

import fairseq_plugins
from fairseq_plugins.checkpoint.averaging import new_checkpoint
from fairseq_plugins.checkpoint.loading import building, check_task, read_state
from fairseq_plugins.errors import ConfigurationError, explain
from fairseq_plugins.shared.cli import run_command
from tests.errors import error_about
from tests.support import make_args, make_task, make_transformer


@pytest.mark.parametrize(
    "name", ["translation_multi_simple_epoch", "translation_from_pretrained_bart", "speech_to_text"]
)
def test_a_task_with_tokens_of_its_own_is_refused(name: str) -> None:
    with error_about("--path", f"was trained with --task {name}, .*give --task {name} "):
        make_task().build_model(Namespace(task=name, arch="transformer"), from_checkpoint=True)


def test_language_tokens_are_refused_by_the_option_that_named_them() -> None:
    model = Namespace(task="mine", encoder_langtok="src", decoder_langtok=True)
    with error_about("--path", "--task mine and --encoder-langtok, "):
        check_task(model, make_task(), "--path")


@pytest.mark.parametrize(
    ("trained", "warning"),
    [
        ({"task": "translation"}, ""),
        ({"task": "denoising"}, ""),
        ({"task": None, "source_lang": "en", "target_lang": "de"}, ""),
        ({"task": "translation", "source_lang": "de", "target_lang": "fr"}, ""),
        (
            {"task": "translation", "source_lang": "de", "target_lang": "en"},
            "verifier: was trained to translate from de to en, not en to de",
        ),
        ({"task": "mine"}, 'verifier: was trained with task="mine", which is unknown here'),
    ],
)
def test_other_tasks_are_accepted(trained: dict, warning: str, caplog: pytest.LogCaptureFixture) -> None:
    task = make_task()
    task.cfg.source_lang, task.cfg.target_lang = "en", "de"
    check_task(Namespace(**trained), task, "--path")
    assert warning in caplog.text if warning else not caplog.records


@pytest.mark.filterwarnings("ignore")
def test_a_file_is_refused_as_verifier_of_the_api_and_of_training(tmp_path: Path) -> None:
    task = make_task(data=str(tmp_path))
    for language in ("en", "de"):
        task.source_dictionary.save(str(tmp_path / f"dict.{language}.txt"))
    args = make_args(task="translation_multi_simple_epoch", arch="transformer", data=str(tmp_path))
    checkpoint = tmp_path / "verifier.pt"
    torch.save(new_checkpoint(make_transformer(task, ending=False).state_dict(), args=args), checkpoint)
    message = "was trained with --task translation_multi_simple_epoch, .* wrap"
    in_python = 'was trained with task="translation_multi_simple_epoch", .* wrap'
    with pytest.raises(ConfigurationError, match=in_python):
        loaded = fairseq_plugins.load(tmp_path, source_lang="en", target_lang="de", device="cpu")
        loaded.translate("w1")
    task.cfg.verifier_path = str(checkpoint)
    with error_about("--verifier-path", message):
        task.training_verifier()


REFUSED = "unable to mmap 8 bytes from file <x.pt>: Cannot allocate memory (12)"


def test_a_file_for_which_memory_is_refused_is_not_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pt").touch()
    with mock.patch("torch.load", side_effect=RuntimeError(REFUSED)):
        assert run_command("spec-dec-x", lambda _: print(read_state(str(tmp_path / "x.pt"), None)), []) == 2
    line = f"spec-dec-x: error: out of memory ({REFUSED}); free some, or raise the limit of this process\n"
    assert capsys.readouterr().err == line
    assert str(explain(MemoryError())) == "out of memory; free some, or raise the limit of this process"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (MemoryError(), None),
        (RuntimeError(REFUSED), None),
        (torch.OutOfMemoryError("CUDA out of memory"), None),
        (RuntimeError("CUDA error: out of memory"), None),
        (ModuleNotFoundError("No module named 'fairscale'"), None),
        (ConfigurationError("--other", None, "own"), None),
        (AttributeError("no such thing"), r"cannot be built .* \(AttributeError: no such thing\)"),
        (ValueError("7 heads"), r"cannot be built .* \(7 heads\)"),
    ],
)
def test_only_errors_of_the_checkpoint_blame_it(error: Exception, shown: str | None) -> None:
    with pytest.raises(type(error)) if shown is None else error_about("--path", f"x.pt: its model {shown}"):
        with building("--path", "x.pt"):
            raise error


def test_weights_that_do_not_fit_are_named() -> None:
    with error_about("--path", r"x.pt: its weights do not fit .*size mismatch"), building("--path", "x.pt"):
        torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(3, 3).state_dict())
