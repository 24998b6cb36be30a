"""Checks a sim's actions: out-of-bounds values are clipped (with one warning), NaN and infinity are refused."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, NumericsError
from robotrl.spec import Spec

SLACK = 1e-5
"""Tolerance for rounding: an action may exceed its bounds by this much without a warning."""


class ActionBounds:
    """Validates and clips a batch of actions against their spec.

    Args:
        spec: spec of one env's action.
        num_envs: number of envs N.
        sim: sim name that prefixes each message; "" for no prefix.
    """

    def __init__(self, spec: Spec, num_envs: int, sim: str = "") -> None:
        self.shape = (num_envs, *spec.shape)
        """Expected shape of the actions, (N, *action shape)."""
        self._spec = spec
        self._who = f"{sim}: " if sim else ""
        self._low, self._high = np.asarray(spec.low, spec.dtype), np.asarray(spec.high, spec.dtype)
        self.always_inside = min(-self._low.max(), self._high.min())
        """Actions up to this magnitude are inside all bounds and need no clipping."""
        self._warned = False

    def wrong_shape(self, shape: Sequence[int]) -> ConfigError:
        """Error for actions with a shape other than `self.shape`."""
        return ConfigError(f"actions has shape {tuple(shape)}: expected {self.shape} (envs, action)")

    def checked(self, actions: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[Any]:
        """Actions in the spec's dtype, clipped to their bounds; the given array itself if nothing had to change.

        Args:
            actions: (N, A).
            steps: (N,) steps made so far in each episode, for error messages.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action is not finite, or a categorical action is not a whole number within its bounds; the
                message names env, step and action.
        """
        if actions.shape != self.shape:
            raise self.wrong_shape(actions.shape)
        actions = actions.astype(self._spec.dtype, copy=False)
        if self._spec.choices is not None:
            return self._chosen(actions, steps)
        # NaN fails the comparison; one call instead of the three of a clip
        if np.abs(actions).max() <= self.always_inside:
            return actions
        return self.clipped(actions, steps)

    def _chosen(self, actions: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[Any]:
        """Categorical actions unchanged: rounding or clipping would select another choice."""
        # NaN is not equal to itself
        wrong = (actions != np.rint(actions)) | (actions < self._low) | (actions > self._high)
        if wrong.any():
            env, column = (int(i[0]) for i in np.nonzero(wrong))
            raise NumericsError(
                f"{self._who}env {env}, episode step {steps[env]}: action {self._spec.names[column]!r} is"
                f" {actions[env, column]:g}: expected a whole number from 0 to {self._high[column]:g}, the number of a"
                " choice"
            )
        return actions

    def clipped(self, actions: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[Any]:
        """Actions clipped to their bounds, as a new array; warns the first time that an action lies outside.

        Args:
            actions: (N, A), of the spec's dtype.
            steps: (N,) steps made so far in each episode, for error messages.

        Raises:
            NumericsError: an action is not finite; the message names env, step and action.
        """
        names = self._spec.names
        if not np.isfinite(actions).all():
            env, column = (int(i[0]) for i in np.nonzero(~np.isfinite(actions)))
            raise NumericsError(
                f"{self._who}env {env}, episode step {steps[env]}: action {names[column]!r} is {actions[env, column]}:"
                " expected a finite number"
            )
        inside = np.clip(actions, self._low, self._high)
        if not self._warned and (outside := np.abs(actions - inside)).max() > SLACK:
            env, column = np.unravel_index(int(outside.argmax()), outside.shape)
            self._warned = True
            warnings.warn(
                f"{self._who}env {env}: action {names[column]!r} is {actions[env, column]:.6g}: expected"
                f" {self._low[column]:g} to {self._high[column]:g}; actions outside their bounds are clipped"
                " (said once)",
                stacklevel=5,
            )
        return inside
