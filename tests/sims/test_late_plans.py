"""Trajectories that come late, on the real driving sim: they stay where they were on the road."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robotrl.errors import DataError
from robotrl.registry import make_sim
from robotrl.sims.driving.plan import SPACING_S, point_at
from robotrl.sims.driving.roads.lanes import RoadBuilder
from robotrl.sims.perturbation import perturbed
from robotrl.sims.wrapper import WrappedSim, declared
from robotrl.spec import COMMITTED, COMMITTED_MASK, Step
from robotrl.spec.sim_options import PerturbCfg
from robotrl.spec.vehicle import HasPlanFrame
from robotrl.testing.sims import play, random_actions, same
from tests.kits.bev_kit import Scene, on_roads

Plan = Callable[[int, np.ndarray], np.ndarray]
"""Points (4, 2) of a plan from the number of the step and the ego's frame (4,), counted from where it began."""
TIMES = SPACING_S * np.arange(1, 5)
SPEED = 10.0
FAULTS = {"obs_delay_steps": 1, "action_delay_steps": 3, "draw_delay": True, "committed_steps": 3, "drop_rate": 0.1}


class Recording(WrappedSim):
    """A sim that keeps the actions that it is given."""

    def __init__(self, sim: Any) -> None:
        super().__init__(sim)
        self.executed: list[Tensor] = []

    def step(self, actions: Tensor) -> Step:
        self.executed.append(actions.clone())
        return super().step(actions)


def recording(sim: Any) -> Any:
    return declared(Recording, sim)(sim)


def field() -> RoadBuilder:
    """A single road east, wide enough to turn on."""
    builder = RoadBuilder("field")
    lane = builder.lane(np.array([[0.0, 0.0], [800.0, 0.0]]), 20.0, width_m=400.0)
    builder.route((lane,), start_s=5.0)
    return builder


def driven(monkeypatch: pytest.MonkeyPatch, plan: Plan, delay: int, steps: int, framed: bool = True) -> np.ndarray:
    """Frames (steps + 1, 4) of an ego that begins at 10 m/s, from there; plans come late by so many steps of 0.1 s.

    Without `framed`, the sim does not tell the frames of its plans, which are then followed from where the ego is.
    """
    sim = on_roads(monkeypatch, field(), actions="trajectory", hold=1, limit_s=600.0, blocked_s=1e6)
    scene = Scene(sim)
    scene.ego(100.0, SPEED)
    obs = scene.apply()
    wrapped = perturbed(sim if framed else WrappedSim(sim), PerturbCfg(action_delay_steps=delay), 0)
    if delay:
        wrapped.present(obs)
    begin = sim.plan_frame()[0] * [1, 1, 0, 0]
    frames = [sim.plan_frame()[0] - begin]
    for k in range(steps):
        points = plan(k, frames[-1])
        wrapped.step(torch.from_numpy(points.astype(np.float32).reshape(1, -1)))
        frames.append(sim.plan_frame()[0] - begin)
    return np.array(frames)


def straight(k: int, frame: np.ndarray) -> np.ndarray:
    return np.stack([SPEED * TIMES, 0 * TIMES], axis=-1)


@pytest.mark.parametrize("delay", [1, 2])
def test_an_ego_that_keeps_its_speed_keeps_it_under_late_plans(monkeypatch: pytest.MonkeyPatch, delay: int) -> None:
    found = driven(monkeypatch, straight, delay, 12)
    # 1 m a step, from the first one on: nothing brakes before the first plan comes
    x, y, yaw, speed = found.T
    assert x == pytest.approx(np.arange(13), abs=1e-3)
    assert speed == pytest.approx(np.full(13, SPEED), abs=1e-3)
    assert np.abs(y).max() < 1e-3 and np.abs(yaw).max() < 1e-4
    # zeros in place of the first plans are a plan to stand still: a full brake
    assert driven(monkeypatch, straight, delay, 2, framed=False)[delay, 3] < SPEED - 0.4 * delay


