"""Traffic that the ego's speed is compared with: who counts, at which distance and limit, and what nobody costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.kits.xodr_kit as kit
from robotrl.sims.driving import tables
from robotrl.sims.driving.roads.lanes import Control, RoadBuilder
from robotrl.sims.driving.scores import by_map_speed, leaderboard_2_0
from tests.kits.bev_kit import Scene, drive, make, on_roads

LIMIT_MPS = 10.0


def streets() -> RoadBuilder:
    """Parallel lanes along x, 20 m apart, with the limits 10, 7.1, 6.9, 14.2 and 14.4 m/s; the ego drives the first."""
    builder = RoadBuilder("streets")
    for k, limit in enumerate((LIMIT_MPS, 7.1, 6.9, 14.2, 14.4)):
        builder.lane(np.array([[0.0, 20.0 * k], [500.0, 20.0 * k]]), limit)
    builder.route([0], 5.0, 495.0)
    return builder


def speeds(sim: Any, *cars: dict[str, Any]) -> tuple[float, float]:
    """Speed of the traffic that the ego meets, and of all cars; the ego is at x = 205."""
    scene = Scene(sim)
    scene.clear()
    scene.ego(200.0, 8.0)
    for slot, car in enumerate(cars, 1):
        scene.car(slot, **car)
    scene.apply()
    episode = sim.core.world.episodes[0]
    return float(episode["traffic_v"]), float(episode["map_v"])


def test_who_counts_as_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, streets())
    assert speeds(sim) == (-1.0, -1.0)
    assert speeds(sim, {"lane": 0, "s": 300.0, "v": 6.0}, {"lane": 0, "s": 310.0, "v": 2.0}) == (6.0, 4.0)
    assert speeds(sim, {"lane": 0, "s": 100.0, "v": 6.0}) == (-1.0, 6.0)  # 105 m behind
    # who stands, at a red light say, counts with its speed of 0
    assert speeds(sim, {"lane": 0, "s": 220.0, "v": 9.0}, {"lane": 0, "s": 230.0, "v": 0.0}) == (4.5, 4.5)
    # cyclists and obstacles are no cars
    for kind in (tables.CYCLIST, tables.OBSTACLE):
        assert speeds(sim, {"lane": 0, "s": 220.0, "v": 3.0, "kind": kind}) == (-1.0, -1.0)


@pytest.mark.parametrize(("lane", "similar"), [(1, True), (2, False), (3, True), (4, False)])
def test_only_a_similar_limit_counts(monkeypatch: pytest.MonkeyPatch, lane: int, similar: bool) -> None:
    sim = on_roads(monkeypatch, streets())
    assert speeds(sim, {"lane": lane, "s": 205.0, "v": 5.0}) == (5.0 if similar else -1.0, 5.0)


def test_a_step_without_traffic_counts_as_driven_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, streets())
    speeds(sim, {"lane": 4, "s": 205.0, "v": 14.0, "desire": 1.0})
    for _ in range(5):
        drive(sim)
    judge = sim.core.world.judges[0]
    assert judge["traffic_speed"].sum() == pytest.approx(judge["ego_speed"].sum()) == pytest.approx(40.0)
    assert judge["map_speed"].sum() == pytest.approx(5 * 14.0, rel=0.02)


@pytest.mark.parametrize(("accel", "compared"), [(0.6, False), (0.4, True), (0.0, True), (-0.2, True)])
def test_who_speeds_up_is_not_slow(monkeypatch: pytest.MonkeyPatch, accel: float, compared: bool) -> None:
    """From 4 m/s beside a car at 7.1 m/s, under the limit of 10; an action of 1 is 1 m/s^2 here."""
    sim = on_roads(monkeypatch, streets(), throttle_mps2=1.0)
    scene = Scene(sim)
    scene.ego(100.0, 4.0)
    scene.car(1, 1, 130.0, 7.1, desire=1.0)
    scene.apply()
    for _ in range(10):
        drive(sim, accel=accel)
    judge = sim.core.world.judges[0]
    assert judge["traffic_speed"].sum() == pytest.approx(71.0 if compared else judge["ego_speed"].sum(), rel=1e-3)
    assert judge["map_speed"].sum() == pytest.approx(71.0, rel=1e-3)


def test_nobody_has_to_drive_faster_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others drive at 11 m/s where 10 are allowed; a speedometer may show 10 for 9."""
    sim = on_roads(monkeypatch, streets())
    scene = Scene(sim)
    scene.ego(100.0, 9.5)
    scene.car(1, 0, 150.0, 11.0, desire=1.1)
    scene.apply()
    for _ in range(20):
        drive(sim)
    judge = sim.core.world.judges[0]
    assert judge["traffic_speed"].sum() == pytest.approx(20 * 9.0)
    assert judge["ego_speed"].sum() == pytest.approx(20 * 9.5)


def counted(sim: Any, steps: int = 10) -> tuple[float, float]:
    """Sums of the speed asked for and of the ego's own, over some steps in which the ego keeps its speed."""
    for _ in range(steps):
        drive(sim)
    judge = sim.core.world.judges[0]
    return float(judge["traffic_speed"].sum()), float(judge["ego_speed"].sum())


