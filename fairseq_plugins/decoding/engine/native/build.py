"""Compile `kernels.cpp` at first use, keep it for later runs, and say how its functions are called."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
_COMPILE = ["-std=c++17", "-O3", "-march=native", "-ffast-math", "-fPIC"]


class LinearStructure(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("form", ctypes.c_int32),
    ]


class NormStructure(ctypes.Structure):
    _fields_ = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("epsilon", ctypes.c_float)]


class LayerStructure(ctypes.Structure):
    _fields_ = [
        *[(name, LinearStructure) for name in ("self_qkv", "self_out", "cross_query", "cross_out", "fc1", "fc2")],
        *[(name, NormStructure) for name in ("self_norm", "cross_norm", "final_norm")],
        *[(name, ctypes.c_int32) for name in ("heads", "normalize_before", "activation", "has_cross")],
    ]


class MemoryStructure(ctypes.Structure):
    _fields_ = [
        ("key_value", ctypes.c_void_p),
        ("layer", ctypes.c_int64),
        ("sentences", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("used", ctypes.c_int64),
        ("allowed", ctypes.c_void_p),
    ]


class LayoutStructure(ctypes.Structure):
    _fields_ = [
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("lengths", "sentence", "position", "slot", "last_visible")],
    ]


class EndsStructure(ctypes.Structure):
    _fields_ = [
        ("embedding", ctypes.c_void_p),
        ("scale", ctypes.c_float),
        ("mask_id", ctypes.c_int64),
        ("positions", ctypes.c_void_p),
        ("position_count", ctypes.c_int64),
        ("embedding_norm", NormStructure),
        ("final_norm", NormStructure),
    ]


class InputStructure(ctypes.Structure):
    _fields_ = [
        ("tokens", ctypes.c_void_p),
        ("masks", ctypes.c_int64),
        ("fed", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("sentence", "position", "fed_sentences", "fed_positions")],
        ("added", ctypes.c_void_p),
        ("added_width", ctypes.c_int64),
    ]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None, after a line in the log, where they cannot be built."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        logger.warning("no C++ compiler found (c++ on the PATH, or CXX): decoding runs on PyTorch's operations")
        return None
    version = hashlib.sha256(SOURCE.read_bytes() + " ".join([compiler, _processor(), *_COMPILE]).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairseq-spec-dec"
    built = cache / f"kernels-{version[:16]}.so"
    try:
        if not built.exists():
            logger.info("building the CPU kernels for this machine, once: about 20 seconds")
            cache.mkdir(parents=True, exist_ok=True)
            _build(compiler, built)
        kernels = ctypes.CDLL(str(built))
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[:1]
        logger.warning("kernels.cpp could not be built (%s): decoding runs on PyTorch's operations", " ".join(said))
        return None
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    kernels.has_int8_products.argtypes = []
    kernels.run_linear.argtypes = [pointer, pointer, number, pointer]
    kernels.log_softmax.argtypes = [pointer, number, number]
    kernels.choose_best.argtypes = [pointer, number, number, pointer]
    kernels.choose_paths.argtypes = [
        *(pointer, number, number, number, pointer, number),
        *(pointer, number, pointer, pointer, number, pointer),
    ]
    rows = [pointer, ctypes.c_int32, pointer, pointer, pointer, pointer]
    kernels.run_layers.argtypes = [pointer, ctypes.c_int32, *rows]
    kernels.run_step.argtypes = [pointer, ctypes.c_int32, pointer, pointer, *rows]
    return kernels


def _build(compiler: str, target: Path) -> None:
    # Compiled and linked apart: linking with -ffast-math would change how the whole process treats tiny numbers.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part, whole = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        for command in (
            [compiler, *_COMPILE, "-c", str(SOURCE), "-o", str(part)],
            [compiler, "-shared", str(part), "-o", str(whole), "-lm"],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(whole, target)


def _processor() -> str:
    """What -march=native depends on: home folders are shared between different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
