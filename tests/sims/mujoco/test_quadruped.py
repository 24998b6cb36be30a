"""`mujoco/quadruped-velocity`: its numbers, reward arithmetic, motors, latency, randomisation, terrain and faults.

What every sim must do is in tests/conformance/test_sims.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from functools import partial
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl
from robotrl.errors import ConfigError
from robotrl.sims.mujoco.quadruped import rewards, robot, schedule, task
from robotrl.sims.mujoco.quadruped.schedule import CommandCfg, PushScheduleCfg
from robotrl.sims.mujoco.quadruped.terrain import KINDS, elevation, make_terrain
from robotrl.spec import HasPrivileged
from tests.kits.refusals import raises_naming

NAME = "mujoco/quadruped-velocity"
COMMAND = CommandCfg(speed_mps=1.0, yaw_rad_s=1.0, standing=0.1, period_steps=250)
PUSH = PushScheduleCfg(speed_mps=0.5, yaw_rad_s=0.5, period_steps=250)


def make(num_envs: int = 2, seed: int = 0, **options: Any) -> Any:
    sim = robotrl.make_sim(NAME, num_envs=num_envs, seed=seed, **options)
    sim.reset()
    return sim


def plain(num_envs: int = 2, **options: Any) -> Any:
    """Nothing random but the starts."""
    return make(num_envs, randomize=False, **options)


def run(sim: Any, steps: int, action: float = 0.0) -> Any:
    out = None
    for _ in range(steps):
        out = sim.step(torch.full((sim.num_envs, 12), action))
    return out


# the reward's terms, by hand


def test_tracking_falls_to_1_over_e_at_half_a_metre_per_second() -> None:
    assert rewards.tracking(np.array([0.0, 0.25, 1.0])) == pytest.approx([1.0, np.exp(-1), np.exp(-4)])


def test_sum_squares() -> None:
    assert rewards.sum_squares(np.array([[1.0, 2.0], [0.0, -3.0]])).tolist() == [5.0, 9.0]


def test_a_command_below_a_tenth_asks_to_stand() -> None:
    command = np.array([[0.05, -0.05, 0.05], [0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [0.08, 0.08, 0.0]])
    assert rewards.asks_to_stand(command).tolist() == [True, True, False, False]


def test_air_time_counts_landings_beyond_a_tenth_of_a_second_up_to_three_more() -> None:
    seconds = np.array([[0.3, 0.05, 0.9, 0.4], [0.4, 0.0, 0.0, 0.0]])
    landed = np.array([[True, True, True, False], [True, False, False, False]])
    found = rewards.air_time(seconds, landed, np.array([False, True]))
    assert found == pytest.approx([0.2 + 0.0 + 0.3, 0.0])


def test_trot_pays_for_a_swinging_diagonal_pair() -> None:
    up = np.array(
        [
            [1, 0, 0, 1],
            [0, 1, 1, 0],
            [1, 1, 0, 0],
            [1, 0, 0, 0],
            [0, 0, 0, 0],
            [1, 1, 1, 0],
            [1, 0, 0, 1],
            [1, 0, 0, 1],
        ],
        bool,
    )
    seconds = 0.1 * up
    seconds[6, 3] = 0.5  # held up, not swung
    standing = np.array([False] * 7 + [True])
    assert rewards.trot(seconds, ~up, standing).tolist() == [1, 1, 0, 0.25, 0, 0, 0, 0]


def test_foot_slip_is_horizontal_speed_of_feet_on_the_ground() -> None:
    velocity = np.zeros((1, 4, 3))
    velocity[0] = [[3, 4, 9], [1, 0, 0], [0, 0, 5], [0, 2, 0]]
    assert rewards.foot_slip(velocity, np.array([[True, False, True, True]])).tolist() == [25 + 0 + 4]


def test_joint_limits_are_felt_outside_the_middle_nine_tenths() -> None:
    low, high = rewards.soft_range(np.array([-1.0, 0.0]), np.array([1.0, 2.0]))
    assert low == pytest.approx([-0.9, 0.1])
    assert high == pytest.approx([0.9, 1.9])
    found = rewards.joint_limit(np.array([[-1.0, 1.0], [0.0, 2.0], [0.5, 0.5]]), low, high)
    assert found == pytest.approx([0.1, 0.1, 0.0])


def test_stand_still_only_counts_while_standing() -> None:
    offset = np.array([[0.1, -0.2], [0.1, -0.2]])
    assert rewards.stand_still(offset, np.array([True, False])) == pytest.approx([0.3, 0.0])


def test_the_reward_is_the_sum_of_its_terms_and_each_is_scaled_by_time() -> None:
    sim = plain(3)
    out = run(sim, 5, 0.3)
    terms = {name: value.clone() for name, value in out.info.items() if name.startswith("reward/")}
    assert set(terms) == {f"reward/{name}" for name in task.TERMS}
    assert torch.allclose(sum(terms.values()).float(), out.reward)
    # action went from 0.3 to 0.3, then to 0.5: twelve joints, a fiftieth of a second
    assert terms["reward/action_rate"].tolist() == [0.0, 0.0, 0.0]
    out = run(sim, 1, 0.5)
    expected = rewards.RewardScales().action_rate * 12 * 0.2**2 * 0.02
    assert out.info["reward/action_rate"].tolist() == pytest.approx([expected] * 3, rel=1e-5)


def test_a_scale_can_be_changed_by_name() -> None:
    ordinary, doubled = plain(2), plain(2, reward={"torque": 2 * rewards.RewardScales().torque, "air_time": 0})
    a, b = run(ordinary, 3, 0.1), run(doubled, 3, 0.1)
    assert torch.allclose(2 * a.info["reward/torque"], b.info["reward/torque"])
    assert (b.info["reward/air_time"] == 0).all()
    with pytest.raises(ConfigError, match="did you mean 'torque'"):
        plain(1, reward={"torques": -1})
    with raises_naming(ConfigError, "reward.torque", "much", "number"):
        plain(1, reward={"torque": "much"})


def test_a_standing_robot_earns_nearly_all_of_the_tracking_and_pays_little() -> None:
    sim = plain(4, command_mps=0.0, command_yaw_rad_s=0.0)
    out = run(sim, 200)
    scales = rewards.RewardScales()
    assert (out.info["reward/track_linear"] > 0.99 * scales.track_linear * 0.02).all()
    assert (out.info["reward/track_yaw"] > 0.99 * scales.track_yaw * 0.02).all()
    assert (out.obs["privileged"][:, 10:14] == 1).all()
    assert (out.obs["privileged"][:, :3].abs() < 0.03).all()
    assert ((out.obs["privileged"][:, 9] - robot.STAND_HEIGHT_M).abs() < 0.03).all()
    assert not out.terminated.any()


def test_feet_in_the_air_are_timed_until_they_land() -> None:
    """The robot is dropped: each landing pays for the steps that the foot was in the air."""
    sim = plain(1, reward={name: 0.0 for name in task.TERMS} | {"air_time": 1.0}, command_mps=1.0)
    qpos = sim.core.physics.batch.bind("qpos")
    sim.core.task.commands[:] = 1.0
    run(sim, 50)
    qpos[:, 2] += 0.6
    sim.core.physics.forward()
    air, expected, longest = np.zeros(4), 0.0, 0.0
    for _ in range(40):
        out = run(sim, 1)
        air += 1
        landed = out.obs["privileged"][0, 10:14].numpy().astype(bool)
        swings = air[landed & (air > 1)]
        expected = (np.clip(swings * 0.02 - 0.1, 0, 0.3) * 0.02).sum()
        longest = max([longest, *swings])
        air[landed] = 0
        assert out.reward[0].item() == pytest.approx(expected, abs=1e-7)
    # a fall of 0.6 m takes 0.35 s
    assert 14 <= longest <= 19


# the robot


def test_masses_links_and_order_are_those_published() -> None:
    model = plain(1).core.physics.model
    assert model.body_mass.sum() == pytest.approx(6.921 + 4 * (0.678 + 1.152 + 0.241352))
    assert [model.joint(i).name for i in range(1, 13)] == list(robot.JOINTS)
    assert [model.actuator(i).name for i in range(12)] == list(robot.JOINTS)
    assert robot.JOINTS[:4] == ("FR_hip_joint", "FR_thigh_joint", "FR_calf_joint", "FL_hip_joint")
    for leg in robot.LEGS:
        side = 1 if leg[1] == "L" else -1
        assert model.body(f"{leg}_thigh").pos.tolist() == [0, side * 0.0955, 0]
        assert model.body(f"{leg}_calf").pos.tolist() == [0, 0, -0.213]
        assert model.joint(f"{leg}_calf_joint").range.tolist() == [-2.7227, -0.83776]
        assert model.actuator(f"{leg}_calf_joint").forcerange.tolist() == [-45.43, 45.43]
        assert model.actuator(f"{leg}_hip_joint").forcerange.tolist() == [-23.7, 23.7]


def test_legs_are_mirror_images() -> None:
    model = plain(1).core.physics.model
    full: dict[str, np.ndarray] = {}
    for leg in robot.LEGS:
        for link in robot.LINKS:
            body = model.body(f"{leg}_{link}")
            frame = np.zeros(9)
            mujoco.mju_quat2Mat(frame, body.iquat)
            frame = frame.reshape(3, 3)
            full[f"{leg}_{link}"] = frame @ np.diag(body.inertia) @ frame.T
    for link in robot.LINKS:
        for front in "FR":
            mirror = np.diag([1.0, -1.0, 1.0])
            assert np.allclose(full[f"{front}L_{link}"], mirror @ full[f"{front}R_{link}"] @ mirror, atol=1e-9)


def test_motors_are_the_declared_pd_within_their_torques() -> None:
    sim = plain(3)
    batch, card = sim.core.physics.batch, sim.robot
    force, qpos, qvel = batch.bind("actuator_force"), batch.bind("qpos"), batch.bind("qvel")
    action = torch.tensor([0.0, 0.5, 4.0])[:, None].expand(3, 12)
    for _ in range(3):
        sim.step(action)
    before_pos, before_vel = qpos[:, 7:].copy(), qvel[:, 6:].copy()
    target = np.array(card.default_pose_rad) + card.action_scale_rad * action.numpy()
    batch.step(nstep=1)
    wanted = np.array(card.kp_nm_rad) * (target - before_pos) - np.array(card.kd_nm_s_rad) * before_vel
    limit = np.array(card.torque_limit_nm)
    assert (np.abs(wanted) > limit).any() or np.abs(wanted).max() > 10
    assert force == pytest.approx(np.clip(wanted, -limit, limit), abs=1e-9)


def test_no_motor_exceeds_its_torque() -> None:
    sim = make(16, end_on_fall=False)
    force = sim.core.physics.batch.bind("actuator_force")
    generator = torch.Generator().manual_seed(0)
    largest = np.zeros(12)
    for _ in range(40):
        sim.step(8 * torch.rand((16, 12), generator=generator) - 4)
        largest = np.maximum(largest, np.abs(force).max(axis=0))
    assert (largest <= np.array(sim.robot.torque_limit_nm) + 1e-9).all()
    assert (largest[0::3] > 15).all()


@pytest.mark.parametrize(("multiplier", "delayed"), [(0.0, 0), (0.5, 1), (1.0, 2), (2.0, 4)])
def test_latency_delays_a_command_by_physics_steps(multiplier: float, delayed: int) -> None:
    """A new target shows in the torque `delayed` physics steps late: the torque jumps by kp times the change."""
    sim = plain(1)
    sim.core.set_params(np.array([0]), {"latency": np.array([multiplier])})
    run(sim, 100)
    batch = sim.core.physics.batch
    force = batch.bind("actuator_force")
    sim.core.task.command(np.full((1, 12), 1.0, np.float32))
    torques = []
    for _ in range(6):
        batch.step(nstep=1)
        torques.append(force[0, 2])
    jumps = np.abs(np.diff(torques, prepend=torques[0] if delayed else np.nan))
    jump = robot.KP_NM_RAD * robot.ACTION_SCALE_RAD
    if delayed:
        assert np.argmax(jumps) == delayed
        assert jumps[delayed] > 0.6 * jump
    else:
        assert torques[0] > torques[-1] + 0.3 * jump


def test_the_card_is_complete_and_survives_json() -> None:
    sim = plain(1)
    card = sim.robot
    assert robot.RobotCard.from_json(json.loads(json.dumps(card.to_json()))) == card
    for name in ("default_pose_rad", "joint_low_rad", "joint_high_rad", "torque_limit_nm", "kp_nm_rad", "kd_nm_s_rad"):
        assert len(getattr(card, name)) == len(card.joint_names) == 12
    assert card.observation_names == sim.observation_spec["state"].names
    assert card.control_dt_s == sim.control_dt_s == 0.02
    model = sim.core.physics.model
    assert model.actuator_gainprm[:, 0].tolist() == list(card.kp_nm_rad)
    assert (-model.actuator_biasprm[:, 2]).tolist() == list(card.kd_nm_s_rad)
    assert model.opt.timestep == card.physics_dt_s
    low, high = np.array(card.joint_low_rad), np.array(card.joint_high_rad)
    assert ((low < card.default_pose_rad) & (np.array(card.default_pose_rad) < high)).all()


# what the policy sees


def test_the_policy_sees_only_what_a_robot_measures() -> None:
    sim = plain(1)
    assert isinstance(sim, HasPrivileged)
    assert sim.privileged == ("privileged",)
    assert sim.observation_spec["state"].shape == (45,)
    assert not [name for name in sim.observation_spec["state"].names if "trunk_vel" in name or "height" in name]


def test_observations_are_those_of_the_physics() -> None:
    sim = plain(4)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        action = torch.randn((4, 12), generator=generator)
        out = sim.step(action)
    batch = sim.core.physics.batch
    qpos, qvel, commands = batch.bind("qpos"), batch.bind("qvel"), sim.core.task.commands
    for env in range(4):
        frame = np.zeros(9)
        mujoco.mju_quat2Mat(frame, qpos[env, 3:7])
        to_body = frame.reshape(3, 3).T
        expected = np.concatenate(
            [
                qvel[env, 3:6],
                to_body @ [0, 0, -1],
                commands[env],
                qpos[env, 7:] - np.array(sim.robot.default_pose_rad),
                qvel[env, 6:],
                action[env].numpy(),
            ]
        )
        assert out.obs["state"][env].numpy() == pytest.approx(expected, abs=1e-5)
        assert out.obs["privileged"][env, :3].numpy() == pytest.approx(to_body @ qvel[env, :3], abs=1e-5)
        assert out.obs["privileged"][env, 3:9].numpy() == pytest.approx(expected[:6], abs=1e-5)
        assert out.obs["privileged"][env, 9].item() == pytest.approx(qpos[env, 2], abs=1e-6)
        assert (out.obs["privileged"][env, 14:] == 1).all()


def test_noise_is_bounded_fills_its_range_and_can_be_scaled() -> None:
    amplitudes = np.array([0.2, 1.5])
    values = schedule.noise(amplitudes, np.arange(4000), np.full(4000, 7))
    assert (np.abs(values) <= amplitudes).all()
    assert np.abs(values).max(axis=0) == pytest.approx(amplitudes, rel=0.01)
    assert np.abs(values.mean(axis=0)) == pytest.approx([0, 0], abs=0.03)
    ids = list(range(8))
    found = {}
    for noise in (0.0, 1.0, 2.0):
        sim = make(8, noise=noise, push_mps=0.0, randomization={})
        sim.queue_states(ids)
        found[noise] = sim.reset()["state"].clone()
    small, large = found[1.0] - found[0.0], found[2.0] - found[0.0]
    assert torch.allclose(2 * small, large, atol=1e-5)
    noisy = small.abs().amax(0) > 0
    assert noisy.tolist() == [True] * 6 + [False] * 3 + [True] * 24 + [False] * 12


# commands and pushes


@given(st.integers(0, 2**31 - 1), st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_schedules_are_functions_of_id_and_step(state_id: int, step: int) -> None:
    ids, steps = np.array([5, state_id]), np.array([3, step])
    alone = np.array([state_id]), np.array([step])
    for draw in (partial(schedule.commands, COMMAND), partial(schedule.pushes, PUSH)):
        assert np.array_equal(draw(ids, steps)[1:], draw(*alone))
    assert np.array_equal(
        schedule.commands(COMMAND, *alone), schedule.commands(COMMAND, alone[0], alone[1] // 250 * 250)
    )
    command = schedule.commands(COMMAND, *alone)[0]
    assert np.hypot(*command[:2]) <= 1.0
    assert abs(command[2]) <= 1.0


def test_commands_fill_the_disc_and_some_ask_to_stand() -> None:
    ids = np.arange(20_000)
    found = schedule.commands(COMMAND, ids, np.zeros_like(ids))
    standing = (found == 0).all(axis=1)
    assert standing.mean() == pytest.approx(0.1, abs=0.01)
    moving = found[~standing]
    speed = np.hypot(moving[:, 0], moving[:, 1])
    # uniform over a disc: a quarter lies within half its radius
    assert (speed < 0.5).mean() == pytest.approx(0.25, abs=0.02)
    assert moving.mean(axis=0) == pytest.approx([0, 0, 0], abs=0.02)
    assert np.abs(moving[:, 2]).mean() == pytest.approx(0.5, abs=0.02)


def test_commands_change_every_five_seconds_and_the_step_before_is_judged_by_the_old_one() -> None:
    sim = plain(1, end_on_fall=False, reward={name: 0.0 for name in task.TERMS} | {"track_yaw": 1.0})
    seen = [sim.core.obs["state"][0, 6:9].copy()]
    for step in range(1, 502):
        out = run(sim, 1)
        seen.append(out.obs["state"][0, 6:9].numpy().copy())
        if step == 250:
            rate = sim.core.physics.batch.bind("qvel")[0, 5]
            expected = np.exp(-((seen[249][2] - rate) ** 2) / rewards.TRACKING_VARIANCE)
            assert out.reward[0].item() == pytest.approx(expected * 0.02, rel=1e-4)
    changes = [step for step in range(1, len(seen)) if not np.array_equal(seen[step], seen[step - 1])]
    assert changes == [250, 500]


def test_pushes_kick_the_trunk_every_five_seconds() -> None:
    pushed = make(3, randomization={}, noise=0.0, push_mps=2.0, end_on_fall=False)
    left = make(3, randomization={}, noise=0.0, push_mps=0.0, end_on_fall=False)
    qvel = [sim.core.physics.batch.bind("qvel") for sim in (pushed, left)]
    offsets = schedule.push_offsets(PUSH, pushed.core.task.ids)
    first = 250 - offsets
    assert np.array_equal(first, 250 - schedule.push_offsets(PUSH, left.core.task.ids))
    for step in range(int(first.max()) + 1):
        same = np.array_equal(qvel[0], qvel[1])
        assert same == (step <= first.min())
        run(pushed, 1)
        run(left, 1)
    kick = schedule.pushes(PushScheduleCfg(2.0, 2.0, 250), np.arange(1000), np.arange(1000))
    assert np.hypot(kick[:, 0], kick[:, 1]).max() <= 2.0
    assert np.hypot(kick[:, 0], kick[:, 1]).mean() == pytest.approx(2 * 2 / 3, abs=0.05)


# randomisation


def test_randomisation_is_on_by_default_and_can_be_switched_off() -> None:
    ranges = task.RANDOMIZATION
    params = make(64).get_params()
    assert set(params) == set(ranges)
    for name, (low, high) in ranges.items():
        assert (params[name] >= low).all()
        assert (params[name] <= high).all()
        assert params[name].std() > 0.15 * (high - low)
    assert all((value == 1).all() for value in plain(4).get_params().values())


def test_the_critic_sees_what_was_drawn() -> None:
    sim = make(8)
    names = sim.observation_spec["privileged"].names[14:]
    seen = sim.core.obs["privileged"][:, 14:]
    params = sim.get_params()
    for column, name in enumerate(names):
        assert seen[:, column] == pytest.approx(params[name.removesuffix("_multiplier")], rel=1e-6), name


def test_each_parameter_reaches_the_physics() -> None:
    sim = plain(2)
    values = {"friction": 0.5, "trunk_mass": 1.2, "kp": 0.9, "kd": 1.1, "latency": 0.5}
    sim.set_params([1], {name: np.array([value]) for name, value in values.items()})
    changed, model = sim.core.physics.batch.get_model(1), sim.core.physics.model
    foot, trunk = model.geom("RL_foot").id, model.body("trunk").id
    assert changed.geom_friction[foot, 0] == pytest.approx(0.5 * model.geom_friction[foot, 0])
    assert changed.body_mass[trunk] == pytest.approx(1.2 * model.body_mass[trunk])
    assert changed.actuator_gainprm[:, 0] == pytest.approx(0.9 * model.actuator_gainprm[:, 0])
    assert changed.actuator_biasprm[:, 1] == pytest.approx(0.9 * model.actuator_biasprm[:, 1])
    assert changed.actuator_biasprm[:, 2] == pytest.approx(1.1 * model.actuator_biasprm[:, 2])
    assert changed.actuator_delay == pytest.approx(0.5 * model.actuator_delay)


def test_an_episode_is_the_same_in_another_process() -> None:
    script = (
        "import hashlib, robotrl, torch\n"
        f"sim = robotrl.make_sim({NAME!r}, num_envs=2, seed=1)\n"
        "sim.queue_states([41, 42])\n"
        "sim.reset()\n"
        "for step in range(300):\n"
        "    out = sim.step(torch.full((2, 12), 0.01 * (step % 7)))\n"
        "print(hashlib.sha256(out.obs['state'].numpy().tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(script.replace("seed=1", "seed=2, threads=1"), {})
    assert len(here.getvalue().strip()) == 64
    assert done.stdout.splitlines()[-1] == here.getvalue().strip()


def test_a_state_in_the_midst_of_everything_is_exact() -> None:
    """Over a push, a change of command and a landing."""
    sim, other = make(4, seed=3, end_on_fall=False), make(4, seed=9, end_on_fall=False)
    generator = torch.Generator().manual_seed(2)
    actions = 0.5 * torch.randn((300, 4, 12), generator=generator)
    for action in actions[:40]:
        sim.step(action)
    state = sim.get_state()
    expected = [(o.obs["state"].clone(), o.reward.clone()) for o in map(sim.step, actions[40:])]
    other.set_state(state)
    for action, (obs, reward) in zip(actions[40:], expected, strict=True):
        out = other.step(action)
        assert torch.equal(out.obs["state"], obs)
        assert torch.equal(out.reward, reward)


# ends


def test_tipping_over_and_touching_with_the_trunk_end_an_episode() -> None:
    sim = plain(4)
    qpos = sim.core.physics.batch.bind("qpos")
    run(sim, 30)
    qpos[1, 3:7] = [np.cos(0.6), np.sin(0.6), 0, 0]  # rolled by 69 degrees
    qpos[1, 2] += 0.3
    qpos[2, 2] = 0.05
    qpos[2, 9::3] = -2.7
    out = run(sim, 1)
    assert out.terminated.tolist() == [False, True, True, False]
    assert out.final_ids.tolist() == [1, 2]
    assert not out.info["success"].any()
    scale = rewards.RewardScales().termination * 0.02
    assert out.info["reward/termination"].tolist() == pytest.approx([0, scale, scale, 0])


def test_lasting_until_the_limit_is_success() -> None:
    out = run(plain(2, limit_s=0.4), 20)
    assert out.truncated.tolist() == out.info["success"].tolist() == [True, True]
    assert not out.terminated.any()


def test_a_fallen_robot_may_go_on() -> None:
    sim = plain(1, end_on_fall=False)
    sim.core.physics.batch.bind("qpos")[0, 3:7] = [0, 1, 0, 0]
    out = run(sim, 100)
    assert not out.terminated.any()
    assert out.info["reward/termination"].item() == 0
    # it lies on its back, not in the ground
    assert 0.03 < sim.core.physics.batch.bind("qpos")[0, 2] < 0.2


# terrain


@pytest.mark.parametrize("kind", KINDS[1:])
def test_the_ground_is_where_rays_find_it(kind: Any) -> None:
    sim = plain(1, terrain=kind, levels=2)
    terrain, physics = sim.core.task.terrain, sim.core.physics
    assert elevation(physics.model) == pytest.approx(terrain.grid, abs=2e-4)
    assert terrain.grid.min() == 0
    rng = np.random.default_rng(0)
    xy = rng.uniform([-9, -13], [9, 13], (400, 2))
    points = np.column_stack([xy, np.full(400, 3.0)])
    groups = np.ones(6, np.uint8)
    sim.core.physics.batch.bind("qpos")[0, :3] = [50, 50, 5]
    distance, _ = physics.batch.ray(points, np.array([0.0, 0.0, -1.0]), geomgroup=groups)[:2]
    error = np.abs(3.0 - distance[0] - terrain.height(xy[:, 0], xy[:, 1]))
    # two triangles to a cell there, bilinear here
    assert np.median(error) < 1e-3
    assert error.max() < 0.05


def test_levels_grow_and_starts_are_spread_over_them() -> None:
    for kind in KINDS[1:]:
        terrain = make_terrain(kind, 4)
        per_level = [block.max() for block in np.array_split(terrain.grid[:, :-1], 4, axis=1)]
        assert per_level == sorted(per_level)
        assert per_level[-1] > 2 * per_level[0] > 0
        places = terrain.places(np.random.default_rng(0).random((800, 4)))
        level = ((places[:, 0] - terrain.low_x_m) // 8.0).astype(int)
        assert np.bincount(level, minlength=4).min() > 150
    assert (make_terrain("flat", 4).height(np.array([3.0]), np.array([-70.0])) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_robots_stand_on_every_ground(kind: Any) -> None:
    sim = make(24, terrain=kind, push_mps=0.0)
    fallen = 0
    for _ in range(75):
        out = sim.step(torch.zeros(24, 12))
        fallen += int(out.terminated.sum())
    assert fallen <= 2
    contacts, height = out.obs["privileged"][:, 10:14], out.obs["privileged"][:, 9]
    assert contacts.mean() > 0.8
    assert ((height > 0.15) & (height < 0.4)).all()


# faults


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"terrain": "flatt"}, "did you mean 'flat'"),
        ({"levels": 0}, "levels is 0: expected"),
        ({"command_mps": -1.0}, r"command_mps is -1\.0: expected"),
        ({"noise": 9}, "noise is 9: expected"),
        ({"push_mps": "hard"}, "push_mps is 'hard': expected"),
        ({"limit_s": 0}, "limit_s is 0: expected"),
        ({"randomization": {"frictio": (1.0, 1.0)}}, "did you mean 'friction'"),
        ({"randomization": {"latency": (0.0, 3.0)}}, "parameter 'latency' is"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(1, **options)


def test_the_simulated_robot_stands_without_torch() -> None:
    script = (
        "import sys\n"
        "from robotrl.registry import ROBOT_SIMS\n"
        f"robot = ROBOT_SIMS.load({NAME!r})(0)\n"
        "robot.reset(robot.state_ids('test')[0])\n"
        "for _ in range(100):\n"
        "    robot.command([0.0] * 12)\n"
        "    robot.advance(4)\n"
        "print(robot.observe()['state'][5])\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert float(done.stdout.splitlines()[-1]) == pytest.approx(-1, abs=0.01)


# the measure of tracking


def test_tracking_is_measured_against_the_truth_after_settling() -> None:
    from benchmarks.locomotion.quadruped import evaluate_policy
    from robotrl.policies.gaussian import GaussianCfg
    from robotrl.transforms import TransformGroup

    options = {"limit_s": 6.0, "end_on_fall": False}
    sim = make(2, **options)
    specs = {"state": sim.observation_spec["state"]}
    policy = GaussianCfg(horizon=1, hidden=(8,)).build(specs, sim.action_spec, TransformGroup((), ()))
    found = evaluate_policy(policy, episodes=2, seed=1, options=options)
    assert found.episodes == 2
    assert found.no_fall.value == 1.0

    ids = sim.state_ids("test")[2:4]
    sim.queue_states(ids)
    obs = sim.reset()
    qpos, qvel = sim.core.physics.batch.bind("qpos"), sim.core.physics.batch.bind("qvel")
    errors, yaw_errors, vectors = [], [], []
    for step in range(300):
        if 50 <= step < 250:
            for env in range(2):
                frame = np.zeros(9)
                mujoco.mju_quat2Mat(frame, qpos[env, 3:7])
                command = schedule.commands(COMMAND, np.array([ids[env]]), np.array([step]))[0]
                vector = command[:2] - (frame.reshape(3, 3).T @ qvel[env, :3])[:2]
                errors.append(np.hypot(*vector))
                vectors.append(vector)
                yaw_errors.append(abs(command[2] - qvel[env, 5]))
        with torch.no_grad():
            obs = sim.step(policy.act(obs, mode="mean").chunk[:, 0]).obs
    # the second command has its settling time only
    assert found.error_mps == pytest.approx(np.mean(errors), rel=1e-4)
    assert found.yaw_error_rad_s == pytest.approx(np.mean(yaw_errors), rel=1e-4)
    per_env = [np.linalg.norm(np.mean(vectors[env::2], axis=0)) for env in range(2)]
    assert found.mean_error_mps == pytest.approx(np.mean(per_env), rel=1e-4)
