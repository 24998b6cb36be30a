"""Tracing and compiling of a tensor function for fixed shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robotrl.utils.cuda_graph import CudaGraph


def compiled(
    function: Callable[..., Tensor],
    arguments: tuple[Tensor, ...],
    written: int,
    inputs: tuple[int, ...],
    device: torch.device,
) -> Callable[..., Tensor]:
    """Compile a function for the shapes of its arguments; see `Engine._ready`.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    def example() -> tuple[Tensor, ...]:
        # data may be large: only the arguments that are written are copied
        return *(x.clone() for x in arguments[:written]), *arguments[written:]

    with torch.no_grad():
        # tracing runs the Python code once; the compiler then sees plain tensor operations only
        graph: Any = make_fx(function)(*example())
        options: dict[str, str | int | bool | Callable[..., Any]] = {}
        if device.type == "cpu":
            # compile the code between kernels to C++ as well: a third faster at small minibatches
            options["cpp_wrapper"] = True
        out: Callable[..., Tensor] = torch.compile(graph, fullgraph=True, dynamic=False, options=options)
        out(*example())
        if device.type == "cuda":
            return CudaGraph(out, arguments, inputs=inputs)
    return out
