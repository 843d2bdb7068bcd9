"""Errors of checkpoints that fairseq loads, as one line that names the file; all others keep their traceback."""

import pickle
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_plugins.errors import ConfigurationError, as_command, explain, on_command_line, spelled_as
from tests.support import make_task


def explained(action: object, *arguments: object) -> str | None:
    """Return the one-line message of a failing call."""
    with pytest.raises(Exception) as caught:  # noqa: PT011, B017
        action(*arguments)  # type: ignore[operator]
    return explain(caught.value, caught.value.__traceback__)


def test_option_is_named_only_where_it_named_the_file(tmp_path: Path) -> None:
    """`--restore-file` of fairseq-train is read by the same function as `--path` of fairseq-generate."""
    path = tmp_path / "half.pt"
    path.write_bytes(b"PK\x03\x04 and no more")
    restored = explained(checkpoint_utils.load_checkpoint_to_cpu, str(path))
    assert restored is not None and restored.startswith(f"{path}: truncated") and "--path" not in restored
    decoded = explained(checkpoint_utils.load_model_ensemble, [str(path)], None, make_task())
    assert decoded is not None and decoded.startswith(f"--path {path}: truncated")


def test_message_is_one_line() -> None:
    error = ConfigurationError("--tau 3:\n  too\n  much")
    assert explain(error, None) == "--tau 3: too much"


def test_gpu_out_of_memory() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")
    message = explain(error, None)
    assert message is not None and message.startswith("out of memory on the GPU (CUDA out of memory. Tried to allocate")
    assert "--batch-size" in message and "\n" not in message


@pytest.mark.parametrize("error", [RuntimeError("shape"), OSError("Model file not found: x"), KeyError("model")])
def test_errors_elsewhere_keep_their_traceback(error: Exception) -> None:
    def fail() -> None:
        raise error

    assert explained(fail) is None


def test_internal_errors_keep_their_traceback() -> None:
    layer = torch.nn.Linear(2, 3)
    assert explained(layer.load_state_dict, torch.nn.Linear(3, 3).state_dict()) is None


def test_options_are_spelled_by_whoever_shows_them() -> None:
    error = ConfigurationError("--nbest", 3, f"{'beam'} keeps {{--beam 1}}", "raise {--beam}, or use {--decoder gad}")
    assert str(error) == 'num_hypotheses=3: beam keeps beam=1; raise beam=, or use decoder="gad"'
    with spelled_as(on_command_line):
        assert str(error) == "--nbest 3: beam keeps --beam 1; raise --beam, or use --decoder gad"
    assert error.spelled(as_command({"nbest", "decoder"}, {"beam"})).endswith("raise --set beam, or use --decoder gad")
    assert pickle.loads(pickle.dumps(error)).option == "--nbest"


@pytest.mark.parametrize(
    ("parts", "in_program"),
    [
        (("--path", "a {--cpu}.pt", "is {a} folder"), 'verifier="a {--cpu}.pt": is {a} folder'),
        (("--int8", None, "rounds", "leave out {--bf16}"), 'int8: rounds; leave out precision="bf16"'),
        (("text[3]", None, "is too long", "split it"), "text[3]: is too long; split it"),
        ((None, Path("x.txt"), "is\nempty"), "x.txt: is empty"),
        ((None, None, "out of memory", "lower {--max-tokens}"), "out of memory; lower max_tokens="),
        (("--beam", None, "give {--beam 5}, {--drafts FILE}"), 'beam: give beam=5, drafts="FILE"'),
    ],
)
def test_errors_without_an_option_or_value(parts: tuple[str, ...], in_program: str) -> None:
    assert str(ConfigurationError(*parts)) == in_program
