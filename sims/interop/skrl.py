"""Adapter from `VecSim` to the environment wrapper of skrl, and a mix-in that gives agents last observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from skrl.envs.wrappers.torch import Wrapper
from skrl.utils.spaces.torch import flatten_tensorized_space, tensorize_space
from torch import Tensor

from robotrl.sims.interop.tensors import BoundedActions, EpisodeStatistics
from robotrl.sims.interop.views import space_of
from robotrl.spec import HasCamera, HasFinalObs, Spec, VecSim, privileged, visible

FINAL_OBS, FINAL_STATES, FINAL_IDS = "final_observations", "final_states", "final_ids"


class SkrlEnv(Wrapper):
    """skrl wrapper of a sim.

    A sim with one observation array has a `Box` space, a sim with several a `Dict` space; observations are flattened as
    skrl does it, so that a model reads its inputs with `unflatten_tensorized_space`. If the sim has privileged arrays,
    `state()` has all arrays, for the critic; else it is None. All tensors are copies.

    A sim resets in the step in which an episode ends, and what `step` returns is the first observation of the next
    episode. skrl's `time_limit_bootstrap`, and the targets of its off-policy agents, would take *its* value. The true
    last observations are in the info: "final_observations" (n, D), "final_states" (n, S) and "final_ids" (n,);
    `TrueLastObservations` makes an agent use them. In steps in which episodes ended, info["episode"] has their mean
    "Episode / success", "Episode / return" and "Episode / length", which skrl's trainers log.

    Actions are in the units of the sim's `action_spec` and are clipped to its bounds.

    Args:
        sim: the sim.
        seed: seed of its first reset.
    """

    def __init__(self, sim: VecSim, seed: int = 0) -> None:
        super().__init__(sim)
        self.sim = sim
        self._seed: int | None = seed
        self._policy = _Layout(visible(sim))
        self._critic = _Layout(sim.observation_spec) if privileged(sim) else None
        self._act_space = space_of(sim.action_spec)
        self._limited = BoundedActions(sim)
        self._statistics = EpisodeStatistics(sim)
        self._has_final = isinstance(sim, HasFinalObs)
        self._begun = torch.zeros(sim.num_envs, dtype=torch.bool, device=sim.device)
        self._observations: Tensor | None = None
        self._states: Tensor | None = None

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Space of one env's policy observation."""
        return self._policy.space

    @property
    def state_space(self) -> gym.Space[Any] | None:
        """Space of one env's critic observation; None without privileged arrays."""
        return None if self._critic is None else self._critic.space

    @property
    def action_space(self) -> gym.Space[Any]:
        """Space of one env's action."""
        return self._act_space

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        """Start new episodes in all envs; returns observations (N, D).

        If each env's episode has just begun by itself, these are the episodes that start: no start is skipped.
        """
        if self._observations is None or not bool(self._begun.all()):
            obs = self.sim.reset(seed=self._seed)
            self._seed = None
            self._statistics.restart()
            self._observations, self._states = self._flat(obs)
        self._begun.zero_()
        return self._observations, {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Advance all envs; returns observations (N, D), rewards, terminated, truncated, (N, 1) each, and the info."""
        out = self.sim.step(self._limited(actions))
        self._observations, self._states = self._flat(out.obs)
        torch.logical_or(out.terminated, out.truncated, out=self._begun)
        info: dict[str, Any] = {}
        if (ended := self._statistics.add(out)) is not None:
            info["episode"] = {
                "Episode / success": ended.success.mean(),
                "Episode / return": ended.returns.mean(),
                "Episode / length": ended.lengths.float().mean(),
            }
            if self._has_final:
                info[FINAL_OBS], info[FINAL_STATES] = self._flat(out.final_obs)
                info[FINAL_IDS] = out.final_ids.clone()
        # both flags at once mean failure: no bootstrap
        truncated = out.truncated & ~out.terminated
        return (
            self._observations,
            out.reward[:, None].clone(),
            out.terminated[:, None].clone(),
            truncated[:, None],
            info,
        )

    def _flat(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return self._policy.flat(obs), None if self._critic is None else self._critic.flat(obs)

    def state(self) -> Tensor | None:
        """Critic observations (N, S); None without privileged arrays."""
        return self._states

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Image (240, 320, 3) of the first env; None if the sim has no camera."""
        if not isinstance(self.sim, HasCamera):
            return None
        return self.sim.render([0], self.sim.cameras[0], 320, 240)[0]

    def close(self) -> None:
        """Close the sim."""
        self.sim.close()


class TrueLastObservations:
    """Mix-in for skrl agents: where an episode ended, the next observation is its last one, not the next one's first.

    `class LastPPO(TrueLastObservations, PPO): pass`, with `time_limit_bootstrap=True` for PPO and A2C, so that a
    truncated step bootstraps from the right value; off-policy agents store the right transition.
    """

    def record_transition(
        self, *, next_observations: Tensor, next_states: Tensor | None, infos: Any, **others: Any
    ) -> None:
        """Record a transition; see `skrl.agents.torch.Agent.record_transition`."""
        rows = infos.get(FINAL_IDS)
        if rows is not None:
            next_observations = next_observations.index_copy(0, rows, infos[FINAL_OBS])
            if next_states is not None:
                next_states = next_states.index_copy(0, rows, infos[FINAL_STATES])
        base: Any = super()
        base.record_transition(next_observations=next_observations, next_states=next_states, infos=infos, **others)


class _Layout:
    """Space of some arrays and their flattening, in skrl's order."""

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        self._spaces: dict[str, gym.Space[Any]] = {key: space_of(spec) for key, spec in specs.items()}
        self._only = next(iter(self._spaces)) if len(self._spaces) == 1 else None
        self.space: gym.Space[Any] = gym.spaces.Dict(self._spaces) if self._only is None else self._spaces[self._only]

    def flat(self, obs: Mapping[str, Tensor]) -> Tensor:
        """(B, D) float32 copy."""
        values: Any = {key: obs[key] for key in self._spaces} if self._only is None else obs[self._only]
        found: Any = flatten_tensorized_space(tensorize_space(self.space, values))
        return found.float().clone()
