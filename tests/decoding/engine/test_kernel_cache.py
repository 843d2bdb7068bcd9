"""Compiled kernels are kept, and built anew where what was kept is not what was written. The sources here are tiny."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_plugins.decoding.engine.native import build

pytestmark = pytest.mark.skipif(build.Recipe.from_environment() is None, reason="no C++ compiler")

# All functions that are asked for, without anything in them; the first says that it is ours.
_FUNCTIONS = re.findall(r"kernels\.(\w+)\.argtypes", Path(build.__file__).read_text())
TINY = "".join(f"int {name}() {{ return 77; }}\n" for name in _FUNCTIONS)
TINY = f'extern "C" {{\nconst char* kernels_version() {{ return KERNELS_VERSION; }}\n{TINY}}}\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, for sources that compile in no time."""
    source = tmp_path / "kernels.cpp"
    source.write_text(TINY)
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    build.library.cache_clear()
    yield tmp_path / "cache" / "fairseq-spec-dec"
    build.library.cache_clear()


def _load() -> bool:
    """Whether kernels were found or built, as a new process would."""
    build.library.cache_clear()
    functions = build.library()
    return functions is not None and functions.has_int8_products() == 77


def _kept(cache: Path) -> Path:
    (kept,) = cache.glob("*.so")
    return kept


def test_built_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _load()
    kept = _kept(cache)
    checksum = f"{hashlib.sha256(kept.read_bytes()).hexdigest()}  {kept.name}\n"
    assert {path.name for path in cache.iterdir()} == {kept.name, kept.name + ".sha256", kept.stem + ".lock"}
    assert (cache / (kept.name + ".sha256")).read_text() == checksum
    monkeypatch.setattr(build.Recipe, "compile", None)
    assert _load()


def _without_our_symbols(kept: Path) -> bytes:
    other = kept.parent.parent / "other.cpp"
    other.write_text('extern "C" int other() { return 1; }\n')
    made = other.with_suffix(".so")
    subprocess.run(["c++", "-shared", "-fPIC", str(other), "-o", str(made)], check=True)
    return made.read_bytes()


DAMAGES = {
    "truncated": lambda kept: kept.read_bytes()[:-3000],
    "empty": lambda kept: b"",
    "garbage": lambda kept: b"garbage" * 1000,
    "one byte changed": lambda kept: kept.read_bytes()[:5000] + b"!" + kept.read_bytes()[5001:],
    "without our symbols": _without_our_symbols,
}


CASES = [
    *[(damage, False) for damage in DAMAGES],
    # Of these somebody may have made a checksum: nothing in them says that they are ours.
    *[(damage, True) for damage in ("empty", "garbage", "without our symbols")],
]


@pytest.mark.parametrize(("damage", "with_checksum"), CASES)
def test_damaged_file_is_built_anew(cache: Path, damage: str, with_checksum: bool) -> None:
    assert _load()
    kept = _kept(cache)
    content = DAMAGES[damage](kept)
    # Not written to: it is mapped into this process.
    kept.unlink()
    kept.write_bytes(content)
    if with_checksum:
        (cache / (kept.name + ".sha256")).write_text(hashlib.sha256(content).hexdigest())
    assert _load()
    assert build._is_whole(kept, build.Recipe.from_environment().version)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"0" * 64])
def test_damaged_checksum(cache: Path, content: bytes | None) -> None:
    assert _load()
    checksum = cache / (_kept(cache).name + ".sha256")
    checksum.unlink()
    if content is not None:
        checksum.write_bytes(content)
    assert _load()
    assert checksum.read_text().startswith(hashlib.sha256(_kept(cache).read_bytes()).hexdigest())


def test_other_source_is_another_file(cache: Path) -> None:
    assert _load()
    build.SOURCE.write_text(TINY + "// changed\n")
    assert _load()
    assert len(list(cache.glob("*.so"))) == 2


def test_library_without_a_function(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    build.SOURCE.write_text(TINY.replace("accept_exact", "accept_other"))
    assert not _load()
    (said,) = caplog.messages
    assert "could not be loaded" in said and "accept_exact" in said and "PyTorch's operations" in said


def test_source_that_does_not_compile(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    build.SOURCE.write_text("int broken(\n")
    assert not _load()
    (said,) = caplog.messages
    assert "could not be built" in said and "\n" not in said
    assert not list(cache.glob("*.so"))


def test_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not _load()
    (said,) = caplog.messages
    assert said.startswith("no C++ compiler found")


def _runs_without_keeping(caplog: pytest.LogCaptureFixture) -> None:
    assert _load()
    (said,) = caplog.messages
    assert "built for this run only" in said and "\n" not in said


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_read_only_cache(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.mkdir()
    cache.parent.chmod(0o500)
    _runs_without_keeping(caplog)


def test_cache_that_is_no_folder(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.write_text("")
    _runs_without_keeping(caplog)


def test_full_cache(cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def write(path: Path, data: bytes) -> int:
        with open(path, "wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    _runs_without_keeping(caplog)
    assert not list(cache.glob("*.so*")), "half a file stays"


def test_whole_file_in_a_cache_that_nobody_may_write_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _load()
    monkeypatch.setattr(build, "_locked", None)
    monkeypatch.setattr(build, "_keep", None)
    assert _load()


def test_nowhere_to_build(cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build.tempfile, "TemporaryDirectory", refuse)
    assert not _load()
    (said,) = caplog.messages
    assert "No space left on device" in said and "PyTorch's operations" in said


def _process_that_loads() -> int:
    """A fork of this process, which ends with status 0 when it has the kernels."""
    process = os.fork()
    if process == 0:
        status = 2
        try:
            status = 0 if _load() else 1
        finally:
            os._exit(status)
    return process


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_builds_at_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both succeed, and one of them waits for the other instead of building as well."""
    compiler, log = tmp_path / "compiler", tmp_path / "compiled"
    real = shutil.which("c++")
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo once >> {log}; sleep 2;; esac\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    processes = [_process_that_loads() for _ in range(2)]
    assert [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes] == [0, 0]
    assert log.read_text() == "once\n"
    assert not list(cache.glob("*.part"))
