"""Locomotion beside Gymnasium's own environments, which are the reference: equal numbers, equal options."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError, NumericsError, RobotrlError
from robotrl.registry import sim_options
from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.engine.physics import SimNumericsError
from robotrl.sims.mujoco.engine.replay import replay
from robotrl.sims.mujoco.engine.sim import MujocoSim

GYMNASIUM = {
    "mujoco/ant": "Ant-v5",
    "mujoco/halfcheetah": "HalfCheetah-v5",
    "mujoco/hopper": "Hopper-v5",
    "mujoco/humanoid": "Humanoid-v5",
    "mujoco/walker2d": "Walker2d-v5",
}
WITHIN = 1e-9
"""Observations and rewards in float64; states must be equal bit for bit."""
OTHERWISE: dict[str, dict[str, Any]] = {
    "mujoco/ant": {
        "forward_reward_weight": 0.5,
        "ctrl_cost_weight": 0.2,
        "contact_cost_weight": 0.3,
        "healthy_reward": 2.0,
        "healthy_z_range": (0.6, 0.9),
        "contact_force_range": (-0.5, 2.0),
        "exclude_current_positions_from_observation": False,
        "include_cfrc_ext_in_observation": False,
    },
    "mujoco/halfcheetah": {
        "forward_reward_weight": -2.0,
        "ctrl_cost_weight": 0.7,
        "exclude_current_positions_from_observation": False,
    },
    "mujoco/hopper": {
        "forward_reward_weight": 3.0,
        "ctrl_cost_weight": 0.4,
        "healthy_reward": 0.5,
        "terminate_when_unhealthy": False,
        "healthy_state_range": (-1.0, 1.0),
        "healthy_z_range": (1.2, 1.3),
        "healthy_angle_range": (-0.05, 0.1),
        "exclude_current_positions_from_observation": False,
    },
    "mujoco/humanoid": {
        "forward_reward_weight": 3.0,
        "ctrl_cost_weight": 0.4,
        "contact_cost_weight": 1e-3,
        "contact_cost_range": (0.1, 0.2),
        "healthy_reward": 0.5,
        "terminate_when_unhealthy": False,
        "healthy_z_range": (1.2, 1.38),
        "exclude_current_positions_from_observation": False,
        "include_cinert_in_observation": False,
        "include_cvel_in_observation": False,
        "include_qfrc_actuator_in_observation": True,
        "include_cfrc_ext_in_observation": False,
    },
    "mujoco/walker2d": {
        "forward_reward_weight": 3.0,
        "ctrl_cost_weight": 0.4,
        "healthy_reward": 0.5,
        "healthy_z_range": (1.2, 1.3),
        "healthy_angle_range": (-0.05, 0.1),
        "exclude_current_positions_from_observation": False,
    },
}
"""Each option of the five away from its default, chosen such that the ranges are left."""
tasks = pytest.mark.parametrize("name", GYMNASIUM)


def make(name: str, num_envs: int, **options: Any) -> MujocoSim:
    return robotrl.make_sim(name, num_envs=num_envs, **options)


def on_device(env: Any, qpos: np.ndarray, qvel: np.ndarray) -> np.ndarray:
    """Put a Gymnasium env, newly reset, into a state; returns the observation there."""
    env.reset()
    env.unwrapped.set_state(qpos, qvel)
    return env.unwrapped._get_obs()


def compare(name: str, num_envs: int, steps: int, **options: Any) -> tuple[int, float]:
    """Step ours and Gymnasium's through the same states; returns how many episodes ended and the largest |reward|."""
    sim = make(name, num_envs, threads=2, dtype="float64", **options)
    envs = [gymnasium.make(GYMNASIUM[name], **options) for _ in range(num_envs)]
    qpos, qvel = (sim.core.physics.batch.bind(field) for field in ("qpos", "qvel"))
    rng = np.random.default_rng(3)
    for env in envs:
        env.reset(seed=int(rng.integers(1 << 30)))
    given = {field: np.stack([getattr(env.unwrapped.data, field) for env in envs]) for field in ("qpos", "qvel")}
    seen = sim.reset(options=given)["state"].numpy()
    for i, env in enumerate(envs):
        assert np.array_equal(on_device(env, given["qpos"][i], given["qvel"][i]), seen[i])
    high = np.asarray(sim.action_spec.high)
    ended, largest = 0, 0.0
    for t in range(steps):
        actions = rng.uniform(-high, high, (num_envs, len(high)))
        out = sim.step(torch.from_numpy(actions))
        last = dict(zip(out.final_ids.tolist(), out.final_obs["state"].numpy(), strict=True))
        for i, env in enumerate(envs):
            obs, reward, terminated, _, _ = env.step(actions[i])
            where = f"step {t}, env {i}"
            assert bool(out.terminated[i]) == terminated, where
            assert abs(float(out.reward[i]) - reward) <= WITHIN, where
            largest = max(largest, abs(float(reward)))
            mine = last[i] if i in last else out.obs["state"][i].numpy()
            assert mine.shape == obs.shape
            assert np.abs(mine - obs).max() <= WITHIN, where
            if i in last:
                # ours has begun anew: Gymnasium's goes on from the same start
                ended += 1
                assert np.array_equal(on_device(env, qpos[i], qvel[i]), out.obs["state"][i].numpy()), where
            assert np.array_equal(env.unwrapped.data.qpos, qpos[i]), where
            assert np.array_equal(env.unwrapped.data.qvel, qvel[i]), where
    for env in envs:
        env.close()
    return ended, largest


