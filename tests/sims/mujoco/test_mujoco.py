"""The MuJoCo engine and peg-insert beyond what every adapter must do."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl
from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.sims.mujoco.engine.physics import Physics, SimNumericsError
from robotrl.sims.mujoco.engine.replay import replay
from robotrl.sims.mujoco.engine.sim import MujocoSim
from robotrl.sims.mujoco.manipulation import arm, peg_insert
from robotrl.sims.mujoco.render.cameras import Cameras
from robotrl.sims.mujoco.render.views import View

STATE = mujoco.mjtState.mjSTATE_INTEGRATION


def make(num_envs: int, **options: object) -> MujocoSim:
    return robotrl.make_sim("mujoco/peg-insert", num_envs=num_envs, seed=0, **options)


def actions(steps: int, num_envs: int) -> torch.Tensor:
    """Random, but downwards: the peg touches fixture and table."""
    out = torch.rand((steps, num_envs, 4), generator=torch.Generator().manual_seed(0)) * 2 - 1
    out[..., 2] -= 0.4
    return out


# the engine


def test_stepping_equals_a_plain_mujoco_loop_bit_for_bit() -> None:
    n, steps = 5, 50
    sim = make(n, threads=2, limit_s=60.0)
    sim.reset(seed=3)
    batch, model = sim.core.physics.batch, sim.core.physics.model
    datas = [mujoco.MjData(model) for _ in range(n)]
    for data, row in zip(datas, batch.state, strict=True):
        mujoco.mj_setState(model, data, row, STATE)
    contacts = 0
    for action in actions(steps, n):
        sim.step(action)
        for i, data in enumerate(datas):
            data.ctrl[:] = sim.core.physics.ctrl[i]
            mujoco.mj_step(model, data, sim.core.task.substeps)
            contacts += data.ncon
            row = np.empty(batch.state.shape[1])
            mujoco.mj_getState(model, data, row, STATE)
            assert np.array_equal(row, batch.state[i])
    assert contacts > 100


def test_mjcf_that_does_not_load_is_refused_with_mujocos_reason() -> None:
    with pytest.raises(RobotrlError, match=r"the MJCF does not load: .*gem") as error:
        Physics("<mujoco><worldbody><gem/></worldbody></mujoco>", 1)
    assert "\n" not in str(error.value)


def test_derived_fields_are_fresh_where_a_task_reads_them() -> None:
    xml = make(1).core.physics.xml
    fresh, stale = Physics(xml, 1, 1), Physics(xml, 1, 1, derived="none")
    tips = []
    for physics in (fresh, stale):
        tip = physics.batch.bind("site_xpos")
        physics.batch.bind("qvel")[:] = 0.5
        physics.step(10)
        data = mujoco.MjData(physics.model)
        data.qpos[:] = physics.batch.bind("qpos")[0]
        mujoco.mj_kinematics(physics.model, data)
        tips.append(np.abs(tip[0] - data.site_xpos).max())
    assert tips[0] == 0
    assert tips[1] > 1e-5


# the guard


def spoil_velocity(sim: MujocoSim) -> str:
    sim.core.physics.batch.bind("qvel")[2, 1] = 1e9  # finite, and hopeless
    return "q"


def spoil_position(sim: MujocoSim) -> str:
    sim.core.physics.batch.bind("qpos")[2, 4] = math.nan
    return "qpos"


def spoil_with_infinity(sim: MujocoSim) -> str:
    sim.core.physics.batch.bind("qvel")[2, 0] = math.inf
    return "qvel"


@pytest.mark.parametrize("spoil", [spoil_velocity, spoil_position, spoil_with_infinity])
def test_numerics_guard(spoil: Callable[[MujocoSim], str], tmp_path: Path) -> None:
    sim, twin = make(4, dump_dir=tmp_path), make(4)
    still = torch.zeros(4, 4)
    for s in (sim, twin):
        s.reset(seed=1)
        for _ in range(4):
            s.step(still)
    field = spoil(sim)
    twin.step(still)

    with pytest.raises(SimNumericsError) as error:
        sim.step(still)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"env 2, control step 5: field '{field}")
    assert "expected a finite number" in text
    assert error.value.env_ids == [2]

    # the other envs have stepped, and the env concerned stands at finite numbers
    others = [0, 1, 3]
    state = sim.core.physics.batch.state
    assert np.array_equal(state[others], twin.core.physics.batch.state[others])
    assert np.array_equal(sim.core.obs["state"][others], twin.core.obs["state"][others])
    assert np.isfinite(state).all()
    assert np.isfinite(sim.core.obs["state"]).all()

    # the dump shows the same thing again, in another process
    dump = error.value.dump
    assert dump.parent == tmp_path
    found = replay(dump)
    assert found is not None
    shown = subprocess.run(
        [sys.executable, "-m", "robotrl.sims.mujoco.engine.replay", str(dump)],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    ).stdout
    assert shown.strip() == f"physics step {found[0]}: {found[1]} is {found[2]}"
    assert found[1].startswith(field)

    # and after a reset the sim goes on as if nothing had been
    sim.reset(seed=1)
    twin.reset(seed=1)
    for action in actions(5, 4):
        assert torch.equal(sim.step(action).obs["state"], twin.step(action).obs["state"])


def test_a_frozen_env_is_at_its_last_good_state() -> None:
    sim = make(2)
    sim.reset(seed=1)
    still = torch.zeros(2, 4)
    state = sim.core.physics.batch.state
    rows = []
    for _ in range(4):
        rows.append(state[0].copy())
        sim.step(still)
    spoil = sim.core.physics.batch.bind("qpos")
    spoil[0, 0] = math.nan
    with pytest.raises(SimNumericsError):
        sim.step(still)
    # controls of that step are not restored to the bit: they belong to the step that failed
    assert np.array_equal(sim.core.physics.batch.bind("qpos")[0], rows[3][1:7])
    assert np.isfinite(sim.core.obs["state"]).all()
    assert sim.core.steps.tolist() == [4, 5]


def test_a_dump_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a directory with state.json"):
        replay(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "robotrl.sims.mujoco.engine.replay", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_dump_holds_the_randomised_model(tmp_path: Path) -> None:
    sim = make(2, dump_dir=tmp_path)
    sim.reset(seed=0)
    sim.set_params([1], {"servo_gain": np.array([0.7])})
    sim.core.physics.batch.bind("qvel")[1, 0] = math.nan
    with pytest.raises(SimNumericsError) as error:
        sim.step(torch.zeros(2, 4))
    model = mujoco.MjModel.from_binary_path(str(error.value.dump / "model.mjb"))
    assert model.actuator_gainprm[0, 0] == pytest.approx(0.7 * arm.STIFFNESS_NM_PER_RAD[0])
    record = json.loads((error.value.dump / "state.json").read_text())
    assert (record["schema_version"], record["field"], record["value"]) == (1, "qvel", "nan")


# the arm


def test_kinematics_equal_mujocos() -> None:
    n = 200
    sim = make(n)
    batch, control = sim.core.physics.batch, sim.core.task.hand.arm
    low, high = np.asarray(arm.JOINT_RANGE_RAD).T
    rng = np.random.default_rng(0)
    batch.bind("qpos")[:] = rng.uniform(low, high, (n, 6))
    batch.bind("qvel")[:] = rng.normal(size=(n, 6))
    position, rotation = batch.bind("site_xpos"), batch.bind("site_xmat")
    batch.forward()
    control.refresh(slice(None))
    tip = batch.model.site("tip").id
    frame = rotation[:, tip].reshape(n, 3, 3)
    linear, angular = batch.jac(batch.model.body("flange").id, position[:, tip])
    jacobian = np.concatenate([linear, angular], axis=1)
    np.testing.assert_allclose(control.tip_pos_w, position[:, tip], atol=1e-14)
    np.testing.assert_allclose(control.tool_axis_w, frame[:, :, 2], atol=1e-14)
    np.testing.assert_allclose(control.side_axis_w, frame[:, :, 1], atol=1e-14)
    np.testing.assert_allclose(control.jacobian, jacobian, atol=1e-14)
    velocity = np.einsum("nij,nj->ni", jacobian, batch.bind("qvel"))
    np.testing.assert_allclose(control.twist(slice(None)), velocity, atol=1e-13)
    # refreshing some envs leaves the others alone
    before = control.tip_pos_w.copy()
    batch.bind("qpos")[:] = 0.3
    control.refresh(np.array([3, 5]))
    changed = np.flatnonzero((control.tip_pos_w != before).any(axis=1))
    assert changed.tolist() == [3, 5]


@settings(max_examples=50, deadline=None)
@given(st.floats(0.3, 0.6), st.floats(-0.3, 0.3), st.floats(0.0, 0.3), st.floats(-1.0, 1.0))
def test_start_poses_point_straight_down_where_asked(x: float, y: float, z: float, yaw: float) -> None:
    model = mujoco.MjModel.from_xml_string(make(1).core.physics.xml)
    data = mujoco.MjData(model)
    tip = np.array([[x, y, z]])
    data.qpos[:] = arm.pointing_down(tip, np.array([yaw]), peg_insert.PEG_LENGTH_M)[0]
    mujoco.mj_kinematics(model, data)
    np.testing.assert_allclose(data.site("tip").xpos, tip[0], atol=1e-12)
    frame = data.site("tip").xmat.reshape(3, 3)
    np.testing.assert_allclose(frame[:, 2], [0, 0, -1], atol=1e-12)
    np.testing.assert_allclose([-frame[0, 1], frame[1, 1]], [math.sin(yaw), math.cos(yaw)], atol=1e-12)


def test_out_of_reach_is_said() -> None:
    with pytest.raises(ValueError, match=r"tip_pos_w\[1\] .* is out of the arm's reach"):
        arm.pointing_down(np.array([[0.5, 0, 0.1], [2.0, 0, 0.1]]), np.zeros(2), 0.12)


def test_an_action_moves_the_tip_the_way_it_says() -> None:
    sim = make(8, limit_s=60.0)
    sim.queue_states(sim.state_ids("val")[:8])
    sim.reset()
    task = sim.core.task
    for axis in range(3):
        before = task.hand.arm.tip_pos_w.copy()
        action = torch.zeros(8, 4)
        action[:, axis] = 0.5 if axis < 2 else 0.25
        for _ in range(2):
            sim.step(action)
        sim.step(torch.zeros(8, 4))
        moved = task.hand.arm.tip_pos_w - before
        assert (moved[:, axis] > 0.005).all()
        assert (np.abs(np.delete(moved, axis, axis=1)) < 0.3 * moved[:, axis : axis + 1]).all()
        for _ in range(10):
            sim.step(torch.zeros(8, 4))


def test_the_arm_is_driven_by_force_limited_motors_alone() -> None:
    model = make(1).core.physics.model
    assert model.neq == 0
    assert model.nu == 6
    assert model.actuator_forcelimited.all()
    assert [model.body(i).name for i in range(model.nbody) if model.body_mocapid[i] >= 0] == ["fixture"]


# the task


def test_success_is_where_the_peg_is_deep_in_the_hole() -> None:
    n = 64
    sim = make(n)
    sim.queue_states(sim.state_ids("val")[:n])
    sim.reset()
    expert = sim.make_expert(mode="right")
    started = torch.ones(n, dtype=torch.bool)
    ended = 0
    for _ in range(sim.core.task.limit_steps):
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        ended += int(out.terminated.sum())
        assert torch.equal(out.info["success"], out.terminated)
        assert torch.equal(out.reward, out.terminated.float())
        final = out.final_obs["state"][out.terminated[out.final_ids]]
        assert (final[:, 2] < -peg_insert.SUCCESS_DEPTH_M).all()
        assert (final[:, :2].norm(dim=1) < peg_insert.PEG_HALF_WIDTH_M / 2).all()
    assert ended >= 0.95 * n


def test_success_in_the_last_step_is_no_time_out() -> None:
    def until_the_end(limit_s: float) -> tuple[int, bool, bool]:
        sim = make(1, limit_s=limit_s)
        sim.queue_states(sim.state_ids("val")[:1])
        sim.reset()
        expert, started = sim.make_expert(mode="left"), torch.ones(1, dtype=torch.bool)
        for step in range(1, 100):
            out = sim.step(expert.act(started))
            started[:] = False
            if len(out.final_ids):
                return step, bool(out.terminated), bool(out.truncated)
        raise AssertionError("no end")

    steps, terminated, truncated = until_the_end(4.0)
    assert (terminated, truncated) == (True, False)
    assert until_the_end(steps * 0.05) == (steps, True, False)
    assert until_the_end((steps - 1) * 0.05) == (steps - 1, False, True)


def test_the_shaped_reward_sums_to_the_distance_gained() -> None:
    sim = make(6, reward="shaped", limit_s=60.0)
    sim.reset(seed=0)
    task = sim.core.task
    start = task.distance()
    total = torch.zeros(6)
    for action in actions(30, 6):
        out = sim.step(action)
        assert not out.terminated.any()
        total += out.reward
    np.testing.assert_allclose(total.numpy(), 10 * (start - task.distance()), rtol=1e-4, atol=1e-4)


def test_the_hole_leaves_the_clearance_that_was_asked_for() -> None:
    for clearance in (0.001, 0.005):
        model = make(1, clearance_m=clearance).core.physics.model
        wall = model.geom("wall_xp")
        assert wall.pos[0] - wall.size[0] == pytest.approx(peg_insert.PEG_HALF_WIDTH_M + clearance)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clearance_m": 0.0}, "clearance_m is 0.0: expected a number from 0.0005 to 0.01 metres"),
        ({"limit_s": 0.1}, "limit_s is 0.1: expected a number from 0.5 to 60 seconds"),
        ({"limit_s": "3"}, "limit_s is '3': expected a number from 0.5 to 60 seconds"),
        ({"reward": "shapd"}, "did you mean 'shaped'"),
        ({"randomization": {"frictin": (1.0, 2.0)}}, "did you mean 'friction'"),
        ({"randomization": {"friction": (0.0, 2.0)}}, "parameter 'friction' is"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        make(1, **options)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_staggered_envs_do_not_end_together() -> None:
    sim = make(8, limit_s=2.0)
    sim.reset(seed=0, options={"stagger": True})
    ends = [out.final_ids.tolist() for out in (sim.step(torch.zeros(8, 4)) for _ in range(40))]
    assert sorted(i for ids in ends for i in ids) == list(range(8))
    assert max(len(ids) for ids in ends) == 1


# pictures


def test_a_camera_sees_what_is_there() -> None:
    xml = (
        '<mujoco><worldbody><geom type="plane" size="2 2 0.1" rgba="0 1 0 1"/>'
        '<body name="ball" mocap="true" pos="0 0 0.5"><geom type="sphere" size="0.2" rgba="1 0 0 1"/></body>'
        "</worldbody></mujoco>"
    )
    physics = Physics(xml, 2, 1)
    physics.batch.bind("mocap_pos")[1, 0] = (0.0, 0.6, 0.5)
    camera = Cameras(physics, {"front": View((3.0, 0.0, 0.5), (0.0, 0.0, 0.5), 40.0)})
    pictures = camera.render([0, 1], "front", 60, 40, samples=1).astype(int)
    red = (pictures[..., 0] > 2 * pictures[..., 1]) & (pictures[..., 0] > 2 * pictures[..., 2])
    rows, columns = np.nonzero(red[0])
    assert abs(rows.mean() - 19.5) < 0.6
    assert abs(columns.mean() - 29.5) < 0.6
    # radius on the picture: 0.2 m at 3 m, 40 rows for 40 degrees
    assert np.ptp(columns) + 1 == pytest.approx(40 * 0.2 / 3 / math.tan(math.radians(20)), abs=2)
    assert np.nonzero(red[1])[1].mean() > 40  # +y is to the right when looking along -x
    assert (pictures[0, -1, :, 1] > pictures[0, -1, :, 0]).all()  # the floor below
    assert (pictures[0, 0, :, 2] >= pictures[0, 0, :, 0]).all()  # the sky above
    # the second env's ball, further to the right, casts its shadow further to the right
    fine = camera.render([0], "front", 60, 40, samples=3)
    assert fine.shape == (1, 40, 60, 3)
    assert not np.array_equal(fine[0], pictures[0])