def stop(k: int, frame: np.ndarray) -> np.ndarray:
    """The rest of braking from 10 m/s with 2 m/s^2, which ends 25 m further."""
    t = np.minimum(0.1 * k + TIMES, 5.0)
    return np.stack([np.maximum(10 * t - t * t - frame[0], 0), 0 * t], axis=-1)


def test_a_plan_to_stop_that_comes_late_stops_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    in_time, late = (driven(monkeypatch, stop, delay, 80)[-1] for delay in (0, 5))
    assert late[3] < 0.01
    assert in_time[0] == pytest.approx(25.0, abs=0.3) and late[0] == pytest.approx(in_time[0], abs=0.05)
    # counted from where the ego is when they come, the same plans lead further
    assert driven(monkeypatch, stop, 5, 80, framed=False)[-1][0] > in_time[0] + 0.5


def bend(k: int, frame: np.ndarray) -> np.ndarray:
    """The rest of a way at 10 m/s on a circle of 50 m to the left."""
    angle = SPEED * (0.1 * k + TIMES) / 50.0
    dx, dy = 50 * np.sin(angle) - frame[0], 50 * (1 - np.cos(angle)) - frame[1]
    cos, sin = math.cos(frame[2]), math.sin(frame[2])
    # at most half of 5 m/s^2 times the square of the time aside, as a policy could give it
    return np.stack([dx * cos + dy * sin, np.minimum(dy * cos - dx * sin, 2.5 * TIMES * TIMES)], axis=-1)


def test_a_turn_that_comes_late_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 3 s the ego that turned in half a second late is on the circle, at the place and speed of that time."""
    in_time, late = (driven(monkeypatch, bend, delay, 30)[-1] for delay in (0, 5))
    assert np.hypot(in_time[0], in_time[1] - 50.0) == pytest.approx(50.0, abs=0.02)
    assert np.hypot(*(late - in_time)[:2]) < 0.1
    assert late[3] == pytest.approx(SPEED, abs=0.1)
    # counted from where the ego is when they come, the same plans make it swing, along the way and aside
    swung = driven(monkeypatch, bend, 5, 30, framed=False)[-1]
    assert np.hypot(*(swung - in_time)[:2]) > 0.25 and swung[3] > SPEED + 1.0


def left_of(plan: np.ndarray, elapsed_s: float, then: np.ndarray, now: np.ndarray) -> np.ndarray:
    """The rest of a plan by complex numbers and the tracker's own interpolation."""
    out = []
    for t in TIMES:
        point = complex(*point_at(plan.astype(np.float64), float(t) + elapsed_s))
        world = complex(then[0], then[1]) + point * complex(math.cos(then[2]), math.sin(then[2]))
        here = (world - complex(now[0], now[1])) / complex(math.cos(now[2]), math.sin(now[2]))
        out += [here.real, here.imag]
    return np.array(out)


