"""Records demonstrations of a sim's scripted expert, or of one's own, as a dataset.

It stands here and not in `robotrl.datasets` because it steps a sim.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import robotrl
from robotrl.datasets.writer import DatasetWriter, PictureStorage
from robotrl.errors import CapabilityError, ConfigError, DataError, check_at_least, out_of_range, unknown
from robotrl.fn.stats import Interval, wilson
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import Actor, Episode, ExpertActor, run_episodes
from robotrl.rollout.intended import IntendedActor
from robotrl.rollout.own_expert import OwnExpert
from robotrl.spec import INSTRUCTION, HasExpert, HasInstructions, HasStateIds, VecSim, why_lacking
from robotrl.utils.progress import track

Labels = Literal["executed", "intended"]
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
    """Number of recorded episodes of each mode of a sim's expert; empty for one's own."""
    stopped: str = ""
    """Reason for which a person's recording ended early; empty if it did not."""


def collect_demos(
    sim_name: str,
    out: Path | str,
    *,
    episodes: int,
    noise: float = 0.0,
    episode_noise: float = 0.0,
    mode: str | None = None,
    expert: str | Callable[..., Any] | None = None,
    seed: int = 0,
    num_envs: int = 64,
    keep: Literal["success", "all"] = "success",
    labels: Labels = "executed",
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
        episode_noise: scale of expert errors drawn once per episode, 0 to 1.
        mode: one of the expert's modes; None draws one for each episode.
        expert: one's own expert, a function or class or its "MODULE:NAME", see `robotrl.rollout.own_expert`; None takes
            the sim's. `noise`, `episode_noise` and `mode` are settings of the sim's.
        seed: seed of the starts, the sim and the expert.
        num_envs: number of parallel envs.
        keep: "success" records successes only, "all" failures too.
        labels: "executed" records the actions that moved the sim, their noise included; "intended" the expert's own,
            before `noise`, which is then a fraction of half of each action's range (`robotrl.rollout.intended`).
        task: task text; by default the episode's instruction (`HasInstructions`), or the sim's name.
        pictures: storage of image observations; see `DatasetWriter`.
        sim_options: keyword arguments of the sim's `make`.

    Raises:
        ConfigError: an argument is unknown or out of range, or `out` is not empty.
        ConfigError: one's own expert cannot be imported, raised, or gave actions of another shape or out of bounds.
        CapabilityError: the sim has no expert or no numbered starts.
        DataError: the expert succeeds too rarely, or the disk is full; no dataset is left.
        NumericsError: the sim or the expert gave a number that is not finite.
    """
    for name, value in (("episodes", episodes), ("num_envs", num_envs)):
        check_at_least(name, value, 1)
    if keep not in ("success", "all"):
        raise out_of_range("keep", keep, "'success' or 'all'")
    if labels not in get_args(Labels):
        raise unknown("labels", str(labels), get_args(Labels))
    sim: VecSim = make_sim(sim_name, num_envs=min(num_envs, episodes), seed=seed, **dict(sim_options or {}))
    try:
        actor = _actor(sim_name, sim, expert, noise, episode_noise, mode, seed, labels)
        if not isinstance(sim, HasStateIds):
            raise CapabilityError(
                f"sim {sim_name!r} lacks HasStateIds: cannot record demonstrations{why_lacking(sim, 'HasStateIds')}"
            )
        settings = {"noise": noise, "episode_noise": episode_noise, "mode": mode, "labels": labels}
        provenance = {
            "sim": sim_name,
            "sim_options": dict(sim_options or {}),
            "expert": actor.provenance() if isinstance(actor, OwnExpert) else settings,
            "seed": seed,
            "num_envs": sim.num_envs,
            "keep": keep,
            "robotrl": robotrl.__version__,
        }
        with DatasetWriter(
            out,
            fps=integer_rate_hz(sim.control_dt_s),
            observation_spec=sim.observation_spec,
            action_spec=sim.action_spec,
            robot_type=sim_name,
            provenance=provenance,
            pictures=pictures,
        ) as writer:
            starts = sim.state_ids("train")
            ids = random.Random(seed).sample(starts, min(len(starts), TRIES * episodes))
            tried, kept = _run(actor, sim, ids, episodes, keep)
            modes = actor.expert.modes if isinstance(actor, ExpertActor) else ()
            name = plain_name(sim_name)
            with track(len(kept), "writing", "episodes") as bar:
                for episode in kept:
                    extra = {"mode": modes[episode.mode]} if modes else {}
                    add_recorded(writer, episode, task or instruction_of(sim, episode) or name, extra)
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
        modes=dict(Counter(modes[episode.mode] for episode in kept)) if modes else {},
    )


def _actor(
    sim_name: str,
    sim: VecSim,
    expert: str | Callable[..., Any] | None,
    noise: float,
    episode_noise: float,
    mode: str | None,
    seed: int,
    labels: Labels,
) -> ExpertActor | OwnExpert:
    """Actor of the sim's expert, or of one's own."""
    if expert is None:
        if not isinstance(sim, HasExpert):
            raise CapabilityError(
                f"sim {sim_name!r} lacks HasExpert: cannot record demonstrations; expected an expert of yours,"
                " --expert MODULE:FUNCTION"
            )
        if labels == "intended":
            return IntendedActor(sim.make_expert(0.0, episode_noise, mode, seed), sim.action_spec, noise, seed)
        return ExpertActor(sim.make_expert(noise, episode_noise, mode, seed))
    for field, value, none in (
        ("noise", noise, 0.0),
        ("episode_noise", episode_noise, 0.0),
        ("mode", mode, None),
        ("labels", labels, "executed"),
    ):
        if value != none:
            raise ConfigError(
                f"{field} is {value!r} and expert is {expert!r}: expected {none}, it is a setting of the sim's own"
                " expert; a class of yours may draw noise from its argument seed"
            )
    return OwnExpert(expert, sim, seed)


def _run(actor: Actor, sim: VecSim, ids: list[int], episodes: int, keep: str) -> tuple[list[bool], list[Episode]]:
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
                f"{_hint(actor)}keep='all'"
            )
        for episode in run_episodes(actor, sim, block, record=True, description="demonstrations"):
            if len(kept) < episodes:
                tried.append(episode.success)
                if episode.success or keep == "all":
                    kept.append(episode)
    return tried, kept


def _hint(actor: Actor) -> str:
    return "lower noise or episode_noise, or " if isinstance(actor, ExpertActor) else "expected a better expert, or "


def add_recorded(writer: DatasetWriter, episode: Episode, task: str, extra: Mapping[str, Any]) -> None:
    """Add an episode that was recorded in a sim to a dataset.

    Args:
        writer: writer of the dataset.
        episode: the episode, recorded.
        task: the task in words.
        extra: further columns of the episodes table; that of the start's number is always there.
    """
    writer.add_episode(
        {key: value[:-1] for key, value in episode.obs.items()},
        episode.actions,
        episode.rewards,
        success=episode.success,
        truncated=not episode.terminated,
        task=task,
        extra={"state_id": episode.state_id, **extra},
    )


def plain_name(sim_name: str) -> str:
    """Name of a sim as words, the task's text of a sim without instructions."""
    return sim_name.split("/")[-1].replace("-", " ")


def instruction_of(sim: VecSim, episode: Episode) -> str:
    """Instruction of an episode as text; "" if the sim has none.

    It is read from the recorded observation: after an episode's end the env already has the next instruction.
    """
    if not isinstance(sim, HasInstructions):
        return ""
    return " ".join(sim.vocabulary[int(number)] for number in episode.obs[INSTRUCTION][0] if number)


def integer_rate_hz(control_dt_s: float | None, otherwise: str = "its option control_dt_s, in seconds") -> int:
    """Control rate in Hz, a whole number as the dataset format has it.

    Args:
        control_dt_s: seconds between two actions; None if unknown.
        otherwise: what states an unknown one, for the error.

    Raises:
        ConfigError: the rate is unknown or no whole number.
    """
    if control_dt_s is None:
        raise ConfigError(f"control_dt_s is not stated by the sim: expected {otherwise}")
    rate_hz = round(1.0 / control_dt_s)
    if rate_hz < 1 or abs(1.0 / control_dt_s - rate_hz) > 1e-6:
        raise ConfigError(
            f"control_dt_s is {control_dt_s}: expected 1 / a whole number of Hz, as the dataset format has it"
        )
    return rate_hz
