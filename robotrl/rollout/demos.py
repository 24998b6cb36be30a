"""Records demonstrations of a sim's scripted expert as a dataset.

It stands here and not in `robotrl.datasets` because it steps a sim.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import robotrl
from robotrl.datasets.writer import DatasetWriter, PictureStorage
from robotrl.errors import CapabilityError, ConfigError, DataError, check_at_least, out_of_range
from robotrl.fn.stats import Interval, wilson
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import Episode, ExpertActor, run_episodes
from robotrl.spec import INSTRUCTION, HasExpert, HasInstructions, HasStateIds, VecSim
from robotrl.utils.progress import track

TRIES = 20
"""Starts tried per requested episode, after which the expert counts as unable."""


class DemoReport(NamedTuple):
    """Result of `collect_demos`."""

    path: Path
    episodes: int
    frames: int
    tried: int
    """Number of starts that were run, up to the one of the last kept episode."""
    success: Interval
    """The expert's success rate over these starts."""
    modes: dict[str, int]
    """Number of recorded episodes of each expert mode."""


def collect_demos(
    sim_name: str,
    out: Path | str,
    *,
    episodes: int,
    noise: float = 0.0,
    clumsiness: float = 0.0,
    mode: str | None = None,
    seed: int = 0,
    num_envs: int = 64,
    keep: Literal["success", "all"] = "success",
    task: str | None = None,
    pictures: PictureStorage = "numbers",
    sim_options: Mapping[str, Any] | None = None,
) -> DemoReport:
    """Record `episodes` demonstrations.

    A fixed list of training starts is drawn from `seed`; each is run to its end, and the first ones of the list that
    qualify are kept. Keeping the episodes that finish first in parallel envs would favor short episodes.

    Args:
        sim_name: a row of `robotrl list sims`.
        out: the dataset's directory; absent or empty.
        episodes: how many to record, 1 or more.
        noise: noise on each of the expert's actions; see the sim's page for its scale.
        clumsiness: scale of expert errors drawn once per episode, 0 to 1.
        mode: one of the expert's modes; None draws one for each episode.
        seed: seed of the starts, the sim and the expert.
        num_envs: number of parallel envs.
        keep: "success" records successes only, "all" failures too.
        task: task text; by default the episode's instruction (`HasInstructions`), or the sim's name.
        pictures: storage of image observations; see `DatasetWriter`.
        sim_options: keyword arguments of the sim's `make`.

    Raises:
        ConfigError: an argument is unknown or out of range, or `out` is not empty.
        CapabilityError: the sim has no expert or no numbered starts.
        DataError: the expert succeeds too rarely, or the disk is full; no dataset is left.
        NumericsError: the sim or the expert gave a number that is not finite.
    """
    for name, value in (("episodes", episodes), ("num_envs", num_envs)):
        check_at_least(name, value, 1)
    if keep not in ("success", "all"):
        raise out_of_range("keep", keep, "'success' or 'all'")
    sim: VecSim = make_sim(sim_name, num_envs=min(num_envs, episodes), seed=seed, **dict(sim_options or {}))
    try:
        if not isinstance(sim, HasExpert) or not isinstance(sim, HasStateIds):
            missing = "HasStateIds" if isinstance(sim, HasExpert) else "HasExpert"
            raise CapabilityError(f"sim {sim_name!r} lacks {missing}: cannot record demonstrations")
        actor = ExpertActor(sim.make_expert(noise=noise, clumsiness=clumsiness, mode=mode, seed=seed))
        provenance = {
            "sim": sim_name,
            "sim_options": dict(sim_options or {}),
            "expert": {"noise": noise, "clumsiness": clumsiness, "mode": mode},
            "seed": seed,
            "num_envs": sim.num_envs,
            "keep": keep,
            "robotrl": robotrl.__version__,
        }
        with DatasetWriter(
            out,
            fps=_whole_rate(sim.control_dt_s),
            observation_spec=sim.observation_spec,
            action_spec=sim.action_spec,
            robot_type=sim_name,
            provenance=provenance,
            pictures=pictures,
        ) as writer:
            starts = sim.state_ids("train")
            ids = random.Random(seed).sample(starts, min(len(starts), TRIES * episodes))
            tried, kept = _run(actor, sim, ids, episodes, keep)
            name = sim_name.split("/")[-1].replace("-", " ")
            with track(len(kept), "writing", "episodes") as bar:
                for episode in kept:
                    writer.add_episode(
                        {key: value[:-1] for key, value in episode.obs.items()},
                        episode.actions,
                        episode.rewards,
                        success=episode.success,
                        truncated=not episode.terminated,
                        task=task or _told(sim, episode) or name,
                        extra={"state_id": episode.state_id, "mode": actor.expert.modes[episode.mode]},
                    )
                    bar.advance()
            path = writer.finish()
    finally:
        sim.close()
    return DemoReport(
        path=path,
        episodes=len(kept),
        frames=sum(episode.length for episode in kept),
        tried=len(tried),
        success=wilson(sum(tried), len(tried)),
        modes=dict(Counter(actor.expert.modes[episode.mode] for episode in kept)),
    )


def _run(actor: ExpertActor, sim: VecSim, ids: list[int], episodes: int, keep: str) -> tuple[list[bool], list[Episode]]:
    """Run the listed starts in order until `episodes` are kept; returns success per start, and the kept ones."""
    tried: list[bool] = []
    kept: list[Episode] = []
    while len(kept) < episodes:
        # whole rounds of all envs; surplus episodes are dropped by their place in the list, not by their end
        count = math.ceil((episodes - len(kept)) / sim.num_envs) * sim.num_envs
        block = ids[len(tried) : len(tried) + count]
        if not block:
            raise DataError(
                f"the expert solved {sum(tried)} of {len(tried)} starts: expected {episodes} successes; "
                "lower noise or clumsiness, or keep='all'"
            )
        for episode in run_episodes(actor, sim, block, record=True, description="demonstrations"):
            if len(kept) < episodes:
                tried.append(episode.success)
                if episode.success or keep == "all":
                    kept.append(episode)
    return tried, kept


def _told(sim: VecSim, episode: Episode) -> str:
    """Instruction of an episode as text; "" if the sim has none.

    It is read from the recorded observation: after an episode's end the env already has the next instruction.
    """
    if not isinstance(sim, HasInstructions):
        return ""
    return " ".join(sim.vocabulary[int(number)] for number in episode.obs[INSTRUCTION][0] if number)


def _whole_rate(control_dt_s: float | None) -> int:
    if control_dt_s is None:
        raise ConfigError("control_dt_s is not stated by the sim: expected its option control_dt_s, in seconds")
    rate_hz = round(1.0 / control_dt_s)
    if rate_hz < 1 or abs(1.0 / control_dt_s - rate_hz) > 1e-6:
        raise ConfigError(
            f"control_dt_s is {control_dt_s}: expected 1 / a whole number of Hz, as the dataset format has it"
        )
    return rate_hz
