"""SRPO's progress reward: failures are rewarded by their distance to successes of the same task.

SRPO (Fei et al. 2025, 2511.15605): episodes are embedded, the successes of a task are clustered, and the reward of a
failure is higher, the nearer it is to a cluster's center, but always lower than that of a success.
"""

from __future__ import annotations

import torch
from torch import Tensor

NOISE = -1
"""Label of a point in no cluster."""
FLOOR = 1e-6
"""Features with a smaller standard deviation over the successes, and distances with a smaller range, are constant."""


def dbscan(points: Tensor, eps: float, least: int) -> Tensor:
    """DBSCAN (Ester et al. 1996): labels (n,) of clusters, numbered from 0 by their first points, or `NOISE`.

    Args:
        points: (n, F).
        eps: largest distance of two neighbors; a point is its own neighbor.
        least: number of neighbors that make a point a core point.
    """
    # sequential: on the CPU, wherever the points are
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


def centers(successes: Tensor, eps: float, least: int) -> Tensor:
    """Centers (k, F) of the clusters of embedded successes (n, F), or their mean (1, F) if there is no cluster.

    Features are standardized over the successes before the clustering.
    """
    mean, std = successes.mean(dim=0), successes.std(dim=0, unbiased=False)
    scaled = (successes - mean) / torch.where(std < FLOOR, torch.ones_like(std), std)
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
    """Rewards (N,): 1 for a success; for a failure cap * sigmoid(steepness (1/2 - d)) with its scaled distance d.

    The distance to the nearest center is scaled to [0, 1] over the failures of the same task; 1/2 if all are equal up
    to `FLOOR`. A task without a success or without a failure is not shaped: its failures get 0.

    Args:
        embedding: (N, F) of episodes.
        success: (N,) bool.
        task: (N,) int64; episodes are compared only within their task.
        cap: upper bound of a failure's reward, below 1.
        steepness: of the sigmoid.
        eps: see `dbscan`, in standard deviations of a feature.
        least: see `dbscan`.
    """
    reward = success.to(embedding.dtype)
    for one in task.unique():
        won, lost = (torch.nonzero((task == one) & ended)[:, 0] for ended in (success, ~success))
        if not len(won) or not len(lost):
            continue
        far = torch.cdist(embedding[lost], centers(embedding[won], eps, least)).amin(dim=1)
        low, high = far.min(), far.max()
        scaled = (far - low) / (high - low) if high - low > FLOOR else torch.full_like(far, 0.5)
        reward[lost] = cap * torch.sigmoid(steepness * (0.5 - scaled))
    return reward
