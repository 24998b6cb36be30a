"""Compute backends for the driving kernels: CPU threads here, a GPU in `cuda`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Kernel = Callable[..., None]
"""Function (arguments..., low, high) that processes the items from `low` to `high` (excluded) independently."""
Zeros = Callable[[Any, Any], NDArray[Any]]
"""Function (shape, dtype) that allocates an array of zeros."""
T = TypeVar("T", bound=tuple[Any, ...])


class Backend(Protocol):
    """Runs kernels over many items in parallel, and allocates memory that kernels and numpy share."""

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> NDArray[Any]:
        """Allocate an array of zeros that kernels may write to."""
        ...

    def run(self, kernel: Kernel, count: int, *args: Any) -> None:
        """Run a kernel over `count` items and wait for it.

        Array arguments (also inside tuples) that were not allocated by `zeros` are read-only for the kernel.
        """
        ...

    def wait(self) -> None:
        """Wait for other users of this memory, such as torch on the GPU."""
        ...

    def close(self) -> None:
        """Release the threads."""
        ...


def put(machine: Backend, values: T) -> T:
    """Copy a named tuple with its arrays moved to memory of the backend."""

    def there(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        copy = machine.zeros(value.shape, value.dtype)
        copy[...] = value
        return copy

    return type(values)(*map(there, values))


class Threads:
    """CPU backend: threads of this process, which share the items evenly.

    Args:
        count: number of threads, including the calling one.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "bev") if count > 1 else None

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> NDArray[Any]:
        """Allocate an array of zeros in ordinary memory."""
        return np.zeros(shape, dtype)

    def run(self, kernel: Kernel, count: int, *args: Any) -> None:
        """Run a kernel over `count` items; a few items run on the calling thread alone."""
        if self._pool is None or count < 2 * self.count:
            kernel(*args, 0, count)
            return
        edges = [count * k // self.count for k in range(self.count + 1)]
        waiting = [self._pool.submit(kernel, *args, low, high) for low, high in pairwise(edges[1:])]
        kernel(*args, 0, edges[1])
        for one in waiting:
            one.result()

    def wait(self) -> None:
        """Do nothing: `run` has already finished."""

    def close(self) -> None:
        """Release the threads."""
        if self._pool is not None:
            self._pool.shutdown()
