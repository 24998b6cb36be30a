"""Safety chain between a policy and a robot: checks and limits on every tick, in a fixed order.

    observation finite -> fresh -> plausible -> sensor not frozen -> action present, in time and finite
      -> reflex -> clamp to limits -> blend in -> rate limit -> send, hold or damp

Finiteness is tested before every comparison, because clamping does not protect from NaN: some minimum and maximum
functions turn a NaN into a limit, which is a full-speed command. A bad tick never reaches the clamp: the robot holds,
and after `bad_ticks_to_damp` bad ticks in a row it damps, which is latched until `reset`.

This is not functional safety. A robot that can hurt someone needs an emergency stop and limits in hardware.

The functions here are pure; `SafetyChain` carries the state and the counters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from robotrl.deploy.bundle.manifest import Hold, Manifest
from robotrl.deploy.bundle.measured import MeasuredAs, measured_positions
from robotrl.deploy.control.sensors import SensorWatch


class Mode(IntEnum):
    """Command mode of a tick: execute the action, hold, or damp."""

    ACTIVE = 0
    """Execute the policy's action."""
    HOLD = 1
    """Hold: the tick was bad."""
    DAMP = 2
    """Come to rest: too many ticks in a row were bad. Latched until a reset."""


class Reason(IntFlag):
    """Reasons for a deviation from the policy's action. Several may apply to one tick; 0 means none."""

    OBS_NOT_FINITE = 1
    OBS_STALE = 2
    OBS_IMPLAUSIBLE = 4
    ACTION_MISSING = 8
    ACTION_NOT_FINITE = 16
    CLAMPED = 32
    RAMPED = 64
    RATE_LIMITED = 128
    DAMPED = 256
    OBS_TIME = 512
    """The observation's time stamp is in the future, or before that of the previous observation."""
    OBS_FROZEN = 1024
    """A sensor repeats its values while the robot is commanded to move."""
    INFERENCE_FAILED = 2048
    """The policy graph could not be computed."""
    ACTION_LATE = 4096
    """The observation became stale before the inference ended."""
    STOPPED = 8192
    """The run was stopped by the user."""
    REFLEX = 16384
    """The bundle's risk graph found the policy's action risky, and the recovery action took its place."""
    OBS_MISFIT = 32768
    """An instruction in the observation is none."""
    OBS_REFUSED = 65536
    """The process that infers, or the server, refused the observation."""
    STARTING = 131072
    """The robot is on its way to the start pose: the action is the servo's own, and not the policy's."""


OUTSIDE = Reason.INFERENCE_FAILED | Reason.ACTION_LATE | Reason.STOPPED | Reason.OBS_REFUSED
"""Reasons that the control loop reports; the chain finds all others itself."""
BAD = (
    Reason.OBS_NOT_FINITE
    | Reason.OBS_STALE
    | Reason.OBS_IMPLAUSIBLE
    | Reason.OBS_TIME
    | Reason.OBS_FROZEN
    | Reason.OBS_MISFIT
    | Reason.ACTION_MISSING
    | Reason.ACTION_NOT_FINITE
    | OUTSIDE
)
"""Reasons for which the policy's action is not used (a bad tick)."""
NONE = Reason(0)


class SafetyLimits(NamedTuple):
    """Limits that the chain enforces. Arrays are (A,) float32."""

    low: np.ndarray
    high: np.ndarray
    max_step: np.ndarray | None
    neutral: np.ndarray
    hold: Hold
    bad_ticks_to_damp: int
    ramp_ticks: int
    max_observation_age_s: float
    plausible: dict[str, tuple[np.ndarray, np.ndarray]]
    """Lowest and highest plausible value of each element, for some observation keys; infinite for no limit."""
    chooses: bool = False
    """Actions are discrete choices: only whole numbers within the limits are valid."""
    max_still_s: Mapping[str, float] = MappingProxyType({})
    """Longest time without a change while the robot is commanded to move, for some observation keys."""
    measured: tuple[MeasuredAs | None, ...] | None = None
    """Observation of each position target, from which its blend-in and rate limit start; they start from the first
    action where an element has none. None: from the neutral one, for actions at which a robot stands still."""


