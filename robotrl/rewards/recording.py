"""Episodes to label: an expert from deft to hopeless, a policy, and demonstrations that are run again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robotrl.datasets.agreement.agree import agree
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.errors import CapabilityError, out_of_range
from robotrl.registry import make_sim
from robotrl.rewards.labels import Labelled, join, label_dataset, label_episodes, replay
from robotrl.rollout.evaluate import Actor, Episode, ExpertActor, PolicyActor, run_episodes
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasExpert, HasStateIds, Spec, Split, VecSim, visible

EXPERTS = ((0.0, 0.0), (0.3, 1.0), (0.8, 1.0))
"""(noise, clumsiness): one that succeeds, one that often fails nearby, one that is all over the place."""


def record_rollouts(sim: VecSim, episodes: int, split: Split, seed: int, policy: Path | str | None) -> list[Episode]:
    """Record episodes from starts of a split: by a policy, by experts of several qualities, or half by each.

    Args:
        sim: with numbered starts.
        episodes: how many in all.
        split: of the starts; "train" to train on.
        seed: draws the starts, and seeds whoever acts.
        policy: a run or checkpoint, or None.

    Raises:
        CapabilityError: the sim has no numbered starts, or neither an expert nor a policy is there to act.
        ConfigError: `episodes` is out of range.
    """
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: cannot record episodes for a classifier")
    actors: list[Actor] = []
    if policy is not None:
        actors.append(PolicyActor(load_policy(policy), sim.num_envs, sim.device, "sample", seed))
    if isinstance(sim, HasExpert):
        experts = [
            ExpertActor(sim.make_expert(noise=noise, clumsiness=clumsiness, seed=seed + number))
            for number, (noise, clumsiness) in enumerate(EXPERTS)
        ]
        # as many episodes by the policy as by all experts together
        actors = [actor for expert in experts for actor in (*actors[:1], expert)]
    if not actors:
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasExpert, and no policy is given: nobody can act")
    starts = sim.state_ids(split)
    if not len(actors) <= episodes <= len(starts):
        raise out_of_range("episodes", episodes, f"{len(actors)} to {len(starts)}")
    ids = random.Random(seed).sample(starts, episodes)
    sim.reset(seed=seed)
    found: list[Episode] = []
    for number, actor in enumerate(actors):
        share = ids[number * episodes // len(actors) : (number + 1) * episodes // len(actors)]
        found += run_episodes(actor, sim, share, record=True, description="episodes to label")
    return found


def record_labelled(
    sim_name: str,
    *,
    options: Mapping[str, Any],
    episodes: int,
    split: Split = "train",
    seed: int = 0,
    policy: Path | str | None = None,
    datasets: Sequence[Path | str] = (),
    tail: int = 1,
    num_envs: int = 64,
    keys: Sequence[str] | None = None,
    accept_data: bool = False,
) -> tuple[Labelled, dict[str, Spec]]:
    """Record, replay and label: everything that `robotrl reward train` learns from.

    Args:
        sim_name: a row of `robotrl list sims`.
        options: keyword arguments of the sim's `make`.
        episodes: rollouts to record.
        split: of their starts.
        seed: of the sim and whoever acts.
        policy: see `record_rollouts`.
        datasets: demonstrations; those that this sim recorded are run again, others are taken by their `tail`.
        tail: see `label_dataset`.
        num_envs: envs that step at once.
        keys: observation arrays to keep; None takes all but the privileged ones.
        accept_data: whether doubts about the datasets are known to be unfounded; see `robotrl.datasets.agreement`.

    Returns:
        The labelled observations, and their specs.
    """
    sim: VecSim = make_sim(sim_name, num_envs=min(num_envs, episodes), seed=seed, **dict(options))
    try:
        specs = visible(sim)
        kept = list(specs) if keys is None else list(keys)
        parts = [label_episodes(record_rollouts(sim, episodes, split, seed, policy), kept)]
        for path in datasets:
            dataset = read_dataset(path)
            if _recorded_on(dataset, sim_name, options):
                dataset = agree(dataset, sim.observation_spec, sim.action_spec, sim.control_dt_s, accept=accept_data)
                parts.append(label_episodes(replay(dataset, sim), kept))
            else:
                # frames alone are looked at: they may come at any rate, and what was done is of no account
                shown = {key: sim.observation_spec[key] for key in kept}
                parts.append(label_dataset(agree(dataset, shown, None, None, accept=accept_data), kept, tail))
        return join(parts), {key: sim.observation_spec[key] for key in kept}
    finally:
        sim.close()


def _recorded_on(dataset: Dataset, sim_name: str, options: Mapping[str, Any]) -> bool:
    told = dataset.provenance
    return told.get("sim") == sim_name and told.get("sim_options") == dict(options)
