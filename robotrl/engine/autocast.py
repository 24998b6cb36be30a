"""Autocast of networks to bfloat16: products have 8 bits of precision, parameters and sums 24.

Parameters, moments, densities and losses stay in float32; a network returns the precision that it was given. A method
whose ratios compare acting with learning acts in bfloat16 as well, so that its first ratio is 1, except for products
whose rounding depends on the batch size.

On a CPU, attention stays in float32: torch's backward kernel for it takes five times as long in bfloat16, while matrix
products are twice as fast. On a CPU without bfloat16 units, those take 60 to 105 times as long.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from robotrl.policies.networks.activation_checkpointing import recompute_inside

SLOW = 1.5
"""Slowdown above which products in bfloat16 count as slow; less may be measurement noise."""
_SIDE, _TRIES = 256, 3


@cache
def slowdown_in_bf16() -> float:
    """Duration of a matrix product in bfloat16 relative to float32 on this CPU; measured once."""
    square = torch.ones(_SIDE, _SIDE)
    return _seconds(square.to(torch.bfloat16)) / _seconds(square)


def pays_in_bf16() -> bool:
    """Return whether this CPU has bfloat16 units, so that training in bfloat16 is not slower than in float32."""
    return slowdown_in_bf16() <= SLOW


def warn_if_slow(device: torch.device) -> None:
    """Warn if networks are to compute in bfloat16 on a CPU without units for it."""
    if device.type == "cpu" and (times := slowdown_in_bf16()) > SLOW:
        warnings.warn(
            f"algo.bf16 is True: a product of matrices takes {times:.0f} times as long in bfloat16 as in float32 on"
            " this processor, which has no units for it; expected algo.bf16 False here",
            stacklevel=2,
        )


def _seconds(square: torch.Tensor) -> float:
    """Shortest duration of a product in seconds; the first product is a warmup."""
    seconds: list[float] = []
    for _ in range(1 + _TRIES):
        began = time.perf_counter()
        torch.mm(square, square)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def in_bf16(on: bool, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which networks compute in bfloat16, if `on`."""
    # weights are arguments of the update: casts cached in one update must not be reused in the next
    cast = torch.autocast(device.type, torch.bfloat16, enabled=on, cache_enabled=False)
    # a compiler that traces this has its own attention kernel
    return _but_attention(cast) if on and device.type == "cpu" and not torch.compiler.is_compiling() else cast


@contextmanager
def _but_attention(cast: torch.autocast) -> Generator[None]:
    with cast, _AttentionInFull(), recompute_inside(_AttentionInFull):
        yield


class _AttentionInFull(TorchFunctionMode):
    """Computes attention in float32 for any input precision, and returns the input's precision."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is not scaled_dot_product_attention:
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            full = [_full(x) for x in args]
            rest = {key: _full(x) for key, x in kwargs.items()}
            return func(*full, **rest).to(args[0].dtype)


def _full(x: Any) -> Any:
    """Cast a floating-point tensor to float32; boolean masks and all else stay as they are."""
    return x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