class SafetyState(NamedTuple):
    """State of the chain between ticks."""

    last: np.ndarray
    """(A,) action that was sent at the last control tick; before the first, where the robot stands."""
    sent: np.ndarray
    """(A,) last action sent, also between two control ticks: there by the reflex."""
    origin: np.ndarray
    """(A,) action from which the blend-in starts."""
    known: np.ndarray
    """(A,) bool: elements whose `last` and `origin` are known."""
    good_ticks: int
    """Number of ticks with the policy's action since the start; the blend-in depends on it."""
    bad_ticks: int
    """Current number of bad ticks in a row."""
    damped: bool


class SafetyVerdict(NamedTuple):
    """Result of one tick of the chain."""

    action: np.ndarray
    """(A,) float32 action to send, always finite and within the limits."""
    mode: Mode
    reason: Reason
    state: SafetyState
    before: np.ndarray
    """(A,) action that was sent before, at first where the robot stands: the servo interpolates from it."""


def limits_of(manifest: Manifest) -> SafetyLimits:
    """Safety limits from a bundle's manifest."""
    safety = manifest.safety
    plausible: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for port in manifest.observations:
        low, high = np.full(len(port.names), -np.inf), np.full(len(port.names), np.inf)
        for limit in safety.limits:
            for name, lo, hi in zip(limit.names, limit.low, limit.high, strict=True):
                if name in port.names:
                    low[port.names.index(name)], high[port.names.index(name)] = lo, hi
        if np.isfinite(low).any() or np.isfinite(high).any():
            plausible[port.name] = (low.astype(np.float32), high.astype(np.float32))
    return SafetyLimits(
        low=np.asarray(safety.low, np.float32),
        high=np.asarray(safety.high, np.float32),
        max_step=None if safety.max_step is None else np.asarray(safety.max_step, np.float32),
        neutral=np.asarray(safety.neutral, np.float32),
        hold=safety.hold,
        bad_ticks_to_damp=safety.bad_ticks_to_damp,
        ramp_ticks=round(safety.ramp_in_s / manifest.timing.control_period_s),
        max_observation_age_s=manifest.timing.max_observation_age_s,
        plausible=plausible,
        chooses=manifest.action.choices is not None,
        max_still_s={
            port.name: max(port.max_still_s, manifest.timing.max_observation_age_s)
            for port in manifest.observations
            if port.max_still_s is not None
        },
        measured=measured_positions(manifest) if safety.hold == "last" else None,
    )


def start(limits: SafetyLimits) -> SafetyState:
    """State at the start of an episode, with neutral as the last action where nothing better is known yet."""
    neutral = limits.neutral.copy()
    known = np.full(neutral.shape, limits.measured is None)
    return SafetyState(neutral, neutral, origin=neutral, known=known, good_ticks=0, bad_ticks=0, damped=False)


def at_measured(limits: SafetyLimits, state: SafetyState, obs: Mapping[str, np.ndarray]) -> SafetyState:
    """The state with the measured positions as the last action, where that is not known yet.

    Args:
        limits: the safety limits.
        state: the state.
        obs: observations that were found good, by key.
    """
    if state.known.all():
        return state
    here, known = state.last.copy(), state.known.copy()
    for i, one in enumerate(limits.measured or ()):
        if one is not None and not known[i]:
            here[i], known[i] = obs[one.key][one.element] / np.float32(one.factor), True
    here = np.minimum(np.maximum(here, limits.low), limits.high)
    return state._replace(last=here, sent=here, origin=here, known=known)


def check_observation(limits: SafetyLimits, obs: Mapping[str, np.ndarray], age_s: float) -> Reason:
    """Check a single observation; returns the first reason to refuse it, or `NONE`.

    Args:
        limits: the safety limits.
        obs: (...,) arrays by key.
        age_s: seconds since it was taken, on the monotonic clock.
    """
    for array in obs.values():
        if not np.isfinite(array).all():
            return Reason.OBS_NOT_FINITE
    # Not `age_s > limit`: a NaN age counts as stale.
    if not age_s <= limits.max_observation_age_s:
        return Reason.OBS_STALE
    return NONE if is_plausible(limits, obs) else Reason.OBS_IMPLAUSIBLE


