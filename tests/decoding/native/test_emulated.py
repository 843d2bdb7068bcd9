"""Kernels for instruction sets that this processor lacks, compiled with these instructions written in C++."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_plugins.decoding.native import kernels
from tests.decoding.native.building import build, compiler
from tests.support import REPOSITORY

HEADER = Path(__file__).with_name("emulated.h")
# Compiles without the options that allow new instructions, and says which ones to emulate.
COMPILER = """#!/usr/bin/env bash
options=()
for option; do
    case $option in
        -mavx512f | -mavx512vnni | -mavxvnni) options+=("-DEMULATE_${option#-m}") ;;
        -mamx-bf16) options+=(-DEMULATE_amx) ;;
        -mavx512* | -mamx-*) ;;
        -O3) options+=(-O1 -w) ;;
        *) options+=("$option") ;;
    esac
done
if [[ " ${options[*]} " == *" -c "* ]]; then options+=(-include %s); fi
exec %s "${options[@]}"
"""
MODULES = ("instruction_sets", "linear", "int8", "screen")
PROGRAM = """
import sys, pytest
from tests.decoding.native.sanitizer_driver import use_library
use_library(sys.argv[1])
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.environ.get("SPEC_DEC_EXAMPLES") != "all", reason="takes minutes; SPEC_DEC_EXAMPLES=all runs it")
@pytest.mark.skipif("amx" in kernels().runnable_instruction_sets(), reason="the processor has all instruction sets")
@pytest.mark.skipif("avx2" not in kernels().runnable_instruction_sets(), reason="the emulation needs AVX2")
def test_instruction_sets_of_other_processors(tmp_path: Path) -> None:
    wrapper = tmp_path / "c++"
    wrapper.write_text(COMPILER % (shlex.quote(str(HEADER)), compiler()))
    wrapper.chmod(0o755)
    # Of what was compiled before, only the choice of the instruction set and the emulated sets are compiled anew.
    anew = shutil.ignore_patterns("kernels.o", "avx512", "vnni", "amx", "avxvnni")
    if (REPOSITORY / "build/objects").exists():
        shutil.copytree(REPOSITORY / "build/objects", tmp_path / "objects", ignore=anew)
    library = build(tmp_path, CXX=str(wrapper), SPEC_DEC_OBJECTS=str(tmp_path / "objects"))
    files = [f"tests/decoding/native/test_{module}.py" for module in MODULES]
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "not (best_is_used or environment)"]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library), *options, *files],
        cwd=REPOSITORY, env={**os.environ, "SPEC_DEC_EXAMPLES": "few"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-3000:]
    passed = re.search(r"^(\d+) passed", ran.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) > 100, ran.stdout
