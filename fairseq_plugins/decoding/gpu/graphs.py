"""Launches that are captured once as a CUDA graph and replayed; without a GPU, functions that are called."""

from collections.abc import Callable

import torch


class Replayed:
    """A sequence of launches at fixed addresses.

    Args:
        launch: launches the kernels. The first call compiles them, so it must change nothing: all places are idle.
        device: where they run.
    """

    def __init__(self, launch: Callable[[], object], device: torch.device) -> None:
        self.launch = launch
        self.graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            return
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            launch()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile.
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            launch()

    def __call__(self) -> None:
        """Run the launches on the current stream."""
        if self.graph is None:
            self.launch()
        else:
            self.graph.replay()
