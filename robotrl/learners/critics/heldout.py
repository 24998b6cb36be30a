"""A critic's quality on logged episodes that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from robotrl.fn.evidence.critic_quality import critic_quality, discounted_returns
from robotrl.learners.critics.logs import Logs

BLOCK = 1024
"""Frames that are valued at once."""
ValueOf = Callable[[Tensor], Tensor]
"""Function from frames (M,) of the replay to the values (M,) of the chunks executed there."""


def quality_on(logs: Logs, value_of: ValueOf, gamma: float) -> dict[str, float]:
    """Quality of a critic on the episodes held out, as scalars to log; those that cannot be told are left out.

    Args:
        logs: the episodes.
        value_of: the critic.
        gamma: discount per env step.
    """
    frames = logs.frames(True)
    if not len(frames):
        return {}
    values = torch.cat([value_of(block).cpu() for block in frames.split(BLOCK)]).numpy().astype(np.float64)
    rewards = logs.replay.view(frames, 1, 1.0).reward.numpy().astype(np.float64)
    length = np.diff(logs.offsets)[logs.held_out]
    offsets = np.concatenate([[0], np.cumsum(length)])
    success = None if logs.success is None else logs.success[logs.held_out]
    found = critic_quality(values, offsets, discounted_returns(rewards, offsets, gamma), success)
    scalars = {
        "critic/heldout_rank": found.rank,
        "critic/heldout_auc": found.auc_late,
        "critic/heldout_auc_start": found.auc_start,
        "critic/heldout_episodes": float(len(length)),
    }
    return {name: value for name, value in scalars.items() if value is not None}
