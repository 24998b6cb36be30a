"""Outlier detection: finite but impossible numbers, judged by the range of earlier values of the same column.

A failing sensor, a flipped bit in a driver or a diverging solver give values such as 1e30. One of them in a running
mean and variance would hide all other values of its column for the rest of the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.spec import Spec, measured

FAR = 100.0
"""Distance from the middle of the range, in half-widths of the range, beyond which an observation is an outlier."""
FAR_REWARD = 10_000.0
"""The same for rewards, which may be rare and large."""
NEVER = 1e6
"""Distance, in half-widths or absolute units, beyond which a value is always an outlier."""
BELIEVED, SHARE = 16, 1e-3
"""Outliers of a column are accepted as normal once there are so many, and so large a fraction of all rows."""
ENOUGH = 1000
"""Rows after which a narrow range is trusted; before, its half-width counts as at least max(|middle|, 1)."""
CONSTANT = 1e-4
"""Half-width that is never trusted, however many rows were seen: it counts as max(|middle|, 1)."""
SIDE_BY_SIDE = 64
"""Number of rows compared side by side in one operation."""
SAMPLE = 4096
"""Maximum number of rows of the first batch from which its median is computed."""


class Range:
    """Running range (minimum and maximum) of the columns of rows, and detection of outliers against it.

    Args:
        width: number of columns D.
        low: D numbers: values from here to `high` are never far out, e.g. a sensor's bounds; infinite ones are ignored.
        high: D numbers.
        far: outlier distance, see `FAR`.
    """

    def __init__(
        self, width: int, low: Sequence[float] | None = None, high: Sequence[float] | None = None, far: float = FAR
    ) -> None:
        self.low, self.high, self.far = (np.zeros(width) for _ in range(3))
        self.count = 0
        self._factor = far
        lowest = np.full(width, np.inf) if low is None else np.array(low, np.float64)
        highest = np.full(width, -np.inf) if high is None else np.array(high, np.float64)
        self._bounds = (
            np.where(np.isfinite(lowest), lowest, np.inf),
            np.where(np.isfinite(highest), highest, -np.inf),
        )
        self._reach: tuple[np.ndarray, np.ndarray] | None = None

    def take(self, rows: Tensor) -> Tensor | None:
        """Widen the range by rows (B, D) of finite numbers, B of 1 or more; returns which elements are outliers.

        Args:
            rows: floating-point rows.

        Returns:
            (B, D) bool; None if there are no outliers.
        """
        low, high = _ends(rows)
        # fast path: nearly all batches lie within the present range
        if self._reach is not None and (low >= self.low).all() and (high <= self.high).all():
            self._passed(len(rows))
            return None
        middle, scale = self._middle(rows, low, high)
        if self._reach is None:
            self._reach = (
                np.minimum(middle - self._factor * scale, self._bounds[0]),
                np.maximum(middle + self._factor * scale, self._bounds[1]),
            )
        mask = None
        if (low < self._reach[0]).any() or (high > self._reach[1]).any():
            mask = self._far_out(rows, middle, scale)
            low, high = _ends(rows.masked_fill(mask, torch.inf))[0], _ends(rows.masked_fill(mask, -torch.inf))[1]
        seen = low <= high
        self.low = np.where(seen, low if self.count == 0 else np.minimum(self.low, low), self.low)
        self.high = np.where(seen, high if self.count == 0 else np.maximum(self.high, high), self.high)
        self._passed(len(rows))
        self._reach = None
        return mask if mask is not None and mask.any() else None

    def usual(self, rows: Tensor) -> Tensor:
        """Widen the range by rows (B, D) and return them with outliers clamped to the range."""
        rows = rows if rows.is_floating_point() else rows.double()
        mask = self.take(rows)
        if mask is None:
            return rows
        low, high = (torch.from_numpy(x).to(rows) for x in (self.low, self.high))
        return torch.where(mask, rows.clamp(low, high), rows)

    def _passed(self, rows: int) -> None:
        if self.count < ENOUGH <= self.count + rows:
            self._reach = None
        self.count += rows

    def _middle(self, rows: Tensor, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Middle and half-width of the range, (D,) each; for widely spread first rows median and 90 % quantile."""
        if self.count:
            low, high = self.low, self.high
        middle, half = (low + high) / 2, (high - low) / 2
        if not self.count and half.max() > self._factor / 2:
            some = rows[:: -(-len(rows) // SAMPLE)].cpu().double()
            middle = some.median(0).values.numpy()
            half = (some - torch.from_numpy(middle)).abs().quantile(0.9, 0).numpy()
        narrow = (half <= CONSTANT) | (self.count < ENOUGH)
        return middle, np.where(narrow, np.maximum(half, np.maximum(np.abs(middle), 1.0)), half)

    def _far_out(self, rows: Tensor, middle: np.ndarray, scale: np.ndarray) -> Tensor:
        assert self._reach is not None
        values = rows.cpu().double().numpy()
        mask = (values < self._reach[0]) | (values > self._reach[1])
        self.far = self.far + mask.sum(0)
        believed = (self.far >= BELIEVED) & (self.far >= SHARE * (self.count + len(rows)))
        never = np.abs(values - middle) > NEVER * np.maximum(scale, np.maximum(np.abs(middle), 1.0))
        return torch.from_numpy(mask & (never | ~believed)).to(rows.device)

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"low": self.low, "high": self.high, "far": self.far, "count": self.count}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave."""
        self.low, self.high, self.far = (np.array(state[name], np.float64) for name in ("low", "high", "far"))
        self.count, self._reach = int(state["count"]), None


def _ends(rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Minimum and maximum of each column, (D,) float64 each."""
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        values = rows.numpy()
        return _over_rows(np.minimum, values).astype(np.float64), _over_rows(np.maximum, values).astype(np.float64)
    low, high = (x.cpu().double().numpy() for x in torch.aminmax(rows, dim=0))
    return low, high


def _over_rows(least: np.ufunc, values: np.ndarray) -> np.ndarray:
    """(D,) `least.reduce(values, 0)`, ten times faster: reduces blocks of rows side by side, then the blocks."""
    whole = len(values) // SIDE_BY_SIDE * SIDE_BY_SIDE
    if whole < 2 * SIDE_BY_SIDE:
        return least.reduce(values, 0)
    wide = least.reduce(values[:whole].reshape(-1, SIDE_BY_SIDE * values.shape[1]), 0)
    return least.reduce(np.concatenate([wide.reshape(SIDE_BY_SIDE, -1), values[whole:]]), 0)


class OutlierMonitor:
    """Warns of outliers among a sim's observations and rewards, once for each element.

    Args:
        specs: the sim's observations; images and words are not checked.
    """

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        self.keys = measured(specs)
        self._specs = specs
        self._ranges = {key: range_of(specs[key]) for key in self.keys}
        self._reward = Range(1, far=FAR_REWARD)
        self._warned: set[tuple[str, int]] = set()

    def look(self, obs: Mapping[str, Tensor], reward: Tensor) -> None:
        """Check the steps (T, N) of a rollout.

        Args:
            obs: (T, N, ..., D) each.
            reward: (T, N).
        """
        for key, values in obs.items():
            self._look(self._ranges[key], values, f"observation {key!r}", self._specs[key].names)
        self._look(self._reward, reward[..., None], "reward", ())

    def _look(self, seen: Range, values: Tensor, what: str, names: tuple[str, ...]) -> None:
        if not values.numel():
            return
        rows = values.reshape(-1, len(seen.low))
        first, low, high = seen.count == 0, seen.low, seen.high
        mask = seen.take(rows if rows.is_floating_point() else rows.double())
        if mask is None:
            return
        each = len(rows) // (values.shape[0] * values.shape[1])
        for row, column in torch.nonzero(mask).tolist():
            if (what, column) in self._warned:
                continue
            self._warned.add((what, column))
            step, env = divmod(row // each, values.shape[1])
            element = f", element {names[column]!r}," if names else ""
            usual = "far from all others" if first else f"until then {low[column]:g} to {high[column]:g}"
            warnings.warn(
                f"env {env}, rollout step {step}: {what}{element} is {rows[row, column].item():g}, {usual}: running"
                " statistics leave such values out; this is said once",
                stacklevel=4,
            )


def range_of(spec: Spec) -> Range:
    """Empty range for the last axis of an array."""
    return Range(len(spec.low), spec.low, spec.high)
