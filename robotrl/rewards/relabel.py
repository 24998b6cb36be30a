"""Wrapper that replaces a sim's reward by the weighted sum of reward sources.

It has the capabilities of the wrapped sim, and no others. Success stays the sim's own (`info["success"]`), so that
curves and evaluations show whether the task was solved, not what a source says; the sim's own reward is kept as
`info["sim_reward"]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from robotrl.config import WeightedReward
from robotrl.errors import CapabilityError
from robotrl.rewards.means import RewardMeans
from robotrl.rewards.source import ReachedObs, RewardSetup, Score, SimTransition
from robotrl.rewards.weighted import NamedSource, WeightedRewards
from robotrl.sims.wrapper import State, WrappedSim, declared
from robotrl.spec import TO_THE_LIMIT, Arrays, HasFinalObs, HasRestart, HasSuccessHold, Step, VecSim
from robotrl.spec.late_rewards import MISSING, LateRewards


class RewardedSim(WrappedSim):
    """A sim with the reward of one or more sources; made by `with_rewards`.

    Steps keep all numbers in the sim's `info`, and add these, (N,) each: `sim_reward`, and for each source
    `reward/NAME`, `reward_valid/NAME`, `reward_age/NAME` (see `WeightedRewards.score`).
    """

    prefix = "reward/"

    def __init__(self, sim: Any, rewards: WeightedRewards, means: RewardMeans | None) -> None:
        super().__init__(sim)
        self.rewards = rewards
        self._means = means
        self._obs: Arrays = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see the sim's own `reset`."""
        obs = self.sim.reset(seed=seed, options=options)
        self.rewards.forget(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        return self.present(obs)

    def step(self, actions: Tensor) -> Step:
        """Step the sim, and score the step."""
        step: Step = self.sim.step(actions)
        transition = SimTransition(self._obs, actions, ReachedObs(step), step)
        scores, restarted = dict[str, Score](), step.final_ids[:0]
        if self.rewards.may_end:
            scores, seen = self.rewards.detected(transition)
            restarted = torch.nonzero(seen & ~step.terminated & ~step.truncated).squeeze(1)
            step = ended_by(step, transition.reached, seen)
        elif not self.rewards.sees_success:
            step = cut_at_success(step)
        transition = transition._replace(step=step)
        reward, terms = self.rewards.score(transition, scores)
        info = {**step.info, "sim_reward": step.reward, **terms}
        if self.rewards.may_be_late:
            info[MISSING] = self.rewards.missing(terms)
        if self._means is not None:
            self._means.add(terms)
        if len(restarted):
            # copied first, because a restart overwrites the sim's buffers
            info = {key: value.clone() for key, value in info.items()}
            reward = reward.clone()
            step = step._replace(obs=self.sim.restart(restarted))
        self.rewards.forget(step.terminated | step.truncated)
        self.present(step.obs)
        return step._replace(reward=reward, info=info)

    def close(self) -> None:
        """Close the sim, and the sources that score elsewhere."""
        self.rewards.close()
        if self._means is not None:
            self._means.watched = dict
        super().close()

    def own_state(self) -> State:
        """State of the sources, with hashes that identify them."""
        return self.rewards.state()

    def load_own(self, state: State) -> None:
        """Restore the result of `own_state`.

        Raises:
            DataError: it was saved with other reward sources.
        """
        self.rewards.load(state)

    def on_restarted(self, envs: Tensor) -> None:
        """Reset the sources' state of restarted envs, too."""
        over = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        over[envs] = True
        self.rewards.forget(over)

    def present(self, obs: Arrays) -> Arrays:
        """Keep the observations from which the next step starts."""
        if not self.buffers_are_reused:
            self._obs = obs
            return obs
        # pictures are large, and copied only for a source that looks at them
        self._obs = {key: x.clone() for key, x in obs.items() if self.rewards.reads_before(key)}
        return obs


class LateRewardedSim(RewardedSim):
    """A `RewardedSim` with sources whose scores may come later than their steps."""

    def late_rewards(self, wait: bool) -> LateRewards:
        """See `HasLateRewards`."""
        found, terms = self.rewards.late(wait, 0 if self._means is None else self._means.steps)
        if self._means is not None:
            self._means.add_late(terms, self.num_envs)
        return LateRewards(*(x.to(self.device) for x in found))

    def lost_late_rewards(self, count: int) -> None:
        """See `HasLateRewards`."""
        if self._means is not None:
            self._means.lost += count


def cut_at_success(step: Step) -> Step:
    """Step whose episodes count as truncated, and are bootstrapped, where the sim ended them at a success."""
    succeeded = step.terminated & step.info["success"]
    return step._replace(terminated=step.terminated & ~succeeded, truncated=step.truncated | succeeded)


def ended_by(step: Step, reached: Mapping[str, Tensor], seen: Tensor) -> Step:
    """Step with the ends of episodes that reward sources detect; its observations are still the sim's.

    An episode that the sim ended at a success that no source sees counts as truncated: without the sim's knowledge it
    would have continued, so its next value is bootstrapped.

    Args:
        step: the sim's step.
        reached: observations that it reached.
        seen: (N,) bool, envs whose episodes the sources end.
    """
    unseen = step.terminated & step.info["success"] & ~seen
    terminated = (step.terminated & ~unseen) | seen
    truncated = (step.truncated & ~seen) | unseen
    ids = torch.nonzero(terminated | truncated).squeeze(1)
    return step._replace(
        terminated=terminated, truncated=truncated, final_obs={k: x[ids] for k, x in reached.items()}, final_ids=ids
    )


def with_rewards(
    sim: VecSim,
    rewards: Sequence[WeightedReward],
    setup: RewardSetup | None = None,
    means: RewardMeans | None = None,
) -> RewardedSim:
    """Replace the reward of a sim by the weighted sum of reward sources.

    Args:
        sim: the sim.
        rewards: the sources, 1 or more.
        setup: what the sources are told about the run; None is a run without discount.
        means: collects the means of each source's contribution, for a log.

    Raises:
        CapabilityError: the sim does not give the last observation of an episode, or lacks what a source needs; or a
            source ends episodes, and the sim cannot restart single envs.
        ConfigError: a source refuses its settings.
    """
    name = type(sim).__name__
    if not isinstance(sim, HasFinalObs):
        raise CapabilityError(
            f"sim {name} lacks HasFinalObs: a reward source would not see the observation that ends an episode"
        )
    known = RewardSetup() if setup is None else setup
    built = WeightedRewards([NamedSource(one.name, one.weight, one.cfg.build(sim, known)) for one in rewards])
    if built.may_end and not isinstance(sim, HasRestart):
        raise CapabilityError(f"sim {name} lacks HasRestart: a reward source cannot end its episodes")
    if means is not None:
        means.watched = built.metrics
    return declared(LateRewardedSim if built.may_be_late else RewardedSim, sim)(sim, built, means)


def going_on_after_success(sim: RewardedSim) -> RewardedSim:
    """Have a sim that is learned from go on to the time limit after a success that no source sees, where it can.

    The value of a solved scene is learned from the steps after it: no step begins where an episode ends.

    Args:
        sim: the sim with its rewards; reset it afterwards.
    """
    if not sim.rewards.sees_success and isinstance(sim, HasSuccessHold):
        sim.success_hold_steps = TO_THE_LIMIT
    return sim
