"""A wheel contains the compiled kernels, so it decodes on a machine without a compiler."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

MODEL = REPOSITORY / "checkpoints" / "multi30k.en-de"
DECODE = f"""
import sys
import fairseq_plugins
assert fairseq_plugins.__file__.startswith(sys.argv[1]), fairseq_plugins.__file__
model = fairseq_plugins.load({str(MODEL)!r}, decoder="gad")
print(model.translate("A man is sleeping on a bench."))
print(model.backend)
"""


@pytest.mark.slow
def test_wheel_decodes_without_a_compiler(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    # Files of a release: those that git tracks.
    listed = subprocess.run(["git", "ls-files", "-z", "fairseq_plugins", "setup.py", "pyproject.toml", "README.md"],
                            cwd=REPOSITORY, capture_output=True, check=True)  # fmt: skip
    for name in listed.stdout.decode().split("\0")[:-1]:
        target = sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target)  # with its time, so that what is compiled is not older
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    # What `make setup` has compiled is linked; without it one instruction set is compiled.
    objects = REPOSITORY / "build/objects"
    build = {"SPEC_DEC_OBJECTS": str(objects)} if (objects / "avx2").is_dir() else {"SPEC_DEC_BUILD": "portable"}
    subprocess.run([*pip, "wheel", "--quiet", *options, str(sources)], check=True, env={**os.environ, **build})
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    install = ["install", "--quiet", "--no-deps", "--no-compile", "--target", str(installed)]
    subprocess.run([*pip, *install, str(wheel)], check=True)
    assert not list(installed.rglob("*.cpp"))
    environment = {"PATH": "/nowhere", "HOME": str(tmp_path), "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", DECODE, str(installed)], capture_output=True, text=True, cwd=tmp_path,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stderr
    translation, backend = done.stdout.splitlines()[-2:]
    assert "Mann" in translation and backend.startswith("native: ")


def test_metadata_of_a_release(tmp_path: Path) -> None:
    """With PROJECT_URL, the links of the README are absolute."""
    address = "https://example.org/spec-dec"
    for given in ("", address):
        (tmp_path / given[:5]).mkdir(exist_ok=True)
        command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path / given[:5])]
        subprocess.run(command, check=True, cwd=REPOSITORY, env={**os.environ, "PROJECT_URL": given})
    without, absolute = (next((tmp_path / name).glob("*.egg-info/PKG-INFO")).read_text() for name in ("", "https"))
    assert "](docs/index.md)" in without and "Project-URL" not in without
    assert f"Project-URL: Repository, {address}\n" in absolute
    assert f"]({address}/raw/main/docs/images/draft_verify.svg)" in absolute
    assert set(re.findall(r"\]\((?!#)(.{8})", absolute)) == {"https://"}
