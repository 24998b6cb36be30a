"""An ensemble of networks that predict the state after a chunk (as of PETS 1805.12114, MBPO 1906.08253)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import DataError
from robotrl.fn.dynamics.gaussian import Moments, Prediction, bounded, choose_elites, of_network
from robotrl.policies.q import EnsembleLinear

LOG_VAR = -10.0, 1.0
"""Bounds of the log-variance of a change, in units of the changes' own variance."""


class StateChanges(NamedTuple):
    """Logged chunks with the states around them; states are contexts of a policy's encoder."""

    ctx: Tensor
    """(N, D) states before."""
    chunk: Tensor
    """(N, H, A) chunks as they were executed, normalized."""
    next_ctx: Tensor
    """(N, D) states after."""

    def rows(self, index: Tensor) -> StateChanges:
        """The rows at `index` (...)."""
        return StateChanges(self.ctx[index], self.chunk[index], self.next_ctx[index])


def check_finite(found: StateChanges, what: str) -> None:
    """Check that all numbers are finite.

    Raises:
        DataError: one is not; names the array, the row and the value.
    """
    for name, x in zip(("state before", "chunk", "state after"), found, strict=True):
        bad = (~x.isfinite()).nonzero()
        if len(bad):
            place = tuple(bad[0].tolist())
            raise DataError(
                f"{what}: the {name} of chunk {place[0]} has {float(x[place]):g} at {place[1:]}: expected finite"
                " numbers"
            )


class DynamicsEnsemble(nn.Module):
    """E networks from a state and a chunk to a Gaussian of the change of the normalized state.

    Normalization, the range of the states that were seen and the choice of networks are part of the state dict.

    Args:
        state_width: D.
        chunk: (H, A) of a chunk.
        nets: E.
        used: n, networks that are used, 1 to E.
        hidden: widths of the hidden layers.
    """

    state_mean: Tensor
    """(D,)."""
    state_std: Tensor
    change_mean: Tensor
    """(D,) mean of the changes of normalized states."""
    change_std: Tensor
    low: Tensor
    """(D,) smallest values of states that were seen."""
    high: Tensor
    error: Tensor
    """(E,) held-out error of each network; infinite before the fit."""
    elites: Tensor
    """(n,) int64, the networks that are used."""

    def __init__(self, state_width: int, chunk: tuple[int, int], nets: int, used: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.state_width, self.chunk, self.hidden = state_width, chunk, tuple(hidden)
        widths = [state_width + chunk[0] * chunk[1], *hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [EnsembleLinear(nets, before, after), nn.SiLU()]
        self.layers = nn.Sequential(*layers, EnsembleLinear(nets, widths[-1], 2 * state_width))
        for name, value in (
            ("state_mean", 0.0),
            ("state_std", 1.0),
            ("change_mean", 0.0),
            ("change_std", 1.0),
            ("low", -torch.inf),
            ("high", torch.inf),
        ):
            self.register_buffer(name, torch.full((state_width,), value))
        self.register_buffer("error", torch.full((nets,), torch.inf))
        self.register_buffer("elites", torch.arange(used))

    @torch.no_grad()
    def take_moments(self, found: StateChanges) -> None:
        """Set the normalization, and the range of states, from the data to learn from."""
        seen = torch.cat([found.ctx, found.next_ctx])
        state = Moments.of(seen)
        change = Moments.of(state.normalize(found.next_ctx) - state.normalize(found.ctx))
        for name, value in (
            ("state_mean", state.mean),
            ("state_std", state.std),
            ("change_mean", change.mean),
            ("change_std", change.std),
            ("low", seen.amin(0)),
            ("high", seen.amax(0)),
        ):
            self.get_buffer(name).copy_(value)

    @property
    def _state(self) -> Moments:
        return Moments(self.state_mean, self.state_std)

    @property
    def _change(self) -> Moments:
        return Moments(self.change_mean, self.change_std)

    def change(self, ctx: Tensor, next_ctx: Tensor) -> Tensor:
        """Target of the networks: the change (..., D) of the normalized state, in units of its own deviation."""
        return self._change.normalize(self._state.normalize(next_ctx) - self._state.normalize(ctx))

    def forward(self, ctx: Tensor, chunk: Tensor) -> Prediction:
        """Predictions of all networks of `change`.

        Args:
            ctx: (E, B, D) states, or (B, D) for all networks alike.
            chunk: (E, B, H, A) or (B, H, A) chunks as they are executed.
        """
        x = torch.cat([self._state.normalize(ctx), chunk.flatten(-2)], dim=-1)
        mean, log_var = self.layers(x).chunk(2, dim=-1)
        return Prediction(mean, bounded(log_var, *LOG_VAR))

    def choose(self) -> None:
        """Use the networks of the smallest held-out errors."""
        self.elites.copy_(choose_elites(self.error, len(self.elites)))

    def step(self, ctx: Tensor, chunk: Tensor, network: Tensor, noise: Tensor) -> Tensor:
        """Sample the states (B, D) after chunks, within the range of the states that were seen.

        Beyond that range neither these networks nor a critic have learned anything.

        Args:
            ctx: (B, D) states.
            chunk: (B, H, A) chunks as they are executed.
            network: (B,) int64 places among `elites`: the network of each row.
            noise: (B, D) standard normal noise; 0 is the mean.
        """
        found, which = self(ctx, chunk), self.elites[network]
        mean, log_var = of_network(found.mean, which), of_network(found.log_var, which)
        change = self._change.restore(mean + (0.5 * log_var).exp() * noise)
        return self._state.restore(self._state.normalize(ctx) + change).clamp(self.low, self.high)
