"""Load the compiled CPU kernels, an extension module that setup.py builds from csrc/.

The module has the kernels of several instruction sets and uses the best one that the processor supports. For
comparisons, SPEC_DEC_ISA selects another one.
"""

import functools
import importlib
import os
from types import ModuleType

from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.errors import ConfigurationError


@functools.cache
def kernels() -> ModuleType:
    """Return the extension module, with the instruction set of SPEC_DEC_ISA if that is set.

    Raises Unsupported if the package was installed without the module, and ConfigurationError for a SPEC_DEC_ISA that
    this processor does not support.
    """
    try:
        module = importlib.import_module(f"{__name__}._kernels")
    except ImportError as error:
        raise Unsupported(f"the compiled kernels are not installed ({error}); pip install the package") from error
    requested = os.environ.get("SPEC_DEC_ISA")
    if requested:
        runnable = module.runnable_instruction_sets()
        if requested not in runnable:
            problem = f"this processor runs {', '.join(runnable)}"
            raise ConfigurationError("SPEC_DEC_ISA", requested, problem, "name one of these")
        module.use_instruction_set(requested)
    return module
