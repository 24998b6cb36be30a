"""Physical parameters of each env as multipliers of the model's values: limits, values in force, random draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, unknown
from robotrl.fn.random import counter_rng
from robotrl.sims.mujoco.engine.task import Ids, Param

Write = Callable[[Param, Ids, NDArray[np.float64]], None]
"""Function (parameter, envs (n,), multipliers (n,)) that writes the fields of these envs' models."""


class Parameters:
    """Multipliers (N,) by parameter name.

    Args:
        params: the task's parameters, by name.
        num_envs: number of envs N.
        randomization: parameter name to (low, high): each episode draws a uniform multiplier from its start id, so that
            the same id gives the same physics.
        write: see `Write`.

    Raises:
        ConfigError: unknown parameter, or a range outside what the parameter accepts.
    """

    def __init__(
        self,
        params: Mapping[str, Param],
        num_envs: int,
        randomization: Mapping[str, tuple[float, float]] | None,
        write: Write,
    ) -> None:
        self._params, self._num_envs, self._write = params, num_envs, write
        self._values = {name: np.ones(num_envs) for name in params}
        self._randomization = dict(randomization or {})
        for name, (low, high) in self._randomization.items():
            self._check(name, np.array([low, high]))

    def get(self) -> dict[str, NDArray[np.float64]]:
        """Copy of the multipliers in force."""
        return {name: value.copy() for name, value in self._values.items()}

    def draw(self, env_ids: Ids, start_ids: Ids) -> None:
        """Set what the episodes with these start ids draw in the envs `env_ids`."""
        for stream, (name, (low, high)) in enumerate(sorted(self._randomization.items())):
            u = counter_rng.uniform(0x5EED + stream, start_ids, 1)[:, 0]
            self._put(name, env_ids, low + (high - low) * u)

    def set(self, env_ids: Ids, values: Mapping[str, NDArray[np.float64]]) -> Ids:
        """Set multipliers of the envs `env_ids`, which are returned as an array.

        Raises:
            ConfigError: unknown parameter, or an id or value out of range; no parameter is changed.
        """
        ids = np.asarray(env_ids, np.int64)
        if ids.ndim != 1 or ((ids < 0) | (ids >= self._num_envs)).any():
            raise ConfigError(f"ids is {ids.tolist()}: expected env numbers from 0 to {self._num_envs - 1}")
        arrays: dict[str, NDArray[np.float64]] = {}
        for name, value in values.items():
            array = np.asarray(value, np.float64)
            if array.shape not in ((), ids.shape):
                raise ConfigError(f"parameter {name!r} has shape {array.shape}: expected {ids.shape}, one for each id")
            arrays[name] = np.broadcast_to(array, ids.shape)
            self._check(name, arrays[name])
        for name, array in arrays.items():
            self._put(name, ids, array)
        return ids

    def restore(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Set a result of `get`."""
        for name, value in values.items():
            if not np.array_equal(value, self._values[name]):
                self._put(name, np.arange(self._num_envs), value)

    def _check(self, name: str, values: NDArray[np.float64]) -> None:
        if name not in self._params:
            raise unknown("parameter", name, self._params)
        param = self._params[name]
        if not ((values >= param.low) & (values <= param.high)).all():
            raise ConfigError(f"parameter {name!r} is {values.tolist()}: expected {param.low} to {param.high}")

    def _put(self, name: str, env_ids: Ids, values: NDArray[np.float64]) -> None:
        self._values[name][env_ids] = values
        self._write(self._params[name], env_ids, values)


def multiplied(
    param: Param, nominal: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.int64] | None, NDArray[np.float64]]:
    """Columns of a field that a parameter multiplies, None for a field without, and their new numbers.

    Args:
        param: the parameter.
        nominal: the field in the model, (all rows,) or (all rows, all columns).
        values: multipliers (n,).

    Returns:
        The columns (k,), and the numbers (n, rows) or (n, rows, k).
    """
    chosen = nominal[np.asarray(param.rows)]
    if chosen.ndim == 1:
        return None, chosen * values[:, None]
    columns = np.arange(chosen.shape[1]) if param.columns is None else np.asarray(param.columns)
    return columns, chosen[:, columns] * values[:, None, None]
