"""Errors: arguments in Python, options on the command line."""

import re
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.translation import cli
from tests.support import REPOSITORY

UA_GEC = REPOSITORY / "checkpoints" / "ua-gec"


def test_both_say_what_they_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("Так .\n", encoding="utf-8")
    cases = (
        (
            {"decoder": "gad", "max_len_b": 3, "min_len": 9},
            "min_len=9: longer .*raise max_len_b=",
            "--set min_len=9: longer",
        ),
        (
            {"decoder": "iad", "int8": True, "precision": "bf16"},
            'int8: .*precision="bf16"',
            "--set int8: .*--precision bf16",
        ),
    )
    for options, in_program, in_shell in cases:
        with pytest.raises(ConfigurationError, match=f"^{in_program}"):
            fairseq_plugins.load(UA_GEC, device="cpu", **options).translate("Так .")
        named = [f"--{name}={options.pop(name)}" for name in ("decoder", "precision") if name in options]
        given = [item for name, value in options.items() for item in ("--set", f"{name}={value}")]
        assert cli.main([str(UA_GEC), "--device", "cpu", "--input", str(tmp_path / "text"), *named, *given]) == 2
        assert re.search(f"error: {in_shell}", capsys.readouterr().err)
