"""`mujoco/quadruped-velocity`: a four-legged robot follows velocity commands on rough ground."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robotrl.errors import ConfigError, check_number, unknown
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.quadruped.rewards import RewardScales
from robotrl.sims.mujoco.quadruped.schedule import CommandCfg, PushCfg
from robotrl.sims.mujoco.quadruped.task import CONTROL_DT_S, RANDOMIZATION, QuadrupedVelocity
from robotrl.sims.mujoco.quadruped.terrain import Kind, make_terrain
from robotrl.sims.mujoco.render.images import with_images

if TYPE_CHECKING:
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot
    from robotrl.sims.mujoco.quadruped.sim import QuadrupedSim

LIMIT_S = 20.0
COMMAND_PERIOD_S = 5.0
STANDING_SHARE = 0.1
PUSH_PERIOD_S = 5.0
PUSH_YAW_PER_MPS = 1.0
"""Size of pushes to the yaw rate, in rad/s per m/s of the horizontal pushes."""


@with_images
def make(
    num_envs: int,
    seed: int,
    *,
    terrain: Kind = "flat",
    levels: int = 5,
    command_mps: float = 1.0,
    command_yaw_rad_s: float = 1.0,
    randomize: bool = True,
    randomization: Mapping[str, tuple[float, float]] | None = None,
    push_mps: float = 0.5,
    noise: float = 1.0,
    reward: Mapping[str, float] | None = None,
    limit_s: float = LIMIT_S,
    end_on_fall: bool = True,
    threads: int = 0,
    dump_dir: Path | None = None,
) -> QuadrupedSim:
    """Make the batched quadruped sim.

    Args:
        num_envs: N, 1 or more.
        seed: seeds which training starts are drawn.
        terrain: "flat", "rough", "slopes" or "steps".
        levels: difficulties of the terrain, 1 to 20; starts are spread over them.
        command_mps: largest linear velocity asked for, in any direction, 0 to 3 m/s.
        command_yaw_rad_s: largest yaw rate asked for, 0 to 3 rad/s.
        randomize: switches parameters, pushes and noise off all together when false.
        randomization: parameter to the (low, high) of its multiplier; None takes the ranges below.
        push_mps: largest kick to the trunk's velocity, every 5 s, 0 to 3 m/s.
        noise: measurement noise as a multiple of the amplitudes below, 0 to 5.
        reward: term to its scale, for terms that shall differ from the table below.
        limit_s: time limit of an episode, 0.1 to 600 s.
        end_on_fall: whether a fall ends the episode.
        threads: physics threads, 0 for every core.
        dump_dir: where the numerics guard writes replayable states.

    Raises:
        ConfigError: a value out of range, or an unknown terrain, parameter or term, with what was expected.
    """
    from robotrl.sims.mujoco.quadruped.sim import QuadrupedSim

    task = _task(
        terrain=terrain,
        levels=levels,
        command_mps=command_mps,
        command_yaw_rad_s=command_yaw_rad_s,
        push_mps=push_mps if randomize else 0.0,
        noise=noise if randomize else 0.0,
        reward=reward,
        limit_s=limit_s,
        end_on_fall=end_on_fall,
    )
    ranges = (RANDOMIZATION if randomize else {}) if randomization is None else randomization
    return QuadrupedSim(MujocoCore(task, num_envs, seed, threads, ranges, dump_dir), task)


def make_robot(seed: int) -> SimulatedRobot:
    """Make a simulated robot for the control loop: flat ground, nominal parameters, no noise, no pushes."""
    from robotrl.sims.mujoco.engine.robot import SimulatedRobot

    return SimulatedRobot(MujocoCore(_task(push_mps=0.0, noise=0.0), 1, seed, threads=1))


def _task(
    terrain: Kind = "flat",
    levels: int = 5,
    command_mps: float = 1.0,
    command_yaw_rad_s: float = 1.0,
    push_mps: float = 0.5,
    noise: float = 1.0,
    reward: Mapping[str, float] | None = None,
    limit_s: float = LIMIT_S,
    end_on_fall: bool = True,
) -> QuadrupedVelocity:
    check_number("levels", levels, 1, 20)
    check_number("command_mps", command_mps, 0, 3, "m/s")
    check_number("command_yaw_rad_s", command_yaw_rad_s, 0, 3, "rad/s")
    check_number("push_mps", push_mps, 0, 3, "m/s")
    check_number("noise", noise, 0, 5)
    check_number("limit_s", limit_s, 0.1, 600, "seconds")
    return QuadrupedVelocity(
        terrain=make_terrain(terrain, int(levels)),
        scales=_scales(reward or {}),
        command=CommandCfg(command_mps, command_yaw_rad_s, STANDING_SHARE, round(COMMAND_PERIOD_S / CONTROL_DT_S)),
        push=PushCfg(push_mps, push_mps * PUSH_YAW_PER_MPS, round(PUSH_PERIOD_S / CONTROL_DT_S)),
        noise=float(noise),
        limit_steps=round(limit_s / CONTROL_DT_S),
        end_on_fall=end_on_fall,
    )


def _scales(changed: Mapping[str, Any]) -> RewardScales:
    known = asdict(RewardScales())
    for name, value in changed.items():
        if name not in known:
            raise unknown("reward", name, known)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"reward {name!r} is {value!r}: expected a number")
    return replace(RewardScales(), **changed)
