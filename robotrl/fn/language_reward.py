"""Rewards from similarities of images and sentences, as published.

A similarity is the cosine of an image's and a sentence's vectors. All functions take float32 tensors and return one
number for each image; none has a constant that was tuned to one model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def contrast(similarity: Tensor, positives: int, worst: bool = False) -> Tensor:
    """Contrasting language goals (VLM-RL, Huang et al. 2024): mean similarity to the good prompts minus the bad ones.

    Args:
        similarity: (n, K) to K prompts, the good ones first.
        positives: number of good prompts, 1 to K - 1.
        worst: True: the most similar bad prompt counts instead of their mean, for prompts that exclude each other.
    """
    bad = similarity[:, positives:]
    return similarity[:, :positives].mean(dim=1) - (bad.max(dim=1).values if worst else bad.mean(dim=1))


def goal_baseline(goal_similarity: Tensor, baseline_similarity: Tensor, between: float, alpha: float) -> Tensor:
    """Goal-baseline projection (VLM-RM, Rocamonde et al. 2023, eq. 5): 1 - |alpha P(x) + (1 - alpha) x - g|^2 / 2.

    P projects the image's vector x on the line from the baseline's vector b to the goal's g; all three have length 1,
    so that their similarities are enough.

    Args:
        goal_similarity: (n,) x . g.
        baseline_similarity: (n,) x . b.
        between: g . b, below 1.
        alpha: strength of the projection, 0 (the similarity to the goal) to 1.
    """
    length = 2.0 - 2.0 * between  # |g - b|^2
    along = (goal_similarity - baseline_similarity + 1.0 - between) / length  # P(x) = b + along (g - b)
    projected = (along - 1.0) ** 2 * length
    mixed = (along - 1.0) * (goal_similarity - baseline_similarity - 1.0 + between)
    apart = 2.0 - 2.0 * goal_similarity
    return 1.0 - 0.5 * (alpha**2 * projected + 2.0 * alpha * (1.0 - alpha) * mixed + (1.0 - alpha) ** 2 * apart)


def opposite(similarity: Tensor) -> Tensor:
    """Distance from what must not be (LORD, Ye et al. 2024): 1 - the highest similarity to a bad prompt, (n, K)."""
    return 1.0 - similarity.max(dim=1).values


def thresholded(similarity: Tensor, threshold: float) -> Tensor:
    """1 where the similarity (n,) reaches the threshold, else -1 (VLM-SR, Baumli et al. 2023)."""
    return torch.where(similarity >= threshold, 1.0, -1.0)


def episode_similarity(total: Tensor, sentence: Tensor) -> Tensor:
    """Similarity of a whole episode to a sentence (RoboCLIP, Sontakke et al. 2023), by the mean of its pictures.

    Their encoder reads videos, and their policy observes the time; neither is here.

    Args:
        total: (D,) sum of the unit vectors of its pictures.
        sentence: (D,) unit vector.
    """
    return F.normalize(total, dim=0) @ sentence


def windowed(value: Tensor, low: float, high: float) -> Tensor:
    """Values (n,) mapped so that the window from `low` to `high`, low < high, becomes 0 to 1, and clipped."""
    return ((value - low) / (high - low)).clamp(0.0, 1.0)


def quantile_window(values: Tensor, quantiles: tuple[float, float]) -> tuple[float, float]:
    """Window from one quantile of values (n,) to another.

    Args:
        values: values that were seen.
        quantiles: both, 0 to 1.
    """
    low, high = torch.quantile(values.double(), torch.tensor(quantiles, dtype=torch.float64)).tolist()
    return low, high


def driving_synthesis(
    semantic: Tensor,
    speed_mps: Tensor,
    offset_m: Tensor,
    heading_rad: Tensor,
    *,
    max_speed_mps: float,
    max_offset_m: float,
    max_heading_rad: float,
) -> Tensor:
    """Synthesis after VLM-RL's eq. 8: language says how fast to drive, the vehicle's state does the rest.

    The semantic score times the maximum speed is the desired speed. The reward is the closeness to it, times the
    centering in the lane, times the alignment with it, each 0 to 1. Two parts of eq. 8 need more than the present
    state, and are settings of `SynthesisCfg`: the factor of the standard deviation of recent lateral offsets
    (`weave_m`), and the base reward that is kept where it is negative (`keep_negative`).

    Args:
        semantic: (n,) score of the scene, 0 (dangerous) to 1 (clear).
        speed_mps: (n,) present speed.
        offset_m: (n,) lateral offset from the lane's center.
        heading_rad: (n,) heading relative to the lane.
        max_speed_mps: desired speed on a clear road.
        max_offset_m: offset at which the reward is 0.
        max_heading_rad: heading error at which the reward is 0.
    """
    desired = semantic * max_speed_mps
    speed = (1.0 - (speed_mps - desired).abs() / max_speed_mps).clamp(0.0, 1.0)
    centering = (1.0 - offset_m.abs() / max_offset_m).clamp(0.0, 1.0)
    alignment = (1.0 - heading_rad.abs() / max_heading_rad).clamp(0.0, 1.0)
    return speed * centering * alignment


def alignment_margin(similarity: Tensor, taken: Tensor, neighbors: Tensor, temperature: float) -> Tensor:
    """Conditional contrastive action alignment (Found-RL, 2025): the margin of the action that was taken.

    Args:
        similarity: (n, A) of each image to the sentences of all A actions in the present command and speed.
        taken: (n,) number of the action that was taken.
        neighbors: (A, A) bool: actions too similar to count as alternatives; True on the diagonal.
        temperature: of the softmax over actions.

    Returns:
        (n,) max(0, p(taken) - the highest probability of an action that is no neighbor).
    """
    probability = torch.softmax(similarity / temperature, dim=1)
    chosen = probability.gather(1, taken[:, None]).squeeze(1)
    others = probability.masked_fill(neighbors[taken], 0.0).max(dim=1).values
    return (chosen - others).clamp_min(0.0)


def robot_synthesis(semantic: Tensor, effort: Tensor) -> Tensor:
    """Hierarchical synthesis for a robot: language says how good the scene is, less of it counts for a violent action.

    Args:
        semantic: (n,) score of the scene, 0 to 1.
        effort: (n,) mean square of the action in parts of its largest magnitude, 0 to 1.
    """
    return semantic * (1.0 - 0.5 * effort.clamp(0.0, 1.0))


def danger_probability(similarity: Tensor, safe: int, temperature: float) -> Tensor:
    """Probability of danger (n,): softmax of the most similar sentence of danger against the mean of the safe ones.

    Args:
        similarity: (n, K) to K sentences, the safe ones first.
        safe: number of safe sentences, 1 to K - 1.
        temperature: of the softmax, above 0.
    """
    margin = similarity[:, safe:].max(dim=1).values - similarity[:, :safe].mean(dim=1)
    return torch.sigmoid(margin / temperature)


def two_paths(static: Tensor, risk: Tensor, product: bool) -> Tensor:
    """Score of a scene from both paths of DriveVLM-RL: the static score, lowered by the risk where one is known.

    Args:
        static: (n,) score of the static path, 0 (dangerous) to 1 (clear).
        risk: (n,) of the dynamic path, 0 to 1; NaN where none is known.
        product: True: their product counts; else the lower of the two.
    """
    safe = torch.where(risk.isnan(), 1.0, 1.0 - risk)
    return static * safe if product else torch.minimum(static, safe)
