"""Bounds of a sim's actions: what lies outside is clipped, and said once; what is no number is refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, NumericsError
from robotrl.spec import Spec

SLACK = 1e-5
"""An action may leave its bounds by so much, through rounding, before a warning says so."""


class ActionBounds:
    """Holds the actions of a batch to their spec.

    Args:
        spec: of one env's action.
        num_envs: N.
        sim: begins each message, "" where the messages need no name.
    """

    def __init__(self, spec: Spec, num_envs: int, sim: str = "") -> None:
        self.shape = (num_envs, *spec.shape)
        """What actions must have."""
        self._spec = spec
        self._who = f"{sim}: " if sim else ""
        self._low, self._high = np.asarray(spec.low, spec.dtype), np.asarray(spec.high, spec.dtype)
        self.always_inside = min(-self._low.max(), self._high.min())
        """Actions of no larger magnitude need no clipping."""
        self._warned = False

    def wrong_shape(self, actions: NDArray[Any]) -> ConfigError:
        """The error for actions that do not have `shape`."""
        return ConfigError(f"actions has shape {tuple(actions.shape)}: expected {self.shape} (envs, action)")

    def checked(self, actions: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[Any]:
        """Actions of the spec's dtype inside their bounds, the given array where nothing had to change.

        Args:
            actions: (N, A).
            steps: (N,) the steps that each episode has made.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action is not finite, or of a categorical one no whole number within its bounds; env, step
                and action are named.
        """
        if actions.shape != self.shape:
            raise self.wrong_shape(actions)
        actions = actions.astype(self._spec.dtype, copy=False)
        if self._spec.choices is not None:
            return self._chosen(actions, steps)
        # NaN fails the comparison; one call instead of the three of a clip
        if np.abs(actions).max() <= self.always_inside:
            return actions
        return self.clipped(actions, steps)

    def _chosen(self, actions: NDArray[Any], steps: NDArray[np.int64]) -> NDArray[Any]:
        """Categorical actions as they are: the nearest value of a category would be another choice."""
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
        """Actions inside their bounds, a new array; the first time that one lay outside, a warning says so.

        Args:
            actions: (N, A), of the spec's dtype.
            steps: (N,) the steps that each episode has made.

        Raises:
            NumericsError: an action is not finite; env, step and action are named.
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
