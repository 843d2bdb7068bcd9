"""The GPU engine: whole iterations on the device, in Triton kernels.

This module offers the names of the compiled CPU module (engine/kernel_module.py): a method describes itself against
either of them.
"""

from fairseq_plugins.decoding.engine.gpu.acceptance import accept_at_least, accept_top_beta, accept_within_distance
from fairseq_plugins.decoding.engine.gpu.beam_search import EosForbidden
from fairseq_plugins.decoding.engine.gpu.drafters.combined import FallbackDrafter as fallback_drafter
from fairseq_plugins.decoding.engine.gpu.drafters.combined import ReplayedDrafter
from fairseq_plugins.decoding.engine.gpu.drafters.copying import CopyDrafter, Lookup
from fairseq_plugins.decoding.engine.gpu.drafters.features import FeatureDrafter as feature_drafter
from fairseq_plugins.decoding.engine.gpu.drafters.heads import HeadsDrafter as heads_drafter
from fairseq_plugins.decoding.engine.gpu.drafters.jacobi import JacobiDrafter as jacobi_drafter
from fairseq_plugins.decoding.engine.gpu.drafters.path import path as Path
from fairseq_plugins.decoding.engine.gpu.drafters.tokens import TokenDrafter as token_drafter
from fairseq_plugins.decoding.engine.gpu.drafters.trained import MaskWeights
from fairseq_plugins.decoding.engine.gpu.generator import Generator
from fairseq_plugins.decoding.engine.gpu.policy import Policy
from fairseq_plugins.decoding.engine.gpu.weights import Activation, Layer, Norm, linear, transformer

__all__ = [
    "Activation",
    "CopyDrafter",
    "EosForbidden",
    "Generator",
    "Layer",
    "Lookup",
    "MaskWeights",
    "Norm",
    "Path",
    "Policy",
    "ReplayedDrafter",
    "accept_at_least",
    "accept_top_beta",
    "accept_within_distance",
    "fallback_drafter",
    "feature_drafter",
    "heads_drafter",
    "jacobi_drafter",
    "linear",
    "token_drafter",
    "transformer",
]
