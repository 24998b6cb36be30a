"""Reach, push and pick-place beyond what every adapter must do."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl
from robotrl.composition import compose
from robotrl.errors import ConfigError
from robotrl.registry import ROBOT_SIMS
from robotrl.sims.mujoco.engine.physics import Physics
from robotrl.sims.mujoco.manipulation import arm, gripper, pick_place, push, reach, scene
from robotrl.sims.mujoco.manipulation.hand import fold
from robotrl.sims.mujoco.manipulation.scene import FreeBlock, upright

TASKS = ("reach", "push", "pick-place")


def make(name: str, num_envs: int, **options: Any) -> Any:
    return robotrl.make_sim(f"mujoco/{name}", num_envs=num_envs, seed=0, **options)


def from_val(name: str, num_envs: int, **options: Any) -> Any:
    sim = make(name, num_envs, **options)
    sim.queue_states(sim.state_ids("val")[:num_envs])
    sim.reset()
    return sim


def observe(sim: Any) -> Any:
    """Bring the task up to a state that was written by hand; return what it says of it."""
    sim.core.task.observe(sim.core.obs, slice(None))
    return sim.core.task.outcome(np.zeros((sim.num_envs, *sim.action_spec.shape), np.float32))


# starts


@pytest.mark.parametrize("name", TASKS)
def test_starts_are_reachable_and_neither_solved_nor_failed(name: str) -> None:
    sim = make(name, 256)
    task = sim.core.task
    plans = task.plan(np.arange(4000))  # raises where the tip is out of reach
    low, high = np.asarray(arm.JOINT_RANGE_RAD).T
    assert (plans[:, :6] > low + 0.05).all()
    assert (plans[:, :6] < high - 0.05).all()
    sim.reset(seed=0)
    out = observe(sim)
    assert not out.success.any()
    assert not out.failure.any()
    assert (np.abs(task.hand.arm.tool_axis_w - [0, 0, -1]) < 1e-9).all()
    # nothing overlaps: what is at rest at the start stays there
    before = sim.core.physics.batch.bind("qpos").copy()
    still = torch.zeros(256, *sim.action_spec.shape)
    if name == "pick-place":
        still[:, 4] = 1.0
    sim.step(still)
    assert np.abs(sim.core.physics.batch.bind("qpos") - before).max() < 2e-3


def test_each_reach_goal_can_be_met_with_the_wrist_turned_either_way() -> None:
    plans = make("reach", 1).core.task.plan(np.arange(2000))
    goal, yaw = plans[:, 6:9], 2 * np.arctan2(plans[:, 12], plans[:, 9])
    turned = [arm.pointing_down(goal, yaw + half, reach.TOOL_LENGTH_M)[:, 5] for half in (0.0, math.pi)]
    assert np.abs(np.stack(turned)).max() < 2.3
    assert (np.sign(turned[0]) != np.sign(turned[1])).all()


def test_the_obstacle_stands_in_the_way() -> None:
    plans = make("push", 1).core.task.plan(np.arange(2000))
    block, goal, obstacle = plans[:, 6:8], plans[:, 13:15], plans[:, 20:22]
    straight = np.linalg.norm(goal - block, axis=1)
    clear = push.OBSTACLE_RADIUS_M + push.BLOCK_HALF_M[0]
    assert (push.way_round(block, goal, obstacle, clear) > straight + 1e-3).all()


# ends, by hand


def test_reach_succeeds_at_the_goal_at_rest_and_only_there() -> None:
    cases = {
        (0.0, 0.0, 0.0): True,
        (0.009, 0.0, 0.0): True,
        (0.011, 0.0, 0.0): False,
        (0.0, 0.07, 0.0): True,
        (0.0, 0.09, 0.0): False,
        (0.0, math.pi, 0.0): True,  # half a turn looks the same
        (0.0, math.pi / 2, 0.0): False,
        (0.0, 0.0, 1.0): False,  # moving
    }
    sim = from_val("reach", len(cases))
    task = sim.core.task
    away, turn, speed = np.array(list(cases)).T
    goal, quat = task.goal_pos_w.copy(), sim.core.physics.batch.bind("mocap_quat")[:, 0]
    yaw = 2 * np.arctan2(quat[:, 3], quat[:, 0])
    joints = arm.pointing_down(goal + away[:, None] * [0, 0, 1], yaw + turn, reach.TOOL_LENGTH_M)
    task.hand.place(np.arange(len(cases)), joints, joints)
    sim.core.physics.batch.bind("qvel")[:, 0] = speed
    out = observe(sim)
    assert out.success.tolist() == list(cases.values())
    assert not out.failure.any()


def test_push_succeeds_with_the_block_at_the_goal_at_rest_and_fails_off_the_area() -> None:
    far = 1.0
    cases = {
        (0.0, 0.0, 0.0): (True, False),
        (0.014, 0.0, 0.0): (True, False),
        (0.016, 0.0, 0.0): (False, False),
        (0.0, 0.14, 0.0): (True, False),
        (0.0, 0.16, 0.0): (False, False),
        (0.0, math.pi / 2, 0.0): (True, False),  # a quarter turn looks the same
        (0.0, 0.0, 0.06): (False, False),  # passing through
        (far, 0.0, 0.0): (False, True),
    }
    sim = from_val("push", len(cases))
    task, batch = sim.core.task, sim.core.physics.batch
    away, turn, speed = np.array(list(cases)).T
    goal = task.goal_pos_w + away[:, None] * [1, 0, 0]
    goal[:, 2] = push.BLOCK_HALF_M[2]
    batch.bind("qpos")[:, 6:13] = upright(goal, task.goal_yaw_w + turn)
    batch.bind("qvel")[:, 7] = speed
    out = observe(sim)
    assert list(zip(out.success.tolist(), out.failure.tolist(), strict=True)) == list(cases.values())
    assert out.reward.tolist() == [float(success) for success, _ in cases.values()]


def test_pick_place_succeeds_with_the_block_standing_on_the_pedestal_and_the_hand_withdrawn() -> None:
    up = pick_place.PEDESTAL_HEIGHT_M + pick_place.BLOCK_HALF_M
    cases = {  # block from the pedestal's middle (x, height), hand above the block, its speed
        (0.0, up, 0.1, 0.0): (True, False),
        (0.024, up, 0.1, 0.0): (True, False),
        (0.026, up, 0.1, 0.0): (False, False),
        (0.0, up + 0.02, 0.1, 0.0): (False, False),  # held above
        (0.0, up, 0.03, 0.0): (False, False),  # not let go
        (0.0, up, 0.1, 0.06): (False, False),
        (0.0, pick_place.BLOCK_HALF_M, 0.1, 0.0): (False, False),
        (0.5, pick_place.BLOCK_HALF_M, 0.1, 0.0): (False, True),
    }
    sim = from_val("pick-place", len(cases))
    task, batch = sim.core.task, sim.core.physics.batch
    x, height, above, speed = np.array(list(cases)).T
    pedestal = batch.bind("mocap_pos")[:, 0].copy()
    block = pedestal + np.stack([x, 0 * x, height], axis=1)
    tip = pedestal + np.stack([0 * x, 0 * x, height + above], axis=1)
    joints = arm.pointing_down(tip, 0 * x, gripper.TOOL_LENGTH_M)
    fingers = np.full((len(cases), 2), gripper.OPEN_M)
    ctrl = np.concatenate([joints, fingers], axis=1)
    task.hand.place(np.arange(len(cases)), np.concatenate([ctrl, upright(block, 0 * x)], axis=1), ctrl)
    batch.bind("qvel")[:, 8] = speed
    out = observe(sim)
    assert list(zip(out.success.tolist(), out.failure.tolist(), strict=True)) == list(cases.values())


def test_a_failure_terminates_without_success() -> None:
    sim = from_val("push", 2)
    sim.core.physics.batch.bind("qpos")[1, 6] = scene.AREA_HIGH_M[0] + 0.05
    out = sim.step(torch.zeros(2, 4))
    assert out.terminated.tolist() == [False, True]
    assert not out.truncated.any()
    assert not out.info["success"].any()
    assert out.reward.tolist() == [0.0, 0.0]


# the gripper


def gripped(num_envs: int = 4, **params: float) -> tuple[Any, Any]:
    """Envs whose fingers have closed on the block, not lifted yet."""
    sim = from_val("pick-place", num_envs, limit_s=60.0)
    ids = np.arange(num_envs)
    sim.set_params(ids, {name: np.full(num_envs, value) for name, value in params.items()})
    task, batch = sim.core.task, sim.core.physics.batch
    block, yaw = task.block.pos_w.copy(), task.block.yaw_w(slice(None))
    coordinates = batch.bind("qpos").copy()
    joints = arm.pointing_down(block - [0, 0, 0.008], yaw, gripper.TOOL_LENGTH_M)
    coordinates[:, :6] = joints
    ctrl = np.concatenate([joints, np.zeros((num_envs, 2))], axis=1)
    task.hand.place(ids, coordinates, ctrl)
    observe(sim)
    for _ in range(10):
        sim.step(closed(num_envs))
    return sim, task


def closed(num_envs: int, x: float = 0.0, z: float = 0.0, fingers: float = -1.0) -> torch.Tensor:
    return torch.tensor([[x, 0.0, z, 0.0, fingers]]).repeat(num_envs, 1)


def test_friction_alone_holds_the_block_under_acceleration_and_an_open_gripper_drops_it() -> None:
    sim, task = gripped()
    model = sim.core.physics.model
    assert model.neq == 0
    assert model.nu == 8
    assert model.actuator_forcelimited.all()
    assert task.gripper.pos == pytest.approx(pick_place.BLOCK_HALF_M, abs=2e-3)
    for _ in range(8):
        sim.step(closed(4, z=0.8))
    assert (task.block.pos_w[:, 2] > 0.1).all()
    held = task.to_block_w.copy()
    fastest, speed = 0.0, task.hand.vel_w[:, 0].copy()
    for step in range(24):
        # back and forth, at full action: about as hard as the arm can shake it
        sim.step(closed(4, x=1.0 if step // 4 % 2 else -1.0, z=0.1))
        fastest = max(fastest, float(np.abs(task.hand.vel_w[:, 0] - speed).max() / task.control_dt_s))
        speed = task.hand.vel_w[:, 0].copy()
    assert fastest > 4.0  # m/s2
    assert np.abs(task.to_block_w - held).max() < 0.008
    height = task.block.pos_w[:, 2].copy()
    for _ in range(8):
        sim.step(closed(4, fingers=1.0))
    assert (task.block.pos_w[:, 2] < height - 0.05).all()


def test_without_enough_friction_the_block_stays_behind() -> None:
    sim, task = gripped(friction=0.2, block_mass=3.0)
    for _ in range(8):
        sim.step(closed(4, z=0.8))
    assert (task.block.pos_w[:, 2] < 0.05).all()
    assert (task.hand.pos_w[:, 2] > 0.1).all()


def test_a_finger_presses_no_harder_than_its_limit() -> None:
    sim, _ = gripped(1)
    model = sim.core.physics.model
    assert model.actuator_forcerange[6:].tolist() == [[-gripper.FORCE_LIMIT_N, gripper.FORCE_LIMIT_N]] * 2
    data = sim.core.physics.batch.get_data(0)
    mujoco.mj_forward(model, data)
    pressed = np.abs(data.actuator_force[6:])
    assert (pressed > 3).all()
    assert (pressed <= gripper.FORCE_LIMIT_N).all()


# experts


def paths(name: str, mode: str, read: Any, n: int = 8) -> list[np.ndarray]:
    """What `read` gives at each step of n episodes from which the expert succeeds; (T,) each."""
    sim = from_val(name, n)
    expert, started = sim.make_expert(mode=mode), torch.ones(n, dtype=torch.bool)
    running, rows, solved = np.ones(n, bool), [[] for _ in range(n)], np.zeros(n, bool)
    while running.any():
        values = read(sim.core.task)
        for i in np.flatnonzero(running):
            rows[i].append(values[i])
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        solved |= out.info["success"].numpy() & running
        running &= ~started.numpy()
    assert solved.sum() >= n - 1
    return [np.array(row) for row, good in zip(rows, solved, strict=True) if good]


@pytest.mark.parametrize(("mode", "side"), [("left", 1), ("right", -1)])
def test_push_passes_the_obstacle_on_the_side_of_its_mode(mode: str, side: int) -> None:
    def aside(task: Any) -> np.ndarray:
        way, off = task.goal_pos_w - task.block.pos_w, task.obstacle_pos_w - task.block.pos_w
        # seen from the block, is the obstacle to the right (positive) or to the left of the way to the goal
        return np.where(np.abs(off[:, 1]) < 0.02, off[:, 0] * way[:, 1] - off[:, 1] * way[:, 0], 0.0)

    for row in paths("push", mode, aside):
        beside = row[row != 0]
        assert len(beside) > 0
        assert (np.sign(beside) == side).all()


@pytest.mark.parametrize(("mode", "sign"), [("clockwise", 1), ("anticlockwise", -1)])
def test_the_wrist_turns_the_way_of_its_mode(mode: str, sign: int) -> None:
    # the tool points down: seen from above it turns clockwise as the last joint turns up
    for row in paths("reach", mode, lambda task: task.hand.arm.qpos[:, 5]):
        assert sign * (row[-1] - row[0]) > 0.5
    for row in paths("pick-place", mode, lambda task: task.hand.arm.qpos[:, 5] - task.hand.arm.qpos[:, 0]):
        assert sign * (row[8] - row[0]) > 0.3


@pytest.mark.parametrize("name", TASKS)
def test_an_expert_refuses_another_task(name: str) -> None:
    expert = type(make(name, 1).make_expert()._expert)
    other = make(TASKS[(TASKS.index(name) + 1) % 3], 1)
    with pytest.raises(TypeError, match=f"solves mujoco/{name}: got {other.core.task.name}"):
        expert(other.core)


# reward, options, parameters


@pytest.mark.parametrize("name", TASKS)
def test_the_shaped_reward_sums_to_the_distance_gained(name: str) -> None:
    sim = make(name, 6, reward="shaped", limit_s=60.0)
    sim.reset(seed=0)
    task = sim.core.task
    expert, started = sim.make_expert(noise=0.1), torch.ones(6, dtype=torch.bool)
    start, total = task.distance(), torch.zeros(6)
    for _ in range(12 if name == "reach" else 40):
        out = sim.step(expert.act(started))
        started[:] = False
        assert not out.terminated.any()
        total += out.reward
    gained = start - task.distance()
    assert (gained > 0.01).all()
    np.testing.assert_allclose(total.numpy(), 10 * gained, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_the_experts_way_is_worth_more_than_none(name: str) -> None:
    sim = from_val(name, 6, reward="shaped")
    expert, started = sim.make_expert(), torch.ones(6, dtype=torch.bool)
    total, running = torch.zeros(6), torch.ones(6, dtype=torch.bool)
    while running.any():
        out = sim.step(expert.act(started))
        total += out.reward * running
        started = out.terminated | out.truncated
        running &= ~started
    assert (total > 1.5).all()


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit_s": 0.1}, "limit_s is 0.1: expected a number from 0.5 to 60 seconds"),
        ({"reward": "shapd"}, "did you mean 'shaped'"),
        ({"randomization": {"servo_gian": (1.0, 1.1)}}, "did you mean 'servo_gain'"),
        ({"randomization": {"servo_gain": (0.0, 2.0)}}, "parameter 'servo_gain' is"),
        ({"rewrd": "sparse"}, "did you mean 'reward'"),
    ],
)
def test_values_out_of_range_are_refused(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(name, 1, **options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["push", "pick-place"])
def test_parameters_reach_the_model(name: str) -> None:
    sim = make(name, 2)
    sim.reset(seed=0)
    sim.set_params([1], {"friction": np.array([0.5]), "block_mass": np.array([2.0]), "servo_gain": np.array([0.8])})
    plain, changed = (sim.core.physics.batch.get_model(i) for i in (0, 1))
    body = plain.body("block").id
    assert changed.body_mass[body] == 2 * plain.body_mass[body]
    touching = plain.geom_contype > 0
    assert touching.sum() >= 4
    np.testing.assert_allclose(changed.geom_friction[touching, 0], 0.5 * plain.geom_friction[touching, 0])
    np.testing.assert_allclose(changed.actuator_gainprm[:6, 0], 0.8 * plain.actuator_gainprm[:6, 0])
    np.testing.assert_array_equal(changed.actuator_gainprm[6:], plain.actuator_gainprm[6:])


# pieces


def test_a_taut_string_by_hand() -> None:
    a, b, middle = np.array([[-1.0, 0.0], [-1.0, 0.8]]), np.array([[1.0, 0.0], [1.0, 0.8]]), np.zeros((2, 2))
    # two tangents, and the arc between them; a line that misses the disc stays straight
    expected = [2 * math.sqrt(0.75) + 0.5 * (math.pi - 2 * math.acos(0.5)), 2.0]
    np.testing.assert_allclose(push.way_round(a, b, middle, 0.5), expected)


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[st.floats(-1, 1)] * 4), st.floats(0.01, 0.5))
def test_a_taut_string_is_no_shorter_than_the_line_and_the_same_both_ways(
    points: tuple[float, ...], radius: float
) -> None:
    a, b, middle = np.array([points[:2]]), np.array([points[2:]]), np.zeros((1, 2))
    way = push.way_round(a, b, middle, radius)
    assert np.isfinite(way).all()
    np.testing.assert_allclose(way, push.way_round(b, a, middle, radius), atol=1e-9)
    if min(np.hypot(*a[0]), np.hypot(*b[0])) >= radius:
        assert way[0] >= np.hypot(*(a - b)[0]) - 1e-6


@settings(max_examples=50, deadline=None)
@given(st.floats(-20, 20), st.sampled_from([math.pi / 2, math.pi]))
def test_folded_angles_differ_by_whole_periods(angle: float, period: float) -> None:
    folded = float(fold(np.array([angle]), period)[0])
    assert -period / 2 - 1e-9 <= folded <= period / 2 + 1e-9
    assert math.isclose((angle - folded) / period, round((angle - folded) / period), abs_tol=1e-9)


@pytest.mark.parametrize("tip_over", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_the_yaw_of_a_block_that_lies_on_another_side(tip_over: tuple[int, int, int]) -> None:
    xml = (
        '<mujoco><worldbody><body><freejoint name="block"/><geom type="box" size="1 1 1"/></body></worldbody></mujoco>'
    )
    physics = Physics(xml, 8, 1)
    yaw = np.linspace(-3, 3, 8)
    turned, tipped = np.zeros(4), np.zeros(4)
    mujoco.mju_axisAngle2Quat(tipped, np.asarray(tip_over, float), math.pi / 2)
    rows = physics.batch.bind("qpos")
    for i in range(8):
        mujoco.mju_axisAngle2Quat(turned, np.array([0.0, 0.0, 1.0]), yaw[i])
        whole = np.zeros(4)
        mujoco.mju_mulQuat(whole, turned, tipped)
        rows[i, 3:] = whole
    found = FreeBlock(physics, "block").yaw_w(slice(None))
    np.testing.assert_allclose(fold(found - yaw, math.pi / 2), 0, atol=1e-9)


@pytest.mark.parametrize("name", TASKS)
def test_the_simulated_robot_moves_as_the_batched_sim_does(name: str) -> None:
    sim = make(name, 2, limit_s=60.0)
    ids = list(sim.state_ids("test")[:2])
    sim.queue_states(ids)
    sim.reset()
    robot = ROBOT_SIMS.load(f"mujoco/{name}")(7)
    assert np.array_equal(robot.reset(ids[1])["state"], sim.core.obs["state"][1])
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        action = torch.rand((2, *sim.action_spec.shape), generator=generator) * 2 - 1
        expected = sim.step(action).obs["state"][1]
        robot.command(action[1].numpy())
        robot.advance(10)
        assert np.array_equal(robot.observe()["state"], expected.numpy())
    assert not robot.success()


@pytest.mark.parametrize("sim", ["mujoco/reach", "mujoco/push", "mujoco/pick-place", "mujoco/peg-insert"])
def test_it_trains_with_envs_that_suit_the_algorithm(sim: str) -> None:
    found = {algo: compose(sim, algo).sim.num_envs for algo in ("ppo", "dppo", "bc", "sac", "rlpd", "dsrl", "iql")}
    assert found == {"ppo": 96, "dppo": 96, "bc": 96, "sac": 4, "rlpd": 8, "dsrl": 16, "iql": 16}
