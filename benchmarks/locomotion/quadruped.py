"""One quadruped run of the locomotion table: train the preset with a seed, then measure command tracking.

`python -m benchmarks.locomotion.quadruped SEED OUT` trains into OUT/run and writes OUT/result.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.fn.stats import Interval
from robotrl.registry import PRESETS, make_sim
from robotrl.rollout.evaluate import evaluate
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from robotrl.sims.mujoco.quadruped.sim import QuadrupedSim
from robotrl.utils.files import dump_json, replace_file

SIM = "mujoco/quadruped-velocity"
SETTLE_S = 1.0
"""Time after each new command during which errors do not count."""
EPISODES = 256
NUM_ENVS = 64

Array = NDArray[np.float64]


class Tracking(NamedTuple):
    """Command tracking of a policy, on held-out starts under domain randomization.

    The error is the difference of the command and the trunk's true velocity in the trunk's frame, without filtering.
    """

    error_mps: float
    """Mean length of the horizontal velocity error: over an episode's time steps after settling, then over episodes."""
    yaw_error_rad_s: float
    """Likewise, mean absolute error of the yaw rate."""
    mean_error_mps: float
    """Like `error_mps`, for the velocity averaged over each command's settled time: without the gait's oscillation."""
    no_fall: Interval
    """Fraction of episodes that reach the time limit, with its Wilson interval."""
    episodes: int


class Meter:
    """Accumulates errors over listed starts while a sim steps.

    Args:
        sim: the sim.
        ids: start ids that count; envs with other starts are ignored.
    """

    def __init__(self, sim: QuadrupedSim, ids: NDArray[np.int64]) -> None:
        names = sim.observation_spec["privileged"].names
        self._velocity = [names.index(f"trunk_vel_{axis}_b") for axis in "xy"]
        self._yaw_rate = names.index("true_trunk_rate_z_b")
        self._core, self._commands = sim.core, sim.commands
        self._ids = ids
        self._order = np.argsort(ids)
        self._period = sim.command_period_steps
        self._settle = round(SETTLE_S / sim.control_dt_s)
        segments = sim.core.task.limit_steps // self._period + 1
        self._count: Array = np.zeros((len(ids), segments))
        self._error: Array = np.zeros((len(ids), segments))
        self._vector: Array = np.zeros((len(ids), segments, 2))
        self._yaw: Array = np.zeros((len(ids), segments))

    def __call__(self, step_index: int) -> None:
        """Read the present state; call it before each step."""
        core = self._core
        place = np.searchsorted(self._ids, core.state_ids, sorter=self._order).clip(0, len(self._ids) - 1)
        row = self._order[place]
        settled = core.steps % self._period >= self._settle
        envs = np.flatnonzero((self._ids[row] == core.state_ids) & settled)
        at = row[envs], core.steps[envs] // self._period
        seen, command = core.obs["privileged"][envs].astype(np.float64), self._commands[envs]
        error = command[:, :2] - seen[:, self._velocity]
        self._count[at] += 1
        self._error[at] += np.hypot(error[:, 0], error[:, 1])
        self._vector[at] += error
        self._yaw[at] += np.abs(command[:, 2] - seen[:, self._yaw_rate])

    def result(self, no_fall: Interval) -> Tracking:
        """Tracking figures of the measured episodes."""
        counts = self._count.sum(axis=1)
        lasted = counts > 0
        mean = np.linalg.norm(self._vector, axis=2).sum(axis=1)
        return Tracking(
            error_mps=float((self._error.sum(axis=1)[lasted] / counts[lasted]).mean()),
            yaw_error_rad_s=float((self._yaw.sum(axis=1)[lasted] / counts[lasted]).mean()),
            mean_error_mps=float((mean[lasted] / counts[lasted]).mean()),
            no_fall=no_fall,
            episodes=len(self._ids),
        )


def evaluate_policy(
    policy: Any, episodes: int = EPISODES, seed: int = 0, options: Mapping[str, Any] | None = None
) -> Tracking:
    """Measure a policy on starts of the test split, each run once, with the mean action.

    Args:
        policy: a policy, or the path of a run (its last weights) or checkpoint.
        episodes: number of starts.
        seed: selects the starts: seed k takes the k-th block of `episodes` starts.
        options: sim options; the default is randomized, with pushes and noise, 20 s.
    """
    if isinstance(policy, str | Path):
        policy = load_policy(policy, "latest")
    sim: QuadrupedSim = make_sim(SIM, num_envs=min(NUM_ENVS, episodes), seed=seed, **(options or {}))
    ids = np.asarray(sim.state_ids("test")[seed * episodes : (seed + 1) * episodes], np.int64)
    meter = Meter(sim, ids)
    return meter.result(evaluate(policy, sim, ids=ids, seed=seed, on_step=meter).rate)


def main(seed: int, out: Path) -> None:
    """Train the preset and write `result.json`.

    Args:
        seed: seed of the run.
        out: an empty folder.
    """
    from robotrl.training import train

    cfg = replace(PRESETS.load("quadruped-velocity-ppo")(), seed=seed)
    started = time.monotonic()
    run = train(cfg, out / "run")
    wall_s = time.monotonic() - started
    scalars = read_scalars(run / "scalars.jsonl")[-1]
    result = evaluate_policy(run)
    record = {
        **result._asdict(),
        "no_fall": result.no_fall._asdict(),
        "env_steps": int(scalars["env_steps"]),
        "wall_s": wall_s,
        "env_steps_per_s": scalars["env_steps_per_s"],
        "compile_s": scalars.get("compile_s", 0.0),
    }
    replace_file(out / "result.json", dump_json(record))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
