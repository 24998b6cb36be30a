"""Cutting of rollouts into segments of consecutive decisions, through which gradients flow back in time."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class CutSegments(NamedTuple):
    """S segments of L consecutive decisions."""

    rows: Tensor
    """(S, L) int64: numbers of the decisions among the valid ones of the rollout, in the order of its flattened arrays
    (time first, then envs)."""
    joined: Tensor
    """(S, L) bool: the decision follows the one before it in the segment, in the same episode. The others take the
    memory that was stored with them: the first one of a segment, of an env, and of an episode."""


def cut_segments(valid: Tensor, ended: Tensor, length: int) -> CutSegments:
    """Cut the valid decisions of a rollout into segments.

    The decisions of all envs are laid end to end, env after env, and cut after every L of them; decisions from the
    beginning fill up the last segment. So no row of a segment is padding, and no decision is left out.

    Args:
        valid: (M, N) bool, decisions that are complete; row m of column n is the m-th of env n.
        ended: (M, N) bool, the decision ended its episode.
        length: L, 1 or more.
    """
    number = (valid.flatten().cumsum(0) - 1).view(valid.shape)
    follows = torch.zeros_like(valid)
    follows[1:] = valid[1:] & valid[:-1] & ~ended[:-1]
    by_env, follows_by_env = number.T[valid.T], follows.T[valid.T]
    count = math.ceil(len(by_env) / length)
    place = torch.arange(count * length, device=valid.device) % len(by_env)
    joined = follows_by_env[place].view(count, length)
    joined[:, 0] = False
    return CutSegments(by_env[place].view(count, length), joined)
