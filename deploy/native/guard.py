"""The reflex of the C++ servo, with the interface of the Python one, for tests and benches that compare them."""

from __future__ import annotations

import ctypes

import numpy as np

from robotrl.deploy.native.chain import conformance_library
from robotrl.errors import DataError

_REASON_BYTES = 256


class NativeGuard:
    """The C++ reflex of one bundle; compare `RiskGuard`.

    Args:
        block: its settings, see `reflex_block`.
        observation_size: length of the robot's flat observation.
        actions: A, width of an action.

    Raises:
        ConfigError: the native runtime cannot be built.
        DataError: the reflex refuses its settings.
    """

    def __init__(self, block: bytes, observation_size: int, actions: int) -> None:
        self._sizes = observation_size, actions
        self._library = conformance_library()
        why = ctypes.create_string_buffer(_REASON_BYTES)
        self._guard = self._library.guard_open(block, len(block), actions, why, _REASON_BYTES)
        if not self._guard:
            raise DataError(f"the native reflex: {why.value.decode()}")

    def __del__(self) -> None:
        guard = self.__dict__.get("_guard")
        if guard:
            self._library.guard_close(guard)

    def judge(self, observation: np.ndarray, action: np.ndarray) -> tuple[bool, np.float32]:
        """Verdict on an action (true: the recovery takes its place), and the risk of the last action that was finite.

        Args:
            observation: (O,) float32, the robot's flat observation.
            action: (A,) float32.
        """
        observed, asked = self._rows(observation, action)
        risk = np.zeros(1, np.float32)
        recovers = self._library.guard_recovers(self._guard, observed.ctypes.data, asked.ctypes.data, risk.ctypes.data)
        return bool(recovers), risk[0]

    def time_ns(self, observation: np.ndarray, action: np.ndarray, count: int) -> float:
        """Nanoseconds of one evaluation, the mean of `count`."""
        observed, asked = self._rows(observation, action)
        spent: float = self._library.guard_time_ns(self._guard, observed.ctypes.data, asked.ctypes.data, count)
        return spent

    def _rows(self, observation: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = np.ascontiguousarray(observation, np.float32), np.ascontiguousarray(action, np.float32)
        if tuple(row.shape for row in rows) != tuple((size,) for size in self._sizes):
            raise ValueError(f"rows have shapes {rows[0].shape} and {rows[1].shape}: expected {self._sizes} numbers")
        return rows
