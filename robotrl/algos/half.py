"""Networks in bfloat16: what is multiplied has 8 bits of precision, what is kept and added up has 24.

Parameters, moments, densities and losses stay in float32; a network gives back the precision that it was given. A
method whose ratios compare acting with learning acts in bfloat16 as well, so that its first ratio is 1 but for
products whose rounding depends on how many rows are multiplied at once.

On a CPU attention stays in float32, too: torch's kernel for its gradient takes five times as long in bfloat16, where
products of matrices are twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from robotrl.policies.recompute import again_in


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
