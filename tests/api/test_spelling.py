"""Errors: arguments in Python, options on the command line."""

import re
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.api.spelling import in_python, on_command_line
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.translation import cli
from tests.support import REPOSITORY

UA_GEC = REPOSITORY / "checkpoints" / "ua-gec"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--path none.pt: no such file; give a checkpoint of fairseq-train", "verifier none.pt: no such file; give a "),
        ("--min-len 9: longer; lower it or raise --max-len-b", "min_len=9: longer; lower it or raise max_len_b="),
        ("--int8: rounds fp32 weights; leave out --bf16", 'int8: rounds fp32 weights; leave out precision="bf16"'),
        (
            "--decoder gad: needs a drafter; add --drafter-path DRAFTER.pt (see fairseq-train --task spec_dec)",
            'decoder=gad: needs a drafter; add drafter="DRAFTER.pt" (see fairseq-train --task spec_dec)',
        ),
        ("--tau 1.0: is for --decoder gad++, not gad", 'tau=1.0: is for decoder="gad++", not gad'),
        ("a.pt: is a folder; give one of the --decoder options", "a.pt: is a folder; give one of the decoder= options"),
    ],
)
def test_in_python(message: str, expected: str) -> None:
    assert in_python(message).startswith(expected)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('beam=2: keeps one; use decoder="fast-beam"', "--beam 2: keeps one; use --decoder fast-beam"),
        ("num_hypotheses=3: beam keeps 2; raise beam=", "--nbest 3: beam keeps 2; raise --beam"),
        ("data= is missing; give it", "--data is missing; give it"),
        ("lenpen='a': is not a value", "lenpen='a': is not a value"),
        ("folder data: no such folder", "FOLDER data: no such folder"),
    ],
)
def test_on_the_command_line(message: str, expected: str) -> None:
    assert on_command_line(ConfigurationError(message), {"beam", "nbest", "decoder", "data"}) == expected


def test_both_say_what_they_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("Так .\n", encoding="utf-8")
    cases = (
        (
            {"decoder": "gad", "max_len_b": 3, "min_len": 9},
            "min_len=9: longer .*raise max_len_b=",
            "--min-len 9: longer",
        ),
        (
            {"decoder": "iad", "int8": True, "precision": "bf16"},
            'int8: .*precision="bf16"',
            "--int8: .*--precision bf16",
        ),
    )
    for options, in_program, in_shell in cases:
        with pytest.raises(ConfigurationError, match=f"^{in_program}"):
            fairseq_plugins.load(UA_GEC, device="cpu", **options).translate("Так .")
        named = [f"--{name}={options.pop(name)}" for name in ("decoder", "precision") if name in options]
        given = [item for name, value in options.items() for item in ("--set", f"{name}={value}")]
        assert cli.main([str(UA_GEC), "--device", "cpu", "--input", str(tmp_path / "text"), *named, *given]) == 2
        assert re.search(f"error: {in_shell}", capsys.readouterr().err)
