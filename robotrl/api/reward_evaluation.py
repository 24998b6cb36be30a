"""Rewards against the ground truth of a sim, on held-out rollouts, before anything is trained on them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robotrl.api.evaluation import actor_of, refuse_dataset, sim_of
from robotrl.api.live import BareActor
from robotrl.api.reward_report import RewardEvaluation
from robotrl.api.viewing import starts_of
from robotrl.config import WeightedReward
from robotrl.errors import CapabilityError, ConfigError, check_at_least, unknown
from robotrl.registry import REWARDS, check_num_envs, make_sim
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.trust.metrics import JudgeCfg, by_scenario, measure
from robotrl.rewards.trust.recording import SUM, TASK, NamedActor, score_rollouts
from robotrl.rewards.trust.verdict import judge
from robotrl.rollout.evaluate import ExpertActor
from robotrl.spec import HasExpert, HasSuccessRule, HasTrace, Split, VecSim, shown_dt_s

MIXTURE = ((0.0, 0.0), (0.1, 0.5), (0.2, 0.5), (0.3, 1.0), (0.8, 1.0))
"""Pairs (noise, episode_noise) of the experts that act by default: from one that succeeds to one that is nearly random.
Those in the middle succeed at times, which tells a reward that knows who acts from one that knows how well."""


@dataclass(frozen=True)
class RewardEvalRequest:
    """Rewards to measure, and the rollouts to measure them on.

    Args:
        sim: name from `robotrl list sims`.
        rewards: reward sources; with several also their weighted sum is measured.
        options: options of the sim by name, which override those that the policy was trained with.
        policy: a run, checkpoint or bundle that acts.
        expert: the sim's expert acts, without noise.
        random: random actions.
        episodes: number of starts, the first of the split. Those that act share them; if nobody is named, the sim's
            expert acts with five levels of noise, and random actions, so that both good and bad behavior occur.
        split: split of the starts.
        seed: seed of the sim, of those that act, and of the intervals.
        num_envs: maximum number of parallel envs.
        gamma: discount per env step of the learner, which potential-based rewards depend on.
        judge: settings of the verdict.
    """

    sim: str
    rewards: Sequence[WeightedReward]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    policy: Path | None = None
    expert: bool = False
    random: bool = False
    episodes: int = 64
    split: Split = "test"
    seed: int = 0
    num_envs: int = 32
    gamma: float = 1.0
    judge: JudgeCfg = field(default_factory=JudgeCfg)

    def check(self) -> None:
        """Check the request.

        Raises:
            ConfigError: no reward, an unknown one, one named like a column of the result, or a number out of range.
        """
        if not self.rewards:
            raise ConfigError("missing: --reward NAME, one or more of `robotrl list rewards`")
        for one in self.rewards:
            REWARDS.check(one.name)
            if one.name in (SUM, TASK):
                raise ConfigError(f"reward {one.name!r} cannot be measured under this name: expected another")
        check_at_least("episodes", self.episodes, 1)
        check_at_least("seed", self.seed, 0)
        check_num_envs("num_envs", self.num_envs)
        self.judge.check()
        if self.policy is not None:
            refuse_dataset(self.policy)

    @property
    def sim_options(self) -> dict[str, Any]:
        """Options of the sim: those that the policy was trained with, if it was on this sim, and the given ones.

        Raises:
            DataError: nothing readable is at the path of the policy.
        """
        trained = {} if self.policy is None else sim_of(self.policy, self.sim)[1]
        return {**trained, **dict(self.options)}


def evaluate_reward(
    sim: str, reward: str | Sequence[WeightedReward], settings: Mapping[str, Any] | None = None, **request: Any
) -> RewardEvaluation:
    """Measure a reward against a sim's ground truth.

    Args:
        sim: name from `robotrl list sims`.
        reward: name from `robotrl list rewards`, or several sources with weights.
        settings: fields of the reward's config, if it is named.
        request: further fields of `RewardEvalRequest`.

    Raises:
        ConfigError: an unknown name, or a value out of range.
        CapabilityError: the sim lacks what the reward or the rollouts need.
        DataError: nothing readable is at the path of the policy, or of the reward's model.

    Example:
        >>> robotrl.evaluate_reward("mujoco/push", "progress", {"form": "raw"}, episodes=32).verdict.text
    """
    if isinstance(reward, str):
        make = REWARDS.load(REWARDS.check(reward))
        known = tuple(make.__dataclass_fields__)
        for name in settings or {}:
            if name not in known:
                raise unknown(f"reward.{reward}", name, known)
        reward = (WeightedReward(reward, 1.0, make(**dict(settings or {}))),)
    elif settings:
        raise ConfigError(f"settings is {dict(settings)!r}: expected none beside sources with settings of their own")
    return measure_rewards(RewardEvalRequest(sim, tuple(reward), **request))


def measure_rewards(request: RewardEvalRequest) -> RewardEvaluation:
    """Run the rollouts, and judge each reward.

    Raises:
        See `evaluate_reward`.
    """
    request.check()
    options, num_envs = request.sim_options, min(request.num_envs, request.episodes)
    with ExitStack() as stack:
        sim = stack.enter_context(closing(make_sim(request.sim, num_envs=num_envs, seed=request.seed, **options)))
        ids = starts_of(sim, request.sim, request.episodes, request.split)
        rewarded: Any = with_rewards(sim, request.rewards, RewardSetup(request.gamma))
        stack.callback(rewarded.rewards.close)
        actors = _actors(request, rewarded)
        episodes = score_rollouts(rewarded, actors, ids, request.seed)
        dt_s = shown_dt_s(sim)
        rule = sim.success_rule if isinstance(sim, HasSuccessRule) else None
        event = "collisions" if isinstance(sim, HasTrace) else "failures"
    names = [one.name for one in request.rewards]
    names += [SUM] if len(names) > 1 else []
    metrics = {name: measure(episodes, name, dt_s, request.judge, request.seed) for name in [*names, TASK]}
    unstated = None if rule is None or rule.stated else "the environment does not state what a success is"
    return RewardEvaluation(
        sim=request.sim,
        options=options,
        rewards=list(request.rewards),
        split=request.split,
        seed=request.seed,
        judge=request.judge,
        dt_s=dt_s,
        event=event,
        episodes=episodes,
        metrics=metrics,
        scenarios={name: by_scenario(episodes, name, dt_s, request.judge, request.seed) for name in names},
        verdicts={name: judge(metrics[name], request.judge, event, unstated) for name in names},
    )


def _actors(request: RewardEvalRequest, sim: VecSim) -> list[NamedActor]:
    """Those that act, in the order in which they share the starts.

    Raises:
        CapabilityError: the expert is asked for and the sim has none.
    """
    chosen = request.policy is not None or request.expert or request.random
    actors: list[NamedActor] = []
    if request.policy is not None:
        actors.append(NamedActor("policy", actor_of(request.policy, sim, request.seed)))
    if request.expert:
        if not isinstance(sim, HasExpert):
            raise CapabilityError(f"sim {request.sim!r} lacks HasExpert: expected --policy or --random")
        actors.append(expert_actor(sim, "expert", 0.0, 0.0, request.seed))
    elif not chosen and isinstance(sim, HasExpert):
        for number, (noise, episode_noise) in enumerate(MIXTURE):
            name = f"expert with noise {noise:g}" if noise else "expert"
            actors.append(expert_actor(sim, name, noise, episode_noise, request.seed + number))
    if not chosen and not isinstance(sim, HasExpert):
        warnings.warn(
            f"sim {request.sim!r} lacks HasExpert: only random actions are measured; expected --policy beside them",
            stacklevel=3,
        )
    if request.random or not chosen:
        actors.append(NamedActor("random", BareActor(sim.action_spec, sim.num_envs, "random", request.seed)))
    return actors


def expert_actor(sim: HasExpert, name: str, noise: float, episode_noise: float, seed: int) -> NamedActor:
    """The sim's expert with some noise."""
    return NamedActor(name, ExpertActor(sim.make_expert(noise, episode_noise, None, seed)))
