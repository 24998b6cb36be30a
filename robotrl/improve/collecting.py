"""Episodes of a policy in its own sim, where a robot has to be reset by nobody."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from robotrl.errors import CapabilityError, ConfigError
from robotrl.improve.logged import LogBook, OwnEpisode
from robotrl.improve.target import Target
from robotrl.registry import make_sim
from robotrl.rollout.compatibility import check_fit
from robotrl.rollout.demos import instruction_of
from robotrl.rollout.evaluate import Episode, actor_for, run_episodes, run_labeled_episodes
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasStateIds, VecSim, why_lacking


def collect(policy_path: Path, target: Target, count: int, seed: int, num_envs: int) -> LogBook:
    """Run a policy on training starts drawn from the seed, and keep all episodes.

    It acts by samples: a policy that repeats itself tells a critic nothing about other actions. In log-only mode nobody
    draws the starts, and success is what was told.

    Args:
        policy_path: run or checkpoint of the policy.
        target: the policy that is improved, with its sim.
        count: number of episodes.
        seed: draws the starts and the policy's noise.
        num_envs: number of parallel envs.

    Raises:
        CapabilityError: the sim has no numbered starts.
        ConfigError: it has fewer training starts than episodes are wanted, or the policy is not for it.
    """
    options = dict(target.options)
    if target.log_only is not None:
        # the budget of this collection; that of all rounds is checked before the first
        options["log_only"] = {**target.log_only, "episodes": count}
    vec: VecSim = make_sim(target.sim, num_envs=min(num_envs, count), seed=seed, **options)
    try:
        policy = load_policy(policy_path)
        check_fit(policy, vec)
        if target.log_only is not None:
            actor = actor_for(policy, vec, "sample", seed)
            found = run_labeled_episodes(actor, vec, count, record=True, description="own episodes")
            return LogBook(tuple(_own(episode, target, vec, seed) for episode in found))
        if not isinstance(vec, HasStateIds):
            why = why_lacking(vec, "HasStateIds")
            raise CapabilityError(f"sim {target.sim!r} lacks HasStateIds: cannot collect episodes{why}")
        starts = vec.state_ids("train")
        if len(starts) < count:
            raise ConfigError(f"--collect-episodes is {count}: expected at most {len(starts)}, the training starts")
        ids = random.Random(seed).sample(starts, count)
        actor = actor_for(policy, vec, "sample", seed)
        found = run_episodes(actor, vec, ids, record=True, description="own episodes")
        return LogBook(tuple(_own(episode, target, vec, seed) for episode in found))
    finally:
        vec.close()


def _own(episode: Episode, target: Target, vec: VecSim, seed: int) -> OwnEpisode:
    return OwnEpisode(
        {key: episode.obs[key][:-1] for key in target.observation_spec},
        episode.actions,
        episode.success,
        not episode.terminated,
        np.zeros(episode.length, np.bool_),
        episode.state_id,
        target.sim,
        instruction_of(vec, episode),
        f"collected by seed {seed}, start {episode.state_id}",
    )
