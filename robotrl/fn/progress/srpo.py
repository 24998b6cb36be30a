"""How far a failure came: rewards from the distance to what successes of the same task looked like.

SRPO (Fei et al. 2025, 2511.15605): episodes are embedded, the successes of a task are clustered, and a failure is worth
the more, the nearer it is to a cluster's centre, but always less than a success.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = -1
"""The label of a point in no cluster."""
FLOOR = 1e-6
"""A feature that deviates less is the same in all successes; distances that differ less are the same."""


def dbscan(points: Tensor, eps: float, least: int) -> Tensor:
    """Labels (n,) of clusters, numbered from 0 in the order of their first points, or `NOISE` (Ester et al. 1996).

    Args:
        points: (n, F).
        eps: two points are neighbours when they are as near as this; a point is its own neighbour.
        least: neighbours that make a point part of a cluster's core.
    """
    # point by point: on the CPU, wherever the points are
    near = (torch.cdist(points, points) <= eps).cpu()
    core = near.sum(dim=1) >= least
    label = torch.full((len(points),), NOISE)
    clusters = 0
    for first in range(len(points)):
        if label[first] != NOISE or not core[first]:
            continue
        frontier = [first]
        label[first] = clusters
        while frontier:
            at = frontier.pop()
            if not core[at]:
                continue
            new = torch.nonzero(near[at] & (label == NOISE))[:, 0].tolist()
            label[new] = clusters
            frontier += new
        clusters += 1
    return label.to(points.device)


def centres(successes: Tensor, eps: float, least: int) -> Tensor:
    """Centres (k, F) of the clusters of embedded successes (n, F), or their mean (1, F) where there is no cluster.

    Each feature is standardised over the successes before they are clustered.
    """
    mean, deviation = successes.mean(dim=0), successes.std(dim=0, unbiased=False)
    scaled = (successes - mean) / torch.where(deviation < FLOOR, torch.ones_like(deviation), deviation)
    label = dbscan(scaled, eps, least)
    found = [successes[label == k].mean(dim=0) for k in range(int(label.max()) + 1)]
    return torch.stack(found) if found else mean[None]


def progress_reward(
    embedding: Tensor,
    success: Tensor,
    task: Tensor,
    *,
    cap: float = 0.6,
    steepness: float = 10.0,
    eps: float = 0.5,
    least: int = 2,
) -> Tensor:
    """Rewards (N,): 1 for a success; of a failure cap * sigmoid(steepness (1/2 - d)), d its distance among failures.

    The distance to the nearest centre is scaled to 0 ... 1 over the failures of the same task, 1/2 where all are as
    far to `FLOOR`. A task without a success or without a failure is not shaped: its failures are worth 0.

    Args:
        embedding: (N, F) of episodes.
        success: (N,) bool.
        task: (N,) int64; episodes are compared with those of their task alone.
        cap: above what a failure is worth, below 1.
        steepness: of the sigmoid.
        eps: see `dbscan`, in deviations of a feature.
        least: see `dbscan`.
    """
    reward = success.to(embedding.dtype)
    for one in task.unique():
        won, lost = (torch.nonzero((task == one) & ended)[:, 0] for ended in (success, ~success))
        if not len(won) or not len(lost):
            continue
        far = torch.cdist(embedding[lost], centres(embedding[won], eps, least)).amin(dim=1)
        low, high = far.min(), far.max()
        scaled = (far - low) / (high - low) if high - low > FLOOR else torch.full_like(far, 0.5)
        reward[lost] = cap * torch.sigmoid(steepness * (0.5 - scaled))
    return reward
