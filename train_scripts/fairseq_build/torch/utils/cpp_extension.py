"""Stands in for torch's module of this name while fairseq's wheel is built, and at no other time (see setup.sh).

fairseq's setup.py takes from it what compiles three extensions against torch's headers (libbase, libnat, alignment),
which takes minutes and ties the wheel to that torch. Only BASE layers, Levenshtein Transformers and simultaneous
translation use them. Here they are left out; the other three extensions are compiled, side by side.
"""

import os

from setuptools import Extension
from setuptools.command.build_ext import build_ext


class CppExtension(Extension):
    """An extension that is not built."""


class BuildExtension(build_ext):
    """Builds all others."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = os.cpu_count()
        self.extensions = [extension for extension in self.extensions if not isinstance(extension, CppExtension)]
