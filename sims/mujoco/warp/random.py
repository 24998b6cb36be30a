"""Counter-based uniform numbers on a device: those of `robotrl.fn.random.counter_rng`, bit for bit.

torch has no complete 64-bit unsigned arithmetic. Signed products and sums have the same bits, since both wrap; only the
shift to the right has to drop the copies of the sign.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(number: int) -> int:
    """The signed 64-bit number with the same bits."""
    return (number + 2**63) % 2**64 - 2**63


_GAMMA, _FIRST, _SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _right(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _right(z, 30)) * _FIRST
    z = (z ^ _right(z, 27)) * _SECOND
    return z ^ _right(z, 31)


def uniform(seed: int, index: Tensor, streams: int) -> Tensor:
    """Uniform numbers in [0, 1), those of `counter_rng.uniform`.

    Args:
        seed: any integer.
        index: (n,) int64 indices of the draws.
        streams: number of independent numbers per index.

    Returns:
        (n, streams) float64, on the device of `index`.
    """
    key = int(_mix(torch.tensor(_signed(seed)) + _GAMMA))
    rows = _mix(index * _GAMMA + key)
    columns = torch.arange(1, streams + 1, device=index.device) * _GAMMA
    return _right(_mix(rows[:, None] + columns), 11).to(torch.float64) * 2.0**-53