@tasks
def test_states_observations_and_rewards_are_gymnasiums(name: str) -> None:
    ended, largest = compare(name, 8, 200)
    assert largest > 0.1
    if name != "mujoco/halfcheetah":  # which has no way to fail
        assert ended >= 4


@tasks
def test_every_option_means_what_it_means_there(name: str) -> None:
    compare(name, 2, 60, **OTHERWISE[name])


@tasks
def test_options_and_defaults_are_gymnasiums(name: str) -> None:
    theirs = inspect.signature(type(gymnasium.make(GYMNASIUM[name]).unwrapped).__init__).parameters
    # those that every MuJoCo sim of ours has
    own = {"limit_steps", "dtype", *(field.name for field in fields(MujocoCfg))}
    ours = {key: value for key, value in vars(sim_options(name)).items() if key not in own}
    left_out = {"self", "xml_file", "frame_skip", "default_camera_config", "main_body", "kwargs"}
    assert ours == {key: value.default for key, value in theirs.items() if key not in left_out}
    assert set(OTHERWISE[name]) <= set(ours)


@tasks
def test_the_control_step_and_the_limit_are_gymnasiums(name: str) -> None:
    sim, env = make(name, 1), gymnasium.make(GYMNASIUM[name])
    assert sim.control_dt_s == pytest.approx(env.unwrapped.dt, rel=1e-12)
    assert env.spec
    assert sim.core.task.limit_steps == env.spec.max_episode_steps == 1000
    box = env.action_space
    assert isinstance(box, gymnasium.spaces.Box)
    assert np.array_equal(np.float32(sim.action_spec.low), box.low)
    assert np.array_equal(np.float32(sim.action_spec.high), box.high)


def test_success_is_to_reach_the_limit() -> None:
    sim = make("mujoco/hopper", 2, limit_steps=40)
    sim.reset(seed=0, options={"qpos": np.array([[0.0, 1.25, 0, 0, 0, 0], [0.0, 1.25, 0.3, 0, 0, 0]])})
    out = sim.step(torch.zeros(2, 3))
    assert (out.terminated.tolist(), out.truncated.tolist()) == ([False, True], [False, False])
    assert out.info["success"].tolist() == [False, False]
    for _ in range(39):
        out = sim.step(torch.zeros(2, 3))
    assert out.truncated.tolist() == [True, False]
    assert out.info["success"].tolist() == [True, False]


# starts


