"""Gaussian predictions of the next state by an ensemble of networks, as pure functions (PETS, arXiv 1805.12114)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from robotrl.errors import out_of_range


class Prediction(NamedTuple):
    """Diagonal Gaussians of E networks."""

    mean: Tensor
    """(E, B, D)."""
    log_var: Tensor
    """(E, B, D) logarithm of the variance."""


def gaussian_nll(found: Prediction, target: Tensor) -> Tensor:
    """Negative log-likelihood of each network without its constant, mean over rows and elements: (E,).

    Args:
        found: predictions.
        target: (E, B, D), or (B, D) for all networks alike.
    """
    error = (target - found.mean) ** 2
    return 0.5 * (error * (-found.log_var).exp() + found.log_var).flatten(1).mean(1)


def squared_error(found: Prediction, target: Tensor) -> Tensor:
    """Mean squared error of each network's mean, (E,); see `gaussian_nll`."""
    return ((target - found.mean) ** 2).flatten(1).mean(1)


def bounded(x: Tensor, low: float, high: float) -> Tensor:
    """Bound log-variances smoothly, so that no variance vanishes or explodes, and a gradient is left everywhere.

    The upper bound is passed by exp(low - high) at most.
    """
    below = high - softplus(high - x)
    return low + softplus(below - low)


class Moments(NamedTuple):
    """Mean and standard deviation of each column."""

    mean: Tensor
    """(D,)."""
    std: Tensor
    """(D,), 1 for a column that does not vary."""

    @classmethod
    def of(cls, x: Tensor) -> Moments:
        """Moments of rows (N, D)."""
        wide = x.double()
        std = wide.std(0, correction=0)
        # a constant has a deviation of rounding errors alone
        varies = std > 1e-6 * wide.abs().amax(0)
        return cls(wide.mean(0).to(x.dtype), torch.where(varies, std, torch.ones_like(std)).to(x.dtype))

    def normalize(self, x: Tensor) -> Tensor:
        """Rows (..., D) with mean 0 and standard deviation 1."""
        return (x - self.mean) / self.std

    def restore(self, x: Tensor) -> Tensor:
        """Invert `normalize`."""
        return x * self.std + self.mean


def choose_elites(error: Tensor, count: int) -> Tensor:
    """Networks (count,) int64 of the smallest errors, the best one first; of equal ones the first.

    Args:
        error: (E,) held-out errors; one that is not finite comes last.
        count: 1 to E.

    Raises:
        ConfigError: there are not so many networks.
    """
    if not 1 <= count <= len(error):
        raise out_of_range("elites", count, f"1 to {len(error)}, the number of networks")
    ranked = torch.where(error.isfinite(), error, torch.full_like(error, torch.inf))
    return ranked.argsort(stable=True)[:count]


def of_network(x: Tensor, network: Tensor) -> Tensor:
    """Rows (B, D) of predictions (E, B, D), each by the network that `network` (B,) int64 names."""
    return x[network, torch.arange(len(network), device=x.device)]
