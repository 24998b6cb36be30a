"""The quadruped on MuJoCo Warp, on the processor at tiny size: the same as on the native engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.quadruped import robot
from robotrl.sims.mujoco.quadruped.terrain import make_terrain
from robotrl.sims.mujoco.warp.random import uniform
from robotrl.spec import HasPrivileged
from robotrl.testing.sims import SimCase, random_actions
from tests.kits.warp_sims import QUICK_CHECKS, compare_steps, pair, warp

pytest.importorskip("mujoco_warp")

NAME = "mujoco/quadruped-velocity"


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the solver converge: what its three iterations leave over differs by more than float32 from float64."""
    found = robot.mjcf
    options = 'iterations="3" ls_iterations="6"'

    def mjcf(ground: str, assets: str = "") -> str:
        text = found(ground, assets)
        assert options in text
        return text.replace(options, 'iterations="8" ls_iterations="10"')

    monkeypatch.setattr(robot, "mjcf", mjcf)


@pytest.mark.parametrize("check", QUICK_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Any) -> None:
    def case(limit_s: float) -> Any:
        return lambda num_envs, seed: warp(NAME, num_envs, seed, limit_s=limit_s)

    check(SimCase(case(20.0), case(0.2)))


def farthest(on_warp: Any, native: Any, actions: Tensor, lift_m: float) -> float:
    """Largest difference of a coordinate or velocity of both engines after equal starts and actions."""
    native.reset(seed=1)
    start = native.core.physics.bind("qpos").copy()
    start[:, 2] += lift_m
    for sim in (on_warp, native):
        sim.reset(seed=1, options={"qpos": start})
    for action in actions:
        on_warp.step(action)
        native.step(action)
    found = ((on_warp.physics.bind(name).numpy() - native.core.physics.bind(name)).ravel() for name in ("qpos", "qvel"))
    return float(np.abs(np.concatenate([*found])).max())


def test_warp_agrees_with_native_in_the_air() -> None:
    on_warp, native = pair(NAME, 3)
    assert farthest(on_warp, native, random_actions(native, 5), lift_m=1.0) < 1e-4
    assert int(on_warp.physics.bind("nacon")[0]) == 0


@pytest.mark.usefixtures("solved")
def test_warp_agrees_with_native_on_the_ground() -> None:
    on_warp, native = pair(NAME, 3)
    assert farthest(on_warp, native, 0.1 * random_actions(native, 5), lift_m=-0.03) < 1e-3
    assert int(on_warp.physics.bind("nacon")[0]) > 3


@pytest.mark.usefixtures("solved")
def test_the_task_is_the_same_on_both_engines() -> None:
    """Rewards and their terms, flags, starts, noise, commands, pushes and latencies, across a fall and a time limit."""
    on_warp, native = pair(NAME, 4, limit_s=0.2, push_mps=2.0)
    native.reset(seed=3)
    qpos = native.core.physics.bind("qpos").copy()
    # the third lies on its side
    qpos[2, 3:7] = [np.sqrt(0.5), np.sqrt(0.5), 0, 0]
    for sim, task in ((on_warp, on_warp.task), (native, native.core.task)):
        sim.reset(seed=3, options={"stagger": True, "qpos": qpos})
        # the first gets a new command two steps from now, the second a push
        task.steps[0] = 248
        task.steps[1] = 248 - task._push_offset[1]
    for param, values in native.get_params().items():
        assert on_warp.get_params()[param].tolist() == values.tolist()
    before, speed = native.commands.copy(), native.core.physics.bind("qvel")[1, :2].copy()
    actions = 0.1 * random_actions(native, 4)
    ended = compare_steps(on_warp, native, actions, reward=1e-3, obs=5e-3)
    assert ended["terminated"] and ended["truncated"]
    assert (native.commands[0] != before[0]).any()
    assert np.abs(native.core.physics.bind("qvel")[1, :2] - speed).max() > 0.3
    np.testing.assert_allclose(on_warp.commands.numpy(), native.commands, rtol=1e-6, atol=1e-7)


def test_facts_of_the_robot_are_those_of_the_native_sim() -> None:
    on_warp, native = pair(NAME, 1)
    assert isinstance(on_warp, HasPrivileged)
    assert (on_warp.privileged, on_warp.robot) == (native.privileged, native.robot)
    assert on_warp.command_period_steps == native.command_period_steps


def test_the_clock_of_delayed_commands_stays_fine() -> None:
    """Times as of now, in float32, tell two physics steps apart; after ten seconds MuJoCo's own would not."""
    sim = warp(NAME, 2)
    sim.reset(seed=0)
    for action in random_actions(sim, 3):
        sim.step(action)
    times = sim.physics.bind("history").reshape(2, 12, -1)[:, :, 2 : 3 + robot.LATENCY_STEPS]
    expected = robot.PHYSICS_DT_S * torch.arange(-1, 4)
    assert (times.sort(dim=2).values - expected).abs().max() < 1e-8
    torch.testing.assert_close(sim.physics.bind("time"), torch.full((2,), 4 * robot.PHYSICS_DT_S))


@pytest.mark.parametrize("seed", [0, 0xC0, -1, 2**63 + 5])
def test_numbers_drawn_on_a_device_are_those_of_the_host(seed: int) -> None:
    index: NDArray[np.int64] = np.random.default_rng(0).integers(-(2**62), 2**62, 500)
    found = uniform(seed, torch.from_numpy(index), 7)
    assert np.array_equal(found.numpy(), counter_rng.uniform(seed, index, 7))


@pytest.mark.parametrize("kind", ["flat", "rough", "steps"])
def test_the_ground_is_as_high_on_a_device(kind: Any) -> None:
    physics = warp("mujoco/reach", 1).physics
    terrain = make_terrain(kind, 3)
    x, y = np.random.default_rng(0).uniform(-14, 14, (2, 300))
    found = terrain.on(physics).height(physics.array(x), physics.array(y))
    np.testing.assert_allclose(found.numpy(), terrain.height(x, y), atol=1e-5)
