"""Trajectories that come late, on the real driving sim: they stay where they were on the road."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.registry import make_sim
from robotrl.sims.driving.plan import SPACING_S, point_at
from robotrl.sims.driving.roads.lanes import RoadBuilder
from robotrl.sims.perturbation import AGE, perturbed
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


def looked_back(monkeypatch: pytest.MonkeyPatch, plan: Plan, steps: int, **perturb: Any) -> np.ndarray:
    """Frames (steps + 1, 4) of an ego whose plans are made of observations of 0.5 s ago, see `driven`."""
    sim = on_roads(monkeypatch, field(), actions="trajectory", hold=1, limit_s=600.0, blocked_s=1e6)
    scene = Scene(sim)
    scene.ego(100.0, SPEED)
    obs = scene.apply()
    wrapped = perturbed(sim, PerturbCfg(obs_delay_steps=5, **perturb), 0)
    wrapped.present(obs)
    begin = sim.plan_frame()[0] * [1, 1, 0, 0]
    frames = [sim.plan_frame()[0] - begin]
    for k in range(steps):
        seen = max(k - 5, 0)
        points = plan(seen, frames[seen])
        wrapped.step(torch.from_numpy(points.astype(np.float32).reshape(1, -1)))
        frames.append(sim.plan_frame()[0] - begin)
    return np.array(frames)


def test_a_stop_that_is_planned_from_old_observations_is_where_it_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked_back(monkeypatch, stop, 80, plans_from_observation=True)[-1]
    assert found[3] < 0.01 and found[0] == pytest.approx(25.0, abs=0.35)
    # counted from where the ego is when they are given, the same plans lead half a second further
    assert looked_back(monkeypatch, stop, 80)[-1][0] > 26.0
    # 0.2 s of inference on top change nothing of the place
    late = looked_back(monkeypatch, stop, 80, plans_from_observation=True, action_delay_steps=2)[-1]
    assert late[0] == pytest.approx(found[0], abs=0.1)


def test_each_plan_counts_from_its_own_observation() -> None:
    """Old and lost observations, drawn delays and ends of episodes, with plans that are drawn."""
    n, dt_s = 6, 0.1
    inner = recording(make_sim("bev/drive", num_envs=n, seed=0, actions="trajectory", hold=1, limit_s=2.0, threads=1))
    faults = {**FAULTS, "obs_delay_steps": 2, "action_delay_steps": 2, "drop_rate": 0.2, "drop_steps": 2}
    sim = perturbed(inner, PerturbCfg(**faults, plans_from_observation=True), 1)
    low, high = np.array(inner.action_spec.low), np.array(inner.action_spec.high)
    obs, rng = sim.reset(seed=0), np.random.default_rng(0)
    ages, met = np.zeros(n, int), set[tuple[int, int]]()
    plans: list[list[np.ndarray]] = [[] for _ in range(n)]
    frames: list[list[np.ndarray]] = [[] for _ in range(n)]
    seen: list[list[int]] = [[] for _ in range(n)]
    for _ in range(30):
        now = sim.plan_frame()
        x = rng.uniform(3.0, 9.0, (n, 1)) * TIMES
        given = np.stack([x, rng.uniform(-0.03, 0.03, (n, 1)) * x**2], axis=-1).reshape(n, -1).clip(low, high)
        late = obs[COMMITTED_MASK].sum(dim=1).int().tolist()
        for e in range(n):
            plans[e].append(given[e].astype(np.float32))
            frames[e].append(now[e])
            seen[e].append(len(frames[e]) - 1 - int(ages[e]))
        out = sim.step(torch.from_numpy(given.astype(np.float32)))
        for e, executed in enumerate(inner.executed[-1].numpy()):
            step = len(plans[e]) - 1
            k = step - late[e]
            # in place of a first plan: straight on from the begin of the episode
            begin = np.stack([frames[e][0][3] * TIMES, 0 * TIMES], axis=-1).ravel()
            plan, at = (plans[e][k], seen[e][k]) if k >= 0 else (begin, 0)
            met.add((min(late[e], step), step - at))
            if k >= 0 and step == at:
                assert np.array_equal(executed, plan)
            else:
                expected = left_of(plan, (step - at) * dt_s, frames[e][at], now[e]).clip(low, high)
                assert executed == pytest.approx(expected, abs=1e-4)
        obs, started = out.obs, (out.terminated | out.truncated).numpy()
        ages = np.where(started, 0, out.info[AGE].numpy())
        for e in np.flatnonzero(started):
            plans[e].clear()
            frames[e].clear()
            seen[e].clear()
    assert {late for late, _ in met} == {0, 1, 2} and max(old for _, old in met) > 4, "a burst on top of all delays"


def test_plans_count_from_observations_only_where_that_can_be() -> None:
    sim = make_sim("bev/drive", num_envs=1, seed=0, actions="trajectory", threads=1)
    with pytest.raises(ConfigError, match="plans_from_observation is set, and no observation is old: expected"):
        perturbed(sim, PerturbCfg(plans_from_observation=True, action_delay_steps=1), 0)
    looking = PerturbCfg(plans_from_observation=True, obs_delay_steps=1)
    with pytest.raises(CapabilityError, match="the scripted expert plans from where the ego is: expected it off"):
        perturbed(sim, looking, 0).make_expert()
    controls = make_sim("bev/drive", num_envs=1, seed=0, threads=1)
    with pytest.raises(CapabilityError, match=r"the actions of \w+ are no trajectories in a frame that it tells"):
        perturbed(controls, looking, 0)


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


@pytest.mark.parametrize("looking", [False, True])
def test_plans_on_their_way_are_part_of_the_exact_state(looking: bool) -> None:
    def made() -> Any:
        faults = {**FAULTS, "plans_from_observation": looking}
        return make_sim(
            "bev/drive", num_envs=4, seed=3, actions="trajectory", hold=2, limit_s=3.0, threads=1, perturb=faults
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