def is_plausible(limits: SafetyLimits, obs: Mapping[str, np.ndarray]) -> bool:
    """Tell whether no number of an observation lies beyond its plausible range.

    Args:
        limits: the safety limits.
        obs: (...,) arrays by key.
    """
    return not any((obs[key] < low).any() or (obs[key] > high).any() for key, (low, high) in limits.plausible.items())


def in_time(limits: SafetyLimits, age_s: float, periods: int = 0, control_period_s: float = 0.0) -> bool:
    """Tell whether an action may still be sent: its observation is not stale, allowing for its position in the chunk.

    Args:
        limits: the safety limits.
        age_s: age of the observation from which the action's chunk was inferred, in seconds.
        periods: index of the action in its chunk, from 0.
        control_period_s: seconds between two actions of the chunk.
    """
    return age_s - periods * control_period_s <= limits.max_observation_age_s


def decide(
    limits: SafetyLimits,
    state: SafetyState,
    observed: Reason,
    action: np.ndarray | None,
    recovery: np.ndarray | None = None,
) -> SafetyVerdict:
    """Run one tick of the chain.

    Args:
        limits: the safety limits.
        state: state after the last tick.
        observed: result of `check_observation`, and reasons of `OUTSIDE`.
        action: (A,) action of the policy; None if it gave none.
        recovery: (A,) the reflex's action, which takes the place of a good one; None where it lets that pass.
    """
    reason = observed
    if not reason & BAD:
        if action is None or action.shape != limits.low.shape:
            reason |= Reason.ACTION_MISSING
        elif not np.isfinite(action).all():
            reason |= Reason.ACTION_NOT_FINITE
        elif limits.chooses and not _is_choice(limits, action):
            # rounding would select another choice
            reason |= Reason.ACTION_MISSING
    if state.damped or reason & BAD or action is None:
        return _hold(limits, state, reason)
    if recovery is not None:
        action = recovery
        reason |= Reason.REFLEX
    wanted = np.minimum(np.maximum(action, limits.low), limits.high)
    if (wanted != action).any():
        reason |= Reason.CLAMPED
    if not state.known.all():
        last, before, origin = (np.where(state.known, x, wanted) for x in (state.last, state.sent, state.origin))
        state = state._replace(last=last, sent=before, origin=origin, known=np.ones_like(state.known))
    if state.good_ticks < limits.ramp_ticks:
        part = np.float32((state.good_ticks + 1) / (limits.ramp_ticks + 1))
        blended = state.origin + part * (wanted - state.origin)
        # Clamp again, against rounding errors of the blend.
        wanted = np.minimum(np.maximum(blended, limits.low), limits.high)
        reason |= Reason.RAMPED
    if limits.max_step is not None:
        near = wanted
        for before in (state.last, state.sent):
            near = np.minimum(np.maximum(near, before - limits.max_step), before + limits.max_step)
        if (near != wanted).any():
            reason |= Reason.RATE_LIMITED
            wanted = near
    sent, before = wanted.astype(np.float32), state.sent
    state = state._replace(last=sent, sent=sent, good_ticks=state.good_ticks + 1, bad_ticks=0, damped=False)
    return SafetyVerdict(sent, Mode.ACTIVE, reason, state, before)


def _is_choice(limits: SafetyLimits, action: np.ndarray) -> bool:
    return bool(((action == np.rint(action)) & (action >= limits.low) & (action <= limits.high)).all())


def _hold(limits: SafetyLimits, state: SafetyState, reason: Reason) -> SafetyVerdict:
    bad = state.bad_ticks + 1
    damped = state.damped or bad >= limits.bad_ticks_to_damp or bool(reason & Reason.STOPPED)
    # Repeating a delta, velocity or torque would continue the motion; only position targets can be repeated.
    sent = state.sent if limits.hold == "last" else limits.neutral
    if damped:
        reason |= Reason.DAMPED
    mode = Mode.DAMP if damped else Mode.HOLD
    held = state._replace(last=sent, sent=sent, bad_ticks=bad, damped=damped)
    return SafetyVerdict(sent, mode, reason, held, state.sent)


