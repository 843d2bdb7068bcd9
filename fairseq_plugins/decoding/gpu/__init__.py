"""The GPU engine. Its backend chooses it; its kernels (`interface`) need Triton, which takes a second to import."""
