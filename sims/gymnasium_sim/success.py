"""Success of an episode: the signal that says it, apart from the rule over time."""

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
"""Where environments say in `info` that the task is done."""
CHOICES = ("auto", "info:KEY", "return>=X", "survival", "termination")
RETURN = "return>="


class SuccessSignal(NamedTuple):
    """Options `success` and `success_over`, read."""

    kind: Kind
    over: Over
    keys: tuple[str, ...] = ()
    """Of `info`: the first one that is there counts."""
    least: float = 0.0
    """The return that is a success."""

    @property
    def asked(self) -> str:
        """The option `success`, as it was given."""
        named = {"info": f"info:{''.join(self.keys[:1])}", "return": f"{RETURN}{self.least:g}"}
        return named.get(self.kind, self.kind)


def signal_of(success: Any, over: Any) -> SuccessSignal:
    """What the options `success` and `success_over` ask for.

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
    """The flag under the first of the keys that `info` has with a value; None where it has none of them.

    Raises:
        ValueError: what stands there is no flag.
    """
    for key in keys:
        if info.get(key) is not None:
            return flag_of(info[key], f"info[{key!r}]")
    return None


def flag_of(value: Any, name: str) -> bool | None:
    """A flag as environments write it: a bool, 0 or 1 as any number, or an array or tensor of one of these.

    Raises:
        ValueError: it is anything else.
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
    """Judges the episodes of a batch, step for step.

    Args:
        signal: what counts.
        num_envs: N.
        sim: begins each message.
        stated: whether the environment is known to say success in `info`.
        known: keys that its `info` was seen to have.
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
        """By what rule episodes are judged."""
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

    def judged(
        self, said: Flags, given: Flags, reward: NDArray[Any], terminated: Flags, truncated: Flags, lost: Flags
    ) -> Flags:
        """(N,) success at this step, by the rule; what it says at an episode's last step is the episode's.

        Args:
            said: the flag of `info`.
            given: where there was one.
            reward: the environment's own.
            terminated: the environment's own.
            truncated: by the environment or the sim.
            lost: episodes that count for nothing.

        Raises:
            EnvironmentFault: an episode has ended and `info` never had the key that the user named.
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
        """New episodes begin in some rows, in all by default."""
        self._reached[rows], self._seen[rows], self._total[rows] = False, False, 0.0
