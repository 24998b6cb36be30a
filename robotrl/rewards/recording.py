"""Episodes for labelling: from scripted experts of several qualities, a policy, and replayed demonstrations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robotrl.datasets.agreement.agree import agree
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.errors import CapabilityError, out_of_range
from robotrl.registry import make_sim, sim_options
from robotrl.rewards.labels import Labeled, join, label_dataset, label_episodes, replay
from robotrl.rollout.evaluate import Actor, Episode, ExpertActor, PolicyActor, run_episodes
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasExpert, HasStateIds, Spec, Split, VecSim, visible

EXPERTS = ((0.0, 0.0), (0.3, 1.0), (0.8, 1.0))
"""Pairs (noise, episode_noise) of experts: one that succeeds, one that often fails near success, one that is
nearly random."""


def record_rollouts(sim: VecSim, episodes: int, split: Split, seed: int, policy: Path | str | None) -> list[Episode]:
    """Record episodes from start states of a split: by a policy, by experts of several qualities, or half by each.

    Args:
        sim: with numbered start states.
        episodes: total number of episodes.
        split: of the start states; "train" for training.
        seed: of the start states and the actors.
        policy: a run or checkpoint, or None.

    Raises:
        CapabilityError: the sim has no numbered start states, or there is neither an expert nor a policy.
        ConfigError: `episodes` is out of range.
    """
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: cannot record episodes for a classifier")
    actors: list[Actor] = []
    if policy is not None:
        actors.append(PolicyActor(load_policy(policy), sim.num_envs, sim.device, "sample", seed))
    if isinstance(sim, HasExpert):
        experts = [
            ExpertActor(sim.make_expert(noise, episode_noise, None, seed + number))
            for number, (noise, episode_noise) in enumerate(EXPERTS)
        ]
        # as many episodes from the policy as from all experts together
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


def record_labeled(
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
) -> tuple[Labeled, dict[str, Spec]]:
    """Record, replay and label episodes: the training data of `robotrl reward train`.

    Args:
        sim_name: a row of `robotrl list sims`.
        options: keyword arguments of the sim's `make`.
        episodes: rollouts to record.
        split: of their start states.
        seed: of the sim and the actors.
        policy: see `record_rollouts`.
        datasets: demonstrations; those recorded on this sim are replayed, others are labelled by their `tail`.
        tail: see `label_dataset`.
        num_envs: number of envs.
        keys: observation arrays to keep; None keeps all but the privileged ones.
        accept_data: whether doubtful properties of the datasets are accepted; see `robotrl.datasets.agreement`.

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
                # only the frames are used: their rate and the actions do not matter
                shown = {key: sim.observation_spec[key] for key in kept}
                parts.append(label_dataset(agree(dataset, shown, None, None, accept=accept_data), kept, tail))
        return join(parts), {key: sim.observation_spec[key] for key in kept}
    finally:
        sim.close()


def _recorded_on(dataset: Dataset, sim_name: str, options: Mapping[str, Any]) -> bool:
    provenance = dataset.provenance
    if provenance.get("sim") != sim_name:
        return False
    recorded: Any = provenance.get("sim_options")
    return isinstance(recorded, Mapping) and sim_options(sim_name, recorded) == sim_options(sim_name, options)
