"""Packaging: `pip install .`, with fairseq and torch already there (see train_scripts/setup.sh for why).

pyproject.toml has the metadata, what the package needs and its commands; the compiled kernels are here.

The compiled kernels are one extension module: all of csrc/ is compiled once, csrc/isa/ once for each instruction set.
nanobind binds it: the types and shapes of tensors are part of its signatures, and it compiles ten times as fast as
pybind11 (a unit takes 1.3 s in place of 13 s).

SPEC_DEC_BUILD     "all" instruction sets of the processor family (default), "native": those that run here (on
                   Linux; elsewhere all), or names with commas between
SPEC_DEC_SANITIZE  sanitizers as -fsanitize takes them, such as address,undefined
SPEC_DEC_OBJECTS   folder of the compiled units, which later builds use again (default: build/objects)
PROJECT_URL        public address of the repository, for a release: the metadata then has it, and the README's links
                   lead there; package indexes do not resolve relative ones
"""

import os
import platform
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CSRC = Path("fairseq_plugins/decoding/native/csrc")
FLAGS = [
    "-std=c++17",
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
# In the order in which they are linked: of a function of the standard library that several contain, the linker keeps
# the first one, which runs on all processors that run the later ones.
_X86 = {
    "portable": [],
    "avx2": _AVX2,
    "avxvnni": [*_AVX2, "-mavxvnni"],
    "avx512": _AVX512,
    "vnni": [*_AVX512, "-mavx512vnni"],
    "amx": [*_AVX512, "-mavx512vnni", "-mavx512fp16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
}
# GCC for ARM schedules instructions before it allocates registers, and then copies and spills most sums.
_NEON = ["-fno-schedule-insns"]
_ARM = {"portable": _NEON, "dotprod": [*_NEON, "-march=armv8.2-a+dotprod"]}
INSTRUCTION_SETS: dict[str, list[str]] = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}.get(
    platform.machine(), {"portable": []}
)
# What /proc/cpuinfo calls the last of these, if it has another name.
_NEEDS = {"avxvnni": "avx_vnni", "avx512": "avx512vl", "vnni": "avx512_vnni", "amx": "amx_int8", "dotprod": "asimddp"}


class BuildKernels(build_ext):
    """Compile the units in parallel, those that are older than their sources only."""

    def finalize_options(self) -> None:
        # Not the temporary folder that pip gives.
        self.build_temp = self.build_temp or os.environ.get("SPEC_DEC_OBJECTS", "build/objects")
        super().finalize_options()

    def build_extension(self, ext: Extension) -> None:
        import nanobind

        folder = Path(nanobind.__file__).parent
        include = [nanobind.include_dir(), str(folder / "ext/robin_map/include"), *self.compiler.include_dirs]
        sets = self.instruction_sets()
        defines = [f"-DSPEC_DEC_WITH_{name.upper()}" for name in sets]
        sanitize = os.environ.get("SPEC_DEC_SANITIZE")
        # Under sanitizers unoptimised, which compiles in two thirds of the time.
        fast = [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-g1", "-O0"] if sanitize else []
        suffix = f"-{sanitize}" if sanitize else ""
        # Units that include headers of Python and nanobind serve no other version of these.
        binding = f"{sys.implementation.cache_tag}-nanobind-{nanobind.__version__}"
        units = [(folder / "src/nb_combined.cpp", binding, ["-Os", "-fno-strict-aliasing", "-w"])]
        common = f"for-{'-'.join(sets)}{suffix}"
        for source in sorted([*CSRC.glob("*.cpp"), *CSRC.glob("drafters/*.cpp")]):
            units.append((source, common, [*defines, "-O2", *fast]))
        for source in sorted(CSRC.glob("python/*.cpp")):
            units.append((source, f"{common}-{binding}", [*defines, "-Os", *fast]))
        for name in sets:
            # GCC 12 warns of its own header for AVX-512 (bug 105593).
            flags = [
                f"-DSPEC_DEC_ISA=isa_{name}",
                *INSTRUCTION_SETS[name],
                "-Wno-uninitialized",
                "-Wno-maybe-uninitialized",
            ]
            units += [(source, f"{name}{suffix}", ["-O3", *flags, *fast]) for source in sorted(CSRC.glob("isa/*.cpp"))]
        newest_header = max(path.stat().st_mtime for path in [*CSRC.rglob("*.h"), Path(__file__)])

        def compiled(unit: tuple[Path, str, list[str]]) -> str:
            source, group, flags = unit
            target = Path(self.build_temp, group, f"{source.stem}.o")
            target.parent.mkdir(parents=True, exist_ok=True)
            newest = max(source.stat().st_mtime, newest_header)
            if not target.exists() or target.stat().st_mtime < newest:
                include_flags = [f"-I{path}" for path in include]
                self.compiler.spawn(
                    [
                        *self.compiler.compiler_so_cxx[:1],
                        *FLAGS,
                        *flags,
                        *include_flags,
                        "-c",
                        str(source),
                        "-o",
                        str(target),
                    ]
                )
            return str(target)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compiled, units))
        result = Path(self.get_ext_fullpath(ext.name))
        result.parent.mkdir(parents=True, exist_ok=True)
        # Python is not linked: its symbols are those of the process that loads the module.
        mac = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        link = ["-pthread", *mac, *([f"-fsanitize={sanitize}"] if sanitize else [])]
        self.compiler.spawn([*self.compiler.compiler_so_cxx[:1], "-shared", *link, *objects, "-o", str(result)])

    def instruction_sets(self) -> list[str]:
        """Return those of SPEC_DEC_BUILD that the compiler knows; "portable" is always one of them."""
        build = os.environ.get("SPEC_DEC_BUILD", "all")
        wanted = list(INSTRUCTION_SETS)
        cpuinfo = Path("/proc/cpuinfo")
        if build == "native" and cpuinfo.exists():
            known = cpuinfo.read_text().split()
            wanted = [name for name in wanted if _NEEDS.get(name, name) in known or name == "portable"]
        elif build not in ("all", "native"):
            wanted = [name for name in wanted if name in ("portable", *build.split(","))]
        return [name for name in wanted if self._compiler_knows(INSTRUCTION_SETS[name])]

    def _compiler_knows(self, flags: list[str]) -> bool:
        try:
            self.compiler.spawn(
                [*self.compiler.compiler_so_cxx[:1], *flags, "-E", "-x", "c++", os.devnull, "-o", os.devnull]
            )
        except Exception:
            return False
        return True


def readme(address: str) -> str:
    """Return the README, with absolute links into the repository if it has an address."""
    text = Path("README.md").read_text(encoding="utf-8")
    if not address:
        return text
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{address}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{address}/blob/main/", text)


ADDRESS = os.environ.get("PROJECT_URL", "").rstrip("/")

setup(
    long_description=readme(ADDRESS),
    long_description_content_type="text/markdown",
    project_urls={"Repository": ADDRESS, "Documentation": f"{ADDRESS}/blob/main/docs/index.md"} if ADDRESS else {},
    ext_modules=[Extension("fairseq_plugins.decoding.native._kernels", sources=[])],
    cmdclass={"build_ext": BuildKernels},
)
