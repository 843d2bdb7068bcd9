"""How `make setup` builds fairseq: without the extensions that need torch's headers, which nothing here uses."""

import os
import subprocess
import sys
from pathlib import Path

STAND_IN = Path(__file__).parents[1] / "train_scripts" / "fairseq_build"

# As fairseq's, with one extension of each kind; that of torch's kind has no source, so building it would fail.
SETUP = """
from setuptools import Extension, setup
from torch.utils import cpp_extension

setup(
    name="made-up",
    py_modules=[],
    ext_modules=[
        Extension("ordinary", sources=["ordinary.c"]),
        cpp_extension.CppExtension("of_torch", sources=["missing.cpp"]),
    ],
    cmdclass={"build_ext": cpp_extension.BuildExtension},
)
"""
SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "ordinary", 0, -1, 0};
PyMODINIT_FUNC PyInit_ordinary(void) { return PyModule_Create(&module); }
"""

# Imports all modules of the package and what they import of fairseq, then names the extensions that came with them.
IMPORTS = """
import importlib, pkgutil, sys
import fairseq_plugins
for module in pkgutil.walk_packages(fairseq_plugins.__path__, "fairseq_plugins."):
    if not module.name.endswith(("__main__", "triton_kernels")):  # Triton is for GPUs
        importlib.import_module(module.name)
left_out = ("libbase", "libnat", "libnat_cuda", "alignment_train_cpu_binding", "alignment_train_cuda_binding")
print(len([name for name in sys.modules if name.startswith("fairseq_plugins")]) > 100)
print([name for name in sys.modules if name.split(".")[-1] in left_out])
"""


def test_torch_extensions_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "ordinary.c").write_text(SOURCE)
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    environment = {**os.environ, "PYTHONPATH": str(STAND_IN)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert [file.name.split(".")[0] for file in tmp_path.glob("*.so")] == ["ordinary"]


def test_left_out_extensions_are_not_imported(programs: Path) -> None:
    """Also in a process that has imported all commands of fairseq."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([programs / "python", "-c", IMPORTS], env=environment, capture_output=True, text=True)
    assert run.stdout.splitlines()[-2:] == ["True", "[]"], run.stderr
