"""Random numbers that are the same on every device: drawn where their generator is, and moved to where they are used.

Learners and actors draw from generators of the CPU, whatever the device of their networks. So a run on a GPU sees the
noise that the same run on a CPU sees, and a checkpoint's streams can be taken up on either.

An evaluation gives a `robotrl.fn.random.keyed_noise.KeyedNoise` in the generator's place: each row has its own stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.spec import RowNoise

Noise = torch.Generator | RowNoise
"""Where random numbers are drawn."""
TRIES = 24
"""Proposals for each Gamma variate of a keyed row; fewer than one in twenty is rejected."""


def randn(
    shape: Sequence[int],
    generator: Noise | None,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Standard normal numbers.

    Args:
        shape: of the numbers; with `RowNoise`, its rows come first.
        generator: where they are drawn; None takes the device's global stream.
        device: where they are wanted.
        dtype: of the numbers.
    """
    if not isinstance(generator, torch.Generator | None):
        _check_rows(shape[0], generator)
        return generator.normal(shape[1:]).to(device, dtype)
    drawn_on = device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=dtype, device=drawn_on).to(device)


def choose(share: Tensor, generator: Noise | None) -> Tensor:
    """One column of each row (B, C) of weights, drawn by them, as (B,) int64.

    With `RowNoise` of n rows, each of these may have B / n consecutive rows of weights.
    """
    if not isinstance(generator, torch.Generator | None):
        _check_rows(len(share), generator, several=True)
        at = generator.uniform((len(share) // len(generator),)).flatten()
        return choose_at(share, at.to(share.device))
    weights = share if generator is None else share.to(generator.device)
    return torch.multinomial(weights, 1, generator=generator).squeeze(1).to(share.device)


def choose_at(share: Tensor, at: Tensor) -> Tensor:
    """One column of each row (B, C) of weights, where their running share passes `at` (B,), 0 to 1, as (B,) int64.

    Of `at` that is uniform, columns are drawn by their weights; near ones are columns near to each other.
    """
    running = share.double().cumsum(dim=-1)
    below = at.double().clamp(max=1 - torch.finfo(torch.float64).eps) * running[:, -1]
    return torch.searchsorted(running, below[:, None], right=True)[:, 0]


def standard_gamma(alpha: Tensor, generator: Noise | None) -> Tensor:
    """Gamma variates of scale 1, one for each shape parameter `alpha` (B, ...) above 0.

    Those of `RowNoise` are drawn by rejection (Marsaglia and Tsang 2000), from as many proposals for each.
    """
    if isinstance(generator, torch.Generator | None):
        drawn_on = alpha.device if generator is None else generator.device
        return torch._standard_gamma(alpha.to(drawn_on), generator=generator).to(alpha.device)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    _check_rows(len(alpha), generator)
    shape = (TRIES, *alpha.shape[1:])
    normal, uniform, lift = (
        draw(some).to(alpha.device, torch.float64)
        for draw, some in ((generator.normal, shape), (generator.uniform, shape), (generator.uniform, alpha.shape[1:]))
    )
    wanted = alpha.double()
    # below 1, the variate of alpha + 1 times u^(1 / alpha)
    d = (torch.where(wanted < 1, wanted + 1, wanted) - 1 / 3).unsqueeze(1)
    cubed = (1 + normal / (9 * d).sqrt()) ** 3
    log_cubed = cubed.clamp(min=torch.finfo(torch.float64).tiny).log()
    accepted = (cubed > 0) & (uniform.log() < 0.5 * normal**2 + d * (1 - cubed + log_cubed))
    first = accepted.to(torch.uint8).argmax(dim=1, keepdim=True)
    found = (d * cubed).gather(1, first).squeeze(1)
    return torch.where(wanted < 1, found * lift ** (1 / wanted), found).to(alpha.dtype)


def lasting(last: Tensor, steps: int, correlation: float, generator: torch.Generator | None) -> Tensor:
    """The next `steps` (n, steps, A) of n standard normal series of width A, of which `last` (n, A) came before.

    Numbers k steps apart correlate by `correlation` to the power of k (autoregressive, of order 1).
    """
    fresh = math.sqrt(1 - correlation**2) * randn((steps, *last.shape), generator, last.device, last.dtype)
    series = [last]
    for new in fresh:
        series.append(correlation * series[-1] + new)
    return torch.stack(series[1:], dim=1)


def _check_rows(rows: int, noise: RowNoise, several: bool = False) -> None:
    if rows % len(noise) or (rows != len(noise) and not several):
        raise ConfigError(f"noise is wanted for {rows} rows: expected {len(noise)}, as many as have a key")
