"""Faults of actions on their way to the robot: a million adversarial ticks through each servo's safety chain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.faults.kind import LOGGER, Attempt, Kind, Outcome
from robotrl.deploy.control.safety import BAD, NONE, Mode, Reason, SafetyChain, SafetyLimits
from robotrl.deploy.native.chain import NativeChain

Rng = np.random.Generator
TICKS = 1_000
"""Ticks of one input."""
EPISODES = 250
"""Inputs of each kind; with four kinds, a million ticks."""
_HUGE = float(np.finfo(np.float32).max)
_TINY = float(np.finfo(np.float32).smallest_subnormal)


class _Given(NamedTuple):
    """Inputs of the chain at one tick."""

    observed: Reason
    action: np.ndarray | None


def _limits(rng: Rng) -> SafetyLimits:
    """Random limits: of every size, some of them of one element alone, with and without a limit of the step."""
    width = int(rng.integers(1, 9))
    size = 10.0 ** rng.uniform(-6, 6, width)
    middle = rng.normal(size=width) * size
    low, high = (middle - size).astype(np.float32), (middle + size).astype(np.float32)
    return SafetyLimits(
        low=low,
        high=high,
        max_step=(size * rng.uniform(0.001, 2.0, width)).astype(np.float32) if rng.random() < 0.5 else None,
        neutral=np.clip(rng.uniform(low, high), low, high).astype(np.float32),
        hold="last" if rng.random() < 0.5 else "neutral",
        bad_ticks_to_damp=int(rng.integers(1, 50)),
        ramp_ticks=int(rng.integers(0, 20)),
        max_observation_age_s=0.1,
        plausible={},
    )


def _not_finite(rng: Rng, limits: SafetyLimits) -> _Given:
    action = rng.uniform(limits.low, limits.high).astype(np.float32)
    action[rng.integers(len(action))] = rng.choice([np.nan, np.inf, -np.inf])
    return _Given(NONE, action)


def _beyond(rng: Rng, limits: SafetyLimits) -> _Given:
    """Extremes of float32, alternating signs, numbers beside the limits, in float32 and float64."""
    extremes = [_HUGE, -_HUGE, _TINY, -_TINY, 0.0, -0.0, 1e300, -1e300]
    beside = [np.nextafter(limits.high, np.float32(np.inf)), np.nextafter(limits.low, np.float32(-np.inf))]
    wide = rng.choice(extremes, len(limits.low))
    action = np.where(rng.random(len(wide)) < 0.5, wide, beside[rng.integers(2)])
    with np.errstate(over="ignore"):
        return _Given(NONE, action.astype(np.float32) if rng.random() < 0.5 else action)


def _misshapen(rng: Rng, limits: SafetyLimits) -> _Given:
    shapes = [(0,), (len(limits.low) + 1,), (1, len(limits.low)), ()]
    shape = shapes[rng.integers(len(shapes))]
    return _Given(NONE, None if rng.random() < 0.25 else np.full(shape, _HUGE, np.float32))


def _interrupted(rng: Rng, limits: SafetyLimits) -> _Given:
    """Good actions and extremes between ticks that are bad for any reason, with an action beside it all the same."""
    reasons = list(BAD)
    observed = reasons[rng.integers(len(reasons))] if rng.random() < 0.3 else NONE
    action = _beyond(rng, limits).action if rng.random() < 0.5 else rng.uniform(limits.low, limits.high)
    with np.errstate(over="ignore"):
        return _Given(observed, None if action is None else np.asarray(action, np.float32))


def _attempt(draw: Callable[[Rng, SafetyLimits], _Given]) -> Attempt:
    """Ticks of the Python servo's chain."""

    def attempt(rng: Rng, folder: Path) -> Outcome:
        del folder
        limits = _limits(rng)
        chain = SafetyChain(limits)
        for _ in range(TICKS):
            if rng.random() < 0.01:
                chain.reset()
            last = chain.state.last
            given = draw(rng, limits)
            verdict = chain.decide(given.observed, given.action)
            if why := _unsafe(limits, last, verdict.mode, verdict.action, given):
                LOGGER.debug("%s: %s", why, verdict)
                return Outcome.SILENT
        return Outcome.CONTAINED

    return attempt


def _native_attempt(draw: Callable[[Rng, SafetyLimits], _Given]) -> Attempt:
    """Ticks of the C++ servo's chain; actions come as float32, as on its links."""

    def attempt(rng: Rng, folder: Path) -> Outcome:
        del folder
        limits = _limits(rng)
        chain, last = NativeChain(limits), limits.neutral
        for _ in range(TICKS):
            if rng.random() < 0.01:
                chain.reset()
                last = limits.neutral
            given = draw(rng, limits)
            with np.errstate(over="ignore"):
                sent, mode, reason = chain.decide(given.observed, given.action)
            if why := _unsafe(limits, last, mode, sent, given):
                LOGGER.debug("%s: %s %s", why, sent, reason)
                return Outcome.SILENT
            last = sent
        return Outcome.CONTAINED

    return attempt


def _unsafe(limits: SafetyLimits, last: np.ndarray, mode: Mode, sent: np.ndarray, given: _Given) -> str:
    """Why a command must not have been sent; "" for a safe one."""
    if sent.shape != limits.low.shape or not np.isfinite(sent).all():
        return "not finite"
    if (sent < limits.low).any() or (sent > limits.high).any():
        return "outside the limits"
    if given.observed & BAD and mode == Mode.ACTIVE:
        return "active on a bad tick"
    if mode == Mode.ACTIVE and limits.max_step is not None:
        # the sum of two float32 numbers is rounded once, by half a spacing at most; the comparison is in float64
        spacing = np.spacing(np.maximum(np.abs(last), np.abs(sent))).astype(np.float64)
        most = limits.max_step.astype(np.float64) + 0.5 * spacing
        if (np.abs(sent.astype(np.float64) - last) > most).any():
            return "a step beyond its limit"
    return ""


_DRAWS: dict[str, Callable[[Rng, SafetyLimits], _Given]] = {
    "actions that are not finite": _not_finite,
    "actions beyond every limit": _beyond,
    "actions of another shape, or none": _misshapen,
    "actions beside bad observations and failed inferences": _interrupted,
}
KINDS = [
    *(Kind(name, (Outcome.CONTAINED,), EPISODES, _attempt(draw)) for name, draw in _DRAWS.items()),
    *(
        Kind(f"C++ servo: {name}", (Outcome.CONTAINED,), EPISODES, _native_attempt(draw))
        for name, draw in _DRAWS.items()
    ),
]
