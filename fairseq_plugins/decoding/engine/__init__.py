"""Run Transformer layers: cached decoder, encoder, weights, compiled kernels, CUDA graphs."""
