"""Populations of traffic: registry, draws by start, exact state, and the styles seen on the road."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError
from robotrl.registry import TRAFFIC
from robotrl.sims.bev.traffic import whims
from robotrl.sims.driving import tables
from robotrl.sims.driving.traffic import populations
from robotrl.sims.driving.traffic.following import ACCEL, BRAKE, GAP_M, idm, styled_idm
from robotrl.sims.driving.traffic.populations import Population, check_population, population_records

NAMES = [name for name in TRAFFIC.names() if isinstance(TRAFFIC.load(name)(), Population)]
"""Rule-based populations; the others are folders of networks."""
ENVS = 24


def make(*names: str, envs: int = ENVS, **options: Any) -> Any:
    return robotrl.make_sim("bev/drive", num_envs=envs, seed=1, traffic=names, **options)


def run(sim: Any, steps: int) -> list[Any]:
    """Copies of the road users after each step behind the scripted driver."""
    expert = sim.make_expert()
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    seen = []
    for _ in range(steps):
        step = sim.step(expert.act(started))
        started = step.terminated | step.truncated
        seen.append(sim.core.world.agents.copy())
    return seen


def drivers(sim: Any) -> Any:
    """Cars of the traffic that no scenario's script drives."""
    agents, target = sim.core.world.agents, sim.core.world.episodes["target"]
    cars = agents["kind"] == tables.CAR
    cars[:, 0] = False
    cars[np.arange(len(agents)), np.maximum(target, 0)] = False
    return agents[cars & (agents["reckless"] == 0)]


@pytest.mark.parametrize("name", NAMES)
def test_drivers_are_drawn_from_their_population(name: str) -> None:
    sim = make(name, scenarios=("straight", "curve", "roundabout", "signal"))
    sim.reset(seed=4)
    cars, population = drivers(sim), TRAFFIC.load(name)()
    assert len(cars) > 100
    for field, values in (("desire", population.desired_speed), ("headway", population.headway_s)):
        low, high = values
        found = cars[field]
        assert found.min() >= low - 1e-6 and found.max() <= high + 1e-6
        # uniform: the extremes of a hundred draws or more are near the ends
        assert found.min() < low + 0.1 * (high - low) and found.max() > high - 0.1 * (high - low)
    sim.close()


def test_moderate_has_the_constants_of_the_models() -> None:
    row = population_records(())[0]
    assert (row["accel_mps2"], row["brake_mps2"], row["standstill_gap_m"]) == (ACCEL, BRAKE, GAP_M)
    assert row["desired_speed_low"] + row["desired_speed_width"] == 1.1
    for v, gap, closing in ((10.0, 30.0, 2.0), (0.0, 2.0, 0.0), (20.0, 5.0, 3.0)):
        assert styled_idm(v, 20.0, gap, closing, 1.5, row) == idm(v, 20.0, gap, closing, 1.5)


def test_idm_of_a_style_by_hand() -> None:
    """a (1 - (v/v0)^4 - (s*/s)^2), s* = s0 + v T + v dv / (2 sqrt(a b)) with a = b = 4, s0 = 1."""
    row = population_records((Population(accel_mps2=4.0, brake_mps2=4.0, standstill_gap_m=1.0),))[1]
    desired = 1.0 + 10.0 * 0.5 + 10.0 * 2.0 / 8.0
    expected = 4.0 * (1.0 - 0.5**4 - (desired / 20.0) ** 2)
    assert styled_idm(10.0, 20.0, 20.0, 2.0, 0.5, row) == pytest.approx(expected)


def test_a_mixture_is_drawn_by_start_whatever_the_number_of_envs() -> None:
    ids = list(range(100, 148))
    found = []
    for envs in (48, 6):
        sim = make("timid", "aggressive", "erratic", envs=envs)
        here = []
        for k in range(0, 48, envs):
            sim.reset(options={"state_ids": ids[k : k + envs]})
            here += sim.core.world.episodes["population"].tolist()
        sim.close()
        found.append(here)
    assert found[0] == found[1]
    # one of three each: 16 of 48 on average, standard deviation 3.3
    assert set(found[0]) == {1, 2, 3} and min(found[0].count(k) for k in (1, 2, 3)) >= 4


def test_exact_state_keeps_the_population() -> None:
    sim, other = make("timid", "erratic", threads=1), make("timid", "erratic", threads=1)
    sim.reset(seed=3)
    run(sim, 20)
    other.reset(seed=8)
    other.set_state(sim.get_state())
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        actions = 2.0 * torch.rand(ENVS, 2, generator=generator) - 1.0
        one, two = sim.step(actions), other.step(actions)
        assert all(torch.equal(one.obs[key], two.obs[key]) for key in one.obs)
    sim.close()
    other.close()


