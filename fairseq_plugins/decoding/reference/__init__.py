"""The loop in PyTorch: it runs everything, and the other engines are tested against it."""
