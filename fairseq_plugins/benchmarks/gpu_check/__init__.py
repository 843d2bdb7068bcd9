"""What has to be seen on a machine with a GPU, in one command: `make gpu-check`. See docs/gpu.md."""
