"""Shapes and sizes of a replay buffer, as stored in its directory's header."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robotrl.errors import check_at_least, out_of_range
from robotrl.replay.storage import META, StoredColumn
from robotrl.spec import Spec

STEP = "step/"
"""Prefix of the names of extras that belong to each step; others belong to the chunk that begins there."""
MAX_ROWS = 2**31 - 1
"""Limit on rows of the table of last observations, which are numbered in 32 bits."""


@dataclass(frozen=True)
class ReplayLayout:
    """Shapes and sizes of a replay buffer.

    Args:
        observation_spec: observations, by key.
        action_spec: the action, a vector.
        streams: N.
        capacity: env steps that can be sampled, of all streams together; each stream keeps capacity // N.
        slack: additional steps kept on disk, of all streams together, so that a buffer can be rolled back to an
            earlier checkpoint.
        extras: shapes of one row of the extra float32 columns; those named `STEP` + NAME are read along a chunk.
        control_dt_s: seconds between two steps; None: unknown, so not checked.
    """

    observation_spec: dict[str, Spec]
    action_spec: Spec
    streams: int
    capacity: int
    slack: int
    extras: dict[str, tuple[int, ...]]
    control_dt_s: float | None

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= MAX_ROWS:
            raise out_of_range("replay streams", self.streams, "1 or more")
        if self.length < 2:
            raise out_of_range("replay capacity", self.capacity, f"2 steps or more for each of {self.streams} streams")
        check_at_least("replay slack", self.slack, 0)
        if self.rows > MAX_ROWS:
            raise out_of_range("replay capacity with slack", self.rows, f"at most {MAX_ROWS}")
        if len(self.action_spec.shape) != 1:
            raise out_of_range("action_spec.shape", self.action_spec.shape, "a vector (A,)")

    @property
    def length(self) -> int:
        """Number of steps of one stream that can be sampled."""
        return self.capacity // self.streams

    @property
    def rows(self) -> int:
        """R: number of stored steps of all streams, slack included."""
        return (self.length + math.ceil(self.slack / self.streams)) * self.streams

    def ring_columns(self) -> dict[str, StoredColumn]:
        """Columns of the steps."""
        numbers = np.dtype(np.float32)
        return {
            "meta": StoredColumn(META, ()),
            "action": StoredColumn(numbers, self.action_spec.shape),
            **{f"obs/{key}": column for key, column in self.side_columns().items()},
            **{f"extras/{key}": StoredColumn(numbers, tuple(shape)) for key, shape in self.extras.items()},
        }

    def side_columns(self) -> dict[str, StoredColumn]:
        """Columns of the last observations, by observation key."""
        return {key: StoredColumn(np.dtype(spec.dtype), spec.shape) for key, spec in self.observation_spec.items()}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {
            "observation_spec": {key: spec.to_json() for key, spec in self.observation_spec.items()},
            "action_spec": self.action_spec.to_json(),
            "streams": self.streams,
            "capacity": self.capacity,
            "slack": self.slack,
            "extras": {key: list(shape) for key, shape in self.extras.items()},
            "control_dt_s": self.control_dt_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplayLayout:
        """Inverse of `to_json`."""
        return cls(
            {key: Spec.from_json(spec) for key, spec in data["observation_spec"].items()},
            Spec.from_json(data["action_spec"]),
            int(data["streams"]),
            int(data["capacity"]),
            int(data["slack"]),
            {key: tuple(shape) for key, shape in data["extras"].items()},
            data["control_dt_s"],
        )
