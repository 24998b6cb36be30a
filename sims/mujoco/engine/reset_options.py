"""Options of a MuJoCo sim's `reset`, checked before anything is reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, NumericsError, unknown
from robotrl.sims import starts

RESET_OPTIONS = ("state_ids", "stagger", "qpos", "qvel")


class ResetOptions(NamedTuple):
    """Checked options of a reset."""

    state_ids: list[int] | None
    """Start ids (N,); None draws them."""
    stagger: bool
    """Start the step counters spread over the time limit, so that the envs do not all time out together."""
    coordinates: Mapping[str, NDArray[np.float64]]
    """"qpos" (N, nq) and "qvel" (N, nv), together, alone or neither: they overwrite the physics state once the episodes
    have started."""


def reset_options(options: Mapping[str, Any] | None, num_envs: int, nq: int, nv: int) -> ResetOptions:
    """Check the options of a reset.

    Raises:
        ConfigError: unknown option, or an array of the wrong shape.
        NumericsError: a number in "qpos" or "qvel" is not finite.
    """
    given = dict(options or {})
    for name in given:
        if name not in RESET_OPTIONS:
            raise unknown("reset option", name, RESET_OPTIONS)
    ids = starts.queue_for_all(given["state_ids"], num_envs) if "state_ids" in given else None
    coordinates = {
        name: _coordinates(name, given[name], (num_envs, width))
        for name, width in (("qpos", nq), ("qvel", nv))
        if name in given
    }
    return ResetOptions(ids, bool(given.get("stagger", False)), coordinates)


def _coordinates(name: str, values: Any, expected: tuple[int, int]) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if array.shape != expected:
        raise ConfigError(f"reset option {name!r} has shape {array.shape}: expected {expected} (envs, {name})")
    if not np.isfinite(array).all():
        env, column = (int(i[0]) for i in np.nonzero(~np.isfinite(array)))
        raise NumericsError(
            f"reset option {name!r}, env {env}, column {column} is {array[env, column]}: expected finite"
        )
    return array
