"""Reward of a drive among boxes and lines: collisions, lines crossed, progress, distance from a reference way."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.spec.vehicle import DIVIDER, EDGE, OBSTACLE, PEDESTRIAN


class RewardWeights(NamedTuple):
    """Prices of what ends a drive, and weights of its other terms."""

    car: float = 30.0
    """Collision with a car or cyclist."""
    person: float = 50.0
    """Collision with a pedestrian."""
    static: float = 10.0
    """Collision with an obstacle or a parked car."""
    edge: float = 30.0
    """Edge of the road, or a stop line that is closed."""
    divider: float = 10.0
    """Line to the oncoming lanes."""
    progress: float = 1.0
    """Way driven over the way at the speed limit, 0 to 1."""
    distance: float = 0.1
    """Distance of the last place from the reference way, per m."""


class PseudoReward(NamedTuple):
    """Reward (B,) and its terms (B,), weighted."""

    total: Tensor
    collision: Tensor
    crossing: Tensor
    progress: Tensor
    distance: Tensor


class Surroundings(NamedTuple):
    """What a drive of T steps meets; boxes and lines in the frame of its start."""

    agents: Tensor
    """(B, T + 1, M, 4) x, y, yaw and speed of the others, at the start and after each step."""
    there: Tensor
    """(B, T + 1, M) bool."""
    kind: Tensor
    """(B, M) kinds of `robotrl.spec.vehicle`, 0 for an empty slot."""
    size: Tensor
    """(B, M, 2) length and width."""
    lines: Tensor
    """(B, L, 4) both ends."""
    line_kind: Tensor
    """(B, L) kinds, 0 for an empty slot."""
    stop: Tensor
    """(B, 4) both ends of the next stop line."""
    closed: Tensor
    """(B, T + 1) bool, steps at which it must not be crossed."""
    way: Tensor
    """(B, P, 2) reference way, which begins at the origin."""
    limit_mps: Tensor
    """(B,) speed limit."""


def boxes_overlap(a: Tensor, a_size: Tensor, b: Tensor, b_size: Tensor) -> Tensor:
    """True (...) where two oriented boxes overlap, by the separating axis theorem.

    Args:
        a: (..., 3 or more) x, y and yaw of the center.
        a_size: (..., 2) length and width.
        b: likewise of the other box.
        b_size: likewise.
    """
    dx, dy = b[..., 0] - a[..., 0], b[..., 1] - a[..., 1]
    turn = b[..., 2] - a[..., 2]
    c, s = turn.cos().abs(), turn.sin().abs()
    separate = torch.zeros_like(dx, dtype=torch.bool)
    for yaw, own, other in ((a[..., 2], a_size, b_size), (b[..., 2], b_size, a_size)):
        along, across = dx * yaw.cos() + dy * yaw.sin(), dy * yaw.cos() - dx * yaw.sin()
        separate = separate | (along.abs() > 0.5 * (own[..., 0] + other[..., 0] * c + other[..., 1] * s))
        separate = separate | (across.abs() > 0.5 * (own[..., 1] + other[..., 0] * s + other[..., 1] * c))
    return ~separate


def segments_cross(a: Tensor, b: Tensor) -> Tensor:
    """True (...) where two segments (..., 4), given by x and y of both ends, cross."""

    def side(line: Tensor, x: Tensor, y: Tensor) -> Tensor:
        along_x, along_y = line[..., 2] - line[..., 0], line[..., 3] - line[..., 1]
        return along_x * (y - line[..., 1]) - along_y * (x - line[..., 0])

    apart_b = side(a, b[..., 0], b[..., 1]) * side(a, b[..., 2], b[..., 3])
    apart_a = side(b, a[..., 0], a[..., 1]) * side(b, a[..., 2], a[..., 3])
    return (apart_a < 0) & (apart_b < 0)


def diagonals(pose: Tensor, size: Tensor) -> Tensor:
    """Both diagonals (..., 2, 4) of boxes; a line that passes through a box crosses one of them.

    Args:
        pose: (..., 3 or more) x, y and yaw of the center.
        size: (..., 2) length and width.
    """
    x, y, cos, sin = pose[..., 0], pose[..., 1], pose[..., 2].cos(), pose[..., 2].sin()
    out: list[Tensor] = []
    for side in (1.0, -1.0):
        length, width = 0.5 * size[..., 0], 0.5 * side * size[..., 1]
        dx, dy = length * cos - width * sin, length * sin + width * cos
        out.append(torch.stack([x - dx, y - dy, x + dx, y + dy], dim=-1))
    return torch.stack(out, dim=-2)


def way_distance(point: Tensor, way: Tensor) -> Tensor:
    """Distance (B,) of points (B, 2) from polylines that lead from the origin through points (B, P, 2)."""
    start = torch.cat([torch.zeros_like(way[:, :1]), way[:, :-1]], dim=1)
    step = way - start
    from_start = point[:, None] - start
    length = step.square().sum(-1).clamp(min=1e-9)
    share = ((from_start * step).sum(-1) / length).clamp(0.0, 1.0)
    return (from_start - share[..., None] * step).norm(dim=-1).amin(dim=1)


def pseudo_reward(ego: Tensor, size: Tensor, met: Surroundings, dt_s: float, weights: RewardWeights) -> PseudoReward:
    """Reward of drives, each up to its first event: a collision, or a line that it crosses.

    What happens in the same step is added up. The start itself is not judged.

    Args:
        ego: (B, T + 1, 4) x, y, yaw and speed at the start and after each step.
        size: (B, 2) length and width.
        met: the surroundings.
        dt_s: length of a step, s.
        weights: prices and weights.
    """
    steps = ego.shape[1] - 1
    driven = ego[:, 1:]
    own = size[:, None, None].expand(-1, steps, met.kind.shape[1], -1)
    hit = boxes_overlap(driven[:, :, None], own, met.agents[:, 1:], met.size[:, None])
    hit = hit & met.there[:, 1:] & (met.kind > 0)[:, None]
    prices = torch.full_like(met.limit_mps, weights.car)[:, None].expand(-1, met.kind.shape[1])
    prices = torch.where(met.kind == PEDESTRIAN, torch.full_like(prices, weights.person), prices)
    prices = torch.where(met.kind == OBSTACLE, torch.full_like(prices, weights.static), prices)
    # in one step the dearest collision counts
    collision = (hit * prices[:, None]).amax(dim=2)
    over = segments_cross(diagonals(driven, size[:, None])[:, :, None], met.lines[:, None, :, None]).any(dim=-1)
    edge = (over & (met.line_kind == EDGE)[:, None]).any(dim=2)
    divider = (over & (met.line_kind == DIVIDER)[:, None]).any(dim=2)
    front = ego[..., :2] + 0.5 * size[:, :1, None] * torch.stack([ego[..., 2].cos(), ego[..., 2].sin()], dim=-1)
    passed = segments_cross(torch.cat([front[:, :-1], front[:, 1:]], dim=-1), met.stop[:, None])
    edge = edge | (passed & met.closed[:, 1:])
    crossing = weights.edge * edge.to(ego.dtype) + weights.divider * divider.to(ego.dtype)
    event = (collision > 0) | (crossing > 0)
    # the step of the first event, else the last one
    last = torch.where(event.any(dim=1), event.to(torch.int8).argmax(dim=1), steps - 1)[:, None]
    way = (ego[:, 1:, :2] - ego[:, :-1, :2]).norm(dim=-1).cumsum(dim=1).gather(1, last)[:, 0]
    progress = (way / (met.limit_mps * steps * dt_s).clamp(min=1e-6)).clamp(0.0, 1.0)
    end = driven[..., :2].gather(1, last[..., None].expand(-1, -1, 2))[:, 0]
    terms = (
        -collision.gather(1, last)[:, 0],
        -crossing.gather(1, last)[:, 0],
        weights.progress * progress,
        -weights.distance * way_distance(end, met.way),
    )
    return PseudoReward(terms[0] + terms[1] + terms[2] + terms[3], *terms)
