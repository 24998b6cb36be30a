"""Traffic that the ego's speed is compared with: who counts, at which distance and limit, and what nobody costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tests.kits.xodr_kit as kit
from robotrl.sims.driving import tables
from robotrl.sims.driving.roads.lanes import RoadBuilder
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
    """Others drive at 11 m/s where 10 are allowed."""
    sim = on_roads(monkeypatch, streets())
    scene = Scene(sim)
    scene.ego(100.0, 9.5)
    scene.car(1, 0, 150.0, 11.0, desire=1.1)
    scene.apply()
    for _ in range(20):
        drive(sim)
    judge = sim.core.world.judges[0]
    assert judge["traffic_speed"].sum() == pytest.approx(20 * 10.0)
    assert judge["ego_speed"].sum() == pytest.approx(20 * 9.5)


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
