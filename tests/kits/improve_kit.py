"""Walks on a line for the tests of `robotrl improve`: policies, logged episodes and control logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robotrl.datasets.normalization import within_bounds
from robotrl.deploy.control.log import ControlLog, Tick, tick_record
from robotrl.improve.logged import OwnEpisode
from robotrl.improve.methods.base import FitSettings, FittedCandidate, HeldOutQuality
from robotrl.policies.gaussian import GaussianCfg
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec.sim_options import NOT_LOG_ONLY, UNPERTURBED, LogOnlyCfg, PerturbCfg
from robotrl.transforms import TransformGroup
from tests.kits import walk_sim

SIM = "test/walk"
BUNDLE_ID = "b" * 64
HEADER = {
    "bundle_id": BUNDLE_ID,
    "robot": f"sim:{SIM}",
    "seed": 0,
    "control_period_s": 0.1,
    "observations": {"walk": ["pos_x_w", "time"]},
    "observation_units": {"walk": ["m", "step"]},
    "action": ["step_x_w"],
    "action_units": ["m"],
    "action_kind": "delta",
    "low": [-1.0],
    "high": [1.0],
}


@dataclass(frozen=True)
class WalkOptions:
    """Options of the walk with those that every sim has."""

    perturb: PerturbCfg = UNPERTURBED
    log_only: LogOnlyCfg = NOT_LOG_ONLY

    def build(self, num_envs: int, seed: int) -> walk_sim.Walk:
        return walk_sim.Walk(num_envs, seed)


def walker(path: Path, step_m: float) -> Path:
    """A run whose policy walks `step_m` in each step.

    Of the five kinds of starts, at -1, -0.5, 0, 0.5 and 1 m, those succeed that have less than six steps to 2 m.
    """
    sim = walk_sim.make(1, 0)
    transforms = TransformGroup((), within_bounds(sim.action_spec))
    policy = GaussianCfg(horizon=1, hidden=(4,)).build(sim.observation_spec, sim.action_spec, transforms)
    policy.control_dt_s = sim.control_dt_s
    with torch.no_grad():
        for weight in policy.net.parameters():
            weight.zero_()
        list(policy.net.parameters())[-1].fill_(step_m)
    with Run.create(path, {"sim": {"name": SIM, "options": {}}}, seed=0, command=["x"]) as run:
        run.save({"policy": policy_tree(policy)}, step=1, score=0.0)
    return path


def walked(start: int, step_m: float, origin: str = "") -> OwnEpisode:
    """The episode of a walk by equal steps from a start of the sim."""
    x, rows = np.float32((start % 5 - 2) / 2), []
    while len(rows) < 6 and -2 < x < 2:
        rows.append((x, len(rows)))
        x = np.float32(x + np.float32(step_m))
    return OwnEpisode(
        {"walk": np.array(rows, np.float32)},
        np.full((len(rows), 1), step_m, np.float32),
        bool(x >= 2),
        bool(-2 < x < 2),
        np.zeros(len(rows), np.bool_),
        start,
        SIM,
        "walk",
        origin or f"start {start}",
    )


def mixed(count: int, first: int = 0) -> list[OwnEpisode]:
    """Walks by 0.1 m, which fail, and by 0.5 m, which succeed, in turn."""
    return [walked(first + i, 0.5 if i % 2 else 0.1) for i in range(count)]


def write_control_log(
    path: Path, episodes: list[OwnEpisode], *, sent: dict[tuple[int, int], float] | None = None, **header: object
) -> Path:
    """A control log of episodes, numbered from 1.

    Args:
        path: its path.
        episodes: the episodes.
        sent: other actions that were sent, by episode and tick.
        header: entries of the header that differ from `HEADER`.
    """
    log = ControlLog(path)
    log.open({**HEADER, **header})
    for number, episode in enumerate(episodes, start=1):
        for tick in range(len(episode.actions)):
            record = tick_record(number, tick_of(episode, tick), {"walk": np.arange(2)})
            if sent is not None and (number, tick) in sent:
                record["sent"] = [sent[number, tick]]
            log.write([record])
        end = {"kind": "episode", "episode": number, "state_id": episode.start, "success": episode.success}
        log.write([end])
    log.close()
    return path


def tick_of(episode: OwnEpisode, tick: int) -> Tick:
    return Tick(
        tick=tick,
        deadline_ns=100_000_000 * tick,
        lateness_ns=1000,
        age_ns=1000,
        read_ns=1000,
        busy_ns=1000,
        inference_ns=1000,
        decision=tick,
        cursor=1,
        observation=episode.obs["walk"][tick],
        policy=episode.actions[tick],
        sent=episode.actions[tick],
        mode=0,
        reason=0,
        asked=tick,
        committed=0,
    )


class SetStepMethod:
    """A method whose candidate walks `step_m` in each step, whatever the data: a good update or a planted bad one."""

    name = "set-step"

    def __init__(self, step_m: float, critic: HeldOutQuality | None = None) -> None:
        self.step_m, self.critic, self.fits = step_m, critic, 0

    def check(self, policy: Path) -> None: ...

    def fit(self, policy: Path, data: Path, out: Path, settings: FitSettings) -> FittedCandidate:
        self.fits += 1
        run = out / "run"
        return FittedCandidate(run if run.exists() else walker(run, self.step_m), self.critic)
