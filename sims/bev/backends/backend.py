"""Where the kernels of the driving world run: threads of this process, or the threads of a GPU (see `cuda`)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Kernel = Callable[..., None]
"""(arguments..., low, high): works on the items from `low` to `high` (excluded), each alone."""
Zeros = Callable[[Any, Any], NDArray[Any]]
"""(shape, dtype): an array of zeros."""
T = TypeVar("T", bound=tuple[Any, ...])


class Backend(Protocol):
    """Memory that kernels and numpy both reach, and what runs kernels over many items at once."""

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> NDArray[Any]:
        """An array of zeros that kernels may write to."""
        ...

    def run(self, kernel: Kernel, count: int, *args: Any) -> None:
        """Run a kernel over `count` items, and wait for it.

        Arrays among the arguments, or in tuples among them, that did not come from `zeros` are only read.
        """
        ...

    def wait(self) -> None:
        """Wait for whoever else still works on this memory."""
        ...

    def close(self) -> None:
        """Let threads go."""
        ...


def put(machine: Backend, values: T) -> T:
    """A named tuple with its arrays in memory of the machine."""

    def there(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        copy = machine.zeros(value.shape, value.dtype)
        copy[...] = value
        return copy

    return type(values)(*map(there, values))


class Threads:
    """Threads of this process, which share the items evenly.

    Args:
        count: how many, the calling one included.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "bev") if count > 1 else None

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> NDArray[Any]:
        """Any memory will do."""
        return np.zeros(shape, dtype)

    def run(self, kernel: Kernel, count: int, *args: Any) -> None:
        """Run a kernel over `count` items; a handful is not worth a second thread."""
        if self._pool is None or count < 2 * self.count:
            kernel(*args, 0, count)
            return
        edges = [count * k // self.count for k in range(self.count + 1)]
        waiting = [self._pool.submit(kernel, *args, low, high) for low, high in pairwise(edges[1:])]
        kernel(*args, 0, edges[1])
        for one in waiting:
            one.result()

    def wait(self) -> None:
        """Nobody else works."""

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown()
