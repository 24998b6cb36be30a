"""Plans that are followed some time after they were made: the path stays where it was on the road."""

from __future__ import annotations

import torch
from torch import Tensor


def carried_on(points: Tensor, elapsed: Tensor, then: Tensor, now: Tensor) -> Tensor:
    """The rest of plans, in the ego's present frame.

    The point at time t from now is the plan's at `elapsed` + t, see `points_at`. Without elapsed time, in the same
    frame, all points are exactly as they were.

    Args:
        points: (B, n, 2) x ahead and y to the left, m, in the ego's frame as the plan was made; at equal times, the
            first one such a time after it.
        elapsed: (B,) time since then, in times between two points.
        then: (B, 3 or more) x, y (m) and yaw (rad) of the ego then.
        now: (B, 3 or more) those of the ego now.

    Returns:
        (B, n, 2) points of the same times from now.
    """
    times = torch.arange(1, points.shape[1] + 1, dtype=points.dtype, device=points.device)
    ahead, left = points_at(points, elapsed[:, None] + times).unbind(-1)
    turned = (then[:, 2] - now[:, 2])[:, None]
    dx, dy = (then[:, :2] - now[:, :2]).unbind(-1)
    cos, sin = now[:, 2].cos(), now[:, 2].sin()
    x = (dx * cos + dy * sin)[:, None] + ahead * turned.cos() - left * turned.sin()
    y = (dy * cos - dx * sin)[:, None] + ahead * turned.sin() + left * turned.cos()
    return torch.stack([x, y], dim=-1)


def points_at(points: Tensor, times: Tensor) -> Tensor:
    """Points of plans at any times: cubic interpolation from the origin on, straight on after the last point.

    Tangents are those of parabolas (Catmull and Rom 1974), as in the tracker of the driving sims.

    Args:
        points: (B, n, 2) x and y, m.
        times: (B, m) 0 or more, in times between two points.

    Returns:
        (B, m, 2) x and y.
    """
    count = points.shape[1]
    knots = torch.cat([torch.zeros_like(points[:, :1]), points], dim=1)
    tangents = _tangents(knots)
    at = times.floor().clamp(max=count - 1).to(torch.int64)
    # Hermite basis; u is not used beyond the last point
    u = (times - at)[..., None]
    found = (1 + 2 * u) * (1 - u) ** 2 * _rows(knots, at) + u**2 * (3 - 2 * u) * _rows(knots, at + 1)
    found = found + u * (1 - u) ** 2 * _rows(tangents, at) + u**2 * (u - 1) * _rows(tangents, at + 1)
    beyond = (times - count)[..., None]
    return torch.where(beyond >= 0, knots[:, -1:] + beyond * tangents[:, -1:], found)


def straight_on(speed: Tensor, count: int, dt_s: float) -> Tensor:
    """Plans (B, count, 2) of points `dt_s` apart that go straight on at a speed (B,), m/s."""
    times = dt_s * torch.arange(1, count + 1, dtype=speed.dtype, device=speed.device)
    x = speed[:, None] * times
    return torch.stack([x, torch.zeros_like(x)], dim=-1)


def _tangents(knots: Tensor) -> Tensor:
    """Derivatives (B, n + 1, 2) by the point's number: those of the parabola through a point and its neighbors."""
    if knots.shape[1] == 2:
        return (knots[:, 1:] - knots[:, :1]).expand_as(knots)
    first = 2 * knots[:, 1] - 0.5 * knots[:, 2] - 1.5 * knots[:, 0]
    last = 1.5 * knots[:, -1] - 2 * knots[:, -2] + 0.5 * knots[:, -3]
    middle = 0.5 * (knots[:, 2:] - knots[:, :-2])
    return torch.cat([first[:, None], middle, last[:, None]], dim=1)


def _rows(values: Tensor, at: Tensor) -> Tensor:
    return values.gather(1, at[..., None].expand(*at.shape, values.shape[-1]))
