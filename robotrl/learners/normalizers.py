"""Running normalization of observations and returns during training, and that of actions.

Observation statistics become constants of the policy's transforms, so they are saved with its checkpoint and are part
of the exported graph. They change only between iterations: within one, the policy that learns is the one that acted.
Processes that learn together share their statistics.

A value far outside its column's usual range is clipped to the largest value seen so far, so that one absurd number does
not spoil the statistics; see `robotrl.replay.outliers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robotrl.engine.distributed import ALONE, DistributedContext
from robotrl.errors import ConfigError
from robotrl.policies.base import ACTION
from robotrl.replay.outliers import FAR_REWARD, Range, range_of
from robotrl.rollout.storage import Rollout
from robotrl.spec import Spec, measured
from robotrl.transforms import Affine, Clip, Transform, TransformGroup, inverse, normalize

OBS_CLIP = 10.0
"""Normalized observations are clipped to this many standard deviations."""
REWARD_CLIP = 10.0
FLOOR = 1e-4
"""A column with a standard deviation below this is constant; it is centered and not scaled."""


class RunningMoments:
    """Running mean and variance of all rows (Chan et al. 1979, pairwise update), in float64.

    Args:
        width: number of columns.
        world: the processes whose rows are included.
    """

    def __init__(self, width: int, world: DistributedContext = ALONE) -> None:
        self._world = world
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.var = torch.ones(width, dtype=torch.float64)
        self.count = torch.zeros((), dtype=torch.float64)

    def update(self, rows: Tensor) -> None:
        """Add rows (B, width); without any, those of the other processes alone."""
        rows = rows.detach().cpu().double()
        nothing = torch.zeros_like(self.mean)
        mean, var = (rows.mean(0), rows.var(0, unbiased=False)) if len(rows) else (nothing, nothing)
        own = torch.stack([torch.full_like(self.mean, len(rows)), mean, var])
        for (n, *_), mean, var in self._world.stacked(own):
            if n == 0:
                continue
            total = self.count + n
            delta = mean - self.mean
            spread = self.var * self.count + var * n + delta**2 * self.count * n / total
            self.mean, self.var, self.count = self.mean + delta * n / total, spread / total, total

    def state(self) -> dict[str, Tensor]:
        """State for an exact resume."""
        return {"mean": self.mean, "var": self.var, "count": self.count}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.mean, self.var, self.count = (torch.as_tensor(state[k], dtype=torch.float64) for k in self.state())


class ObsNormalizer:
    """Running observation statistics, as transforms of a policy.

    Args:
        specs: specs of the arrays; images are left to the policy's encoder.
        world: the processes whose observations are included.
    """

    def __init__(self, specs: Mapping[str, Spec], world: DistributedContext = ALONE) -> None:
        self._moments = {key: RunningMoments(specs[key].shape[-1], world) for key in measured(specs)}
        self._ranges = {key: range_of(specs[key]) for key in self._moments}

    def update(self, obs: Mapping[str, Tensor]) -> None:
        """Add observations (..., D)."""
        for key, moments in self._moments.items():
            moments.update(self._ranges[key].usual(obs[key].detach().reshape(-1, obs[key].shape[-1])))

    def transforms(self) -> tuple[Transform, ...]:
        """Return transforms that center, scale and clip each array."""
        out: list[Affine | Clip] = []
        for key, moments in self._moments.items():
            width = len(moments.mean)
            out.append(normalize(key, moments.mean.tolist(), moments.var.sqrt().tolist(), floor=FLOOR))
            out.append(Clip(key, (-OBS_CLIP,) * width, (OBS_CLIP,) * width))
        return tuple(out)

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {key: {**x.state(), "range": self._ranges[key].state()} for key, x in self._moments.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        for key, moments in self._moments.items():
            moments.load(state[key])
            # older checkpoints have no ranges: new ones start with the next observations
            if "range" in state[key]:
                self._ranges[key].load(state[key]["range"])


class RewardNormalizer:
    """Divides rewards by the running std of the discounted return (Engstrom et al. 2020), and clips them.

    Args:
        num_envs: N.
        gamma: discount per env step.
        world: the processes whose returns are included.
    """

    def __init__(self, num_envs: int, gamma: float, world: DistributedContext = ALONE) -> None:
        self._gamma = gamma
        self._running = torch.zeros(num_envs, dtype=torch.float64)
        self._moments = RunningMoments(1, world)
        self._range = Range(1, far=FAR_REWARD)

    @property
    def scale(self) -> float:
        """The number that rewards are divided by; 1 before two of them are known."""
        if self._moments.count < 2:
            return 1.0
        return float((self._moments.var[0] + 1e-8).sqrt())

    def normalize(self, rollout: Rollout) -> Rollout:
        """Return the rollout with normalized rewards, after adding its returns to the statistics.

        A decision's reward is that of its whole chunk; the return is discounted by all steps of the chunk. A reward
        that is not known adds nothing.
        """
        reward, valid = rollout.reward.to("cpu", torch.float64, copy=True), rollout.valid.cpu()
        known = valid if rollout.scored is None else valid & rollout.scored.cpu()
        discount = self._gamma ** rollout.length.cpu().double()
        if known.any():
            reward[known] = self._range.usual(reward[known][:, None])[:, 0]
        reward[valid & ~known] = 0.0
        ended = (rollout.terminated | rollout.truncated).cpu()
        returns = torch.zeros_like(reward)
        for t in range(len(reward)):
            following = self._running * discount[t] + reward[t]
            returns[t] = following
            self._running = torch.where(valid[t], torch.where(ended[t], 0.0, following), self._running)
        self._moments.update(returns[known].reshape(-1, 1))
        return rollout._replace(reward=(rollout.reward / self.scale).clamp(-REWARD_CLIP, REWARD_CLIP))

    def follow(self, state: Mapping[str, Any], seed: int) -> None:
        """Continue from another process's statistics; returns start at zero, because new episodes begin in all envs."""
        del seed
        self.load(state)
        self._running.zero_()

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"running": self._running, "moments": self._moments.state(), "range": self._range.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._running = torch.as_tensor(state["running"], dtype=torch.float64).clone()
        self._moments.load(state["moments"])
        if "range" in state:
            self._range.load(state["range"])


def action_normalization(transforms: TransformGroup) -> Affine:
    """Return the normalization of actions to a policy's units: the inverse of its output transform.

    Raises:
        ConfigError: the policy does not have exactly one affine transform of its actions.
    """
    found = [t for t in transforms.outputs if isinstance(t, Affine) and t.key == ACTION]
    if len(found) != 1:
        raise ConfigError(f"the policy has {len(found)} affine transforms of its actions: expected 1, to be undone")
    return inverse(found[0])
