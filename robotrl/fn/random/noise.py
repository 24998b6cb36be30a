"""Random numbers that are the same on every device: sampled on the generator's device, moved to where they are used.

Learners and actors use CPU generators, whatever the device of their networks. So a run on a GPU gets the same noise as
on a CPU, and a checkpoint's random streams can be resumed on either.

An evaluation passes a `robotrl.fn.random.keyed_noise.KeyedNoise` instead of a generator: each row has its own stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.spec import RowNoise

Noise = torch.Generator | RowNoise
"""Source of random numbers."""
TRIES = 24
"""Proposals per Gamma variate of a keyed row; fewer than one in twenty is rejected."""


def randn(
    shape: Sequence[int],
    generator: Noise | None,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Sample standard normal numbers.

    Args:
        shape: of the numbers; with `RowNoise`, its rows come first.
        generator: source of the numbers; None uses the device's global generator.
        device: device of the result.
        dtype: of the numbers.
    """
    if not isinstance(generator, torch.Generator | None):
        _check_rows(shape[0], generator)
        return generator.normal(shape[1:]).to(device, dtype)
    drawn_on = device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=dtype, device=drawn_on).to(device)


def choose(share: Tensor, generator: Noise | None) -> Tensor:
    """Sample one column of each row (B, C) of weights, in proportion to them, as (B,) int64.

    With `RowNoise` of n rows, each of them may have B / n consecutive rows of weights.
    """
    if not isinstance(generator, torch.Generator | None):
        _check_rows(len(share), generator, several=True)
        at = generator.uniform((len(share) // len(generator),)).flatten()
        return choose_at(share, at.to(share.device))
    weights = share if generator is None else share.to(generator.device)
    return torch.multinomial(weights, 1, generator=generator).squeeze(1).to(share.device)


def choose_at(share: Tensor, at: Tensor) -> Tensor:
    """Return the column of each row (B, C) of weights at the quantile `at` (B,), 0 to 1, as (B,) int64.

    Uniform `at` samples columns in proportion to their weights; similar `at` give nearby columns.
    """
    running = share.double().cumsum(dim=-1)
    below = at.double().clamp(max=1 - torch.finfo(torch.float64).eps) * running[:, -1]
    return torch.searchsorted(running, below[:, None], right=True)[:, 0]


def standard_gamma(alpha: Tensor, generator: Noise | None) -> Tensor:
    """Sample Gamma variates of scale 1, one per shape parameter `alpha` (B, ...) above 0.

    With `RowNoise`, by rejection (Marsaglia and Tsang 2000), from a fixed number of proposals each.
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
    # for alpha below 1: the variate of alpha + 1 times u^(1 / alpha)
    d = (torch.where(wanted < 1, wanted + 1, wanted) - 1 / 3).unsqueeze(1)
    cubed = (1 + normal / (9 * d).sqrt()) ** 3
    log_cubed = cubed.clamp(min=torch.finfo(torch.float64).tiny).log()
    accepted = (cubed > 0) & (uniform.log() < 0.5 * normal**2 + d * (1 - cubed + log_cubed))
    first = accepted.to(torch.uint8).argmax(dim=1, keepdim=True)
    found = (d * cubed).gather(1, first).squeeze(1)
    return torch.where(wanted < 1, found * lift ** (1 / wanted), found).to(alpha.dtype)


def lasting(last: Tensor, steps: int, correlation: float, generator: torch.Generator | None) -> Tensor:
    """Continue n autocorrelated standard normal series of width A by `steps`: (n, steps, A), after `last` (n, A).

    Numbers k steps apart have a correlation of `correlation` to the power of k (autoregressive, of order 1).
    """
    fresh = math.sqrt(1 - correlation**2) * randn((steps, *last.shape), generator, last.device, last.dtype)
    series = [last]
    for new in fresh:
        series.append(correlation * series[-1] + new)
    return torch.stack(series[1:], dim=1)


def _check_rows(rows: int, noise: RowNoise, several: bool = False) -> None:
    if rows % len(noise) or (rows != len(noise) and not several):
        raise ConfigError(f"noise is wanted for {rows} rows: expected {len(noise)}, as many as have a key")
