"""Let torch's safe loader (`weights_only`, the default since torch 2.6) read fairseq checkpoints."""

import argparse
import collections
import enum
from typing import Any

import numpy
import omegaconf
import torch

from fairseq_plugins.checkpoint.int8_weights import restored


def allow_fairseq_checkpoints() -> None:
    """Add the classes that fairseq writes into checkpoints to the list that `torch.load` allows.

    These are settings, enumerations, numpy scalars and arrays, and the function that restores our weights in int8.
    Omegaconf's classes are for resumed trainings of several processes: the first process sends its settings to the
    others.
    """
    from fairseq.dataclass import constants
    from fairseq.distributed.utils import _TensorPlaceholder

    choices = [value for value in vars(constants).values() if isinstance(value, enum.EnumMeta)]
    scalar = getattr(numpy, "_core", None) or numpy.core
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,
            *choices,
            *(omegaconf.DictConfig, omegaconf.ListConfig, omegaconf.AnyNode),
            *(omegaconf.base.ContainerMetadata, omegaconf.base.Metadata),
            *(collections.defaultdict, dict, list, int, Any, _TensorPlaceholder),
            scalar.multiarray.scalar,
            *(scalar.multiarray._reconstruct, numpy.ndarray),  # counts of --eval-bleu
            restored,
            numpy.dtype,
            numpy.dtypes.Float64DType,
            numpy.dtypes.Float32DType,
            numpy.dtypes.Int64DType,
        ]
    )
