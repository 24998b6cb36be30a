"""The C++ servo and its safety chain, with the interfaces of the Python ones, for tests and benches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robotrl.deploy.control.safety import Counters, Mode, Reason, SafetyLimits
from robotrl.deploy.native.build import native_runtime
from robotrl.deploy.native.settings import chain_block
from robotrl.errors import DataError

SleepUntil = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
"""A simulated clock: gets the time until which the servo sleeps, and returns the time at which it wakes."""
_REASON_BYTES = 256


class NativeChain:
    """The C++ chain of one controller; compare `SafetyChain`.

    Args:
        limits: the safety limits.
        shapes: shape of each observation of numbers that `check` will be given.
        cameras: keys of the observations that are checksums of images.

    Raises:
        ConfigError: the native runtime cannot be built.
        DataError: the chain refuses its settings.
    """

    def __init__(
        self,
        limits: SafetyLimits,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        cameras: list[str] | None = None,
    ) -> None:
        self._width = len(limits.low)
        self._shapes, self._cameras = dict(shapes or {}), list(cameras or [])
        self._watched = list(limits.max_still_s)
        self._library = conformance_library()
        block = chain_block(limits, self._shapes, self._cameras)
        why = ctypes.create_string_buffer(_REASON_BYTES)
        self._chain = self._library.chain_open(block, len(block), why, _REASON_BYTES)
        if not self._chain:
            raise DataError(f"the native chain: {why.value.decode()}")
        self.frozen = ""

    def __del__(self) -> None:
        chain = self.__dict__.get("_chain")
        if chain:
            self._library.chain_close(chain)

    def reset(self) -> None:
        """Start an episode."""
        self._library.chain_reset(self._chain)
        self.frozen = ""

    def check(self, obs: Mapping[str, np.ndarray], age_s: float, now_s: float) -> Reason:
        """Check one observation; see `SafetyChain.check`.

        Args:
            obs: (...,) float32 of each of `shapes`, and one checksum of each of `cameras`.
            age_s: seconds since it was taken.
            now_s: current time of the same clock.
        """
        parts = [np.ravel(np.asarray(obs[key], np.float32)) for key in self._shapes]
        numbers = np.concatenate([np.zeros(0, np.float32), *parts])
        sums = np.asarray([int(np.ravel(obs[key])[0]) for key in self._cameras], np.int64)
        frozen = ctypes.c_int64()
        reason = self._library.chain_check(
            self._chain, numbers.ctypes.data, sums.ctypes.data, age_s, now_s, ctypes.byref(frozen)
        )
        self.frozen = "" if frozen.value < 0 else self._watched[frozen.value]
        return Reason(reason)

    def decide(
        self, observed: Reason, action: np.ndarray | None, recovery: np.ndarray | None = None
    ) -> tuple[np.ndarray, Mode, Reason]:
        """Run one tick; see `safety.decide`.

        Args:
            observed: reasons found so far.
            action: (A,) action, rounded to float32 as on a link; None if the policy gave none.
            recovery: (A,) the reflex's action; None where it lets that pass.

        Returns:
            The action to send, (A,) float32, the mode and all reasons.
        """
        given, count = None, -1
        if action is not None:
            given = np.ascontiguousarray(action, np.float32).ravel()
            # another number of axes is another shape
            count = len(given) if action.ndim == 1 else self._width + 1
        sent, reason = np.empty(self._width, np.float32), ctypes.c_int64()
        instead = None if recovery is None else np.ascontiguousarray(recovery, np.float32)
        mode = self._library.chain_decide(
            self._chain,
            int(observed),
            _place(given),
            count,
            _place(instead),
            sent.ctypes.data,
            ctypes.byref(reason),
        )
        return sent, Mode(mode), Reason(reason.value)

    def between(self, action: np.ndarray, recovery: np.ndarray | None) -> tuple[np.ndarray, Mode, Reason]:
        """Verdict of a servo tick between two control ticks; see `SafetyChain.between`.

        Args:
            action: (A,) float32.
            recovery: (A,) the reflex's action; None where it lets that pass.

        Returns:
            As `decide`.
        """
        given = np.ascontiguousarray(action, np.float32)
        instead = None if recovery is None else np.ascontiguousarray(recovery, np.float32)
        sent, reason = np.empty(self._width, np.float32), ctypes.c_int64()
        mode = self._library.chain_between(
            self._chain, _place(given), len(given), _place(instead), sent.ctypes.data, ctypes.byref(reason)
        )
        return sent, Mode(mode), Reason(reason.value)

    @property
    def counters(self) -> Counters:
        """Counters since construction."""
        count: Callable[[int], int] = lambda which: int(self._library.chain_counter(self._chain, which))  # noqa: E731
        reasons = {str(reason.name).lower(): count(4 + i) for i, reason in enumerate(Reason)}
        return Counters(count(0), count(1 + Mode.HOLD), count(1 + Mode.DAMP), reasons)


def _place(values: np.ndarray | None) -> int | None:
    """Address of an array's numbers; None for no array."""
    return None if values is None else values.ctypes.data


def servo_run(block: bytes, now_ns: int, parent: int, sleep_until: Callable[[int], int]) -> None:
    """Run the C++ servo in this process, on a simulated clock, until it is ordered to end.

    Args:
        block: its settings, see `servo_block`; its files are those of this process.
        now_ns: the time at its start.
        parent: id of the process that it takes for its parent.
        sleep_until: gets the time until which it sleeps, and returns the time at which it wakes; whatever happens
            meanwhile, it brings about.

    Raises:
        DataError: the servo fails.
    """
    errors: list[BaseException] = []

    def sleep(deadline_ns: int) -> int:
        try:
            return sleep_until(deadline_ns)
        except BaseException as error:  # raised again below; no exception passes through C++
            errors.append(error)
            return -1

    why = ctypes.create_string_buffer(_REASON_BYTES)
    failed = conformance_library().servo_run(block, len(block), now_ns, parent, SleepUntil(sleep), why, _REASON_BYTES)
    if errors:
        raise errors[0]
    if failed:
        raise DataError(f"the native servo: {why.value.decode()}")


def conformance_library() -> Any:
    """The library of the servo's parts, with the types of its functions.

    Raises:
        ConfigError: the native runtime cannot be built.
    """
    library = ctypes.CDLL(str(native_runtime().conformance))
    pointer, size, whole, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_double
    library.chain_open.argtypes = [ctypes.c_char_p, size, ctypes.c_char_p, size]
    library.chain_open.restype = pointer
    library.chain_close.argtypes = library.chain_reset.argtypes = [pointer]
    library.chain_close.restype = library.chain_reset.restype = None
    library.chain_check.argtypes = [pointer, pointer, pointer, real, real, pointer]
    library.chain_decide.argtypes = [pointer, whole, pointer, whole, pointer, pointer, pointer]
    library.chain_between.argtypes = [pointer, pointer, whole, pointer, pointer, pointer]
    library.chain_counter.argtypes = [pointer, ctypes.c_int]
    library.servo_run.argtypes = [ctypes.c_char_p, size, whole, whole, SleepUntil, ctypes.c_char_p, size]
    library.guard_open.argtypes = [ctypes.c_char_p, size, whole, ctypes.c_char_p, size]
    library.guard_open.restype = pointer
    library.guard_close.argtypes, library.guard_close.restype = [pointer], None
    library.guard_recovers.argtypes = [pointer] * 4
    library.guard_time_ns.argtypes, library.guard_time_ns.restype = [*[pointer] * 3, whole], real
    for name in ("chain_check", "chain_decide", "chain_between", "chain_counter", "guard_recovers"):
        library[name].restype = whole
    return library
