"""What commands print."""

import sys
import warnings

import pytest

from fairseq_plugins.process.output import lower_log_level


@pytest.mark.parametrize("program", ["fairseq-train", "fairseq-validate", "mine"])
def test_training_shows_no_warnings_of_hydra(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq calls hydra in an old way: a dozen lines before each training."""
    monkeypatch.setattr(sys, "argv", [program, "data"])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        lower_log_level()
        warnings.warn_explicit("The strict flag is deprecated", UserWarning, "compose.py", 1, module="hydra.compose")
        warnings.warn_explicit("of the user's", UserWarning, "mine.py", 1, module="mine")
    hydras = ["The strict flag is deprecated"] if program == "mine" else []
    assert [str(warning.message) for warning in shown] == [*hydras, "of the user's"]