@pytest.mark.parametrize(("gap_m", "v", "held"), [(15.0, 4.0, True), (30.0, 4.0, False), (12.0, 7.0, False)])
def test_who_follows_another_car_is_not_slow(
    monkeypatch: pytest.MonkeyPatch, gap_m: float, v: float, held: bool
) -> None:
    """At 5 m/s 3 s and 3 m are 18 m; who is 2 m/s faster than the ego does not hold it up."""
    sim = on_roads(monkeypatch, streets())
    scene = Scene(sim)
    scene.ego(100.0, 5.0)
    scene.car(1, 0, 105.0 + gap_m + (4.5 + 4.7) / 2, v, desire=v / LIMIT_MPS)
    for slot in range(2, 8):
        scene.car(slot, 3, 100.0 + 12.0 * slot, 14.2)
    scene.apply()
    asked, driven = counted(sim)
    assert asked == pytest.approx(driven) if held else asked > 1.4 * driven


def test_behind_what_stands_on_the_lane_nobody_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = on_roads(monkeypatch, streets())
    scene = Scene(sim)
    scene.ego(100.0, 0.0)
    scene.car(1, 0, 115.0, kind=tables.OBSTACLE)
    scene.car(2, 3, 120.0, 8.0)
    scene.apply()
    asked, driven = counted(sim)
    assert asked > 70.0 and driven == 0.0


def lit(green_s: float) -> RoadBuilder:
    """A street with a light at x = 200, and another street beside it; the ego drives the first."""
    builder = RoadBuilder("lit")
    builder.cycle_s = 1e6
    for k in range(2):
        builder.lane(np.array([[0.0, 20.0 * k], [400.0, 20.0 * k]]), LIMIT_MPS)
    builder.stop(0, Control.LIGHT, builder.signal(0.0, green_s), s=200.0)
    builder.route([0], 5.0, 395.0)
    return builder


@pytest.mark.parametrize(("red", "held"), [(True, True), (False, False)])
def test_who_waits_at_a_red_light_is_not_slow(monkeypatch: pytest.MonkeyPatch, red: bool, held: bool) -> None:
    """It stands 2 m before the line; in the street beside it others drive on."""
    sim = on_roads(monkeypatch, lit(1.0 if red else 9e5))
    scene = Scene(sim)
    scene["episodes/offset"] = 100.0
    scene.ego(200.0 - 5.0 - 2.35 - 2.0, 0.0)
    scene.car(1, 1, 150.0, 9.0)
    scene.apply()
    asked, driven = counted(sim)
    assert driven == 0.0 and (asked == 0.0 if held else asked > 80.0)


def test_who_slows_for_a_bend_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bend of 8 m radius is driven at 4 m/s, by 2 m/s^2 to the side; those on the street beside drive on."""
    builder = RoadBuilder("bend")
    arc = np.linspace(0.0, np.pi, 40)
    line = [[[0.0, 0.0], [60.0, 0.0]], np.stack([60.0 + 8.0 * np.sin(arc), 8.0 - 8.0 * np.cos(arc)], 1), [[0.0, 16.0]]]
    builder.lane(np.concatenate(line), LIMIT_MPS)
    builder.lane(np.array([[0.0, 40.0], [400.0, 40.0]]), LIMIT_MPS)
    builder.route([0], 5.0)
    sim = on_roads(monkeypatch, builder)
    scene = Scene(sim)
    scene.ego(60.0, 4.0)
    scene.car(1, 1, 50.0, 9.0)
    scene.apply()
    drive(sim)
    judge = sim.core.world.judges[0]
    assert judge["traffic_speed"].sum() == pytest.approx(4.0, abs=0.1)


def two_limits() -> str:
    """A street of 8.3 m/s, and 600 m away a motorway of 36.1 m/s; one way each."""
    lanes = kit.section(0, right=[kit.lane(-1)])

    def limit(speed: float) -> str:
        return kit.tag("type", kit.tag("speed", max=speed, unit="m/s"), s=0, type="town")

    street = kit.road(1, 300, kit.piece(0, 0, 0, 0, 300), lanes, inside=limit(8.3))
    motorway = kit.road(2, 1500, kit.piece(0, 0, 600, 0, 1500), lanes, inside=limit(36.1))
    return kit.document(street, motorway)


def test_a_drive_without_anybody_near_has_full_marks_beside_a_motorway(tmp_path: Path) -> None:
    """Of the cars on the motorway none is near: driven at 95 % of the limit, it had 37 to 40 points before."""
    path = tmp_path / "two.xodr"
    path.write_text(two_limits())
    with pytest.warns(UserWarning, match="fewer than one"):
        sim = make(8, map=str(path), routes=2, threads=1)
    sim.reset(options={"state_ids": np.arange(8)})
    driver, started, drives = sim.make_expert(mode="brisk"), torch.ones(8, dtype=torch.bool), []
    slow = set(np.flatnonzero(np.abs(sim.core.world.egos["y"]) < 50.0).tolist())
    assert 0 < len(slow) < 8
    while slow:
        sim.step(driver.act(started))
        started = torch.zeros(8, dtype=torch.bool)
        for e, found in sim.core.drives.items():
            started[e] = True
            if e in slow:
                slow.discard(e)
                drives.append(found)
    for found in drives:
        assert found.completion == 1.0
        # who drives on the street as well may hold it up
        assert leaderboard_2_0(found).driving > 90.0 and min(found.min_speed) > 0.8
        assert len(found.min_speed_map) == len(found.min_speed) == 4
        assert leaderboard_2_0(by_map_speed(found)).driving <= leaderboard_2_0(found).driving
    assert min(leaderboard_2_0(by_map_speed(found)).driving for found in drives) < 60.0
