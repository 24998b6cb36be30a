"""A sequence of Warp kernels that is launched again and again, ordered with torch's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from robotrl.sims.mujoco.warp.install import packages


class Kernels:
    """Launches the same kernels at each call: one by one on a processor, as one CUDA graph on a GPU.

    On a GPU they run once while this is made, which compiles them; a graph cannot.

    Args:
        launch: function that launches them, with the same arguments each time.
        device: device of their arrays.
    """

    def __init__(self, launch: Callable[[], None], device: torch.device) -> None:
        self._warp = wp = packages().warp
        self._launch, self._device = launch, device
        self._graph: Any = None
        if device.type == "cuda":
            with wp.ScopedDevice(str(device)):
                launch()
                with wp.ScopedCapture() as capture:
                    launch()
                wp.synchronize_device()
            self._graph = capture.graph

    def __call__(self) -> None:
        """Launch the kernels behind torch's work so far; on a GPU without waiting for them."""
        wp = self._warp
        if self._graph is None:
            with wp.ScopedDevice("cpu"):
                self._launch()
            return
        stream = wp.stream_from_torch(torch.cuda.current_stream(self._device))
        wp.capture_launch(self._graph, stream=stream)
