"""Decoding steps in compiled code: `kernels.cpp`, built at first use and kept for later runs.

On a CPU a step over one sentence and a few tokens is many small operations, and PyTorch spends more time between them
than in them. Here a step is one call. It computes what the PyTorch path computes, up to the rounding of sums.
"""
