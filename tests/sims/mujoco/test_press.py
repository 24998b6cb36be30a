"""Press: its surface and force by hand, and the two clocks: what is measured and sent at each servo tick."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import robotrl
from robotrl.errors import ConfigError
from robotrl.rollout.device_wrapper import DeviceSim
from robotrl.sims.mujoco.manipulation import arm, press
from robotrl.sims.wrapper import declared
from robotrl.spec.actuation import HasServoClock, ServoTick


def from_val(num_envs: int, **options: Any) -> Any:
    sim = robotrl.make_sim("mujoco/press", num_envs=num_envs, seed=0, threads=1, **options)
    sim.queue_states(sim.state_ids("val")[:num_envs])
    sim.reset()
    return sim


class Tape:
    """Sends what a function of the tick says, and keeps everything."""

    def __init__(self, send: Any = lambda tick: tick.action) -> None:
        self._send = send
        self.ticks: list[ServoTick] = []
        self.sent: list[Tensor] = []
        self.felt_obs: list[Tensor] = []
        self.hazard: list[Tensor] = []

    def act(self, tick: ServoTick) -> Tensor:
        self.ticks.append(tick)
        self.sent.append(self._send(tick))
        return self.sent[-1]

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        self.felt_obs.append(obs)
        self.hazard.append(hazard)


def columns(sim: Any, obs: Tensor) -> Tensor:
    names = sim.observation_spec["state"].names
    return obs[:, [names.index(name) for name in sim.servo_spec.names]]


# task


def test_starts_are_above_the_surface_and_unsolved() -> None:
    sim = from_val(256)
    task = sim.core.task
    plans = task.plan(np.arange(4000))  # raises where the tip is out of reach
    low, high = np.asarray(arm.JOINT_RANGE_RAD).T
    assert (plans[:, :6] > low + 0.05).all() and (plans[:, :6] < high - 0.05).all()
    out = task.outcome(np.zeros((256, 4), np.float32))
    assert not out.success.any()
    # height above the tilted plane, from the model's own poses
    sim.core.physics.poses()
    data = sim.core.physics.batch
    pos, quat = data.bind("mocap_pos")[:, 0], data.bind("mocap_quat")[:, 0]
    w, x, y, z = quat.T
    normal = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], axis=1)
    tip = task.hand.pos_w
    vertical = ((tip - pos) * normal).sum(axis=1) / normal[:, 2]
    assert vertical.min() > press.START_HEIGHT_M[0] - 1e-9 and vertical.max() < press.START_HEIGHT_M[1] + 1e-9
    assert np.degrees(np.arccos(normal[:, 2])).max() > 5
    error = np.abs(plans[:, 13] - plans[:, 8])
    assert 0.9 * press.HEIGHT_ERROR_M < error.max() <= press.HEIGHT_ERROR_M


def test_an_action_in_contact_is_a_force_whatever_the_stiffness() -> None:
    sim = from_val(64, limit_s=60.0)
    task = sim.core.task
    down = torch.zeros(64, 4)
    down[:, 2] = -0.075
    force, since = np.zeros(64), np.zeros(64, np.int64)
    for _ in range(110):
        sim.step(down)
        since += (task.force_n > 0) | (since > 0)
        force = np.where(since == 10, task.force_n, force)
    # the stiffness differs sixfold and more; the force half a second after the touch goes by the arm's pose
    stiffness = -task.memory()["solref"][:, task._surface, 0]
    assert stiffness.max() / stiffness.min() > 6
    assert (since > 10).all() and force.min() > 4 and force.max() < 26
    assert abs(np.corrcoef(np.log(stiffness), force)[0, 1]) < 0.3


def test_success_is_pressing_at_rest_at_the_goal() -> None:
    sim = from_val(8, limit_s=60.0)
    expert = sim.make_expert(mode="over")
    started = torch.ones(8, dtype=torch.bool)
    for _ in range(60):
        out = sim.step(expert.act(started))
        started = out.terminated
        if started.any():
            break
    task = sim.core.task
    assert out.info["success"].any() and out.terminated[out.info["success"]].all()
    env = int(torch.nonzero(out.info["success"])[0])
    # its last observation says why
    names = sim.observation_spec["state"].names
    last = out.final_obs["state"][out.final_ids.tolist().index(env)]
    low, high = press.SUCCESS_FORCE_N
    assert low < last[names.index("contact_force")] < high
    there = last[[names.index("tip_to_goal_x_w"), names.index("tip_to_goal_y_w")]]
    assert float(there.norm()) < press.SUCCESS_DISTANCE_M
    assert not task.success()[env]


def test_the_shaped_reward_sums_to_ten_times_the_distance_gained() -> None:
    sim = from_val(16, reward="shaped", limit_s=60.0)
    before = sim.distance().clone()
    total = torch.zeros(16)
    move = torch.tensor([0.1, -0.1, -0.2, 0.0]).expand(16, 4)
    for _ in range(6):
        out = sim.step(move)
        assert not out.terminated.any()
        total += out.reward
    assert torch.allclose(total.double(), 10 * (before - sim.distance()), atol=1e-4)


# two clocks


def test_it_states_its_clock() -> None:
    sim = from_val(2)
    assert isinstance(sim, HasServoClock)
    assert sim.control_dt_s / sim.servo_ticks == pytest.approx(0.005)
    assert sim.servo_spec.names == press.SERVO_COLUMNS and sim.hazard == "contact_force, N"
    assert len(sim.retract) == sim.action_spec.shape[0] and sim.retract[2] > 0
    wrapped = declared(DeviceSim, sim)(sim, torch.device("cpu"))
    assert isinstance(wrapped, HasServoClock) and wrapped.servo_spec == sim.servo_spec
    assert not isinstance(robotrl.make_sim("mujoco/reach", 1), HasServoClock)


def test_a_reflex_that_lets_all_pass_changes_no_bit() -> None:
    free, watched = from_val(8, limit_s=1.0), from_val(8, limit_s=1.0)
    tape = Tape()
    watched.set_reflex(tape)
    generator = torch.Generator().manual_seed(0)
    for _ in range(25):
        action = 2 * torch.rand(8, 4, generator=generator) - 1
        action[:, 2] -= 0.4
        one, other = free.step(action), watched.step(action)
        assert torch.equal(one.obs["state"], other.obs["state"]) and torch.equal(one.reward, other.reward)
    a, b = free.get_state(), watched.get_state()
    assert all(np.array_equal(a[key], b[key]) for key in a)
    assert len(tape.ticks) == 25 * watched.servo_ticks == len(tape.hazard)
    watched.set_reflex(None)
    watched.step(action)
    assert len(tape.ticks) == 25 * watched.servo_ticks


def test_each_tick_measures_what_the_last_one_led_to() -> None:
    sim = from_val(4, limit_s=0.5)
    tape = Tape()
    sim.set_reflex(tape)
    action = torch.tensor([0.0, 0.0, -0.6, 0.0]).expand(4, 4)
    first = columns(sim, sim._obs["state"]).clone()
    ended = [sim.step(action).final_ids.tolist() for _ in range(12)]
    assert torch.equal(tape.ticks[0].obs, first)
    assert [tick.tick for tick in tape.ticks[:12]] == [*range(10), 0, 1]
    started = torch.stack([tick.started for tick in tape.ticks])
    # episodes of ten control steps, of ten ticks each
    assert torch.nonzero(started.all(dim=1)).squeeze(1).tolist() == [0, 100]
    assert int(started.any(dim=1).sum()) == 2
    for number, (seen, tick) in enumerate(zip(tape.felt_obs[:-1], tape.ticks[1:], strict=True)):
        # the tick after an episode's last one is of the next episode
        assert torch.equal(seen, tick.obs) == (number != 99)
    force = sim.servo_spec.names.index("contact_force")
    rate = sim.servo_spec.names.index("contact_force_rate")
    assert all(torch.equal(h.float(), seen[:, force]) for h, seen in zip(tape.hazard, tape.felt_obs, strict=True))
    rise = (tape.felt_obs[50][:, force] - tape.felt_obs[49][:, force]) / 0.005
    assert torch.allclose(tape.felt_obs[50][:, rate], rise, rtol=1e-3, atol=1e-2)
    assert torch.stack(tape.hazard[:100]).max() > sim.hazard_limit
    assert all(torch.equal(tick.action, action) for tick in tape.ticks)
    assert ended[9] == [0, 1, 2, 3]


def test_a_reflex_acts_inside_a_control_step() -> None:
    sim, alone = from_val(32), from_val(32)
    up = torch.tensor([0.0, 0.0, 0.5, 0.0])
    force = sim.servo_spec.names.index("contact_force")
    tape = Tape(lambda tick: torch.where((tick.obs[:, force] > 3)[:, None], up, tick.action))
    plain = Tape()
    sim.set_reflex(tape)
    alone.set_reflex(plain)
    down = torch.tensor([0.0, 0.0, -0.5, 0.0]).expand(32, 4)
    for _ in range(12):
        sim.step(down)
        alone.step(down)
    peaks, before = torch.stack(tape.hazard).amax(0), torch.stack(plain.hazard).amax(0)
    assert (before > sim.hazard_limit).all()
    assert (peaks < before).all() and (peaks > sim.hazard_limit).float().mean() < 0.3
    # within single control steps both actions were sent
    sent = torch.stack(tape.sent)[:, :, 2].view(12, sim.servo_ticks, 32)
    assert ((sent.amax(1) > 0) & (sent.amin(1) < 0)).any()


def test_an_action_of_a_reflex_is_checked_like_the_policys() -> None:
    sim = from_val(2)
    sim.set_reflex(Tape(lambda tick: tick.action[:, :3]))
    with pytest.raises(ConfigError, match=r"action.*shape|shape.*action"):
        sim.step(torch.zeros(2, 4))


def test_the_surface_is_part_of_the_exact_state() -> None:
    sim, other = from_val(4), robotrl.make_sim("mujoco/press", num_envs=4, seed=9, threads=1)
    other.reset()
    down = torch.tensor([0.0, 0.0, -0.4, 0.0]).expand(4, 4)
    for _ in range(9):
        sim.step(down)
    assert (sim.core.task.force_n > 0).any()
    obs = other.set_state(sim.get_state())
    assert torch.equal(obs["state"], sim._obs["state"])
    for _ in range(6):
        assert torch.equal(sim.step(down).obs["state"], other.step(down).obs["state"])


def test_its_robot_repeats_an_action_as_the_sim_does() -> None:
    sim, robot = from_val(1), press.make_robot(0)
    first = sim.state_ids("val")[0]
    assert np.array_equal(robot.reset(first)["state"], sim._obs["state"][0].numpy())
    for action in ([0.1, 0.0, -0.5, 0.0], [0.0, -0.1, -0.3, 0.0], [0.0, 0.0, -0.2, 0.1]) * 6:
        sim.step(torch.tensor([action]))
        robot.command(np.asarray(action, np.float32))
        robot.advance(7)
        robot.advance(3)
        assert np.array_equal(robot.observe()["state"], sim._obs["state"][0].numpy())
    assert sim.core.task.force_n[0] > 0
