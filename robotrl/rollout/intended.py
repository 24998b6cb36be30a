"""Noise on the actions that an expert executes, while its intended actions are the labels (DART).

A clone of noisy labels repeats the noise. With the intended actions as labels, noise only widens the set of visited
states, and the labels say how to come back from them (Laskey et al. 2017, 1703.09327).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import check_number
from robotrl.rollout.evaluate import ExpertActor, Turn
from robotrl.spec import Arrays, Expert, Spec


class IntendedActor(ExpertActor):
    """An expert whose executed actions carry Gaussian noise, clipped to the action bounds.

    Args:
        expert: the expert, without noise of its own.
        action_spec: one action.
        noise: standard deviation as a fraction of half an action's range, 0 to 1.
        seed: seed of the noise.

    Raises:
        ConfigError: `noise` is out of range.
    """

    intended: Tensor
    """(N, A) the expert's action of the last `act`, without noise."""

    def __init__(self, expert: Expert, action_spec: Spec, noise: float, seed: int) -> None:
        super().__init__(expert)
        check_number("noise", noise, 0.0, 1.0)
        self._low, self._high = (np.array(bound, np.float32) for bound in (action_spec.low, action_spec.high))
        self._scale = noise * 0.5 * (self._high - self._low)
        self._rng = np.random.default_rng(seed)

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A) with noise."""
        self.intended = super().act(obs, turn).clone()
        noise = self._scale * self._rng.standard_normal(tuple(self.intended.shape)).astype(np.float32)
        executed = np.clip(self.intended.cpu().numpy() + noise, self._low, self._high)
        return torch.from_numpy(executed).to(self.intended.device)