def test_styles_show_on_the_road() -> None:
    """Mean speed of cars that have nobody near ahead, and share of hard braking."""
    speeds, hard = {}, {}
    for name in NAMES:
        sim = make(name, scenarios=("straight", "lane-change"), envs=48, limit_s=40.0)
        sim.reset(seed=2)
        seen = np.stack(run(sim, 150))[50:]
        cars = (seen["kind"] == tables.CAR) & (seen["lane"] >= 0)
        cars[:, :, 0] = False
        speeds[name] = float(seen["v"][cars].mean())
        hard[name] = float((seen["a"][cars] < -3.5).mean())
        sim.close()
    assert speeds["timid"] < 0.75 * speeds["moderate"]
    assert speeds["aggressive"] > 1.15 * speeds["moderate"]
    assert hard["erratic"] > hard["moderate"] + 0.03


def test_sudden_brakes_come_at_their_rate() -> None:
    """4 a minute, 1.5 s each: a tenth of the time."""
    driver = np.zeros((), tables.AGENT)
    style = population_records((replace(populations.erratic(), sudden_brakes_per_min=4.0),))[1]
    braking = []
    for seed in range(200):
        driver["seed"] = seed
        me = driver[()]
        braking += [whims.brakes_suddenly(me, style, 0.1 * k) for k in range(600)]
    assert np.mean(braking) == pytest.approx(4.0 * 1.5 / 60.0, abs=0.01)
    factors = [whims.wavered(me, style, 0.1 * k) for k in range(6000)]
    assert 1.0 - style["speed_noise"] <= min(factors) < 0.65 and 1.35 < max(factors) <= 1.0 + style["speed_noise"]
    # linear over 5 s between values in a range of 1: at most 0.02 in 0.1 s
    assert np.abs(np.diff(factors)).max() <= 0.1 / whims.WAVER_S * 2.0 * style["speed_noise"] + 1e-9
    offsets = [whims.weaving(me, style, 0.01 * k) for k in range(int(100 * whims.WEAVE_S))]
    assert max(offsets) == pytest.approx(style["weave_m"], rel=1e-3)
    assert math.fsum(offsets) == pytest.approx(0.0, abs=1e-6)
    distracted = []
    for seed in range(200):
        driver["seed"] = seed
        distracted += [whims.is_distracted(driver[()], style, float(t)) for t in range(60)]
    assert np.mean(distracted) == pytest.approx(style["distracted"], abs=0.04)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("agressive",), r"did you mean 'aggressive'"),
        ((), r"traffic is \(\): expected each population once, and one or more"),
        (("timid", "timid"), r"traffic is \('timid', 'timid'\): expected each population once"),
    ],
)
def test_bad_names_are_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(*names)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"traffic population 'mine' is 3: expected a Population"),
        (Population(accel_mps2=-1.0), r"traffic population 'mine': accel_mps2 is -1\.0"),
        (Population(headway_s=(1.0, math.nan)), r"traffic population 'mine': headway_s is nan"),
        (Population(desired_speed=(1.0,)), r"desired_speed is \(1\.0,\): expected \(lowest, highest\)"),  # type: ignore[arg-type]
        (Population(headway_s=1.0), r"headway_s is 1\.0: expected \(lowest, highest\)"),  # type: ignore[arg-type]
        (Population(accel_mps2=(1.0, 2.0)), r"accel_mps2 is \(1\.0, 2\.0\)"),  # type: ignore[arg-type]
        (Population(desired_speed=(1.0, 0.5)), r"desired_speed is \(1\.0, 0\.5\): expected the lower end first"),
    ],
)
def test_bad_values_are_refused(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_population("mine", given)


def test_another_package_adds_a_population(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that loads drives; one that does not is refused with its package and fault."""
    (tmp_path / "hurried_traffic.py").write_text(
        "from robotrl.sims.driving.traffic.populations import Population\n"
        "def hurried():\n    return Population(desired_speed=(1.5, 1.6))\n"
        "ready = Population()\n"
    )
    info = tmp_path / "hurried-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hurried\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[robotrl.traffic]\nhurried = hurried_traffic:hurried\nbroken = hurried_traffic:missing\n"
        "ready = hurried_traffic:ready\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sim = make("hurried", scenarios=("straight",))
    sim.reset(seed=0)
    assert drivers(sim)["desire"].min() >= 1.5
    sim.close()
    with pytest.raises(ConfigError, match=r"traffic population 'broken' of the package 'hurried' cannot be imported"):
        make("broken")
    with pytest.raises(ConfigError, match=r"traffic population 'ready' is Population\(.*expected a function"):
        make("ready")
