"""Planted updates before `robotrl improve`: `python -m benchmarks.improve.planted NAME TASK SEED OUT`.

All updates of a cell are of one clone and its logs. A bad update learns from spoiled logs, or a hundred times too fast.
The logs have no starts, as those of a robot: so no outcome is told again by the sim, and only critic and gate stand
between a bad update and the policy. A sham round offers the policy of before with other noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.finetune.bench import TASKS
from benchmarks.improve.cell import ENVS
from benchmarks.improve.clones import Clone, cloned
from benchmarks.improve.plan import BAD, BAD_METHODS, EPISODES, PLANTED, SHAM
from benchmarks.improve.rounds import command_of
from benchmarks.kit.stages import have
from robotrl.errors import NumericsError, unknown
from robotrl.improve.collecting import collect
from robotrl.improve.dataset_logs import read_dataset_log
from robotrl.improve.gate import GateSettings, gate
from robotrl.improve.logged import OwnEpisode
from robotrl.improve.pieces import write_episodes
from robotrl.improve.rounds import ImproveSettings, improve
from robotrl.improve.target import Target, read_target
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy, policy_tree
from robotrl.utils.files import dump_json, read_json, replace_file

SCHEMA_VERSION = 1
RATE = 0.1
"""A hundred times the learning rate of either method."""
JITTER = 0.01
"""Deviation of the noise on a weight, as a fraction of the mean size of its tensor."""
FITS = {"pa-rl": {"algo.critic_updates": 1_500, "algo.updates": 2_000}, "successes": {"algo.updates": 2_000}}
"""Fits of planted updates: a quarter of a whole one, for there are fifteen in a cell."""
Spoil = Callable[[Sequence[OwnEpisode], np.random.Generator], list[OwnEpisode]]


class PlantedSizes(NamedTuple):
    """PlantedSizes of a cell."""

    episodes: int = EPISODES
    fits: Mapping[str, Mapping[str, Any]] = FITS
    bad: tuple[str, ...] = tuple(BAD)
    sham: Mapping[str, int] = SHAM
    most_starts: int | None = None
    """Most starts of a verdict; None for the default of `robotrl improve`."""


WHOLE = PlantedSizes()

# spoiled logs


def shuffled_outcomes(episodes: Sequence[OwnEpisode], rng: np.random.Generator) -> list[OwnEpisode]:
    """Each episode has the outcome of another one."""
    others = [bool(x) for x in rng.permutation([episode.success for episode in episodes])]
    return [one._replace(success=won, truncated=not won) for one, won in zip(episodes, others, strict=True)]


def exchanged_outcomes(episodes: Sequence[OwnEpisode], rng: np.random.Generator) -> list[OwnEpisode]:
    """Successes are told as failures, and failures as successes."""
    del rng
    return [one._replace(success=not one.success, truncated=one.success) for one in episodes]


def other_observations(episodes: Sequence[OwnEpisode], rng: np.random.Generator) -> list[OwnEpisode]:
    """Each step has the observations of another step, of any episode."""
    ends = np.cumsum([len(one.actions) for one in episodes])
    order = rng.permutation(ends[-1])
    found = {key: np.concatenate([one.obs[key] for one in episodes])[order] for key in episodes[0].obs}
    parts = {key: np.split(values, ends[:-1]) for key, values in found.items()}
    return [one._replace(obs={key: parts[key][i] for key in parts}) for i, one in enumerate(episodes)]


def other_actions(episodes: Sequence[OwnEpisode], rng: np.random.Generator) -> list[OwnEpisode]:
    """Each step has the action of another step, of any episode."""
    ends = np.cumsum([len(one.actions) for one in episodes])
    found = np.concatenate([one.actions for one in episodes])[rng.permutation(ends[-1])]
    return [one._replace(actions=x) for one, x in zip(episodes, np.split(found, ends[:-1]), strict=True)]


SPOILS: dict[str, Spoil] = {
    "outcomes": shuffled_outcomes,
    "sign": exchanged_outcomes,
    "observations": other_observations,
    "actions": other_actions,
}
"""By the names of `BAD`; the logs of the others are as they are."""


# tries


def main(name: str, task: str, seed: int, out: Path) -> None:
    """Run one cell in this process.

    Raises:
        ConfigError: name or task are unknown.
    """
    if name != PLANTED:
        raise unknown("cell", name, (PLANTED,))
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    replace_file(out / "result.json", dump_json(run_cell(cloned(TASKS[task], seed, out))))


def run_cell(clone: Clone, sizes: PlantedSizes = WHOLE) -> dict[str, Any]:
    """All planted updates of a clone, one after the other; those of a stopped cell are kept."""
    target = read_target(clone.run)
    logs = clone.out / "logs"

    def drive() -> None:
        book = collect(clone.run, target, sizes.episodes, clone.seed, min(ENVS, sizes.episodes))
        write_episodes(logs, [episode._replace(start=-1) for episode in book.episodes], target)

    have(logs, {"episodes": sizes.episodes}, clone.mark, drive)
    planted = Planted(clone, target, read_dataset_log(logs, target).episodes, sizes)
    tries = [planted.bad(kind, method) for kind in sizes.bad for method in BAD_METHODS]
    tries += [planted.sham(kind, number) for kind, count in sizes.sham.items() for number in range(count)]
    return {"base": float(planted.before.mean()), "episodes": sizes.episodes, "tries": tries}


class Planted:
    """Planted updates of one clone.

    Args:
        clone: the clone.
        target: the same, as `robotrl improve` reads it.
        episodes: its logged episodes.
        sizes: sizes of the cell.
    """

    def __init__(self, clone: Clone, target: Target, episodes: Sequence[OwnEpisode], sizes: PlantedSizes) -> None:
        self._clone, self._target, self._episodes, self._sizes = clone, target, episodes, sizes
        self.before = clone.success(clone.run)
        """(n,) success of the clone on the starts that judge."""

    def bad(self, kind: str, method: str) -> dict[str, Any]:
        """A bad update through `robotrl improve`."""
        settings = dict(self._sizes.fits[method]) | ({"algo.lr": RATE} if kind == "rate" else {})
        return self._kept(f"bad-{kind}-{method}", "bad", kind, method, lambda: self._improve(kind, method, settings, 0))

    def sham(self, kind: str, number: int) -> dict[str, Any]:
        """A round after which the policy is as good as before."""
        settings = {**self._sizes.fits["pa-rl"], "algo.candidates": 1}
        tries: dict[str, Callable[[], dict[str, Any]]] = {
            "own samples": lambda: self._improve(kind, "pa-rl", settings, number + 1),
            "other noise": lambda: self._moved(number),
        }
        return self._kept(f"sham-{kind.replace(' ', '-')}-{number}", "sham", kind, "", tries[kind])

    def _kept(self, name: str, side: str, kind: str, method: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Result of a try, which is made once."""
        place = self._clone.out / f"{name}.json"
        if not place.is_file():
            found = {"schema_version": SCHEMA_VERSION, "side": side, "kind": kind, "method": method, **make()}
            replace_file(place, dump_json(found))
        stored = read_json(place, "planted update", SCHEMA_VERSION)
        return {key: value for key, value in stored.items() if key != "schema_version"}

    def _improve(self, kind: str, method: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
        out = self._clone.out
        logs, name = out / f"logs-{kind.replace(' ', '-')}", f"try-{kind.replace(' ', '-')}-{method}-{seed}"
        spoil = SPOILS.get(kind, lambda episodes, rng: list(episodes))

        def write() -> None:
            episodes = spoil(self._episodes, np.random.default_rng(self._clone.seed))
            write_episodes(logs, episodes, self._target)

        have(logs, {"kind": kind, "episodes": len(self._episodes)}, self._clone.mark, write)
        given = ImproveSettings(
            policy=self._clone.run,
            out=out / name,
            logs=(logs,),
            method=method,
            settings=settings,
            starts=self._sizes.most_starts,
            seed=self._clone.seed + seed,
            num_envs=min(ENVS, self._sizes.episodes),
        )
        print(f"{command_of(given)} --logs {logs}", flush=True)
        try:
            state, _ = improve(given)
        except NumericsError as error:
            # a fit that blows up offers nothing
            return _result(False, False, f"the fit ended: {error}", None)
        if not state.rounds:
            return _result(False, False, "; ".join(fault["text"] for fault in state.faults), None)
        record = state.last
        gain = None if record.candidate is None else self._gain(Path(record.candidate))
        return _result(record.accepted, record.gate is not None, record.why, gain)

    def _moved(self, number: int) -> dict[str, Any]:
        """The policy with moved weights, before the gate alone."""
        run = self._clone.out / f"moved-{number}"
        if not (run / "config.json").is_file():
            moved(self._clone.run, run, self._clone.seed + number)
        settings = GateSettings(
            starts=self._sizes.most_starts, seed=self._clone.seed + number, num_envs=min(ENVS, self._sizes.episodes)
        )
        decision = gate(self._clone.run, run, self._target, settings, 1)
        return _result(decision.accepted, True, decision.why, self._gain(run))

    def _gain(self, candidate: Path) -> float:
        return float(self._clone.success(candidate).mean() - self.before.mean())


def moved(run: Path, out: Path, seed: int) -> None:
    """Write a run whose policy is that of another one, each weight moved at random by about a hundredth."""
    policy, generator = load_policy(run), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight += JITTER * weight.abs().mean() * noise
    with Run.create(out, Run.open(run).config, seed=seed, command=["benchmarks.improve.planted"]) as writer:
        writer.save({"policy": policy_tree(policy)}, step=1, score=0.0)


def _result(accepted: bool, at_gate: bool, why: str, gain: float | None) -> dict[str, Any]:
    return {"accepted": accepted, "at_gate": at_gate, "why": why, "gain": gain}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).resolve())
