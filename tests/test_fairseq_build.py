"""fairseq's extensions that need torch's headers, which `make setup` leaves out (train_scripts/fairseq_build)."""

import os
import subprocess
import sys
from pathlib import Path

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


def test_left_out_extensions_are_not_imported(programs: Path) -> None:
    """Also in a process that has imported all commands of fairseq."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([programs / "python", "-c", IMPORTS], env=environment, capture_output=True, text=True)
    assert run.stdout.splitlines()[-2:] == ["True", "[]"], run.stderr
