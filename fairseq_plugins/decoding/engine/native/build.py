"""Compile `kernels.cpp` at first use, keep it for later runs, and say how its functions are called.

What is kept is checked before it is loaded: a file that was cut off would end the whole process. Beside `kernels-ID.so`
stands `kernels-ID.so.sha256`, as `sha256sum` writes it, and the file says what it was made from. What does not fit is
built anew, by one process at a time.
"""

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
_HEADERS = tuple(
    SOURCE.with_name(name) for name in ("threads.h", "tiles.h", "handover.h", "source.h", "decode.h", "beam.h")
)
_COMPILE = ["-std=c++17", "-fPIC", "-pthread"]
_FAST = ["-O3", "-ffast-math"]
# Every step of the program as it is written, with file and line; not optimised, which would take 15 seconds more.
_CHECKED = ["-O0", "-g1", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
# The compiler's flags for the instruction sets that SPEC_DEC_ISA names. Without flags a compiler takes what all
# processors of a kind have, and the kernels leave out what they spell in instructions of one of them.
_AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_INSTRUCTION_SETS = {
    "native": ["-march=native"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [*_AVX512],
    "vnni": [*_AVX512, "-mavx512vnni"],
    "amx": [*_AVX512, "-mavx512vnni", "-mavx512fp16", "-mamx-tile", "-mamx-bf16"],
    "portable": [],
}


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


class LimitsStructure(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("vocabulary", "pad", "unk", "eos", "min_len", "max_len")],
        ("unk_penalty", ctypes.c_float),
    ]


class PathStructure(ctypes.Structure):
    _fields_ = [
        ("ids", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("before", ctypes.c_void_p),
        ("vocabulary", ctypes.c_int64),
        *[(name, LinearStructure) for name in ("after", "of_hidden", "of_before", "of_state", "to_rank")],
    ]


class PredictStructure(ctypes.Structure):
    _fields_ = [
        ("projection", LinearStructure),
        ("limits", LimitsStructure),
        *[(name, ctypes.c_void_p) for name in ("scores", "best", "log_probs", "path", "first")],
    ]


class StackStructure(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.c_void_p),
        *[(name, ctypes.c_int32) for name in ("count", "dim")],
        *[(name, ctypes.c_void_p) for name in ("ends", "own", "cross", "projection")],
    ]


# As in decode.h.
BINS = 10


class AdaptiveStructure(ctypes.Structure):
    _fields_ = [
        ("threshold", ctypes.c_float),
        ("right_rate", ctypes.c_float * BINS),
        *[(name, ctypes.c_double * BINS) for name in ("tried", "right")],
        *[(name, ctypes.c_double * 5) for name in ("draft_sums", "verify_sums")],
        ("drafts", ctypes.c_double),
        *[(name, ctypes.c_void_p) for name in ("survival", "worthy")],
    ]


class DrafterStructure(ctypes.Structure):
    _fields_ = [
        ("stack", StackStructure),
        ("path", ctypes.c_void_p),
        ("fed", InputStructure),
        *[(name, ctypes.c_void_p) for name in ("reader", "projections", "layers_read")],
        *[(name, ctypes.c_int32) for name in ("layers_read_count", "width")],
        *[(name, ctypes.c_void_p) for name in ("newest", "told")],
        ("told_width", ctypes.c_int64),
        ("told_log_prob", ctypes.c_float),
    ]


class CopierStructure(ctypes.Structure):
    _fields_ = [
        ("text", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("width", "beginning", "max_match")],
    ]


class GuesserStructure(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("block", "length")],
        ("first", ctypes.c_void_p),
        ("first_width", ctypes.c_int64),
        ("tail", ctypes.c_void_p),
    ]


class HeadsStructure(ctypes.Structure):
    _fields_ = [
        *[(name, LinearStructure) for name in ("expand", "first", "others")],
        *[(name, ctypes.c_void_p) for name in ("proposals", "proposed")],
    ]


class RelaxedStructure(ctypes.Structure):
    _fields_ = [("beta", ctypes.c_int64), ("tau", ctypes.c_float)]


class DecodingStructure(ctypes.Structure):
    _fields_ = [
        ("verifier", StackStructure),
        ("limits", LimitsStructure),
        *[(name, ctypes.c_void_p) for name in ("drafter", "copier", "guesser", "heads", "adaptive", "relaxed")],
        *[(name, ctypes.c_int64) for name in ("batch", "columns")],
        *[(name, ctypes.c_void_p) for name in ("tokens", "log_probs", "lengths", "finished")],
        ("budget", ctypes.c_int64),
        ("emitted", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("enough", "least_together", "rows_together")],
    ]