@tasks
def test_starts_have_gymnasiums_distribution(name: str) -> None:
    sim = make(name, 1, reset_noise_scale=0.5)
    model = sim.core.physics.model
    noise = (sim.core.task.plan(np.arange(4000)) - np.concatenate([model.qpos0, np.zeros(model.nv)])) / 0.5
    positions, velocities = noise[:, : model.nq], noise[:, model.nq :]
    normal = name in ("mujoco/ant", "mujoco/halfcheetah")
    for values, is_normal in ((positions, False), (velocities, normal)):
        assert np.abs(values.mean(axis=0)).max() < 0.08
        assert np.allclose(values.std(axis=0), 1.0 if is_normal else 1 / np.sqrt(3), atol=0.06)
        kurtosis = (values**4).mean() / (values**2).mean() ** 2
        assert kurtosis == pytest.approx(3.0 if is_normal else 1.8, abs=0.1)
        assert (np.abs(values).max() > 1) == is_normal
    correlation = np.corrcoef(noise, rowvar=False) - np.eye(noise.shape[1])
    assert np.abs(correlation).max() < 0.08


def test_given_coordinates_are_checked_before_anything_moves() -> None:
    sim = make("mujoco/ant", 3)
    model = sim.core.physics.model
    sim.reset(seed=0)
    before = sim.get_state()
    for field, size, bad in (("qpos", model.nq, np.nan), ("qvel", model.nv, np.inf)):
        values = np.zeros((3, size))
        values[2, 5] = bad
        with pytest.raises(NumericsError, match=rf"'{field}', env 2, column 5 is {bad}: expected finite"):
            sim.reset(options={field: values})
        with pytest.raises(ConfigError, match=rf"'{field}' has shape \(2, {size}\): expected \(3, {size}\)"):
            sim.reset(options={field: values[:2]})
    for key, value in sim.get_state().items():
        assert np.array_equal(value, before[key]), key


# columns


@tasks
def test_columns_carry_the_names_of_the_model(name: str) -> None:
    sim = make(name, 1, exclude_current_positions_from_observation=False, dtype="float64")
    model = sim.core.physics.model
    spec = sim.observation_spec["state"]
    obs = dict(zip(spec.names, sim.reset(seed=0)["state"][0].tolist(), strict=True))
    qpos, qvel = (sim.core.physics.batch.bind(field)[0] for field in ("qpos", "qvel"))
    assert list(obs.values())[: model.nq] == qpos.tolist()
    hinges = [model.joint(i) for i in range(model.njnt) if model.jnt_type[i] == mujoco.mjtJoint.mjJNT_HINGE]
    for joint in hinges[1 if model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE else 0 :]:
        assert obs[f"{joint.name}_pos"] == qpos[joint.qposadr[0]]
        assert obs[f"{joint.name}_vel"] == pytest.approx(qvel[joint.dofadr[0]])
    joints = [model.joint(model.actuator_trnid[i, 0]).name for i in range(model.nu)]
    assert list(sim.action_spec.names) == [f"{joint}_torque" for joint in joints]
    assert list(sim.action_spec.units) == [f"{gear:g} N m" for gear in model.actuator_gear[:, 0]]
    for column, mass in obs.items():
        if column.endswith("_mass"):
            assert mass == pytest.approx(float(model.body(column.removesuffix("_mass")).mass[0]))


def test_the_motors_torques_are_seen_at_their_joints() -> None:
    sim = make("mujoco/humanoid", 1, dtype="float64")
    sim.reset(seed=0)
    names = sim.observation_spec["state"].names
    action = torch.zeros(1, 17, dtype=torch.float64)
    action[0, sim.action_spec.names.index("right_hip_y_torque")] = 0.2
    seen = sim.step(action).obs["state"][0]
    torques = {name: float(seen[i]) for i, name in enumerate(names) if name.endswith("_actuator_torque")}
    assert len(torques) == 17
    assert {name: value for name, value in torques.items() if value} == {"right_hip_y_actuator_torque": 60.0}


