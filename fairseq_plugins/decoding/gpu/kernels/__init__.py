"""The Triton kernels, which the files of this package's parent launch."""
