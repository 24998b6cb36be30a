"""Networks in bfloat16: what is multiplied has 8 bits of precision, what is kept and added up has 24.

Parameters, moments, densities and losses stay in float32; a network gives back the precision that it was given. A
method whose ratios compare acting with learning acts in bfloat16 as well, so that its first ratio is 1 but for
products whose rounding depends on how many rows are multiplied at once.

On a CPU attention stays in float32, too: torch's kernel for its gradient takes five times as long in bfloat16, where
products of matrices are twice as fast. A CPU without units for bfloat16 takes 60 to 105 times as long for those.
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

from robotrl.policies.networks.recompute import again_in

SLOW = 1.5
"""Products that take more than so many times as long are slow; less may be noise of the measurement."""
_SIDE, _TRIES = 256, 3


@cache
def slowdown_in_bf16() -> float:
    """How many times as long as in float32 a product of matrices takes in bfloat16 on this CPU; measured once."""
    square = torch.ones(_SIDE, _SIDE)
    return _seconds(square.to(torch.bfloat16)) / _seconds(square)


def pays_in_bf16() -> bool:
    """Whether this CPU has units for bfloat16, so that learning in it costs no more than in float32."""
    return slowdown_in_bf16() <= SLOW


def warn_if_slow(device: torch.device) -> None:
    """A word where networks are to compute in bfloat16 on a CPU that has no units for it."""
    if device.type == "cpu" and (times := slowdown_in_bf16()) > SLOW:
        warnings.warn(
            f"algo.bf16 is True: a product of matrices takes {times:.0f} times as long in bfloat16 as in float32 on"
            " this processor, which has no units for it; expected algo.bf16 False here",
            stacklevel=2,
        )


def _seconds(square: torch.Tensor) -> float:
    """Of a product, at best; the first one prepares others."""
    seconds: list[float] = []
    for _ in range(1 + _TRIES):
        began = time.perf_counter()
        torch.mm(square, square)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def in_bf16(on: bool, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which networks compute in bfloat16, if that is `on`."""
    # weights are arguments of the update: what was cast of one update's must not serve the next
    cast = torch.autocast(device.type, torch.bfloat16, enabled=on, cache_enabled=False)
    # a compiler that looks at this makes its own of attention
    return _but_attention(cast) if on and device.type == "cpu" and not torch.compiler.is_compiling() else cast


@contextmanager
def _but_attention(cast: torch.autocast) -> Generator[None]:
    with cast, _AttentionInFull(), again_in(_AttentionInFull):
        yield


class _AttentionInFull(TorchFunctionMode):
    """Attention of whatever precision is computed in float32 and given back as it came."""

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
    """A tensor of numbers in float32; masks of truths and all else as they are."""
    return x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
