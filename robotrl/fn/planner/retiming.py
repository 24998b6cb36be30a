"""Retiming of planned trajectories: the path stays, the acceleration along it is shifted (RAD-2's relabelling)."""

from __future__ import annotations

import torch
from torch import Tensor

SHORTEST_M = 1e-6
"""Length of a segment below which it has no direction."""


def retimed(points: Tensor, accel_mps2: Tensor, dt_s: float) -> Tensor:
    """Trajectories along the same paths with another acceleration.

    The speed at time t becomes v(t) + a t, and 0 where that is negative. A path is the polyline from the origin through
    the points. Beyond its end it goes straight on; a path of length 0 goes along x.

    Args:
        points: (B, n, 2) x and y, m, `dt_s` apart, the first one `dt_s` after the origin.
        accel_mps2: (B,) a, m/s^2, which is added to the acceleration along the path.
        dt_s: time between two points, s.

    Returns:
        (B, n, 2) the points of the same times.
    """
    knots = torch.cat([torch.zeros_like(points[:, :1]), points], dim=1)
    step = knots.diff(dim=1)
    length = step.norm(dim=-1)
    along = torch.cat([torch.zeros_like(length[:, :1]), length.cumsum(dim=1)], dim=1)
    times = dt_s * torch.arange(knots.shape[1], dtype=points.dtype, device=points.device)
    # an interval that the shifted speed would drive backwards is spent standing
    driven = (length + 0.5 * accel_mps2[:, None] * times.square().diff()).clamp(min=0)
    wanted = driven.cumsum(dim=1)
    at = (torch.searchsorted(along, wanted, right=True) - 1).clamp(max=step.shape[1] - 1)
    begin, ahead = _rows(knots, at), _rows(_headings(step, length), at)
    moved = begin + ahead * (wanted - along.gather(1, at))[..., None]
    # without a shift the points stay bit for bit, free of the interpolation's rounding
    return torch.where((accel_mps2 == 0)[:, None, None], points, moved)


def _headings(step: Tensor, length: Tensor) -> Tensor:
    """Unit vectors (B, n, 2) of segments; where one has no length, that of the last one before that has, or x."""
    last = torch.zeros_like(step[:, 0])
    last[:, 0] = 1
    found = list[Tensor]()
    for k in range(step.shape[1]):
        along = length[:, k, None]
        last = torch.where(along > SHORTEST_M, step[:, k] / along.clamp(min=SHORTEST_M), last)
        found.append(last)
    return torch.stack(found, dim=1)


def _rows(values: Tensor, at: Tensor) -> Tensor:
    return values.gather(1, at[..., None].expand(*at.shape, values.shape[-1]))


def acceleration_shift(
    ttc_s: Tensor,
    ttc_ahead_s: Tensor,
    progress: Tensor,
    *,
    unsafe_ttc_s: float,
    safe_ttc_s: float,
    lag: float,
    brake_mps2: float,
    speed_up_mps2: float,
) -> Tensor:
    """Shift of the acceleration (B,), m/s^2: braking where a collision is near, more speed where it lags and is safe.

    Nobody brakes for somebody who comes from behind: that would make the collision sooner and harder. Such a plan stays
    as it is.

    Args:
        ttc_s: (B,) time to collision, s.
        ttc_ahead_s: (B,) time to collision with those who are not behind, s; at least `ttc_s`.
        progress: (B,) progress over that of a reference driver.
        unsafe_ttc_s: below this ahead, the plan is shortened by `brake_mps2`.
        safe_ttc_s: from here on in all directions, the plan may be lengthened.
        lag: below this progress, a safe plan is lengthened by `speed_up_mps2`.
        brake_mps2: 0 or more.
        speed_up_mps2: 0 or more.
    """
    faster = torch.where((progress < lag) & (ttc_s >= safe_ttc_s), speed_up_mps2, 0.0)
    return torch.where(ttc_ahead_s < unsafe_ttc_s, -brake_mps2, faster)


def least_ahead(value: Tensor, episode: Tensor, ahead: int) -> Tensor:
    """Least value (D,) of each decision and of up to `ahead` decisions that follow in its episode.

    Args:
        value: (D,) of decisions, in the order of time within each episode.
        episode: (D,) index of each decision's episode.
        ahead: number of further decisions, 0 or more.
    """
    order = torch.argsort(episode, stable=True)
    ordered, whose = value[order], episode[order]
    least = ordered.clone()
    for k in range(1, min(ahead, len(value) - 1) + 1):
        same = whose[k:] == whose[:-k]
        least[:-k] = torch.where(same, torch.minimum(least[:-k], ordered[k:]), least[:-k])
    out = torch.empty_like(least)
    out[order] = least
    return out
