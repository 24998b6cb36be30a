"""Numbers that are finite and yet cannot be: told apart from what a column was seen to be.

A sensor that fails, a bit that flips in a driver or a solver that diverges give values such as 1e30. One of them in a
running mean and variance would hide every other value of its column for the rest of the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robotrl.spec import Spec, measured

FAR = 100.0
"""An observation this many times further from the middle of its range than the range is wide is far out."""
FAR_REWARD = 10_000.0
"""The same of a reward, which may be rare and large."""
NEVER = 1e6
"""What is this many times beyond, counted in ranges or in units, is never believed."""
BELIEVED, SHARE = 16, 1e-3
"""Values of a column that are far out are believed once there are so many, and so large a share of all rows."""
ENOUGH = 1000
"""Rows after which a range, however narrow, is taken for what the column is; before, it counts as one unit wide."""
CONSTANT = 1e-4
"""A column whose range is narrower counts as one unit wide, however many rows were seen."""
SAMPLE = 4096
"""Rows of the first batch that its middle is taken from."""


class Range:
    """Between what and what the columns of rows lie, as far as was seen, and which values are far out of it.

    Args:
        width: D, columns.
        low: (D,) values from here to `high` are never far out, e.g. a sensor's bounds; infinite ones say nothing.
        high: (D,).
        far: how far is far.
    """

    def __init__(
        self, width: int, low: Tensor | None = None, high: Tensor | None = None, far: float = FAR
    ) -> None:
        nothing = torch.zeros(width, dtype=torch.float64)
        self.low, self.high, self.far = nothing, nothing.clone(), nothing.clone()
        self.count = 0
        self._factor = far
        self._bounds = tuple(
            None if x is None else torch.where(x.isfinite(), x.double(), sign * torch.inf)
            for x, sign in ((low, 1), (high, -1))
        )

    def take(self, rows: Tensor) -> Tensor | None:
        """Widen the range by rows (B, D) of finite numbers, B of 1 or more; gives where they are far out.

        Returns:
            (B, D) bool, None where nothing is.
        """
        low, high = (x.cpu().double() for x in torch.aminmax(rows, dim=0))
        middle, half = self._middle(rows, low, high)
        scale = torch.where((half <= CONSTANT) | (self.count < ENOUGH), half.maximum(middle.abs().clamp_min(1.0)), half)
        reach = self._within_bounds(middle - self._factor * scale, middle + self._factor * scale)
        mask = None
        if (low < reach[0]).any() or (high > reach[1]).any():
            mask = self._far_out(rows, middle, scale, reach)
            if mask.any():
                here = mask.to(rows.device)
                low = rows.masked_fill(here, torch.inf).amin(0).cpu().double()
                high = rows.masked_fill(here, -torch.inf).amax(0).cpu().double()
            else:
                mask = None
        seen = low <= high
        self.low = torch.where(seen, low if self.count == 0 else self.low.minimum(low), self.low)
        self.high = torch.where(seen, high if self.count == 0 else self.high.maximum(high), self.high)
        self.count += len(rows)
        return mask

    def usual(self, rows: Tensor) -> Tensor:
        """Take rows (B, D) and give them with what is far out moved to the end of the range."""
        mask = self.take(rows)
        if mask is None:
            return rows
        return torch.where(mask.to(rows.device), rows.clamp(self.low.to(rows), self.high.to(rows)), rows)

    def _middle(self, rows: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """(D,) each: the middle of the range and half its width; of the first rows, without a tenth of them."""
        if self.count:
            return (self.low + self.high) / 2, (self.high - self.low) / 2
        if (high - low).max() <= self._factor:
            return (low + high) / 2, (high - low) / 2
        some = rows[:: -(-len(rows) // SAMPLE)].cpu().double()
        middle = some.median(0).values
        return middle, (some - middle).abs().quantile(0.9, 0)

    def _within_bounds(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        lowest, highest = self._bounds
        return low if lowest is None else low.minimum(lowest), high if highest is None else high.maximum(highest)

    def _far_out(self, rows: Tensor, middle: Tensor, scale: Tensor, reach: tuple[Tensor, Tensor]) -> Tensor:
        values = rows.cpu().double()
        mask = (values < reach[0]) | (values > reach[1])
        self.far += mask.sum(0)
        believed = (self.far >= BELIEVED) & (self.far >= SHARE * (self.count + len(rows)))
        never = (values - middle).abs() > NEVER * scale.maximum(middle.abs().clamp_min(1.0))
        return mask & (never | ~believed)

    def state(self) -> dict[str, Any]:
        """For an exact resume."""
        return {"low": self.low, "high": self.high, "far": self.far, "count": self.count}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave."""
        self.low, self.high, self.far = (torch.as_tensor(state[k], dtype=torch.float64) for k in ("low", "high", "far"))
        self.count = int(state["count"])


class Watch:
    """Warns of observations and rewards of a sim that are finite and far out, once for each element.

    Args:
        specs: the sim's observations; pictures and words are not looked at.
    """

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        self.keys = measured(specs)
        self._specs = specs
        self._ranges = {key: range_of(specs[key]) for key in self.keys}
        self._reward = Range(1, far=FAR_REWARD)
        self._told: set[tuple[str, int]] = set()

    def look(self, obs: Mapping[str, Tensor], reward: Tensor) -> None:
        """Look at the steps (T, N) of a rollout.

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
            if (what, column) in self._told:
                continue
            self._told.add((what, column))
            step, env = divmod(row // each, values.shape[1])
            element = f", element {names[column]!r}," if names else ""
            usual = "far from all others" if first else f"until then {low[column]:g} to {high[column]:g}"
            warnings.warn(
                f"env {env}, rollout step {step}: {what}{element} is {rows[row, column].item():g}, {usual}: running"
                " statistics leave such values out; this is said once",
                stacklevel=4,
            )


def range_of(spec: Spec) -> Range:
    """The range of the last axis of an array, empty yet."""
    low, high = (torch.tensor(x, dtype=torch.float64) for x in (spec.low, spec.high))
    return Range(len(low), low, high)
