"""A second device for machines without one: it computes on the CPU, and refuses what a GPU would refuse.

Tensors of the device "twin" hold a CPU tensor each, which every operation is applied to. As on a GPU, an operation on
tensors of two devices is an error (single numbers and index tensors excepted), and so are numpy's views and generators
of the CPU. So a run on it must give what the same run on the CPU gives, up to the rounding of operations that torch
takes apart otherwise, or something is in the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

NAME = "twin"


class _Module:
    """What torch asks of a device's module."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def synchronize(self, device: object = None) -> None:
        """Wait for nothing: it computes on the CPU."""

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        del seed

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)
ATEN = torch.ops.aten
CROSSING = {ATEN.copy_.default, ATEN._to_copy.default}
"""Operations that move from one device to another."""
INDEXING = {ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default, ATEN._index_put_impl_.default}
"""Operations on tensors of the device that take indices of the CPU."""


class Twin(torch.Tensor):
    """A tensor of the device; `held` is the CPU's."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Twin:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        made.held = held.detach()
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Twin({self.held})"

    def tolist(self) -> Any:
        return self.held.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = Twin(self.held.clone())
        if isinstance(self, torch.nn.Parameter):
            return torch.nn.Parameter(copied, self.requires_grad)
        return copied

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.data.__set__:
            # the storage is another's from now on, as of any tensor
            args[0].held = args[1].held
        # the inherited one would make a Twin of whatever comes out, of what was moved to the CPU as well
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    generators = [x for x in leaves if isinstance(x, torch.Generator)]
    target = kwargs.get("device")
    there = target.type == NAME if target is not None else any(isinstance(x, Twin) for x in tensors)
    if there and any(generator.device != DEVICE for generator in generators):
        raise RuntimeError(f"{func}: expected a {NAME!r} device type for generator but found 'cpu'")
    strict = tensors[:1] if func in INDEXING and isinstance(args[0], Twin) else tensors
    kinds = {isinstance(x, Twin) for x in strict if x.dim()}
    if func not in CROSSING and len(kinds) > 1:
        found = ", ".join(f"{tuple(x.shape)} on {x.device.type}" for x in tensors)
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {found}")
    inner = {id(x.held): x for x in tensors if isinstance(x, Twin)}

    def bare(x: Any) -> Any:
        if isinstance(x, Twin):
            return x.held
        return torch.device("cpu") if isinstance(x, torch.device) else x

    def clad(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        # what was changed in place stays the same object
        return inner[id(x)] if id(x) in inner else Twin(x) if there else x

    return tree_map(clad, func(*tree_map(bare, args), **tree_map(bare, kwargs)))


_library: Any = torch.library.Library("_", "IMPL")
_fallback: Callable[..., Any] = lambda func, *args, **kwargs: _run(func, args, kwargs)  # noqa: E731
_library.fallback(_fallback, "PrivateUse1")


def _made_here(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function of torch that cannot make a tensor on a device that is written in Python, as one that moves it."""

    def make(*args: Any, device: Any = None, **options: Any) -> torch.Tensor:
        made = function(*args, **options)
        return made if device is None else made.to(device)

    return make


def reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these functions reach the device for as long as a test runs: others look at them with fake tensors."""
    monkeypatch.setattr(torch, "tensor", _made_here(torch.tensor))
    monkeypatch.setattr(torch, "arange", _made_here(torch.arange))
