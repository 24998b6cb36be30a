"""Captions of scenes that are put together for it, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robotrl.fn.text.words import words_in
from robotrl.registry import make_sim
from robotrl.sims.driving import captions, tables
from robotrl.sims.driving.scene import HORIZON_S
from robotrl.spec.captions import UNCLEAR, HasCaptions
from robotrl.spec.vehicle import HasTimeToCollision, HasTimeToCollisionAhead


@pytest.fixture
def sim() -> Any:
    made = make_sim("bev/drive", 4, 0, obs="none", scenarios=("straight",), agents=4)
    made.reset(seed=0)
    world = made.core.world
    world.agents["kind"][:, 1:] = 0
    for name, value in (("x", 0.0), ("y", 0.0), ("yaw", 0.0), ("cos", 1.0), ("sin", 0.0), ("v", 10.0)):
        world.egos[name][:] = value
    world.agents["length"][:, 0], world.agents["width"][:, 0] = 4.0, 2.0
    return made


def put(sim: Any, env: int, x: float, y: float, yaw: float, v: float) -> None:
    """Put a car of 4 m by 2 m into an env; the ego is at 0, 0, faces along x, and drives 10 m/s."""
    car = sim.core.world.agents[env, 1]
    values = {
        "kind": tables.CAR,
        "x": x,
        "y": y,
        "cos": np.cos(yaw),
        "sin": np.sin(yaw),
        "v": v,
        "length": 4.0,
        "width": 2.0,
    }
    for name, value in values.items():
        car[name] = value


def test_time_to_collision_by_hand(sim: Any) -> None:
    put(sim, 0, 14.0, 0.0, 0.0, 0.0)  # 10 m between the bumpers of a standing car: 1 s
    put(sim, 1, -24.0, 0.0, 0.0, 20.0)  # from behind, 20 m between bumpers, 10 m/s faster: 2 s
    put(
        sim, 2, 10.0, -13.0, np.pi / 2, 10.0
    )  # crosses from the right, is there when we are: it meets us at 1 s or before
    put(sim, 3, 30.0, 5.0, 0.0, 0.0)  # beside the way: never
    ttc, direction, speed = captions.facts(sim.core).T[:3]
    assert ttc[0] == pytest.approx(1.0, abs=0.051) and ttc[1] == pytest.approx(2.0, abs=0.051)
    assert 0.4 < ttc[2] <= 1.05 and ttc[3] == HORIZON_S
    assert direction[0] == pytest.approx(0.0) and abs(direction[1]) == pytest.approx(np.pi)
    assert direction[2] == pytest.approx(np.arctan2(-13, 10))
    assert speed.tolist() == pytest.approx([10.0] * 4)
    assert isinstance(sim, HasTimeToCollision)
    assert sim.time_to_collision_s().tolist() == ttc.tolist()
    # without those behind; a second car ahead in that scene, 3.5 s away, is not hidden by the one behind
    assert isinstance(sim, HasTimeToCollisionAhead)
    assert sim.time_to_collision_ahead_s().tolist() == [ttc[0], HORIZON_S, ttc[2], HORIZON_S]
    sim.core.world.agents[1, 2] = sim.core.world.agents[0, 1]
    sim.core.world.agents["x"][1, 2] = 39.0
    assert sim.time_to_collision_ahead_s()[1] == pytest.approx(3.5, abs=0.051)
    assert sim.time_to_collision_s()[1] == ttc[1]


def test_a_standing_car_is_hit_from_behind(sim: Any) -> None:
    sim.core.world.egos["v"][:] = 0.0
    put(sim, 0, -9.0, 0.0, 0.0, 5.0)
    assert captions.facts(sim.core)[0, 0] == pytest.approx(1.0, abs=0.051)


def test_classes_by_hand() -> None:
    # ttc, direction, speed, light, offset, share off the road, side of the route
    rows = np.array(
        [
            [6.0, 0.0, 0.0, -1, 0.1, 0.0, 0.0],
            [1.0, 0.1, 3.0, 0, 0.1, 0.0, 0.0],
            [1.0, 3.1, 9.0, 2, 2.0, 0.0, 0.0],
            [1.4, 1.5, 6.0, 1, 0.1, 0.4, 0.0],
            [1.4, -1.5, 0.5, 1, 0.1, 0.1, 0.0],
            [2.0, 0.0, 0.5, 1, 0.1, 0.1, 0.0],
        ]
    )
    found = captions.classes_of(rows)
    assert found[:, 0].tolist() == [0, 1, 2, 3, 4, UNCLEAR]
    assert found[:, 1].tolist() == [0, 1, 2, UNCLEAR, UNCLEAR, UNCLEAR]
    assert found[:, 2].tolist() == [0, 1, 2, UNCLEAR, UNCLEAR, UNCLEAR]
    assert found[:, 3].tolist() == [0, 0, UNCLEAR, 1, UNCLEAR, UNCLEAR]


def test_wordings_for_tests_are_new_sentences_of_known_words() -> None:
    trained = {text for topic in captions.TOPICS for one in topic.classes for text in one.train}
    words = {word for text in trained for word in words_in(text)}
    for topic in captions.TOPICS:
        for one in topic.classes:
            assert one.train and one.test and not trained & set(one.test)
            assert {word for text in one.test for word in words_in(text)} <= words, one.name


def test_the_sim_declares_its_captions(sim: Any) -> None:
    assert isinstance(sim, HasCaptions)
    assert sim.caption_classes().shape == (4, len(captions.TOPICS)) and sim.caption_camera in sim.cameras


def test_time_to_collision_counts_parked_cars() -> None:
    sim: Any = make_sim("bev/drive", 8, 0, obs="none", scenarios=("occluded-pedestrian",))
    sim.reset(seed=0)
    core = sim.core
    maps, world = core.bank.arrays, core.world
    world.agents["kind"][:, 1:] = 0
    before = captions.facts(core)[:, 0]
    assert (before == HORIZON_S).all()  # nobody else is there, and the lane is free
    for e, row in enumerate(maps.maps[world.episodes["map"]]):
        assert row["parkeds"] > 0
        box, ego = maps.parked[row["parked"]], world.egos[e]
        gap = 12.0 + 0.5 * (box["length"] + world.agents[e, 0]["length"])
        ego["cos"], ego["sin"], ego["v"] = box["cos"], box["sin"], 10.0
        ego["x"], ego["y"] = box["x"] - gap * box["cos"], box["y"] - gap * box["sin"]
    ttc, direction = captions.facts(core)[:, :2].T
    assert (ttc < 1.26).all()  # 12 m at 10 m/s, or another parked car before it
    assert np.abs(direction).max() < 0.5
