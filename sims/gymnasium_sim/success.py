"""Success of an episode: the success signal, and the rule that combines it over time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import out_of_range, unknown
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault
from robotrl.spec import SuccessRule

Flags = NDArray[np.bool_]
Kind = Literal["auto", "info", "survival", "termination", "return"]
Over = Literal["last", "ever"]
OVER: tuple[Over, ...] = ("last", "ever")
SUCCESS_KEYS = ("success", "is_success")
"""Keys of `info` that environments commonly use for success."""
CHOICES = ("auto", "info:KEY", "return>=X", "survival", "termination")
RETURN = "return>="


class SuccessSignal(NamedTuple):
    """Parsed options `success` and `success_over`."""

    kind: Kind
    over: Over
    keys: tuple[str, ...] = ()
    """Keys of `info`; the first one present counts."""
    least: float = 0.0
    """Smallest return that counts as success (kind "return")."""

    @property
    def asked(self) -> str:
        """Value of the option `success`."""
        named = {"info": f"info:{''.join(self.keys[:1])}", "return": f"{RETURN}{self.least:g}"}
        return named.get(self.kind, self.kind)


def signal_of(success: Any, over: Any) -> SuccessSignal:
    """Parse the options `success` and `success_over`.

    Raises:
        ConfigError: an unknown signal or rule.
    """
    if over not in OVER:
        raise unknown("success_over", str(over), OVER)
    if not isinstance(success, str):
        raise out_of_range("success", success, f"one of {', '.join(CHOICES)}")
    if success == "auto":
        return SuccessSignal("auto", over, SUCCESS_KEYS)
    if success.startswith("info:") and success != "info:":
        return SuccessSignal("info", over, (success.removeprefix("info:"),))
    if success.startswith(RETURN):
        return SuccessSignal("return", over, (), _number(success))
    if success == "survival" or success == "termination":
        return SuccessSignal(success, over)
    raise unknown("success", success, CHOICES)


def _number(success: str) -> float:
    try:
        least = float(success.removeprefix(RETURN))
    except ValueError:
        least = math.nan
    if not math.isfinite(least):
        raise out_of_range("success", success, f"a number after {RETURN!r}, e.g. {RETURN}200")
    return least


def flag_in(info: Mapping[str, Any], keys: Sequence[str]) -> bool | None:
    """Flag under the first key that `info` has with a value, or None.

    Raises:
        ValueError: the value is not a flag.
    """
    for key in keys:
        if info.get(key) is not None:
            return flag_of(info[key], f"info[{key!r}]")
    return None


def flag_of(value: Any, name: str) -> bool | None:
    """Convert a flag to bool: a bool, a number 0 or 1, or an array or tensor with one such element; None stays None.

    Raises:
        ValueError: any other value.
    """
    if value is None or isinstance(value, bool):
        return value
    found = np.asarray(value)
    if found.size != 1 or found.dtype.kind not in "biuf":
        what = f"has shape {found.shape}" if found.size != 1 else f"is {repr(value)[:60]}"
        raise ValueError(f"{name} {what}: expected one flag, 0 or 1; option success says what counts instead")
    number = float(found.reshape(()))
    if number not in (0.0, 1.0):
        raise ValueError(f"{name} is {number:g}: expected a flag, 0 or 1; option success says what counts instead")
    return bool(number)


class Judge:
    """Evaluates the success of all episodes of a batch in each step.

    Args:
        signal: the success signal.
        num_envs: number of envs N.
        sim: sim name that prefixes each message.
        stated: true if `info` is known to contain a success flag.
        known: keys seen in `info`, for error messages.
    """

    def __init__(self, signal: SuccessSignal, num_envs: int, sim: str, stated: bool, known: Sequence[str] = ()) -> None:
        self.signal = signal
        self._sim, self._known = sim, tuple(known)
        self._stated = stated
        self._unstated_ends = 0
        self._reached: Flags = np.zeros(num_envs, bool)
        self._seen: Flags = np.zeros(num_envs, bool)
        self._total: NDArray[np.float64] = np.zeros(num_envs)

    def rule(self) -> SuccessRule:
        """Rule by which episodes count as successes."""
        signal = self.signal
        when = "at any step" if signal.over == "ever" else "at the last step"
        match signal.kind:
            case "info":
                text = f"info[{signal.keys[0]!r}] {when}"
            case "return":
                text = f"a return of {signal.least:g} or more {when}"
            case "survival":
                text = "reaching the time limit"
            case "termination":
                text = "ending before the time limit"
            case "auto":
                keys = " or ".join(f"info[{key!r}]" for key in signal.keys)
                text = f"{keys} {when}" if self._stated else "reaching the time limit"
        return SuccessRule(text, stated=signal.kind != "auto" or self._stated)

    def succeeded(
        self, said: Flags, given: Flags, reward: NDArray[Any], terminated: Flags, truncated: Flags, lost: Flags
    ) -> Flags:
        """Success flags (N,) at this step; the flag at an episode's last step is the result of the episode.

        Args:
            said: (N,) success flag in `info`.
            given: (N,) true where `info` had a flag.
            reward: (N,) the environment's own reward.
            terminated: (N,) the environment's own flag.
            truncated: (N,) truncated by the environment or the sim.
            lost: (N,) episodes lost to a crash, never successes.

        Raises:
            EnvironmentFault: an episode has ended and `info` never had the key of the option `success`.
        """
        now = self._now(said, given, reward, terminated, truncated, lost) & ~lost
        if self.signal.over == "last":
            return now
        self._reached |= now
        return self._reached.copy()

    def _now(
        self, said: Flags, given: Flags, reward: NDArray[Any], terminated: Flags, truncated: Flags, lost: Flags
    ) -> Flags:
        survived = truncated & ~terminated
        match self.signal.kind:
            case "survival":
                return survived
            case "termination":
                return terminated & ~truncated
            case "return":
                self._total += reward
                return self._total >= self.signal.least
            case "info":
                self._seen |= given
                self._refuse_unseen((terminated | truncated) & ~self._seen & ~lost)
                return said & given
            case "auto":
                if not self._stated:
                    self._look(given)
                if self._stated:
                    return said & given
                self._unstated_ends += int((terminated | truncated).sum())
                return survived

    def _look(self, given: Flags) -> None:
        self._stated = bool(given.any())
        if self._stated and self._unstated_ends:
            warnings.warn(
                f"{self._sim}: info states success only now, and {self._unstated_ends} episodes that ended before were"
                " judged by whether they reached the time limit: expected option success=info:success or"
                " info:is_success, which judges all alike",
                stacklevel=4,
            )

    def _refuse_unseen(self, unseen: Flags) -> None:
        if unseen.any():
            known = ", ".join(self._known) or "none"
            raise EnvironmentFault(
                f"{self._sim}: env {int(np.flatnonzero(unseen)[0])}: info had no {self.signal.keys[0]!r} in a whole"
                f" episode, and success is {self.signal.asked!r}: expected a key of info, seen were: {known}"
            )

    def restart(self, rows: Any = slice(None)) -> None:
        """Reset the rows in which new episodes begin, all by default."""
        self._reached[rows], self._seen[rows], self._total[rows] = False, False, 0.0
