"""Shared parts of the torch adapters: flat observations, actions within bounds, returns of finished episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.spec import Spec, Step, VecSim, is_picture


def flat_keys(observation_spec: Mapping[str, Spec], hidden: Iterable[str] = ()) -> tuple[str, ...]:
    """Keys of the arrays that can be flattened into one vector: all but pictures, in the spec's order.

    Args:
        observation_spec: specs of one env's observations.
        hidden: keys to leave out.
    """
    without = set(hidden)
    return tuple(key for key, spec in observation_spec.items() if not is_picture(spec) and key not in without)


def flat(obs: Mapping[str, Tensor], keys: Iterable[str]) -> Tensor:
    """(B, D) float32 copy of the arrays `keys` (B, ...), flattened and joined."""
    return torch.cat([obs[key].flatten(1).float() for key in keys], dim=1)


class BoundedActions:
    """Brings a learner's actions into the form that a sim takes.

    Gaussian samples lie outside the bounds now and then: they are clipped without a warning. Choices are not, as
    another choice would result.

    Args:
        sim: the sim.
    """

    def __init__(self, sim: VecSim) -> None:
        spec = sim.action_spec
        self._shape, self._device = (sim.num_envs, *spec.shape), sim.device
        self._dtype: torch.dtype = getattr(torch, spec.dtype)
        self._clips = spec.choices is None
        self._low = torch.tensor(spec.low, dtype=self._dtype, device=sim.device)
        self._high = torch.tensor(spec.high, dtype=self._dtype, device=sim.device)

    def __call__(self, actions: Tensor) -> Tensor:
        """Actions (N, A) in the sim's dtype on its device, within the bounds; NaN stays NaN, which the sim refuses."""
        taken = actions.detach().to(self._device, self._dtype).reshape(self._shape)
        return taken.clamp(self._low, self._high) if self._clips else taken


class Finished(NamedTuple):
    """Episodes that ended in a step, compact."""

    success: Tensor
    """(n,) float32: 1 for success, else 0."""
    returns: Tensor
    """(n,) float32: undiscounted return."""
    lengths: Tensor
    """(n,) int64: steps that were made; of a staggered first episode fewer than its time limit."""


class EpisodeStatistics:
    """Sums rewards and steps of the running episodes.

    Args:
        sim: the sim.
    """

    def __init__(self, sim: VecSim) -> None:
        self.returns = torch.zeros(sim.num_envs, device=sim.device)
        self.lengths = torch.zeros(sim.num_envs, dtype=torch.int64, device=sim.device)

    def restart(self) -> None:
        """Forget all running episodes."""
        self.returns.zero_()
        self.lengths.zero_()

    def add(self, step: Step) -> Finished | None:
        """Count a step; returns the episodes that it ended, in the order of `final_ids`, or None without any."""
        self.returns += step.reward
        self.lengths += 1
        if not len(step.final_ids):
            return None
        ended = step.final_ids
        found = Finished(step.info["success"][ended].float(), self.returns[ended], self.lengths[ended])
        self.returns[ended], self.lengths[ended] = 0.0, 0
        return found
