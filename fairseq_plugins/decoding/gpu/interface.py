"""The GPU engine: whole iterations on the device, in Triton kernels.

This module offers the names of the compiled CPU module (decoding/kernel_module.py): a method describes itself against
either of them.
"""

# ruff: noqa: F401
from fairseq_plugins.decoding.gpu.acceptance import accept_at_least, accept_top_beta, accept_within_distance
from fairseq_plugins.decoding.gpu.beam_search import EosForbidden
from fairseq_plugins.decoding.gpu.drafters.copying import CopyDrafter
from fairseq_plugins.decoding.gpu.drafters.fallback import FallbackDrafter as fallback_drafter
from fairseq_plugins.decoding.gpu.drafters.features import FeatureDrafter as feature_drafter
from fairseq_plugins.decoding.gpu.drafters.heads import HeadsDrafter as heads_drafter
from fairseq_plugins.decoding.gpu.drafters.jacobi import JacobiDrafter as jacobi_drafter
from fairseq_plugins.decoding.gpu.drafters.path import Path
from fairseq_plugins.decoding.gpu.drafters.tokens import TokenDrafter as token_drafter
from fairseq_plugins.decoding.gpu.drafters.trained import MaskWeights
from fairseq_plugins.decoding.gpu.generator import Generator
from fairseq_plugins.decoding.gpu.host_loop import Sentence
from fairseq_plugins.decoding.gpu.kernels.constants import Activation, Lookup
from fairseq_plugins.decoding.gpu.policy import Policy
from fairseq_plugins.decoding.gpu.weights import Layer, Norm
from fairseq_plugins.decoding.gpu.weights import Linear as linear
from fairseq_plugins.decoding.gpu.weights import Transformer as transformer
