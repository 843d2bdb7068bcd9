"""Derived from the `MethodSpec`s: names, help and checks."""

from dataclasses import fields
from enum import Enum
from typing import Any

import pytest

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.method import MethodSpec, plain
from fairseq_plugins.decoding.methods import DECODERS, METHODS
from fairseq_plugins.errors import ConfigurationError, flag, on_command_line
from fairseq_plugins.tasks.options import SpecDecConfig

CONFIG = {declared.name: declared for declared in fields(SpecDecConfig)}
# Methods of every option; options with a help text, and whether other methods ignore them.
USERS: dict[str, list[str]] = {}
IGNORED: dict[str, bool] = {}
for _spec in METHODS:
    for _own in fields(_spec.options):
        USERS.setdefault(_own.name, []).append(_spec.name)
        if "help" in _own.metadata:
            IGNORED[_own.name] = _own.metadata["ignored_by_other_methods"]


def another_value(option: str) -> Any:
    """Return a value of an option that differs from its default."""
    default = CONFIG[option].default
    if isinstance(CONFIG[option].type, type) and issubclass(CONFIG[option].type, Enum):
        return next(value for value in CONFIG[option].type if plain(value) != default)
    return {bool: True, int: 7, float: 0.25, type(None): 0.5}[type(default)]


def test_decoders_are_all_names_and_aliases() -> None:
    assert sorted(DECODERS) == sorted(
        "beam fast-beam greedy nat gad specdec gad++ specdec++ blockwise reuse iad jacobi pj gs-jacobi pgj "
        "hybrid-jacobi hgj".split()
    )
    for spec in METHODS:
        assert all(methods.find(name) is spec for name in (spec.name, *spec.aliases))
    assert [plain(value) for value in CONFIG["decoding_method"].type] == DECODERS
    assert {spec.name for spec in METHODS if not spec.is_lossless} == {"nat", "gad++", "blockwise"}


def test_shared_options() -> None:
    assert USERS["jacobi_init"] == ["jacobi", "gs-jacobi", "hybrid-jacobi"]
    assert USERS["fixed_width"] == ["gad", "blockwise", "reuse", "iad", *USERS["jacobi_init"]]
    assert CONFIG["jacobi_init"].metadata["help"].startswith("jacobi, gs-jacobi, hybrid-jacobi: ")
    # Two methods with an option of one name that means something else.
    shared = CONFIG["top_beta"].metadata["help"]
    assert "gad++: accept drafted tokens" in shared and "blockwise: accept drafted tokens" in shared


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("option", sorted(IGNORED))
def test_options_of_other_methods_are_refused(option: str, spec: MethodSpec) -> None:
    value = another_value(option)
    config = SpecDecConfig(decoding_method=spec.name, **{option: value})
    message = ""
    try:
        methods.check_options(config)
    except ConfigurationError as error:
        message = error.spelled(on_command_line)
    given = flag(option) if value is True else f"{flag(option)} {plain(value)}"
    refusal = f"{given}: is for --decoder {', '.join(USERS[option])}, not {spec.name}"
    if spec.name in USERS[option] or IGNORED[option]:
        # A method may refuse a value of its own options.
        assert "is for --decoder" not in message
    else:
        assert message == refusal


@pytest.mark.parametrize("name", DECODERS)
def test_defaults_are_accepted(name: str) -> None:
    config = SpecDecConfig(decoding_method=name, **({"preset": "high-quality"} if "++" in name else {}))
    methods.check_options(config)
    spec, options = methods.chosen(config)
    assert spec is methods.find(name) and isinstance(options, spec.options)
    # As text, also for fairseq's enumerations.
    assert not any(isinstance(getattr(options, own.name), Enum) for own in fields(options))
