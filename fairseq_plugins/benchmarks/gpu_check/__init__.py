"""Checks for a machine with a GPU: `make gpu-check`. See docs/gpu.md."""
