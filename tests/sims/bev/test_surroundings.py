"""Traffic around the ego on a large map: as dense as on the procedural roads, never out of nothing, and exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tests.kits.xodr_kit as kit
from robotrl.sims import starts
from robotrl.sims.bev.traffic.surroundings import BEYOND_M, UNSEEN_M
from robotrl.sims.driving import tables
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.spots import SPOT_M
from tests.kits.bev_kit import Array, make

VAL = starts.SPLITS["val"].start
ENVS, STEPS = 16, 150


def parallel(roads: int = 40, apart: float = 12.0) -> str:
    """Roads of 600 m side by side, with a crosswalk each; one way."""
    lanes = kit.section(0, right=[kit.lane(-1)])
    walk = kit.tag(
        "objects", kit.tag("object", type="crosswalk", id="z", s=300, t=-1.75, zOffset=0, hdg=0, length=3, width=5)
    )
    plans = [kit.piece(0, 0, apart * k, 0, 600) for k in range(roads)]
    return kit.document(*(kit.road(k, 600, plan, lanes, inside=walk) for k, plan in enumerate(plans)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("large") / "large.xodr"
    file.write_text(parallel())
    return str(file)


def sim_on(path: str | None, **options: Any) -> Any:
    given = {} if path is None else {"map": path}
    sim = make(ENVS, threads=1, **given, **options)
    sim.reset(options={"state_ids": VAL + np.arange(ENVS)})
    return sim


def away(sim: Any) -> Array:
    """(N, A - 1) distance of the others from the ego; infinite of those who are not there."""
    agents, ego = sim.core.world.agents[:, 1:], sim.core.world.egos
    far = np.hypot(agents["x"] - ego["x"][:, None], agents["y"] - ego["y"][:, None])
    return np.where((agents["kind"] > 0) & (far < 1e5), far, np.inf)


class Driven:
    """Distances of all others over a drive, and the sim."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        driver, started = sim.make_expert(mode="brisk"), torch.ones(ENVS, dtype=torch.bool)
        self.far, self.fresh = [away(sim)], [np.ones(ENVS, bool)]
        for _ in range(STEPS):
            sim.step(driver.act(started))
            started = torch.zeros(ENVS, dtype=torch.bool)
            started[list(sim.core.drives)] = True
            self.far.append(away(sim))
            self.fresh.append(started.numpy().copy())
        self.near = float(np.mean([(far < 50.0).sum(1).mean() for far in self.far]))


@pytest.fixture(scope="module")
def driven(path: str) -> Driven:
    return Driven(sim_on(path))


def test_as_many_are_near_as_on_the_procedural_roads(driven: Driven) -> None:
    """Before it was 0.25 on such a map, and nobody at all in 80 % of the time."""
    usual = Driven(sim_on(None)).near
    assert 0.6 * usual < driven.near < 1.6 * usual


def test_others_are_within_reach_of_the_ego(driven: Driven) -> None:
    reach = driven.sim.core.world.episodes["reach"]
    assert (reach >= 80.0).all() and (reach <= 400.0).all()
    cars = driven.sim.core.world.agents["kind"][:, 1:] == tables.CAR
    there = np.isfinite(driven.far[-1]) & cars
    assert there.any(axis=1).all()
    # who has just moved beyond is taken away in the same step
    assert np.where(there, driven.far[-1], 0.0).max() < reach.max() + BEYOND_M + 1.0


def test_nobody_appears_in_sight(driven: Driven) -> None:
    came = 0
    for before, after, fresh in zip(driven.far, driven.far[1:], driven.fresh[1:], strict=False):
        new = np.isfinite(after) & ~np.isfinite(before) & ~fresh[:, None]
        came += int(new.sum())
        # it was put there before the ego's step of up to 1.5 m
        assert (after[new] > UNSEEN_M - 2.0).all()
        # nor does anybody jump into sight, on foot either
        stayed = np.isfinite(after) & np.isfinite(before) & ~fresh[:, None]
        assert ((after > 60.0) | (np.abs(np.where(stayed, after, 0.0) - np.where(stayed, before, 0.0)) < 10.0))[
            stayed
        ].all()
    assert came > 5


def test_people_are_at_the_crosswalks_that_the_ego_comes_to(driven: Driven) -> None:
    people = driven.sim.core.world.agents["kind"][:, 1:] == tables.PEDESTRIAN
    assert people.any(axis=1).all()
    near = [np.where(people, far, np.inf).min(axis=1) for far in driven.far]
    assert (np.min(near, axis=0) < 100.0).mean() > 0.5


def test_the_same_ids_are_the_same_episodes_and_states_go_back_exactly(path: str) -> None:
    sims = [sim_on(path) for _ in range(2)]
    run = [played(sim, 60) for sim in sims]
    assert (run[0] == run[1]).all()
    sims[1].reset(options={"state_ids": VAL + 100 + np.arange(ENVS)})
    sims[1].set_state(sims[0].get_state())
    assert (played(sims[0], 60) == played(sims[1], 60)).all()


def played(sim: Any, steps: int) -> Array:
    """Positions and speeds of all road users after some steps of going straight on."""
    for _ in range(steps):
        sim.step(torch.tensor([[0.0, 0.2]]).expand(ENVS, 2))
    return np.stack([sim.core.world.agents[name] for name in ("x", "y", "v")])


def test_spots_are_evenly_on_the_lanes_of_their_cells() -> None:
    builder = kit.parse(parallel(4, 40.0))
    builder.route([0])
    assert len(maps.finish(builder).spots.spots) == 0
    road = maps.with_spots(maps.finish(builder))
    spots, first = road.spots
    assert len(spots) == 4 * 600 / SPOT_M and first[-1] == len(spots)
    for lane in range(4):
        s = np.sort(spots["s"][spots["lane"] == lane])
        np.testing.assert_allclose(s, np.arange(4.0, 600.0, 8.0), atol=0.01)
    columns = road.nearest.shape[1]
    for cell in np.flatnonzero(np.diff(first)):
        for spot in spots[first[cell] : first[cell + 1]]:
            x, y = float(spot["s"]), 40.0 * spot["lane"] - 1.75
            assert int((y - road.origin[1]) / 16) * columns + int((x - road.origin[0]) / 16) in (
                cell,
                cell + 1,
                cell - 1,
            )


def test_small_maps_have_no_spots_and_their_traffic_is_everywhere() -> None:
    sim = sim_on(None)
    assert (sim.core.bank.arrays.maps["spots"] == 0).all()
    assert (sim.core.world.episodes["reach"] == 0).all()
    assert len(sim.core.bank.names) > 5
