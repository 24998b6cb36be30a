"""Reward of one's own function, for a try before a source of one's own.

The function gets batched tensors of all envs and returns their rewards, without state: `def reward(obs, action,
next_obs, info) -> Tensor`. docs/add-a-reward.md shows a source with settings and state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from robotrl.errors import ConfigError, short, unknown
from robotrl.rewards.source import RewardSetup, Score, SimTransition, StatelessReward
from robotrl.spec import Arrays, VecSim, reads
from robotrl.utils.user_module import user_module

RewardFunction = Callable[[Arrays, Tensor, Arrays, Arrays], Tensor]
"""obs (N, ...), action (N, A), next_obs (N, ...), info (N,) each, to rewards (N,)."""


@dataclass(frozen=True)
class FunctionRewardCfg:
    """Your own function of observation, action, next observation and info."""

    target: str = field(metadata=reads("module"))
    """The function as MODULE:FUNCTION, in an installed package or in the working directory."""
    sees_success: bool = True
    """True for a function that pays for success, or for an early end. Set it to False for one that only says how well a
    step went, such as a speed: the end of an episode at a success then counts as truncated, and its value is
    bootstrapped. Else rewards above 0 would pay a policy for not arriving."""

    def build(self, sim: VecSim, setup: RewardSetup) -> FunctionReward:
        """Build the source.

        Raises:
            ConfigError: there is no such function, or its module cannot be imported.
        """
        return FunctionReward(_function(self.target), self.target, sim.num_envs, self.sees_success)


class FunctionReward(StatelessReward):
    """Reward of a function of the step; a `RewardSource`.

    The function's `info` is the sim's, and `reward` (the sim's own), `terminated` and `truncated`, (N,) each. It must
    not write to what it gets.

    Args:
        function: see `RewardFunction`.
        name: its name, for errors.
        num_envs: N.
        sees_success: see `RewardSource`.
    """

    def __init__(self, function: RewardFunction, name: str, num_envs: int, sees_success: bool = True) -> None:
        self._function, self._name, self._num_envs = function, name, num_envs
        self.sees_success = sees_success
        self.identity = f"function:{name}" + ("" if sees_success else ":blind to success")

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`.

        Raises:
            ConfigError: the function returned something else than N numbers.
        """
        step = transition.step
        info = {**step.info, "reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}
        with torch.no_grad():
            value = self._function(transition.obs, transition.action, dict(transition.reached), info)
        found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
        if found != (self._num_envs,):
            raise ConfigError(
                f"reward.function.target {short(self._name)} returned {found}: expected a tensor of shape"
                f" ({self._num_envs},), one reward for each env"
            )
        return Score.of_now(value.float())


def _function(target: str) -> RewardFunction:
    name, colon, attribute = target.partition(":")
    asked = f"reward.function.target is {short(repr(target))}"
    if not colon or not name or not attribute.isidentifier():
        raise ConfigError(f"{asked}: expected MODULE:FUNCTION, e.g. my_rewards:near_goal")
    known = vars(user_module(name, asked))
    if attribute not in known:
        raise unknown("reward.function.target", target, [f"{name}:{key}" for key in known if callable(known[key])])
    if not callable(known[attribute]):
        raise ConfigError(f"{asked}: {attribute} is a {type(known[attribute]).__name__}: expected a function")
    return known[attribute]
