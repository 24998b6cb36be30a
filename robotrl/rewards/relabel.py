"""A sim whose reward is a source's: a wrapper that collectors and learners take for the sim itself.

It has the capabilities of the sim that it wraps, and no others. What is a success stays the sim's word
(`info["success"]`), so that curves and evaluations show whether the task was solved, and not whether the source thinks
so; the sim's own reward goes on as `info["sim_reward"]`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, DataError
from robotrl.rewards.source import RewardSource, contribution
from robotrl.spec import (
    Expert,
    HasCamera,
    HasDistance,
    HasExpert,
    HasFinalObs,
    HasParams,
    HasPrivileged,
    HasRestart,
    HasState,
    HasStateIds,
    Spec,
    Split,
    Step,
    VecSim,
)

if TYPE_CHECKING:
    import gymnasium

PREFIX, IDENTITY = "reward/", "reward/identity"


class RewardedSim:
    """A sim with the reward of a source; made by `with_reward`.

    Of the numbers in `info` that a step of the sim gives all are kept, and these are added, (N,) each: `sim_reward`,
    `reward_valid`, `reward_age`.
    """

    def __init__(self, sim: Any, source: RewardSource, end_at: float | None) -> None:
        self.sim = sim
        self.source = source
        self.end_at = end_at
        self.num_envs: int = sim.num_envs
        self.control_dt_s: float = sim.control_dt_s
        self.device: torch.device = sim.device
        self.observation_spec: dict[str, Spec] = sim.observation_spec
        self.action_spec: Spec = sim.action_spec
        self.buffers_are_reused: bool = sim.buffers_are_reused

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see the sim's own `reset`."""
        self.source.forget(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        return self.sim.reset(seed=seed, options=options)

    def step(self, actions: Tensor) -> Step:
        """Advance the sim, and score what was reached."""
        step: Step = self.sim.step(actions)
        ended = step.terminated | step.truncated
        reached = dict(step.obs)
        if len(step.final_ids):
            for key, final in step.final_obs.items():
                reached[key] = reached[key].clone()
                reached[key][step.final_ids] = final
        score = self.source.score(reached)
        if self.end_at is not None:
            step, ended = self._end(step, reached, score.valid & (score.value >= self.end_at))
        self.source.forget(ended)
        info = {**step.info, "sim_reward": step.reward, "reward_valid": score.valid, "reward_age": score.age}
        return step._replace(reward=contribution(score, self.source.fallback), info=info)

    def _end(self, step: Step, reached: dict[str, Tensor], seen: Tensor) -> tuple[Step, Tensor]:
        """Let the source say which episodes are done; the step that says so, and which episodes ended.

        An episode that the sim ended at a success that the source does not see counts as cut off: without the sim's
        knowledge it would have gone on, and what follows it is worth something.
        """
        unseen = step.terminated & step.info["success"] & ~seen
        terminated = (step.terminated & ~unseen) | seen
        truncated = (step.truncated & ~seen) | unseen
        early = torch.nonzero(seen & ~step.terminated & ~step.truncated).squeeze(1)
        ended = terminated | truncated
        ids = torch.nonzero(ended).squeeze(1)
        step = step._replace(
            terminated=terminated, truncated=truncated, final_obs={k: x[ids] for k, x in reached.items()}, final_ids=ids
        )
        if len(early):
            # copied first, because a restart overwrites what the sim lent
            info = {key: value.clone() for key, value in step.info.items()}
            step = step._replace(reward=step.reward.clone(), info=info, obs=self.sim.restart(early))
        return step, ended

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The same sim as a numpy `gymnasium.vector.VectorEnv`."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """Free what the sim holds."""
        self.sim.close()


def with_reward(sim: VecSim, source: RewardSource, end_at: float | None = None) -> RewardedSim:
    """Replace the reward of a sim by a source's.

    Args:
        sim: the sim.
        source: of scores; an invalid one contributes the source's fallback.
        end_at: an episode ends, as a success does, where a valid score reaches this; such an env is restarted. None
            leaves all ends to the sim.

    Raises:
        CapabilityError: the sim does not show the last observation of an episode, which is the one that matters; or
            `end_at` is given and it cannot restart single envs.
    """
    name = type(sim).__name__
    if not isinstance(sim, HasFinalObs):
        raise CapabilityError(
            f"sim {name} lacks HasFinalObs: a reward source would not see the observation that ends an episode"
        )
    if end_at is not None and not isinstance(sim, HasRestart):
        raise CapabilityError(f"sim {name} lacks HasRestart: a reward source cannot end its episodes (end_at)")
    parts = tuple(part for capability, part in _PARTS.items() if isinstance(sim, capability))
    # built for this sim, so that the wrapper declares what the sim can do, and nothing else
    return type("RewardedSim", (*parts, RewardedSim), {})(sim, source, end_at)


class _FinalObs(RewardedSim):
    has_final_obs: Literal[True] = True


class _State(RewardedSim):
    def get_state(self) -> dict[str, NDArray[Any]]:
        """The sim's state and the source's, with a digest of the source."""
        own = {PREFIX + key: value for key, value in self.source.state().items()}
        return {**self.sim.get_state(), **own, IDENTITY: _digest(self.source)}

    def set_state(self, state: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Restore what `get_state` returned.

        Raises:
            DataError: it was made with another reward source.
        """
        stored = state.get(IDENTITY)
        if stored is None or not np.array_equal(stored, _digest(self.source)):
            raise DataError(
                "the saved state was made with another reward source than the present one: expected the same weights,"
                " threshold and settings"
            )
        own = {key: value for key, value in state.items() if key.startswith(PREFIX) and key != IDENTITY}
        self.source.load({key.removeprefix(PREFIX): value for key, value in own.items()})
        return self.sim.set_state({key: value for key, value in state.items() if not key.startswith(PREFIX)})


class _StateIds(RewardedSim):
    def state_ids(self, split: Split) -> range:
        """The ids of a split."""
        return self.sim.state_ids(split)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Ids that the next resets draw from."""
        self.sim.queue_states(ids)


class _Camera(RewardedSim):
    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of views."""
        return self.sim.cameras

    def render(self, ids: Sequence[int], camera: str, width: int, height: int, **options: Any) -> NDArray[np.uint8]:
        """(n, height, width, 3) uint8 pictures; the options are the sim's."""
        return self.sim.render(ids, camera, width, height, **options)


class _Params(RewardedSim):
    @property
    def params(self) -> tuple[str, ...]:
        """Names with units."""
        return self.sim.params

    def get_params(self) -> dict[str, NDArray[Any]]:
        """(N,) each."""
        return self.sim.get_params()

    def set_params(self, ids: Sequence[int] | NDArray[np.int64], values: dict[str, NDArray[Any]]) -> None:
        """Set parameters of the envs `ids`."""
        self.sim.set_params(ids, values)


class _Privileged(RewardedSim):
    @property
    def privileged(self) -> tuple[str, ...]:
        """Keys of the observation that no policy is built on."""
        return self.sim.privileged


class _Expert(RewardedSim):
    def make_expert(
        self, noise: float = 0.0, clumsiness: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> Expert:
        """The sim's scripted expert."""
        return self.sim.make_expert(noise=noise, clumsiness=clumsiness, mode=mode, seed=seed)


class _Distance(RewardedSim):
    def distance(self) -> Tensor:
        """(N,) how far each env is from success."""
        return self.sim.distance()


class _Restart(RewardedSim):
    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in some envs."""
        over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        over[envs] = True
        self.source.forget(over)
        return self.sim.restart(envs)


_PARTS: dict[type[Any], type[RewardedSim]] = {
    HasFinalObs: _FinalObs,
    HasState: _State,
    HasStateIds: _StateIds,
    HasCamera: _Camera,
    HasParams: _Params,
    HasPrivileged: _Privileged,
    HasExpert: _Expert,
    HasRestart: _Restart,
    HasDistance: _Distance,
}


def _digest(source: RewardSource) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(source.identity.encode()).digest(), np.uint8).copy()
