"""CUDA backend of the driving sim: one GPU thread per env, from the same kernel source as the CPU.

All arrays are in CUDA managed memory, which GPU and CPU both address: kernels step thousands of envs, numpy reads ends
of episodes in place, and torch's GPU tensors are views of the same memory. There are no explicit copies; pages migrate
on access.
"""

from __future__ import annotations

import bisect
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims.driving.backends.backend import Kernel
from robotrl.utils.installation import install_line

BLOCK = 64
"""Threads per block; small, since an env needs many registers and a block waits for its slowest env."""


class _Allocation(NamedTuple):
    """A block of managed memory."""

    begin: int
    end: int
    owner: Any


class Cuda:
    """GPU backend with kernels compiled by numba.

    Memory is freed with the sim. Arrays grow by doubling, so abandoned arrays take at most as much memory again.

    Args:
        index: number of the GPU.

    Raises:
        ConfigError: numba finds no GPU, or none with this index.
    """

    def __init__(self, index: int) -> None:
        self._cuda: Any = importlib.import_module("numba.cuda")
        if not self._cuda.is_available():
            raise ConfigError(
                f"device is 'cuda:{index}', but numba finds no GPU: expected 'cpu', or {install_line('cuda')}"
            )
        if index >= len(self._cuda.gpus):
            raise ConfigError(f"device is 'cuda:{index}': expected 'cpu' or a GPU below {len(self._cuda.gpus)}")
        self._cuda.select_device(index)
        self.device = torch.device("cuda", index)
        self._held: list[_Allocation] = []
        self._seen: dict[tuple[int, tuple[int, ...], str], Any] = {}
        self._launchers: dict[Kernel, Any] = {}

    def zeros(self, shape: tuple[int, ...] | int, dtype: Any) -> NDArray[Any]:
        """Allocate an array of zeros in managed memory."""
        sizes = (shape,) if isinstance(shape, int) else shape
        count = int(np.prod(sizes, dtype=np.int64)) * np.dtype(dtype).itemsize
        # CUDA cannot allocate zero bytes
        owner = self._cuda.managed_array(max(count, 1), np.uint8)
        raw: NDArray[np.uint8] = np.asarray(owner)
        raw[:] = 0
        begin = int(raw.ctypes.data)
        bisect.insort(self._held, _Allocation(begin, begin + len(raw), owner), key=lambda a: a.begin)
        return raw[:count].view(dtype).reshape(sizes)

    def run(self, kernel: Kernel, count: int, *args: Any) -> None:
        """Run a kernel over `count` items, one GPU thread each, and wait for it."""
        if count == 0:
            return
        if kernel not in self._launchers:
            self._launchers[kernel] = self._cuda.jit(launcher(kernel, self._cuda))
        blocks = -(-count // BLOCK)
        self._launchers[kernel][blocks, BLOCK](count, tuple(self._there(arg) for arg in args))
        self._cuda.synchronize()

    def wait(self) -> None:
        """Wait until torch has finished its work on the observations."""
        torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """Do nothing: there are no threads to release."""

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """GPU tensor of an array: a view for managed memory, otherwise a copy."""
        if self._owner(array) is None or array.size == 0:
            return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        return torch.as_tensor(_Shown(array), device=self.device)

    def _owner(self, array: NDArray[Any]) -> Any:
        """Managed allocation that contains an array; None for ordinary CPU memory."""
        address = int(array.ctypes.data)
        place = bisect.bisect_right(self._held, address, key=lambda a: a.begin) - 1
        return self._held[place].owner if place >= 0 and address < self._held[place].end else None

    def _there(self, value: Any) -> Any:
        """Convert an argument for a kernel launch."""
        if isinstance(value, tuple):
            fields: Any = value
            return type(fields)(*(self._there(field) for field in fields))
        if not isinstance(value, np.ndarray):
            return value
        array: NDArray[Any] = value
        owner = self._owner(array)
        if owner is None:
            return self._cuda.to_device(np.ascontiguousarray(array))
        key = int(array.ctypes.data), array.shape, array.dtype.str + str(array.dtype.names)
        if key not in self._seen:
            driver = importlib.import_module("numba.cuda.cudadrv.driver")
            arrays = importlib.import_module("numba.cuda.cudadrv.devicearray")
            context = self._cuda.current_context()
            pointer = driver.binding.CUdeviceptr(key[0])
            memory = driver.MemoryPointer(context, pointer, size=array.nbytes, owner=owner)
            self._seen[key] = arrays.DeviceNDArray(array.shape, array.strides, array.dtype, gpu_data=memory)
        return self._seen[key]


class _Shown:
    """Exposes an array in managed memory to torch through the CUDA array interface."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "strides": array.strides,
            "typestr": array.dtype.str,
            "data": (int(array.ctypes.data), False),
            "version": 3,
        }


def launcher(kernel: Kernel, cuda: Any) -> Callable[[int, Any], None]:
    """Wrap a kernel for a launch: each thread processes the item with its index, if there is one."""

    def run(count: int, args: Any) -> None:
        i = cuda.grid(1)
        if i < count:
            kernel(*args, i, i + 1)

    return run
