"""Paths as polylines of equally spaced points: built from turns, looked up by distance, imitated by several modes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def path_of(turns: Tensor, spacing_m: float) -> Tensor:
    """Points (..., P, 2) of paths that begin at the origin and turn before each point; x ahead, y left, m.

    Args:
        turns: (..., P) change of heading before each point, rad; the first one is relative to straight ahead.
        spacing_m: distance between two points, and from the origin to the first one.
    """
    heading = turns.cumsum(-1)
    return spacing_m * torch.stack([heading.cos().cumsum(-1), heading.sin().cumsum(-1)], dim=-1)


def points_at(path: Tensor, spacing_m: float, distance_m: Tensor) -> Tensor:
    """Points (B, ..., 2) at some distances along paths from the origin; beyond the last point straight on.

    Args:
        path: (B, P, 2) points, P 1 or more.
        spacing_m: distance between two points.
        distance_m: (B, ...) 0 or more.
    """
    knots = torch.cat([torch.zeros_like(path[:, :1]), path], dim=1)
    u = (distance_m / spacing_m).reshape(len(path), -1)
    k = u.detach().floor().clamp(0, path.shape[1] - 1)
    at = k.long()[..., None].expand(-1, -1, 2)
    before, after = knots.gather(1, at), knots.gather(1, at + 1)
    return (before + (u - k)[..., None] * (after - before)).view(*distance_m.shape, 2)


class WinnerLoss(NamedTuple):
    """Losses of several path modes against one path."""

    regression: Tensor
    """Scalar: mean distance of the winner's points from the path's, m."""
    classification: Tensor
    """Scalar: mean cross-entropy of the mode probabilities against the winner, nats."""
    winner: Tensor
    """(B,) the mode that is nearest to the path."""


def winner_takes_all(paths: Tensor, logits: Tensor, way: Tensor, valid: Tensor) -> WinnerLoss:
    """Loss of multi-modal regression: only the nearest mode is drawn to the path, and it is to become probable.

    Rows without a valid point count nothing.

    Args:
        paths: (B, K, P, 2) path of each mode.
        logits: (B, K) scores of the modes.
        way: (B, P, 2) the path to imitate.
        valid: (B, P) bool, points of the path that exist.
    """
    apart = (paths - way[:, None]).square().sum(-1).add(1e-8).sqrt()
    share = valid.to(apart.dtype)
    distance = (apart * share[:, None]).sum(-1) / share.sum(-1).clamp(min=1.0)[:, None]
    winner = distance.detach().argmin(dim=1)
    known = valid.any(dim=1).to(apart.dtype)
    count = known.sum().clamp(min=1.0)
    best = distance.gather(1, winner[:, None])[:, 0]
    surprise = -logits.log_softmax(dim=1).gather(1, winner[:, None])[:, 0]
    return WinnerLoss((best * known).sum() / count, (surprise * known).sum() / count, winner)
