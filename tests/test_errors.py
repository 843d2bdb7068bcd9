"""Errors have an option, a value, a problem and a remedy, in the spelling of whoever shows them."""

import pickle
from pathlib import Path

import pytest

from fairseq_plugins.errors import ConfigurationError, as_command, on_command_line, spell_as


def test_options_are_spelled_by_whoever_shows_them() -> None:
    error = ConfigurationError("--nbest", 3, f"{'beam'} keeps {{--beam 1}}", "raise {--beam}, or use {--decoder gad}")
    assert str(error) == 'num_hypotheses=3: beam keeps beam=1; raise beam=, or use decoder="gad"'
    before = spell_as(on_command_line)
    assert str(error) == "--nbest 3: beam keeps --beam 1; raise --beam, or use --decoder gad"
    spell_as(before)
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
