"""The compiled kernels for CPUs: an extension module that setup.py builds out of csrc/.

Its arithmetic is compiled once for each instruction set. The best set that the processor supports is used;
SPEC_DEC_ISA names another one, for comparisons.
"""

import functools
import importlib
import os
from types import ModuleType

from fairseq_plugins.errors import ConfigurationError


class NotNative(Exception):
    """Says in a few words why something does not run on the compiled kernels."""


@functools.cache
def kernels() -> ModuleType:
    """Return the extension module, with the instruction set that the environment asks for.

    Raises:
        NotNative: where the package was installed without it.
        ConfigurationError: for a SPEC_DEC_ISA that this processor does not run.
    """
    try:
        module = importlib.import_module(f"{__name__}._kernels")
    except ImportError as error:
        raise NotNative(f"the compiled kernels are not installed ({error}); pip install the package") from error
    requested = os.environ.get("SPEC_DEC_ISA")
    if requested:
        runnable = module.runnable_instruction_sets()
        if requested not in runnable:
            raise ConfigurationError(
                f"SPEC_DEC_ISA={requested}: this processor runs {', '.join(runnable)}; name one of these"
            )
        module.use_instruction_set(requested)
    return module
