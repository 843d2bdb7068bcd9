"""The method of examples/echo, built as docs/adding-a-method.md says, and run on both backends."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.method import MethodSpec
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.tasks.options import _DecodingOptions
from tests import options_page
from tests.cases import Case, cases
from tests.conftest import Corpus
from tests.errors import error_about
from tests.strategies import UNSHRUNK, example_count
from tests.support import (
    REPOSITORY,
    Options,
    assert_same_output,
    emitted_per_iteration,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
    run_in_process,
)

PAGE = REPOSITORY / "docs" / "adding-a-method.md"
METHODS = "decoding/methods"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with two more files, compiled as the page says; nothing else of it is touched."""
    folder = tmp_path_factory.mktemp("project")
    copy = folder / "fairseq_plugins"
    shutil.copytree(REPOSITORY / "fairseq_plugins", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("echo.py", "echo.cpp"):
        shutil.copy(REPOSITORY / "examples" / "echo" / name, copy / METHODS)
    (build,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", build], cwd=folder, env={**os.environ, "PATH": path}, check=True)
    return copy


@pytest.fixture
def echo(package: Path, monkeypatch: pytest.MonkeyPatch) -> MethodSpec:
    """The method as the package finds it when the folder of methods has its files, too."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(package / METHODS)])
    monkeypatch.setattr(methods, "METHODS", methods._discover())
    return methods.find("echo")


@settings(UNSHRUNK, max_examples=example_count(30))
@given(case=cases(14), width=st.sampled_from([1, 3, 10]), active=st.sampled_from([0, 2]))
def test_method_of_the_page_is_lossless(echo: MethodSpec, case: Case, width: int, active: int) -> None:
    how = Options("echo", echo_width=width)
    on_kernels, stats = case.decode(how)
    in_pytorch, same = case.decode(how, engine=Engine(), active_sentences=active)
    assert_same_output(on_kernels, case.fairseq())
    assert_same_output(in_pytorch, case.fairseq())
    assert [sentence.emitted for sentence in stats] == [sentence.emitted for sentence in same]
    assert max(max(sentence.emitted) for sentence in stats) <= width + 1


@pytest.mark.parametrize(("engine", "backend"), [(None, "native"), (Engine(), "torch")])
def test_method_of_the_page_drafts(echo: MethodSpec, engine: Engine | None, backend: str) -> None:
    """This random model repeats itself, so that echoes are accepted: fewer iterations than tokens."""
    task = make_task(10)
    model, sample, how = make_transformer(task, 5), make_sample(task, [5, 9], 1), Options("echo", echo_width=6)
    generator, stats = make_generator([model], task, how, engine=engine, max_len_b=30)
    generator.generate([model], sample)
    assert generator.backend.name == backend and emitted_per_iteration(stats.recorded) > 1.5


def test_method_of_the_page_is_in_help_and_tables(echo: MethodSpec) -> None:
    config = methods.with_method_options(_DecodingOptions)
    option = next(option for option in fields(config) if option.name == "echo_width")
    assert (option.default, option.metadata["help"]) == (8, "echo: draft at most this many tokens")
    assert f"echo: {echo.summary}" in methods.decoder_help()
    assert f"| `echo` | {echo.drafts} | exact top-1 | yes |  | an example |" in options_page.decoders().splitlines()
    assert echo.is_lossless and "echo" in echo.reasons and echo.table_rows == {"echo": {}}
    methods.check_options(config(decoding_method="echo", echo_width=6))
    assert methods.chosen(config(decoding_method="echo", echo_width=6)) == (echo, echo.options(echo_width=6))
    with error_about("--echo-width", "give at least 1"):
        methods.check_options(config(decoding_method="echo", echo_width=0))
    with error_about("--echo-width", "is for --decoder echo, not gad"):
        methods.check_options(config(decoding_method="gad", echo_width=3))


def test_command_line_of_a_package_with_two_more_files(package: Path, corpus: Corpus, tmp_path: Path) -> None:
    """As a user adds it: no other file knows of it, and the kernels decode with it."""
    common = f"{corpus.data} --path {corpus.verifier} --cpu --beam 1 --batch-size 9 --required-batch-size-multiple 1"
    expected = run_in_process("generate", f"{common} --task translation", plugin=False)
    given = f"{common} --user-dir {package} --task spec_dec --decoder echo --echo-width 6"
    command = [sys.executable, "-m", "fairseq_cli.generate", *given.split()]
    # In a folder where the package of this project is not found first.
    environment = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    outputs = [sorted(re.findall(r"^H-\d+\t.*\t(.*)$", text, re.MULTILINE)) for text in (expected.stdout, run.stdout)]
    assert outputs[0] == outputs[1] and len(outputs[0]) == 36
    assert re.search(r"^echo: 36 sentences, .*; native: ", run.stderr, re.MULTILINE)
