"""What runs layers: cached decoder, encoder, weights, compiled kernels, CUDA graphs."""