def test_a_foot_on_the_floor_feels_its_weight() -> None:
    sim = make("mujoco/humanoid", 1, dtype="float64", terminate_when_unhealthy=False)
    sim.reset(seed=0)
    for _ in range(60):
        seen = sim.step(torch.zeros(1, 17, dtype=torch.float64)).obs["state"][0]
    names = sim.observation_spec["state"].names
    up = sum(float(seen[i]) for i, name in enumerate(names) if name.endswith("_contact_force_z_w"))
    assert up > 0


# exact state and faults, where derived fields are part of the state


@pytest.mark.parametrize("name", ["mujoco/ant", "mujoco/humanoid"])
def test_set_params_leaves_the_last_observation(name: str) -> None:
    sim = make(name, 3)
    sim.reset(seed=0)
    width = sim.action_spec.shape[0]
    for _ in range(15):
        seen = sim.step(torch.zeros(3, width)).obs["state"].clone()
    sim.set_params([1], {"mass": np.array([1.5])})
    assert torch.equal(sim.set_state(sim.get_state())["state"], seen)


def test_a_frozen_env_keeps_what_it_saw(tmp_path: Path) -> None:
    sim, twin = (make("mujoco/ant", 3, dump_dir=tmp_path, dtype="float64") for _ in range(2))
    still = torch.zeros(3, 8, dtype=torch.float64)
    for one in (sim, twin):
        one.reset(seed=0)
        one.set_params([1], {"mass": np.array([1.5])})
        for _ in range(20):
            seen = one.step(still).obs["state"][:, -78:].clone()
    sim.core.physics.batch.bind("qvel")[1, 0] = np.nan
    with pytest.raises(SimNumericsError, match=r"^env 1, control step 21: field 'qvel' is nan") as error:
        sim.step(still)
    now, others = sim.core.obs["state"], twin.step(still).obs["state"].numpy()
    assert np.isfinite(now).all()
    assert np.array_equal(now[[0, 2]], others[[0, 2]])
    assert np.array_equal(now[1, -78:], seen[1].numpy())
    # the dump is a plain model with the env's own masses, whatever the batch was stepped with
    assert replay(error.value.dump) is not None
    dumped = mujoco.MjModel.from_binary_path(str(error.value.dump / "model.mjb"))
    assert dumped.nplugin == 0
    assert np.allclose(dumped.body_mass, 1.5 * sim.core.physics.model.body_mass)


# loading


def test_loading_is_silent_and_leaves_no_file(tmp_path: Path) -> None:
    script = "import robotrl\nfor name in ('halfcheetah', 'ant'):\n    robotrl.make_sim('mujoco/' + name, num_envs=1)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_the_model_is_what_gymnasium_compiles() -> None:
    ours = make("mujoco/halfcheetah", 1).core.physics.model
    theirs: Any = gymnasium.make("HalfCheetah-v5").unwrapped
    for field in ("body_mass", "body_inertia", "geom_friction", "dof_damping", "actuator_gear", "jnt_range"):
        assert np.array_equal(getattr(ours, field), getattr(theirs.model, field)), field
    assert ours.body_mass.sum() == pytest.approx(14)


def test_without_gymnasium_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(RobotrlError, match=r"^sim 'mujoco/ant' needs the models of 'gymnasium'.*pip install"):
        make("mujoco/ant", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ctrl_cost_weight": float("nan")}, r"ctrl_cost_weight is nan: expected a number"),
        ({"reset_noise_scale": -1}, r"reset_noise_scale is -1: expected a number from 0"),
        ({"healthy_z_range": (2.0, 1.0)}, r"healthy_z_range is \(2\.0, 1\.0\): expected two numbers"),
        ({"healthy_angle_range": 3}, r"healthy_angle_range is 3: expected two numbers"),
        ({"limit_steps": 0}, r"limit_steps is 0: expected 1 to"),
        ({"dtype": "float16"}, r"dtype 'float16' is unknown: did you mean 'float64'"),
        ({"healthy_rewards": 1}, r"did you mean 'healthy_reward'"),
        ({"randomization": {"masses": (1, 1)}}, r"parameter 'masses' is unknown: did you mean 'mass'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make("mujoco/hopper", 1, **options)
    assert "\n" not in str(error.value)