def test_each_episode_is_given_its_own_plans_as_late_as_they_are() -> None:
    """Drawn delays, and ends of episodes after 2 s, with the plans of the rule-based driver."""
    n, dt_s = 6, 0.1
    inner = recording(make_sim("bev/drive", num_envs=n, seed=0, actions="trajectory", hold=1, limit_s=2.0, threads=1))
    sim = perturbed(inner, PerturbCfg(action_delay_steps=3, draw_delay=True, committed_steps=3), 1)
    low, high = np.array(inner.action_spec.low), np.array(inner.action_spec.high)
    expert = sim.make_expert()
    obs = sim.reset(seed=0)
    started, delays = torch.ones(n, dtype=torch.bool), set[int]()
    plans: list[list[np.ndarray]] = [[] for _ in range(n)]
    frames: list[list[np.ndarray]] = [[] for _ in range(n)]
    for _ in range(30):
        now, given = sim.plan_frame(), expert.act(started).clone()
        late = obs[COMMITTED_MASK].sum(dim=1).int().tolist()
        way = obs[COMMITTED].unflatten(1, (3, -1)).numpy()
        for e in range(n):
            plans[e].append(given[e].numpy())
            frames[e].append(now[e])
            begin = np.stack([frames[e][0][3] * TIMES, 0 * TIMES], axis=-1).ravel().clip(low, high)
            # plans on their way are observed as they were given
            on_way = ([begin] * 3 + plans[e][:-1])[-late[e] :] if late[e] else []
            assert way[e, : late[e]] == pytest.approx(np.array(on_way).reshape(late[e], 8), abs=1e-5)
        out = sim.step(given)
        for e, (d, executed) in enumerate(zip(late, inner.executed[-1].numpy(), strict=True)):
            delays.add(d)
            if not d:
                assert np.array_equal(executed, given[e].numpy())
                continue
            k = len(plans[e]) - 1 - d
            begin = np.stack([frames[e][0][3] * TIMES, 0 * TIMES], axis=-1).ravel()
            # in place of a first plan: straight on from the begin of the episode
            plan, since = (plans[e][k], d) if k >= 0 else (begin, d + k)
            expected = left_of(plan, since * dt_s, frames[e][max(k, 0)], now[e]).clip(low, high)
            assert executed == pytest.approx(expected, abs=1e-4)
        obs, started = out.obs, out.terminated | out.truncated
        for e in torch.nonzero(started).flatten().tolist():
            plans[e].clear()
            frames[e].clear()
    assert len(delays) > 2


def completion(framed: bool) -> float:
    """Mean route completion of the rule-based driver on 12 starts, with plans that come 0.2 s late."""
    n = 12
    sim = make_sim("bev/drive", num_envs=n, seed=0, obs="none", actions="trajectory", hold=1, limit_s=60.0, threads=1)
    wrapped = perturbed(sim if framed else WrappedSim(sim), PerturbCfg(action_delay_steps=2), 0)
    wrapped.reset(options={"state_ids": list(sim.state_ids("val")[:n])})
    expert = sim.make_expert(mode="calm")
    started, found = torch.ones(n, dtype=torch.bool), torch.full((n,), math.nan)
    while found.isnan().any():
        out = wrapped.step(expert.act(started))
        started = out.terminated | out.truncated
        first = started & found.isnan()
        found[first] = out.info["route_completion"][first]
    return float(found.mean())


def test_a_driver_whose_plans_come_late_gets_further_if_they_stay_where_they_are() -> None:
    assert completion(framed=True) > completion(framed=False) + 0.05


def test_plans_on_their_way_are_part_of_the_exact_state() -> None:
    def made() -> Any:
        return make_sim(
            "bev/drive", num_envs=4, seed=3, actions="trajectory", hold=2, limit_s=3.0, threads=1, perturb=FAULTS
        )

    sim, twin = made(), made()
    sim.reset()
    twin.reset(seed=9)
    actions = random_actions(sim, 24)
    play(sim, actions[:8])
    state = sim.get_state()
    ahead = play(sim, actions[8:])
    twin.set_state(state)
    assert same(ahead, play(twin, actions[8:]))
    del state["perturb/frames"]
    with pytest.raises(DataError, match=r"perturb/frames has shape no place: expected \(3, 4, 4\)"):
        twin.set_state(state)


def test_late_controls_are_the_controls_that_were_given() -> None:
    inner = recording(make_sim("bev/drive", num_envs=3, seed=0, threads=1))
    sim = perturbed(inner, PerturbCfg(action_delay_steps=2), 0)
    assert isinstance(sim, HasPlanFrame) and np.array_equal(sim.plan_frame(), inner.plan_frame())
    sim.reset()
    actions = random_actions(sim, 6)
    for action in actions:
        sim.step(action)
    assert torch.equal(torch.stack(inner.executed), torch.stack([torch.zeros_like(actions[0])] * 2 + list(actions[:4])))
    assert "perturb/frames" not in sim.get_state()
