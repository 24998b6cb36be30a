"""Reward of the pseudo-simulation: overlaps, crossings and every term by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.fn.planner.pseudo_reward import (
    RewardWeights,
    Surroundings,
    boxes_overlap,
    diagonals,
    pseudo_reward,
    segments_cross,
    way_distance,
)
from robotrl.sims.driving import geometry, tables
from robotrl.spec import vehicle

WEIGHTS = RewardWeights()
SIZE = torch.tensor([[4.0, 2.0]])
STEPS = 4


def drive(speed: float = 10.0) -> Tensor:
    """Straight on for four steps of 0.5 s."""
    x = 0.5 * speed * torch.arange(STEPS + 1.0)
    zero = torch.zeros_like(x)
    return torch.stack([x, zero, zero, torch.full_like(x, speed)], dim=1)[None]


def nothing(**changes: Any) -> Surroundings:
    """An empty world of one scene, with a way straight ahead and a speed limit of 20 m/s."""
    met = Surroundings(
        agents=torch.zeros(1, STEPS + 1, 1, 4),
        there=torch.zeros(1, STEPS + 1, 1, dtype=torch.bool),
        kind=torch.zeros(1, 1, dtype=torch.int64),
        size=torch.tensor([[[4.0, 2.0]]]),
        lines=torch.zeros(1, 1, 4),
        line_kind=torch.zeros(1, 1, dtype=torch.int64),
        stop=torch.tensor([[1e4, -1.0, 1e4, 1.0]]),
        closed=torch.ones(1, STEPS + 1, dtype=torch.bool),
        way=torch.tensor([[[10.0, 0.0], [20.0, 0.0], [30.0, 0.0]]]),
        limit_mps=torch.tensor([20.0]),
    )
    return met._replace(**changes)


def someone(x: float, kind: int, y: float = 0.0) -> dict[str, Tensor]:
    """Somebody who stands at a place."""
    agents = torch.zeros(1, STEPS + 1, 1, 4)
    agents[..., 0], agents[..., 1] = x, y
    there = torch.ones(1, STEPS + 1, 1, dtype=torch.bool)
    return {"agents": agents, "there": there, "kind": torch.tensor([[kind]])}


def reward(met: Surroundings, ego: Tensor | None = None) -> dict[str, float]:
    found = pseudo_reward(drive() if ego is None else ego, SIZE, met, 0.5, WEIGHTS)
    return {name: x.item() for name, x in found._asdict().items()}


def test_kinds_are_those_of_the_driving_worlds() -> None:
    for name in ("CAR", "CYCLIST", "PEDESTRIAN", "OBSTACLE"):
        assert getattr(vehicle, name) == getattr(tables, name)


def test_boxes_overlap_as_in_the_sims() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.rand((500, 3), generator=generator) * torch.tensor([8.0, 8.0, 6.3])
    b = torch.rand((500, 3), generator=generator) * torch.tensor([8.0, 8.0, 6.3])
    size_a, size_b = (0.5 + 4.0 * torch.rand((500, 2), generator=generator) for _ in range(2))
    found = boxes_overlap(a, size_a, b, size_b)
    expected = [
        geometry.boxes_overlap(
            p[0] - q[0], p[1] - q[1], math.cos(q[2]), math.sin(q[2]), 0.5 * s[0], 0.5 * s[1],
            math.cos(p[2]), math.sin(p[2]), 0.5 * t[0], 0.5 * t[1],
        )
        for q, s, p, t in zip(a.tolist(), size_a.tolist(), b.tolist(), size_b.tolist(), strict=True)
    ]  # fmt: skip
    assert found.tolist() == expected
    assert 100 < sum(expected) < 400


def test_segments_cross_in_an_x_and_not_beside_each_other() -> None:
    a = torch.tensor([0.0, 0.0, 2.0, 2.0])
    assert segments_cross(a, torch.tensor([0.0, 2.0, 2.0, 0.0]))
    assert not segments_cross(a, torch.tensor([3.0, 0.0, 5.0, 2.0]))
    assert not segments_cross(a, torch.tensor([0.0, 3.0, 1.0, 2.0]))


def test_diagonals_of_a_turned_box() -> None:
    found = diagonals(torch.tensor([1.0, 0.0, math.pi / 2]), torch.tensor([4.0, 2.0]))
    assert torch.allclose(found[0], torch.tensor([2.0, -2.0, 0.0, 2.0]), atol=1e-6)
    assert torch.allclose(found[1], torch.tensor([0.0, -2.0, 2.0, 2.0]), atol=1e-6)


def test_distance_from_a_way_that_begins_at_the_origin() -> None:
    way = torch.tensor([[[2.0, 0.0], [2.0, 4.0]]]).expand(4, -1, -1)
    point = torch.tensor([[1.0, 1.0], [3.0, 2.0], [2.0, 7.0], [-3.0, 4.0]])
    assert way_distance(point, way).tolist() == pytest.approx([1.0, 1.0, 3.0, 5.0])


def test_an_empty_road_is_worth_the_progress() -> None:
    # 20 m of 40 m at the limit
    assert reward(nothing()) == pytest.approx(
        {"total": 0.5, "collision": 0.0, "crossing": 0.0, "progress": 0.5, "distance": 0.0}
    )
    assert reward(nothing(limit_mps=torch.tensor([5.0])))["progress"] == 1.0


@pytest.mark.parametrize(
    ("kind", "price"),
    [(vehicle.CAR, 30.0), (vehicle.CYCLIST, 30.0), (vehicle.PEDESTRIAN, 50.0), (vehicle.OBSTACLE, 10.0)],
)
def test_a_collision_costs_by_kind_and_ends_the_drive(kind: int, price: float) -> None:
    """Boxes of 4 m touch when centers are 4 m apart: at 10 m after the second step, of somebody at 13 m."""
    found = reward(nothing(**someone(13.0, kind)))
    assert found["collision"] == -price
    assert found["progress"] == pytest.approx(10 / 40)
    assert found["total"] == pytest.approx(0.25 - price)
    assert reward(nothing(**someone(25.0, kind)))["collision"] == 0.0
    assert reward(nothing(**someone(13.0, kind, y=2.5)))["collision"] == 0.0


def test_who_has_gone_or_overlaps_at_the_start_is_not_hit() -> None:
    gone = someone(13.0, vehicle.CAR)
    gone["there"][:, 2:] = False
    assert reward(nothing(**gone))["collision"] == 0.0
    # behind it from the first step on
    assert reward(nothing(**someone(0.5, vehicle.CAR)))["collision"] == 0.0


@pytest.mark.parametrize(("kind", "price"), [(vehicle.EDGE, 30.0), (vehicle.DIVIDER, 10.0)])
def test_a_line_costs_by_kind(kind: int, price: float) -> None:
    across = {"lines": torch.tensor([[[11.0, -3.0, 11.0, 3.0]]]), "line_kind": torch.tensor([[kind]])}
    found = reward(nothing(**across))
    assert (found["crossing"], found["progress"]) == (-price, pytest.approx(0.25))
    beside = {"lines": torch.tensor([[[0.0, 1.2, 30.0, 1.2]]]), "line_kind": torch.tensor([[kind]])}
    assert reward(nothing(**beside))["crossing"] == 0.0


def test_a_closed_stop_line_costs_what_an_edge_costs_and_an_open_one_nothing() -> None:
    """The front bumper is 2 m ahead: the line at 11 m is passed in the second step, from 7 to 12 m."""
    stop = torch.tensor([[11.0, -2.5, 11.0, 2.5]])
    closed = torch.zeros(1, STEPS + 1, dtype=torch.bool)
    closed[:, 2] = True
    found = reward(nothing(stop=stop, closed=closed))
    assert (found["crossing"], found["progress"]) == (-30.0, pytest.approx(0.25))
    assert reward(nothing(stop=stop, closed=~closed))["crossing"] == 0.0
    # who stops before it pays nothing
    assert reward(nothing(stop=stop), drive(2.0))["crossing"] == 0.0


def test_the_last_place_costs_its_distance_from_the_way() -> None:
    aside = nothing(way=torch.tensor([[[0.0, 3.0], [30.0, 3.0], [60.0, 3.0]]]))
    assert reward(aside)["distance"] == pytest.approx(-0.3)


def test_events_of_the_same_step_add_up() -> None:
    both = nothing(
        **someone(13.0, vehicle.PEDESTRIAN),
        lines=torch.tensor([[[11.0, -3.0, 11.0, 3.0]]]),
        line_kind=torch.tensor([[vehicle.DIVIDER]]),
    )
    assert reward(both)["total"] == pytest.approx(0.25 - 50.0 - 10.0)
