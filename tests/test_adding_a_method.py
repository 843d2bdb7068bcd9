"""The method that docs/adding-a-method.md shows, run as it is printed there: as one more module of the folder."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.method import MethodSpec
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.tasks.options import _DecodingOptions
from tests.strategies import SEARCHES, SOURCES, STEADY_MODELS, TRANSFORMERS, some
from tests.support import (
    REPOSITORY,
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    make_sample,
    make_task,
    make_transformer,
)

PAGE = REPOSITORY / "docs" / "adding-a-method.md"


def write_module(folder: Path) -> None:
    """Save the page's code as the page says."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "echo.py").write_text(code, encoding="utf-8")


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MethodSpec]:
    """The method as the package finds it when the folder of methods has one more module."""
    folder = tmp_path_factory.mktemp("methods")
    write_module(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
        patch.setattr(methods, "METHODS", methods._found())
        yield methods.find("echo")
    del sys.modules[f"{methods.__name__}.echo"], methods.echo


@settings(STEADY_MODELS, max_examples=some(20))
@given(
    options=TRANSFORMERS,
    width=st.sampled_from([1, 3, 10]),
    sources=SOURCES,
    search=SEARCHES,
    active=st.sampled_from([0, 2]),
    seed=st.integers(0, 1000),
)
def test_method_of_the_page_is_lossless(
    echo: MethodSpec,
    options: dict[str, Any],
    width: int,
    sources: list[int],
    search: dict[str, Any],
    active: int,
    seed: int,
) -> None:
    task = make_task(14)
    model = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([model], task, sample, **search)
    drafted, stats = decode([model], task, sample, Options("echo", echo_width=width), active_sentences=active, **search)
    assert_same_output(drafted, expected)
    assert max(max(sentence.emitted) for sentence in stats) <= width + 1
    assert echo.is_lossless


@pytest.mark.parametrize(("width", "least"), [(1, 1.3), (6, 1.5)])
def test_method_of_the_page_drafts(echo: MethodSpec, width: int, least: float) -> None:
    """This random model repeats itself, so that echoes are accepted: fewer iterations than tokens."""
    task = make_task(10)
    model = make_transformer(task, 5)
    sample = make_sample(task, [5, 9], 1)
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    drafted, stats = decode([model], task, sample, Options("echo", echo_width=width), max_len_b=30)
    assert_same_output(drafted, expected)
    assert emitted_per_iteration(stats) > least


def test_method_of_the_page_is_known_by_what_it_says(echo: MethodSpec) -> None:
    config = methods.with_method_options(_DecodingOptions)
    option = next(option for option in fields(config) if option.name == "echo_width")
    assert (option.default, option.metadata["help"]) == (8, "echo: draft at most so many tokens")
    assert f"echo: {echo.summary}" in methods.decoder_help()
    assert f"| `echo` | {echo.drafts} | exact top-1 | yes |  | an example |" in methods.table().splitlines()
    assert "echo" in echo.reasons and echo.table_rows == {"echo": {}}
    methods.check_options(config(decoding_method="echo", echo_width=6))
    assert methods.chosen(config(decoding_method="echo", echo_width=6)) == (echo, echo.options(echo_width=6))
    with pytest.raises(ConfigurationError, match="--echo-width 0: give at least 1"):
        methods.check_options(config(decoding_method="echo", echo_width=0))
    with pytest.raises(ConfigurationError, match="--echo-width 3: is for --decoder echo, not gad"):
        methods.check_options(config(decoding_method="gad", echo_width=3))


# fairseq-generate with two widths, in forks of a process that has imported fairseq, but no plugin.
TWO_COMMANDS = """
import os, sys
from fairseq_cli.generate import cli_main

for width in "06":
    if os.fork() == 0:
        sys.argv = ["fairseq-generate", *sys.argv[1:], "--echo-width", width]
        sys.exit(cli_main())
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_command_line_of_a_package_with_one_more_file(tmp_path: Path) -> None:
    """As a user adds it: no other file knows of it, and decoder and option are there."""
    package = tmp_path / "fairseq_plugins"
    shutil.copytree(REPOSITORY / "fairseq_plugins", package)
    write_module(package / "decoding" / "methods")
    given = f"{tmp_path} --user-dir {package} --source-lang a --target-lang b --path none.pt --cpu --task spec_dec"
    command = [sys.executable, "-c", TWO_COMMANDS, *given.split(), "--decoder", "echo"]
    # In a folder where the package of this project is not found first.
    run = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    refused, accepted = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert refused == "error: --echo-width 0: give at least 1 token to draft"
    # With nothing to refuse it goes on to the data, which are not there.
    assert f"{tmp_path}: has no dict.a.txt" in accepted
    assert run.stdout.split() == ["1", "1"]
