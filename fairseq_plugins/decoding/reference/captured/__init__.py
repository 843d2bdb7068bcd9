"""The captured steps of the loop in PyTorch on a GPU: rounded shapes, CUDA graphs, batch-invariant operations."""
