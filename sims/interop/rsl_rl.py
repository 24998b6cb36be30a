"""Adapter from `VecSim` to the `VecEnv` of rsl_rl, for its `OnPolicyRunner`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_at_least
from robotrl.sims.interop.tensors import BoundedActions, EpisodeStatistics, flat, flat_keys
from robotrl.spec import HasFinalObs, HasTimeLimit, VecSim, is_picture, privileged

POLICY, CRITIC = "policy", "critic"
"""Observation groups of vectors. Each picture is a group of its own, under its key."""


class RslRlVecEnv(VecEnv):
    """rsl_rl `VecEnv` around a sim.

    Observation groups: "policy" (N, D) float32 joins all arrays that are neither pictures nor privileged; "critic"
    (N, D) adds the privileged ones; each picture is a group of its own, (N, channels, h, w) float32 from 0 to 1. A
    group without arrays is left out. Observations are copies.

    `extras` of a step:

    - "time_outs" (N,) bool: truncated and not terminated. rsl_rl then adds the discounted value of the observation
      *before* the step to the reward.
    - "final_obs" and "final_ids": true last observations (n, ...) of the n episodes that ended, and their envs, if the
      sim has them. rsl_rl reads neither.
    - "log", in steps in which episodes ended: "Episode/success", "Episode/return" and "Episode/length" (n,) of these.

    Actions are in the units of the sim's `action_spec` and are clipped to its bounds.

    `episode_length_buf` is the position of each episode as the sim's time limit counts it. Assigning it, as a runner
    does for `init_at_random_ep_len`, starts new episodes: staggered over the time limit, or from 0 if all assigned
    numbers are 0. The counters are then the sim's, not the numbers assigned.

    Args:
        sim: the sim.
        seed: seed of its first reset.
        stagger: spread the first episodes over the time limit, so that they do not all end together.
        max_episode_length: time limit in steps; None takes the sim's.

    Raises:
        CapabilityError: actions are choices, which rsl_rl has no distribution for.
        ConfigError: the time limit is not known and not given, or an observation has the name of a group.
    """

    def __init__(
        self, sim: VecSim, seed: int = 0, stagger: bool = False, max_episode_length: int | None = None
    ) -> None:
        if sim.action_spec.choices is not None:
            raise CapabilityError(
                f"action {sim.action_spec.names[0]!r} is a choice of {sim.action_spec.choices[0]}: expected numbers"
                " within bounds, rsl_rl has Gaussian policies; as_sb3, as_skrl and as_torchrl take choices"
            )
        self.sim = sim
        self.num_envs: int = sim.num_envs
        self.num_actions: int = sim.action_spec.shape[0]
        self.device = sim.device
        self.cfg = {"num_envs": sim.num_envs, "seed": seed, "control_dt_s": sim.control_dt_s}
        self.max_episode_length = _limit(sim, max_episode_length)
        self._pictures = tuple(key for key, spec in sim.observation_spec.items() if is_picture(spec))
        for key in self._pictures:
            if key in (POLICY, CRITIC):
                raise ConfigError(f"observation {key!r} is a picture: expected another name, this one is a group's")
        groups = {
            POLICY: flat_keys(sim.observation_spec, privileged(sim)),
            CRITIC: flat_keys(sim.observation_spec),
        }
        self._vectors = {group: keys for group, keys in groups.items() if keys}
        self._limited = BoundedActions(sim)
        self._statistics = EpisodeStatistics(sim)
        self._obs = self._grouped(sim.reset(seed, {"stagger": True} if stagger else None), sim.num_envs)

    @property
    def episode_length_buf(self) -> Tensor:
        """(N,) int64: position of each running episode, a copy."""
        if isinstance(self.sim, HasTimeLimit):
            return self.sim.elapsed_steps()
        return self._statistics.lengths.clone()

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        staggered = bool((value != 0).any())
        if staggered and not isinstance(self.sim, HasTimeLimit):
            raise CapabilityError(
                "episode_length_buf was assigned, and this sim lacks HasTimeLimit: expected init_at_random_ep_len=False"
            )
        self._statistics.restart()
        self._obs = self._grouped(self.sim.reset(options={"stagger": True} if staggered else None), self.num_envs)

    def get_observations(self) -> TensorDict:
        """Present observation groups."""
        return self._obs

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Advance all envs by actions (N, A); returns observation groups, rewards (N,), dones (N,) int64 and extras."""
        out = self.sim.step(self._limited(actions))
        self._obs = self._grouped(out.obs, self.num_envs)
        extras: dict[str, Any] = {"time_outs": out.truncated & ~out.terminated}
        if (ended := self._statistics.add(out)) is not None:
            extras["log"] = {
                "Episode/success": ended.success,
                "Episode/return": ended.returns,
                "Episode/length": ended.lengths.float(),
            }
        if isinstance(self.sim, HasFinalObs):
            extras["final_obs"] = self._grouped(out.final_obs, len(out.final_ids))
            extras["final_ids"] = out.final_ids.clone()
        return self._obs, out.reward.clone(), (out.terminated | out.truncated).long(), extras

    def _grouped(self, obs: Mapping[str, Tensor], rows: int) -> TensorDict:
        groups = {group: flat(obs, keys) for group, keys in self._vectors.items()}
        groups |= {key: obs[key].permute(0, 3, 1, 2).float() / 255 for key in self._pictures}
        return TensorDict(groups, batch_size=[rows], device=self.device)

    def close(self) -> None:
        """Close the sim."""
        self.sim.close()


def _limit(sim: VecSim, given: int | None) -> int:
    if given is not None:
        check_at_least("max_episode_length", given, 1)
        return given
    known = sim.limit_steps if isinstance(sim, HasTimeLimit) else None
    if known is None:
        raise ConfigError("max_episode_length is None, and this sim states no time limit: expected a number of steps")
    return known
