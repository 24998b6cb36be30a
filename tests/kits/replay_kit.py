"""A replay as one would write it without a thought for speed or space, and steps to feed both with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robotrl.replay.buffer import SOURCES, Replay, StepRecord, Transitions
from robotrl.spec import Spec

INF = float("inf")
SPECS = {
    "state": Spec((2,), ("a", "b"), ("1", "1"), (-INF, -INF), (INF, INF)),
    "eye": Spec((4, 4, 1), ("grey",), ("1",), (0,), (255,), "uint8"),
}
ACTION = Spec((1,), ("push",), ("N",), (-9.0,), (9.0,))
EXTRAS = {"noise": (2, 1)}


def make(path: Path | None, streams: int, capacity: int, **options: Any) -> Replay:
    settings = {"extras": EXTRAS, "control_dt_s": 0.1, **options}
    return Replay.create(path, SPECS, ACTION, streams=streams, capacity=capacity, **settings)


def seen(number: float) -> dict[str, np.ndarray]:
    """An observation that tells which one it is."""
    return {
        "state": np.array([number, -number], np.float32),
        "eye": np.full((4, 4, 1), int(number) % 251, np.uint8),
    }


@dataclass
class Row:
    """One step of one stream."""

    number: int
    terminated: bool = False
    truncated: bool = False
    decision: bool = True
    source: str = "rollout"
    final: float = 0.0
    cut: bool = False
    reward: float = field(init=False)

    def __post_init__(self) -> None:
        self.reward = self.number / 8

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def record(rows: list[Row]) -> StepRecord:
    """One row for each stream that takes part."""
    ended = [i for i, row in enumerate(rows) if row.ended]

    def stack(numbers: list[float]) -> dict[str, torch.Tensor]:
        every = [seen(x) for x in numbers]
        return {key: torch.from_numpy(np.stack([one[key] for one in every])) for key in SPECS} if every else {}

    return StepRecord(
        stack([row.number for row in rows]),
        torch.tensor([[row.number + 0.5] for row in rows]),
        torch.tensor([row.reward for row in rows]),
        torch.tensor([row.terminated for row in rows]),
        torch.tensor([row.truncated for row in rows]),
        stack([rows[i].final for i in ended]),
        torch.tensor(ended, dtype=torch.int64),
        torch.tensor([SOURCES.index(row.source) for row in rows], dtype=torch.uint8),
        torch.tensor([row.decision for row in rows]),
        {"noise": torch.tensor([[[row.number], [row.number + 0.25]] for row in rows], dtype=torch.float32)},
        torch.tensor([-row.number for row in rows], dtype=torch.float32),
        torch.tensor([row.number / 4 for row in rows]),
    )


class Reference:
    """Streams as lists of rows; every row that ever was."""

    def __init__(self, streams: int, capacity: int) -> None:
        self.streams: list[list[Row]] = [[] for _ in range(streams)]
        self.length = capacity // streams

    def add(self, rows: list[Row], which: list[int]) -> None:
        for n, row in zip(which, rows, strict=True):
            self.streams[n].append(row)

    def cut(self, which: list[int]) -> None:
        for n in which:
            if self.streams[n] and not self.streams[n][-1].ended:
                self.streams[n][-1].cut = True

    def close(self, which: list[int], finals: list[float]) -> None:
        for n, final in zip(which, finals, strict=True):
            if self.streams[n] and not self.streams[n][-1].ended and not self.streams[n][-1].cut:
                self.streams[n][-1].truncated, self.streams[n][-1].final = True, final

    def __len__(self) -> int:
        return sum(min(len(rows), self.length) for rows in self.streams)

    def chunk(self, n: int, t: int, horizon: int) -> list[Row] | None:
        """The steps of a complete chunk."""
        rows = self.streams[n]
        taken: list[Row] = []
        for step in range(t, t + horizon):
            if step >= len(rows):
                return None
            taken.append(rows[step])
            if rows[step].ended:
                return taken
            if rows[step].cut:
                return None
        return taken if t + horizon < len(rows) else None

    def indices(self, horizon: int, decisions: bool) -> list[int]:
        found: list[int] = []
        for n, rows in enumerate(self.streams):
            for t in range(max(0, len(rows) - self.length), len(rows)):
                if self.chunk(n, t, horizon) and (rows[t].decision or not decisions):
                    found.append(t * len(self.streams) + n)
        return found

    def check(self, got: Transitions, horizon: int, gamma: float) -> None:
        """Compare every field of every row."""
        for b, index in enumerate(got.starts.tolist()):
            t, n = divmod(index, len(self.streams))
            rows = self.chunk(n, t, horizon)
            assert rows is not None
            last = rows[-1]
            after = last.final if last.ended else self.streams[n][t + horizon].number
            pad = horizon - len(rows)
            assert got.steps[b] == len(rows)
            assert got.valid[b].tolist() == [True] * len(rows) + [False] * pad
            assert got.chunk[b, :, 0].tolist() == [row.number + 0.5 for row in rows] + [last.number + 0.5] * pad
            assert got.reward[b].item() == np.float32(sum(gamma**k * row.reward for k, row in enumerate(rows)))
            assert got.cost[b].item() == np.float32(sum(gamma**k * row.number / 4 for k, row in enumerate(rows)))
            assert got.discount[b].item() == (0.0 if last.terminated else np.float32(gamma ** len(rows)))
            assert (got.terminated[b].item(), got.truncated[b].item()) == (last.terminated, last.truncated)
            assert got.source[b] == SOURCES.index(rows[0].source)
            assert got.extras["noise"][b].flatten().tolist() == [rows[0].number, rows[0].number + 0.25]
            assert got.log_prob[b, : len(rows)].tolist() == [-row.number for row in rows]
            assert got.log_prob[b, len(rows) :].isnan().all()
            for key in SPECS:
                assert np.array_equal(got.obs[key][b].numpy(), seen(rows[0].number)[key])
                assert np.array_equal(got.next_obs[key][b].numpy(), seen(after)[key])


def walk(replay: Replay, steps: int, seed: int = 0, reference: Reference | None = None) -> None:
    """Add random steps to all streams."""
    draw = np.random.default_rng(seed)
    for t in range(steps):
        rows = []
        for n in range(replay.streams):
            how = draw.integers(8)
            number = 1000 * seed + t * replay.streams + n
            rows.append(Row(number, how == 0, how == 1, bool(draw.integers(2)), "rollout", number + 0.125))
        replay.add(record(rows))
        if reference is not None:
            reference.add(rows, list(range(replay.streams)))
