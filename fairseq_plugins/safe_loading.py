"""Let torch's safe loader (the default since torch 2.6) read fairseq checkpoints, without switching it off."""

import argparse
import enum

import numpy
import torch


def allow_fairseq_checkpoints() -> None:
    """Allow exactly the classes that fairseq writes into checkpoints: settings, enumerations, numpy scalars.

    fairseq calls `torch.load` with its default arguments, which refuse any class that is not on torch's list.
    """
    from fairseq.dataclass import constants

    choices = [value for value in vars(constants).values() if isinstance(value, enum.EnumMeta)]
    scalar = getattr(numpy, "_core", None) or numpy.core
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            *choices,
            scalar.multiarray.scalar,
            numpy.dtype,
            numpy.dtypes.Float64DType,
            numpy.dtypes.Float32DType,
            numpy.dtypes.Int64DType,
        ]
    )
