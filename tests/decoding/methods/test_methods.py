"""Derived from the `MethodSpec`s: names, help, checks and the table."""

import pkgutil
from dataclasses import fields
from enum import Enum
from importlib import import_module
from typing import Any

import pytest

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.method import MethodSpec, plain
from fairseq_plugins.decoding.methods import DECODERS, METHODS
from fairseq_plugins.errors import ConfigurationError, flag, on_command_line
from fairseq_plugins.tasks.options import SpecDecConfig

CONFIG = {declared.name: declared for declared in fields(SpecDecConfig)}
# Help texts and methods of every option with a help text.
TEXTS: dict[str, list[str]] = {}
USERS: dict[str, list[str]] = {}
LENIENT: set[str] = set()
for _spec in METHODS:
    for _own in fields(_spec.options):
        USERS.setdefault(_own.name, []).append(_spec.name)
        if "help" in _own.metadata:
            TEXTS.setdefault(_own.name, []).append(_own.metadata["help"])
            if _own.metadata["ignored_by_other_methods"]:
                LENIENT.add(_own.name)


def another_value(option: str) -> Any:
    """Return a value of an option that differs from its default."""
    default = CONFIG[option].default
    if isinstance(CONFIG[option].type, type) and issubclass(CONFIG[option].type, Enum):
        return next(value for value in CONFIG[option].type if plain(value) != default)
    return {bool: True, int: 7, float: 0.25, type(None): 0.5}[type(default)]


def test_every_module_has_methods() -> None:
    specs = []
    for module in pkgutil.iter_modules(methods.__path__):
        if not module.name.startswith("_"):
            specs += import_module(f"{methods.__name__}.{module.name}").METHODS
    assert {id(spec) for spec in specs} == {id(spec) for spec in METHODS} and len(specs) == len(METHODS)
    assert [spec.order for spec in METHODS] == sorted(spec.order for spec in METHODS)


def test_decoders_are_all_names_and_aliases() -> None:
    assert sorted(DECODERS) == sorted(
        "beam fast-beam greedy nat gad specdec gad++ specdec++ blockwise reuse iad jacobi pj gs-jacobi pgj "
        "hybrid-jacobi hgj".split()
    )
    for spec in METHODS:
        assert all(methods.find(name) is spec for name in (spec.name, *spec.aliases))
    assert [plain(value) for value in CONFIG["decoding_method"].type] == DECODERS


def test_help_of_the_decoders() -> None:
    text = CONFIG["decoding_method"].metadata["help"]
    for spec in METHODS:
        assert f"{' = '.join([spec.name, *spec.aliases])}: {spec.summary}" in text


@pytest.mark.parametrize("option", sorted(TEXTS))
def test_help_of_an_option_names_the_methods_that_have_it(option: str) -> None:
    text = CONFIG[option].metadata["help"]
    for help_text in TEXTS[option]:
        assert text.count(help_text) == 1
    for name in USERS[option]:
        own = next(own for own in fields(methods.find(name).options) if own.name == option)
        # "gad, iad: what it does", and another text for others.
        before = text[: text.index(own.metadata["help"])].rsplit("; ", 1)[-1]
        assert before.endswith(": ") and name in before[:-2].split(", ")
    assert CONFIG[option].default == own.default


def test_shared_options() -> None:
    assert USERS["jacobi_pool"] == ["jacobi", "gs-jacobi", "hybrid-jacobi"]
    assert USERS["fixed_width"] == ["gad", "blockwise", "reuse", "iad", *USERS["jacobi_pool"]]
    assert CONFIG["jacobi_pool"].metadata["help"].startswith("jacobi, gs-jacobi, hybrid-jacobi: ")
    # Two methods with an option of one name that means something else.
    shared = CONFIG["top_beta"].metadata["help"]
    assert "gad++: accept drafted tokens" in shared and "blockwise: accept drafted tokens" in shared


@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("option", sorted(TEXTS))
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
    if spec.name in USERS[option] or option in LENIENT:
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


def test_table() -> None:
    header, line, *rows = methods.table().splitlines()
    assert header.count("|") == line.count("|") == 7 and len(rows) == len(METHODS)
    for spec, row in zip(METHODS, rows, strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[0] == ", ".join(f"`{name}`" for name in (spec.name, *spec.aliases))
        assert cells[1:4] == [spec.drafts, spec.accepts, "yes" if spec.is_lossless else "no"] and cells[5] == spec.paper
    needs = {row.split("|")[1].split("`")[1]: row.split("|")[5].strip() for row in rows}
    assert needs["gad"] == "`--drafter-path`" and needs["greedy"] == "" and needs["iad"] == "a joined dictionary"
    assert needs["blockwise"] == "a `BlockwiseTransformer`"


def test_method_specs_are_consistent() -> None:
    assert {spec.name for spec in METHODS if not spec.is_lossless} == {"nat", "gad++", "blockwise"}
    assert {spec.name for spec in METHODS if not spec.runs_verifier} == {"nat"}
    assert {spec.name for spec in METHODS if spec.build is None} == {"beam"}
    drafted = {spec.name for spec in METHODS if spec.needs_drafter(spec.options())}
    assert drafted == {"nat", "gad", "gad++"}
    iad = methods.find("iad")
    assert iad.needs_drafter(iad.options(iad_fallback="gad"))
