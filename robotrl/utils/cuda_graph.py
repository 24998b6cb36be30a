"""CUDA graph of a function of tensors, replayed without launch costs on the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class CudaGraph:
    """A function of CUDA tensors that is captured once and replayed.

    Args:
        function: function to capture; it writes its results into its arguments or returns a tensor.
        arguments: tensors on which it is captured and replayed.
        inputs: positions of arguments that change between calls; they are copied in, and all others must be the same
            tensors every time.
    """

    def __init__(self, function: Callable[..., Tensor], arguments: tuple[Tensor, ...], inputs: tuple[int, ...]) -> None:
        self._inputs = inputs
        # the graph uses tensors that the function holds, but does not keep them alive
        self._held = function, arguments
        self._device = arguments[0].device
        with torch.cuda.device(self._device):
            self._capture(function, arguments)

    def _capture(self, function: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> None:
        self._static = {i: arguments[i].clone() for i in self._inputs}
        fixed = tuple(self._static.get(i, argument) for i, argument in enumerate(arguments))
        # warm-up would change the arguments, so it runs on copies; the capture itself executes nothing
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function(*(argument.clone() for argument in fixed))
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # other threads, such as data loaders, may allocate during the capture
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._result = function(*fixed)

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Replay on the captured tensors with new `inputs`; returns a copy of the result."""
        with torch.cuda.device(self._device):
            for i in self._inputs:
                self._static[i].copy_(arguments[i])
            self._graph.replay()
            return self._result.clone()