@dataclass(frozen=True)
class Counters:
    """Numbers of ticks in total, held, damped, and by reason."""

    ticks: int
    held: int
    damped: int
    reasons: dict[str, int]


class _Counts:
    """Ticks in total, by mode and by reason."""

    def __init__(self) -> None:
        self._ticks = 0
        self._modes = {mode: 0 for mode in Mode}
        self._reasons = {reason: 0 for reason in Reason}

    def add(self, verdict: SafetyVerdict) -> None:
        """Count a tick."""
        self._ticks += 1
        self._modes[verdict.mode] += 1
        if verdict.reason:
            for reason in verdict.reason:
                self._reasons[reason] += 1

    @property
    def counters(self) -> Counters:
        """The counts so far."""
        reasons = {reason.name.lower(): count for reason, count in self._reasons.items() if reason.name is not None}
        return Counters(self._ticks, self._modes[Mode.HOLD], self._modes[Mode.DAMP], reasons)


class SafetyChain:
    """The safety chain of one controller, with its state and counters.

    Args:
        limits: the safety limits; `limits_of(manifest)` returns those of a bundle.
    """

    def __init__(self, limits: SafetyLimits) -> None:
        self.limits = limits
        self.state = start(limits)
        self.frozen = ""
        """Key of the frozen observation in the last `check`; "" for none."""
        self._watch = SensorWatch(limits)
        self._of_policy, self._of_start = _Counts(), _Counts()

    def reset(self) -> None:
        """Start an episode: releases a latched DAMP. The counters continue."""
        self.state = start(self.limits)
        self._watch.reset()
        self.frozen = ""

    def hand_over(self) -> None:
        """Let the policy take over a robot that was moved to its start: it blends in and goes on from there."""
        self.state = self.state._replace(origin=self.state.sent, good_ticks=0)
        self._watch.reset()

    def check(self, obs: Mapping[str, np.ndarray], age_s: float, now_s: float | None = None) -> Reason:
        """Check one observation by `check_observation`, then its time and its sensors (`SensorWatch`).

        Args:
            obs: (...,) arrays by key.
            age_s: seconds since it was taken, on the monotonic clock.
            now_s: current time of that clock; None reads it.
        """
        reason = check_observation(self.limits, obs, age_s)
        self.frozen = ""
        if reason == NONE:
            doubt = self._watch.look(obs, age_s, time.monotonic() if now_s is None else now_s, self.state.last)
            self.frozen = doubt.frozen
            reason = Reason.OBS_TIME if doubt.clock else Reason.OBS_FROZEN if doubt.frozen else NONE
        if reason == NONE:
            self.state = at_measured(self.limits, self.state, obs)
        return reason

    def decide(self, observed: Reason, action: np.ndarray | None, recovery: np.ndarray | None = None) -> SafetyVerdict:
        """Run one tick; see the function `decide`."""
        verdict = decide(self.limits, self.state, observed, action, recovery)
        self.state = verdict.state
        (self._of_start if verdict.reason & Reason.STARTING else self._of_policy).add(verdict)
        return verdict

    def between(self, action: np.ndarray, recovery: np.ndarray | None) -> SafetyVerdict:
        """Verdict of a servo tick between two control ticks, which is not counted.

        Its step is limited from the last control tick and from what was sent since; the next one is limited from it.
        """
        verdict = decide(self.limits, self.state, NONE, action, recovery)
        if verdict.mode == Mode.ACTIVE:
            self.note_sent(verdict.action)
        return verdict

    def note_sent(self, action: np.ndarray) -> None:
        """Note an action (A,) that was sent since the last control tick, as a replay finds it in the log."""
        self.state = self.state._replace(sent=action)

    @property
    def counters(self) -> Counters:
        """Counters since construction, without the ticks of a motion to a start pose."""
        return self._of_policy.counters

    @property
    def start_counters(self) -> Counters:
        """Counters of the ticks of a motion to a start pose."""
        return self._of_start.counters
