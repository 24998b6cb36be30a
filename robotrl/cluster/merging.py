"""Joins the rollouts of shards to the rollout of all envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.cluster.steps import StepBatch
from robotrl.replay.buffer import StepRecord
from robotrl.rollout.groups import Trajectories, together
from robotrl.rollout.storage import Rollout
from robotrl.spec.late_rewards import LateRewards


def joined_episodes(parts: Sequence[Trajectories], device: torch.device) -> Trajectories:
    """Return the episodes of all shards, renumbered in their order; see `joined_rollouts`."""

    def here(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: here(x) for key, x in value.items()}
        return torch.from_numpy(np.array(value)).to(device)

    return together([Trajectories(*map(here, part)) for part in parts])


OF_ENVS = ("reward", "length", "terminated", "truncated", "valid")
"""Fields of a rollout with shape (M, N)."""


def joined_rollouts(parts: Sequence[Rollout], device: torch.device) -> Rollout:
    """Return the rollout (M, N, ...) of all envs in the order of the parts; episodes are in that order, too.

    Args:
        parts: rollouts (M_i, N_i, ...) whose tensors are numpy arrays; the shorter ones are padded with zeros.
        device: device of the result.
    """
    rows = max(len(part.reward) for part in parts)

    def joined(arrays: Sequence[Any]) -> Tensor:
        padded = [_padded(array, rows) for array in arrays]
        # a copy in any case: arrays from shared memory are read-only
        return torch.from_numpy(np.concatenate(padded, axis=1)).to(device)

    def by_key(name: str) -> dict[str, Tensor]:
        first: dict[str, Any] = getattr(parts[0], name)
        return {key: joined([getattr(part, name)[key] for part in parts]) for key in first}

    def listed(arrays: Sequence[Any]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays)).to(device)

    return Rollout(
        obs=by_key("obs"),
        record=by_key("record"),
        **{name: joined([getattr(part, name) for part in parts]) for name in OF_ENVS},
        next_obs=by_key("next_obs"),
        env_steps=sum(part.env_steps for part in parts),
        episodes=listed([part.episodes for part in parts]),
        returns=listed([part.returns for part in parts]),
        scored=None if parts[0].scored is None else joined([part.scored for part in parts]),
    )


def _padded(array: NDArray[Any], rows: int) -> NDArray[Any]:
    if len(array) == rows:
        return array
    return np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), array.dtype)])


def joined_steps(parts: Sequence[StepBatch]) -> StepBatch:
    """Return the steps of all envs in the order of the parts, as tensors; episodes are in that order, too.

    Args:
        parts: batches of equally many steps, whose tensors are numpy arrays.
    """
    first = np.cumsum([0, *(len(part.records[0].reward) for part in parts)])[:-1].tolist()
    late = [
        LateRewards(part.late.back, part.late.env + start, part.late.change, part.late.fresh)
        for part, start in zip(parts, first, strict=True)
    ]
    return StepBatch(
        [_joined_record(records, first) for records in zip(*(part.records for part in parts), strict=True)],
        _rows([part.episodes for part in parts]),
        _rows([part.returns for part in parts]),
        LateRewards(*(_rows(arrays) for arrays in zip(*late, strict=True))),
        tuple(start + stream for part, start in zip(parts, first, strict=True) for stream in part.cut),
    )


def _joined_record(records: Sequence[Any], first: Sequence[int]) -> StepRecord:
    """One step of all envs; the parts' envs begin at `first`."""
    one: StepRecord = records[0]

    def rows(name: str) -> Any:
        return None if getattr(one, name) is None else _rows([getattr(record, name) for record in records])

    def by_key(name: str) -> dict[str, Tensor]:
        return {key: _rows([getattr(record, name)[key] for record in records]) for key in getattr(one, name)}

    return StepRecord(
        **{name: by_key(name) for name in ("obs", "final_obs", "extras")},
        **{name: rows(name) for name in ("action", "reward", "terminated", "truncated")},
        **{name: rows(name) for name in ("decision", "log_prob", "cost", "missing")},
        final_ids=_rows([record.final_ids + start for record, start in zip(records, first, strict=True)]),
        source=one.source,
    )


def _rows(arrays: Sequence[Any]) -> Tensor:
    """Concatenate arrays; a copy in any case, because those from shared memory are read-only."""
    return torch.from_numpy(np.concatenate(arrays))
