"""Any sim of the registry as a robot: a tiny policy of it, exported, controls it in real time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robotrl.cli.main import main
from robotrl.deploy.control.log import read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.robots.sim_as_robot import SimAsRobot, robot_of_sim
from robotrl.deploy.robots.sim_robot import factory
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import ROBOT_SIMS
from tests.kits.deploy_kit import wait_for_observations
from tests.kits.walk_sim import BareWalk, Walk

TINY = "--sim.num-envs 4 --algo.env-steps 64 --algo.num-steps 8 --algo.minibatch 16 --algo.engine eager"
TINY += " --evaluation.every-env-steps 0 --evaluation.episodes 2 --evaluation.num-envs 2 --evaluation.animation 0"


@pytest.mark.parametrize(("sim", "limit_s"), [("gym/CartPole-v1", 10.0), ("mujoco/hopper", 8.0)])
def test_a_bundle_controls_the_sim_that_it_was_trained_on(sim: str, limit_s: float, tmp_path: Path) -> None:
    assert (
        main(
            ["train", "--sim", sim, "--algo", "ppo", *policy_of(sim), "--run-dir", str(tmp_path / "run"), *TINY.split()]
        )
        == 0
    )
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "bundle")]) == 0
    report = run_control(tmp_path / "bundle", f"sim:{sim}", episodes=2, limit_s=0.6)
    assert len(report.episodes) == 2 and report.ticks > 10
    robot = robot_of_sim(sim, 0)
    assert robot.limit_s == pytest.approx(limit_s)
    assert report.rate_hz == pytest.approx(1 / robot.control_dt_s)


def policy_of(sim: str) -> list[str]:
    return ["--policy", "categorical"] if sim == "gym/CartPole-v1" else []


def test_it_does_what_the_sim_does_and_stays_where_the_episode_ended() -> None:
    """The walk from start 1103 (x = 0.5), each step 0.5 to the right: the goal at 2 is reached in the third."""
    robot = SimAsRobot(Walk(1), "walk")
    assert (robot.control_dt_s, robot.inner_dt_s) == (0.1, 0.1)
    assert robot.state_ids("test") == range(1100, 1200)
    assert robot.reset(1103)["walk"].tolist() == [0.5, 0.0]
    robot.command(np.array([0.5], np.float32))
    found = []
    for _ in range(4):
        robot.advance(1)
        found.append((*robot.observe()["walk"].tolist(), robot.success()))
    assert found == [(1.0, 1.0, False), (1.5, 2.0, False), (2.0, 3.0, True), (2.0, 3.0, True)]
    assert robot.reset(1100)["walk"].tolist() == [-1.0, 0.0]
    assert not robot.success()
    robot.command(np.array([9.0], np.float32))
    robot.advance(2)
    assert robot.observe()["walk"].tolist() == [1.0, 2.0], "clipped to 1"
    with pytest.raises(ConfigError, match=r"action has shape \(2,\): expected \(1,\)"):
        robot.command(np.zeros(2, np.float32))


class Timeless(Walk):
    control_dt_s: Any = None


def test_what_a_sim_lacks_is_named() -> None:
    with pytest.raises(CapabilityError, match="sim 'bare' lacks HasStateIds, numbered starts"):
        SimAsRobot(BareWalk(1), "bare")
    with pytest.raises(ConfigError, match="sim 'timeless' lacks control_dt_s"):
        SimAsRobot(Timeless(1), "timeless")
    with pytest.raises(ConfigError, match="num_envs is 2: expected 1"):
        SimAsRobot(Walk(2), "walk")


def test_options_of_a_sim_as_a_robot() -> None:
    robot = factory("mujoco/tabletop,image=flat_near,image_size=32")(0)
    assert robot.observation_spec["image_flat_near"].shape == (32, 32, 3)
    first = robot.reset(robot.state_ids("test")[0])
    assert first["image_flat_near"].dtype == np.uint8 and first["image_flat_near"].std() > 1.0
    with pytest.raises(ConfigError, match="option 'imag' of sim 'mujoco/tabletop' is unknown: did you mean 'image'"):
        factory("mujoco/tabletop,imag=flat_near")(0)


def test_a_policy_that_sees_controls_the_tabletop(tmp_path: Path) -> None:
    """Cameras all the way: trained on images, exported, and run on the robot's frames; replayed exactly."""
    sim = ["--sim", "mujoco/tabletop", "--sim.image", "flat_near", "--sim.image-size", "32"]
    assert main(["train", *sim, "--algo", "ppo", "--run-dir", str(tmp_path / "run"), *TINY.split()]) == 0
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "bundle")]) == 0
    wait_for_observations(tmp_path / "bundle")
    log = tmp_path / "log.jsonl"
    robot = "sim:mujoco/tabletop,image=flat_near,image_size=32"
    report = run_control(tmp_path / "bundle", robot, episodes=1, limit_s=1.0, log=log)
    assert report.ticks > 5
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick"]
    assert len({r["frames"]["image_flat_near"]["checksum"] for r in ticks}) > 3, "frames follow the arm"
    again = replay(log, tmp_path / "bundle")
    assert again.policy_max_abs == again.sent_max_abs == 0.0


def test_names_are_those_of_all_sims_and_robots_of_their_own_stay_without_torch() -> None:
    with pytest.raises(ConfigError, match="simulated robot 'mujoco/hoper' is unknown: did you mean 'mujoco/hopper'"):
        factory("mujoco/hoper")
    with pytest.raises(ConfigError, match="robot sim is 'own:make'"):
        factory("own:make")
    name = ROBOT_SIMS.names()[0]
    program = f"import sys; from robotrl.deploy.robots.sim_robot import factory; factory({name!r})"
    program += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
