"""Launches that are captured once as a CUDA graph and replayed; without a GPU, functions that are called."""

from collections.abc import Callable

import torch

from fairseq_plugins.decoding.reference.captured.graph_capture import capturing


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
        main, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        side.wait_stream(main)
        self.graph = torch.cuda.CUDAGraph()
        # The current device is that of the stream. Stream and device are restored even if a capture fails.
        with capturing, torch.cuda.stream(side):
            launch()
            # Other threads may use the device meanwhile.
            with torch.cuda.graph(self.graph, stream=side, capture_error_mode="thread_local"):
                launch()
        main.wait_stream(side)

    def __call__(self) -> None:
        """Run the launches on the current stream."""
        if self.graph is None:
            self.launch()
        else:
            self.graph.replay()