class BeamsStructure(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("sentences", "size")],
        *[(name, ctypes.c_void_p) for name in ("tokens", "lengths", "holders")],
        ("holder_stride", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("scores", "places")],
    ]


class GoingStructure(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("tokens", "lengths", "holders", "log_probs", "scores", "ignored")],
        *[(name, ctypes.c_int64) for name in ("budget", "enough", "rows_together")],
        *[(name, ctypes.c_void_p) for name in ("steps", "finished", "ended")],
        *[(f"output_{name}", ctypes.c_void_p) for name in ("tokens", "log_probs", "lengths", "scores")],
    ]


class CandidatesStructure(ctypes.Structure):
    _fields_ = [
        ("projection", LinearStructure),
        ("limits", LimitsStructure),
        ("count", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("scores", "tokens", "parents")],
    ]


@dataclass(frozen=True)
class Recipe:
    """How the kernels are compiled.

    Attributes:
        compiler: a C++ compiler.
        instructions: one of native (all that this processor has), avx2, avx512, vnni, amx and portable.
        sanitize: sanitizers as -fsanitize takes them, "address,undefined" for example; "" for none. A process can load
            such a build only where the sanitizer's library was loaded before all others (LD_PRELOAD).
    """

    compiler: str
    instructions: str = "native"
    sanitize: str = ""

    def __post_init__(self) -> None:
        if self.instructions not in _INSTRUCTION_SETS:
            raise ConfigurationError(
                f"SPEC_DEC_ISA={self.instructions} is unknown, it may be {', '.join(_INSTRUCTION_SETS)}"
            )

    @classmethod
    def from_environment(cls) -> "Recipe | None":
        """As CXX, SPEC_DEC_ISA and SPEC_DEC_SANITIZE say; None where there is no compiler."""
        compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
        if compiler is None:
            return None
        return cls(compiler, os.environ.get("SPEC_DEC_ISA") or "native", os.environ.get("SPEC_DEC_SANITIZE") or "")

    @property
    def flags(self) -> list[str]:
        """Of the compiler."""
        checked = [*_CHECKED, f"-fsanitize={self.sanitize}"]
        return [*_COMPILE, *_INSTRUCTION_SETS[self.instructions], *(checked if self.sanitize else _FAST)]

    @property
    def version(self) -> str:
        """Of everything that the compiled file depends on."""
        text = b"".join(file.read_bytes() for file in (SOURCE, *_HEADERS))
        # What is native to a processor: home folders are shared between different machines.
        processor = _processor() if self.instructions == "native" else platform.machine()
        words = [self.compiler, processor, *self.flags]
        return hashlib.sha256(text + " ".join(words).encode()).hexdigest()

    def missing_instructions(self) -> list[str]:
        """What this processor lacks of the instruction set, as far as it is known."""
        known = _processor().split()
        if self.instructions == "native" or known[:1] != ["flags"]:
            return []
        # Compilers and systems write some of them differently: amx-tile and amx_tile, avx512vnni and avx512_vnni.
        plain = {flag.replace("_", "") for flag in known}
        wanted = [flag[2:] for flag in _INSTRUCTION_SETS[self.instructions]]
        return [name for name in wanted if name.replace("-", "") not in plain]

    def compile(self, folder: Path) -> Path:
        """Make the library in a folder; returns its path there.

        Raises:
            OSError, subprocess.CalledProcessError: where that fails.
        """
        part, whole = folder / "kernels.o", folder / "kernels.so"
        # Compiled and linked apart: linking with -ffast-math would change how the whole process treats tiny numbers.
        define = f'-DKERNELS_VERSION="{self.version}"'
        sanitize = [f"-fsanitize={self.sanitize}"] if self.sanitize else []
        for command in (
            [self.compiler, *self.flags, define, "-c", str(SOURCE), "-o", str(part)],
            [self.compiler, "-shared", "-pthread", *sanitize, str(part), "-o", str(whole), "-lm"],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True)
        return whole


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels as the environment wants them; None, after a line in the log, where there are none.

    Raises:
        ConfigurationError: for an unknown SPEC_DEC_ISA.
    """
    recipe = Recipe.from_environment()
    if recipe is None:
        logger.warning("no C++ compiler found (c++ on the PATH, or CXX): decoding runs on PyTorch's operations")
        return None
    return load(recipe)


def load(recipe: Recipe) -> ctypes.CDLL | None:
    """The kernels, compiled where that has not been done yet; None, after a line in the log, where it cannot be."""
    missing = recipe.missing_instructions()
    if missing:
        reason = f"SPEC_DEC_ISA={recipe.instructions}: this processor has no {', '.join(missing)}"
    else:
        try:
            return _with_types(_load(recipe))
        except subprocess.CalledProcessError as error:
            reason = f"kernels.cpp could not be built ({_first_line(error.stderr or str(error))})"
        except (OSError, AttributeError, RuntimeError) as error:
            reason = f"the kernels could not be loaded ({_first_line(str(error))})"
    logger.warning("%s: decoding runs on PyTorch's operations", reason)
    return None


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]


def _load(recipe: Recipe) -> ctypes.CDLL:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairseq-spec-dec"
    version = recipe.version
    kept = cache / f"kernels-{version[:16]}.so"
    if _is_whole(kept, version):
        return ctypes.CDLL(str(kept))
    with _locked(kept.with_suffix(".lock")):
        # Another process may have built it in the meantime.
        if not _is_whole(kept, version):
            logger.info("building the CPU kernels for this machine, once: about 20 seconds")
            with tempfile.TemporaryDirectory() as folder:
                made = recipe.compile(Path(folder))
                try:
                    _keep(made, kept)
                except OSError as error:
                    logger.warning("the CPU kernels are built for this run only, %s keeps nothing: %s", cache, error)
                    return ctypes.CDLL(str(made))
    return ctypes.CDLL(str(kept))


def _checksum_of(kept: Path) -> Path:
    return kept.with_name(kept.name + ".sha256")


def _is_whole(kept: Path, version: str) -> bool:
    """Whether a file is as it was written, and of this version."""
    try:
        content, checksum = kept.read_bytes(), _checksum_of(kept).read_text()
    except (OSError, UnicodeDecodeError):
        return False
    return checksum.split()[:1] == [hashlib.sha256(content).hexdigest()] and version.encode() in content


def _keep(made: Path, kept: Path) -> None:
    """Put a file and its checksum where later runs look; other processes never see half of either.

    Raises:
        OSError: where that cannot be written.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    content = made.read_bytes()
    checksum = f"{hashlib.sha256(content).hexdigest()}  {kept.name}\n"
    for path, data in ((kept, content), (_checksum_of(kept), checksum.encode())):
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(data)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one of several processes build; without effect where files cannot be locked. A lock ends with its process."""
    file = None
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if file is not None:
            file.close()


def _with_types(kernels: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions' arguments."""
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    kernels.has_halves.argtypes = []
    kernels.has_int8_products.argtypes = []
    kernels.has_tiles.argtypes = []
    kernels.run_linear.argtypes = [pointer, pointer, number, pointer]
    kernels.log_softmax.argtypes = [pointer, number, number]
    kernels.choose_best.argtypes = [pointer, number, number, pointer]
    kernels.choose_paths.argtypes = [
        *(pointer, pointer, number, number, pointer, pointer),
        *(pointer, pointer),
    ]
    kernels.run_linears.argtypes = [pointer, ctypes.c_int32, pointer, number, pointer]
    kernels.encode.argtypes = [
        *(pointer, ctypes.c_int32, pointer, ctypes.c_int32, pointer, number, number, number),
        *(pointer, pointer, pointer),
    ]
    kernels.copy_source.argtypes = [
        *(pointer, number, pointer, pointer, pointer),
        *(pointer, number, number, ctypes.c_int32, pointer),
    ]
    kernels.run_step.argtypes = [
        *(pointer, ctypes.c_int32, pointer, pointer, pointer, ctypes.c_int32),
        *(pointer, pointer, pointer, pointer, pointer),
    ]
    kernels.decode.argtypes = [pointer]
    kernels.run_beams.argtypes = [
        *(pointer, ctypes.c_int32, pointer, ctypes.c_int32),
        *(pointer, pointer, pointer, pointer, pointer),
    ]
    kernels.choose_hypotheses.argtypes = [
        *(pointer, pointer, pointer, number, pointer, number),
        *(pointer, pointer, pointer, pointer, pointer, pointer),
    ]
    kernels.choose_hypotheses.restype = number
    kernels.set_threads.argtypes = [number]
    kernels.accept_exact.argtypes = [
        *(pointer, pointer, pointer, number, number, number),
        *(pointer, pointer, pointer),
    ]
    return kernels


def _processor() -> str:
    """What -march=native depends on: home folders are shared between different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
