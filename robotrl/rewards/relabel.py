"""A sim whose reward is a source's: a wrapper that collectors and learners take for the sim itself.

It has the capabilities of the sim that it wraps, and no others. What is a success stays the sim's word
(`info["success"]`), so that curves and evaluations show whether the task was solved, and not whether the source thinks
so; the sim's own reward goes on as `info["sim_reward"]`.
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

    Of the numbers in `info` that a step of the sim gives all are kept, and these are added, (N,) each: `sim_reward`,
    `reward_valid`, `reward_age`.
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

    def own_state(self) -> State:
        """The source's state, with a digest of the source."""
        return {**self.source.state(), IDENTITY: _digest(self.source)}

    def load_own(self, state: State) -> None:
        """Restore what `own_state` gave.

        Raises:
            DataError: it was made with another reward source.
        """
        stored = state.get(IDENTITY)
        if stored is None or not np.array_equal(stored, _digest(self.source)):
            raise DataError(
                "the saved state was made with another reward source than the present one: expected the same weights,"
                " threshold and settings"
            )
        self.source.load({key: value for key, value in state.items() if key != IDENTITY})

    def on_restart(self, envs: Tensor) -> None:
        """Begin these episodes anew in the source, too."""
        over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        over[envs] = True
        self.source.forget(over)


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
    return declared(RewardedSim, sim)(sim, source, end_at)


def _digest(source: RewardSource) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(source.identity.encode()).digest(), np.uint8).copy()
