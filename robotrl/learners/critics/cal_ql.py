"""Cal-QL (Nakamoto et al. 2023, 2303.05479): critics that are pessimistic about the policy, but not below the data.

Values of the policy's own chunks are pushed down to the return that the data got from the same state, and no further;
values of the data's chunks are pushed up. So a policy that goes on online does not first unlearn what it can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, check_at_least, check_number
from robotrl.fn.candidates.select import Propose
from robotrl.policies.networks.executed import ExecutedChunk
from robotrl.policies.q import QEnsemble
from robotrl.replay.buffer import Replay, Transitions
from robotrl.replay.types import SOURCES

NOISE = "cal_ql_noise"
"""Row (M, n, H, A): noise of the policy's samples."""
RETURN, LOGGED = "return_to_go", "logged"
"""Rows (M,): return to go, NaN where it is unknown; 1 for rows of the dataset, 0 for the policy's own steps."""


class CalQl(NamedTuple):
    """Weight and rows of the term in a minibatch."""

    alpha: float
    """Weight of the term."""
    chunks: Tensor
    """(M, n, H, A) samples of the policy, as executed."""
    returns: Tensor
    """(M,) return to go, NaN where it is unknown."""
    logged: Tensor
    """(M,) 1 for the rows that count, 0 for others."""


def calibrated_gap(values: Tensor, data: Tensor, returns: Tensor) -> Tensor:
    """Gap E_{a~pi}[max(Q(s, a), V(s))] - Q(s, a_data), V the return to go; without the maximum where V is unknown.

    Args:
        values: (E, M, n) of the policy's samples.
        data: (E, M) of the data's chunks.
        returns: (M,) NaN where unknown.

    Returns:
        (E, M).
    """
    known, floor = ~returns.isnan()[:, None], returns.nan_to_num()[:, None]
    return torch.where(known, values.maximum(floor), values).mean(-1) - data


def cal_ql_loss(critic: QEnsemble, ctx: Tensor, data: Tensor, given: CalQl) -> Tensor:
    """Weighted calibrated gap, mean over the dataset's rows and sum over critics.

    Args:
        critic: the critics in training.
        ctx: (M, D).
        data: (E, M) values of the data's chunks.
        given: the rest.
    """
    count = given.chunks.shape[1]
    values = critic(ctx.repeat_interleave(count, 0), given.chunks.flatten(0, 1)).unflatten(1, (-1, count))
    gap = calibrated_gap(values, data, given.returns) * given.logged
    return given.alpha * gap.sum() / given.logged.sum().clamp(min=1)


@torch.no_grad()
def cal_ql_of(
    cfg: Any, batch: Mapping[str, Tensor], ctx: Tensor, propose: Propose, executed: ExecutedChunk
) -> CalQl | None:
    """Sample the policy for the term of a minibatch; None where the settings have none.

    Args:
        cfg: settings with `cal_ql_alpha`.
        batch: rows `NOISE`, `RETURN` and `LOGGED`.
        ctx: (M, D).
        propose: samples of the policy.
        executed: cuts off what is not executed.
    """
    if not cfg.cal_ql_alpha:
        return None
    noise = batch[NOISE]
    chunks = executed(propose(ctx.repeat_interleave(noise.shape[1], 0), noise.flatten(0, 1)))
    return CalQl(cfg.cal_ql_alpha, chunks.unflatten(0, noise.shape[:2]), batch[RETURN], batch[LOGGED])


# returns


def returns_to_go(
    reward: NDArray[np.float64], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], gamma: float
) -> NDArray[np.float64]:
    """Discounted returns (F,) from each frame to the end of its episode.

    NaN in episodes that a time limit cut, or that have no end: what would have come is unknown, and is not 0.

    Args:
        reward: (F,) of consecutive frames, episode by episode.
        terminated: (F,) the task ended the episode; it counts before `truncated`.
        truncated: (F,) a time limit cut it.
        gamma: discount per env step.
    """
    found, after = np.empty(len(reward)), math.nan
    for at in range(len(reward) - 1, -1, -1):
        if terminated[at]:
            after = 0.0
        elif truncated[at]:
            after = math.nan
        after = reward[at] + gamma * after
        found[at] = after
    return found


class ReturnsToGo:
    """Returns to go of the frames of a dataset, computed once.

    Args:
        data: the dataset in a replay of one stream; None: there is none.
        gamma: discount per env step.

    Raises:
        ConfigError: there is no dataset.
    """

    def __init__(self, data: Replay | None, gamma: float) -> None:
        if data is None:
            raise ConfigError(
                "algo.cal_ql_alpha is above 0 without a dataset: expected a dataset, whose returns calibrate the"
                " critics, or 0"
            )
        frames = data.view(data.indices(), 1, gamma)
        flags = frames.terminated.numpy(), frames.truncated.numpy()
        found = returns_to_go(frames.reward.numpy().astype(np.float64), *flags, gamma)
        self._of_frame = torch.from_numpy(found.astype(np.float32))

    def rows(self, transitions: Transitions) -> dict[str, Tensor]:
        """Rows `RETURN` and `LOGGED` (M,) of chunks of the dataset and of the policy's own steps."""
        logged = transitions.source == SOURCES.index("demo")
        # frame k of the dataset is step k of its replay
        at = torch.where(logged, transitions.starts, 0)
        returns = torch.where(logged, self._of_frame[at], math.nan)
        return {RETURN: returns, LOGGED: logged.float()}


def check_cal_ql(cfg: Any) -> None:
    """Check the term's settings.

    Raises:
        ConfigError: a setting is out of range; names the field, its value and the expectation.
    """
    check_number("algo.cal_ql_alpha", cfg.cal_ql_alpha, 0.0, 1e6)
    check_at_least("algo.cal_ql_samples", cfg.cal_ql_samples, 1)
