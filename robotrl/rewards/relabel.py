"""Wrapper that replaces a sim's reward by that of a reward source.

It has the capabilities of the wrapped sim, and no others. Success stays the sim's own (`info["success"]`), so that
curves and evaluations show whether the task was solved, not what the source says; the sim's own reward is kept as
`info["sim_reward"]`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, DataError
from robotrl.rewards.source import RewardSource, contribution
from robotrl.rollout.wrapper import State, WrappedSim, declared
from robotrl.spec import HasFinalObs, HasRestart, Step, VecSim

IDENTITY = "identity"


class RewardedSim(WrappedSim):
    """A sim with the reward of a source; made by `with_reward`.

    Steps keep all numbers in the sim's `info`, and add these, (N,) each: `sim_reward`, `reward_valid`, `reward_age`.
    """

    prefix = "reward/"

    def __init__(self, sim: Any, source: RewardSource, end_at: float | None) -> None:
        super().__init__(sim)
        self.source = source
        self.end_at = end_at

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see the sim's own `reset`."""
        self.source.forget(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        return self.sim.reset(seed=seed, options=options)

    def step(self, actions: Tensor) -> Step:
        """Step the sim, and score the observations that were reached."""
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
        """End episodes by the source's scores; returns the changed step, and the envs (N,) whose episodes ended.

        An episode that the sim ended at a success that the source does not see counts as truncated: without the sim's
        knowledge it would have continued, so its next value is bootstrapped.
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
            # copied first, because a restart overwrites the sim's buffers
            info = {key: value.clone() for key, value in step.info.items()}
            step = step._replace(reward=step.reward.clone(), info=info, obs=self.sim.restart(early))
        return step, ended

    def own_state(self) -> State:
        """State of the source, with a hash that identifies it."""
        return {**self.source.state(), IDENTITY: _digest(self.source)}

    def load_own(self, state: State) -> None:
        """Restore the result of `own_state`.

        Raises:
            DataError: it was saved with another reward source.
        """
        stored = state.get(IDENTITY)
        if stored is None or not np.array_equal(stored, _digest(self.source)):
            raise DataError(
                "the saved state was made with another reward source than the present one: expected the same weights,"
                " threshold and settings"
            )
        self.source.load({key: value for key, value in state.items() if key != IDENTITY})

    def on_restart(self, envs: Tensor) -> None:
        """Reset the source's state of restarted envs, too."""
        over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        over[envs] = True
        self.source.forget(over)


def with_reward(sim: VecSim, source: RewardSource, end_at: float | None = None) -> RewardedSim:
    """Replace the reward of a sim by a source's.

    Args:
        sim: the sim.
        source: reward source; an invalid score gives the source's fallback.
        end_at: an episode ends, as at a success, when a valid score reaches this; the env is restarted. None leaves all
            ends to the sim.

    Raises:
        CapabilityError: the sim does not give the last observation of an episode, or `end_at` is given and it cannot
            restart single envs.
    """
    name = type(sim).__name__
    if not isinstance(sim, HasFinalObs):
        raise CapabilityError(
            f"sim {name} lacks HasFinalObs: a reward source would not see the observation that ends an episode"
        )
    if end_at is not None and not isinstance(sim, HasRestart):
        raise CapabilityError(f"sim {name} lacks HasRestart: a reward source cannot end its episodes (end_at)")
    return declared(RewardedSim, sim)(sim, source, end_at)


def _digest(source: RewardSource) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(source.identity.encode()).digest(), np.uint8).copy()
