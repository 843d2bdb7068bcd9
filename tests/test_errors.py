"""Errors have an option, a value, a problem and a remedy, in the spelling of whoever shows them."""

import pickle
import re
from argparse import ArgumentParser
from pathlib import Path

import pytest
from fairseq import options
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from fairseq_plugins.api.options import CALL, LOAD, WRAP
from fairseq_plugins.errors import ConfigurationError, as_command, flag, on_command_line, spell_as
from fairseq_plugins.help_texts import FOLDER
from tests.error_messages import messages, options_in


def test_options_are_spelled_by_whoever_shows_them() -> None:
    error = ConfigurationError("--nbest", 3, f"{'beam'} keeps {{--beam 1}}", "raise {--beam}, or use {--decoder gad}")
    assert str(error) == 'num_hypotheses=3: beam keeps beam=1; raise beam=, or use decoder="gad"'
    before = spell_as(on_command_line)
    assert str(error) == "--nbest 3: beam keeps --beam 1; raise --beam, or use --decoder gad"
    spell_as(before)
    assert error.spelled(as_command({"nbest", "decoder"}, {"beam"})).endswith("raise --set beam, or use --decoder gad")
    spelled = as_command({"verifier", "device"}, {"precision"})
    shown = ConfigurationError("--path", "a.pt", "x", "{--cpu}, {--fp16}, {--lr 1}").spelled(spelled)
    assert shown == "--verifier a.pt: x; --device cpu, --set precision=fp16, --lr 1"
    assert pickle.loads(pickle.dumps(error)).option == "--nbest"


@pytest.mark.parametrize(
    ("parts", "in_program"),
    [
        (("--path", "a {--cpu}.pt", "is {a} folder"), 'verifier="a {--cpu}.pt": is {a} folder'),
        (("--int8", None, "rounds", "leave out {--bf16}"), 'int8: rounds; leave out precision="bf16"'),
        (("text[3]", None, "is too long", "split it"), "text[3]: is too long; split it"),
        ((None, Path("x.txt"), "is\nempty"), "x.txt: is empty"),
        ((None, Path("\x1b[31mx\udcff"), "is empty"), "\\x1b[31mx\\udcff: is empty"),
        ((None, None, "out of memory", "lower {--max-tokens}"), "out of memory; lower max_tokens="),
        (("--beam", None, "give {--beam 5}, {--drafts FILE}"), 'beam: give beam=5, drafts="FILE"'),
    ],
)
def test_errors_without_an_option_or_value(parts: tuple[str, ...], in_program: str) -> None:
    assert str(ConfigurationError(*parts)) == in_program


def test_options_in_errors_exist() -> None:
    kinds = ("generation", "interactive_generation", "training", "validation")
    parsers = [getattr(options, f"get_{kind}_parser")() for kind in kinds]
    for registry in (TASK_REGISTRY, MODEL_REGISTRY, CRITERION_REGISTRY):
        for kind in registry.values():
            parsers.append(ArgumentParser(add_help=False, conflict_handler="resolve"))
            kind.add_args(parsers[-1])
    for kind in REGISTRIES["bpe"]["dataclass_registry"].values():
        gen_parser_from_dataclass(parsers[-1], kind())
    known = {option for parser in parsers for option in parser._option_string_actions}
    known |= {name for file in FOLDER.glob("*.txt") for name in re.findall(r"--[\w-]+", file.read_text())}
    known |= {flag(name) for place in (LOAD, CALL, WRAP) for name in place.known | place.arguments}
    unknown = {place: options_in(error) - known for place, error in messages()}
    assert not {place: names for place, names in unknown.items() if names} and len(unknown) > 300
