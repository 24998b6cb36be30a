"""Numbers of a control log: times, interventions, steps between actions, seams between chunks, tracking.

All functions are pure. A seam is a tick whose action comes from another inference than the action of the tick before it
in the same episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robotrl.deploy.analysis.ticks import ControlTicks
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.measured import MeasuredAs, measured_as
from robotrl.deploy.control.log import array_of
from robotrl.deploy.control.safety import BAD, Mode, Reason

"""Endings of names of targets and of measured positions; an offset counts from the default pose, as its target does."""


@dataclass(frozen=True)
class LogTimes:
    """One measured time of a log's ticks, in microseconds."""

    name: str
    count: int
    p50: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True)
class SafetyIntervention:
    """A reason for which the safety chain or the control loop changed or refused the policy's action."""

    reason: str
    ticks: int
    share: float
    """Of all ticks, 0 to 1."""
    bad: bool
    """True if the action was not used: the robot held or was damped."""
    first: tuple[int, int]
    """Episode and tick of its first occurrence."""
    longest: int
    """Most ticks in a row."""


@dataclass(frozen=True)
class StepSizes:
    """Absolute changes of an action element from a tick to the next."""

    count: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class TrackingError:
    """Measured position, one control period after a target was sent, minus that target."""

    measured: str
    """Observation key and element, e.g. "state/joint_1_pos"."""
    unit: str
    count: int
    mean: float
    rms: float
    p99_abs: float
    max_abs: float


@dataclass(frozen=True)
class ActionElement:
    """Statistics of one action element."""

    name: str
    unit: str
    clamped: float
    """Share of the active ticks whose policy action lies outside the limits."""
    rate_limited: float
    """Share of the active ticks at which the rate limit changed this element; ticks of the blend-in do not count."""
    inside: StepSizes | None
    """Steps of the policy's action inside a chunk; None if there is none."""
    seams: StepSizes | None
    """Jumps of the policy's action at seams; None if there is none."""
    tracking: TrackingError | None
    """None if the log holds no measured counterpart."""


@dataclass(frozen=True)
class StartMotions:
    """Ticks of the servo's motions to a start pose; those of the policy do not count them."""

    ticks: int
    held: int
    damped: int
    missed: int
    """Control periods between two of them in which no command was decided."""


@dataclass(frozen=True)
class LogSummary:
    """Numbers of a control log."""

    episodes: int
    ended: int
    """Episodes that ended by success or time limit."""
    successes: int
    ticks: int
    duration_s: float
    missed: int
    """Control periods between two ticks in which no action was decided."""
    held: int
    damped: int
    times: tuple[LogTimes, ...]
    interventions: tuple[SafetyIntervention, ...]
    elements: tuple[ActionElement, ...]
    untracked: str
    """Reason why no element is tracked; empty if one is."""
    start_motions: StartMotions


class ActionMeaning(NamedTuple):
    """Kind and units of a log's actions and observations, from its header or from the bundle's manifest."""

    kind: str
    units: tuple[str, ...]
    observation_units: dict[str, tuple[str, ...]]


def meaning_of_header(ticks: ControlTicks) -> ActionMeaning | None:
    """Kind and units that the header states; None for older logs, which state none."""
    header = ticks.header
    if "action_kind" not in header:
        return None
    units = {key: tuple(values) for key, values in header["observation_units"].items()}
    return ActionMeaning(str(header["action_kind"]), tuple(header["action_units"]), units)


def meaning_of_manifest(manifest: Manifest) -> ActionMeaning:
    """Kind and units that a bundle states."""
    units = {port.name: port.units for port in manifest.observations}
    return ActionMeaning(manifest.action.kind, manifest.action.units, units)


def summarize(ticks: ControlTicks, meaning: ActionMeaning | None) -> LogSummary:
    """Compute all numbers of a log.

    Args:
        ticks: the log.
        meaning: kind and units of the actions; None if they are unknown, which leaves tracking out.
    """
    found = counterparts(ticks, meaning)
    ended = [episode for episode in ticks.episodes if episode.success is not None]
    return LogSummary(
        episodes=len(ticks.episodes),
        ended=len(ended),
        successes=sum(bool(episode.success) for episode in ended),
        ticks=len(ticks.records),
        duration_s=duration_s(ticks),
        missed=missed_periods(ticks.episode, ticks.tick),
        held=int((ticks.mode == Mode.HOLD).sum()),
        damped=int((ticks.mode == Mode.DAMP).sum()),
        times=log_times(ticks),
        interventions=interventions(ticks),
        elements=tuple(_element(ticks, i, meaning, found.get(i)) for i in range(len(ticks.names))),
        untracked=_untracked(meaning, found),
        start_motions=StartMotions(
            ticks=len(ticks.start_tick),
            held=int((ticks.start_mode == Mode.HOLD).sum()),
            damped=int((ticks.start_mode == Mode.DAMP).sum()),
            missed=missed_periods(ticks.start_episode, ticks.start_tick),
        ),
    )


def duration_s(ticks: ControlTicks) -> float:
    """Length of all episodes together, in seconds."""
    last = {int(episode): int(tick) for episode, tick in zip(ticks.episode, ticks.tick, strict=True)}
    first = {int(e): int(t) for e, t in zip(ticks.episode[::-1], ticks.tick[::-1], strict=True)}
    return sum(last[episode] - first[episode] + 1 for episode in last) * ticks.period_s


def missed_periods(episode: np.ndarray, tick: np.ndarray) -> int:
    """Control periods without a tick between two ticks of an episode, from the numbers (N,) of episodes and ticks."""
    same = np.diff(episode) == 0
    return int((np.diff(tick)[same] - 1).sum())


def times_us(ticks: ControlTicks) -> dict[str, np.ndarray]:
    """Samples of each measured time, in microseconds: (N,) or fewer."""
    inferred = (ticks.inference_ns > 0) & ticks.has_policy
    samples = {
        "lateness, control ticks": ticks.lateness_ns * 1e-3,
        "lateness, all servo ticks": ticks.servo_lateness_us,
        "age of the observation": ticks.age_ns * 1e-3,
        "inference": ticks.inference_ns[inferred] * 1e-3,
        "busy, wake-up to command": ticks.busy_ns * 1e-3,
    }
    return {name: values for name, values in samples.items() if len(values)}


def log_times(ticks: ControlTicks) -> tuple[LogTimes, ...]:
    """Percentiles of each measured time."""
    rows: list[LogTimes] = []
    for name, values in times_us(ticks).items():
        p50, p99, p999 = np.percentile(values, (50, 99, 99.9)).tolist()
        rows.append(LogTimes(name, len(values), p50, p99, p999, float(values.max())))
    return tuple(rows)


def interventions(ticks: ControlTicks) -> tuple[SafetyIntervention, ...]:
    """Interventions by reason, the most frequent first."""
    rows: list[SafetyIntervention] = []
    neighbors = ticks.consecutive()
    for reason in Reason:
        hit = (ticks.reason & int(reason)) != 0
        if hit.any():
            at = int(np.argmax(hit))
            rows.append(
                SafetyIntervention(
                    reason=str(reason.name).lower(),
                    ticks=int(hit.sum()),
                    share=float(hit.mean()),
                    bad=bool(reason & (BAD | Reason.DAMPED)),
                    first=(int(ticks.episode[at]), int(ticks.tick[at])),
                    longest=longest_run(hit, neighbors),
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.ticks))


def longest_run(hit: np.ndarray, neighbors: np.ndarray) -> int:
    """Most consecutive true values.

    Args:
        hit: (N,) bool.
        neighbors: (N-1,) whether an entry and the next belong together.
    """
    longest = run = 0
    for i, here in enumerate(hit.tolist()):
        run = 0 if not here else run + 1 if i > 0 and neighbors[i - 1] else 1
        longest = max(longest, run)
    return longest


def seams(ticks: ControlTicks) -> np.ndarray:
    """(N-1,) whether a tick is followed by one of another chunk."""
    return _pairs(ticks) & (np.diff(ticks.decision) != 0)


def _pairs(ticks: ControlTicks) -> np.ndarray:
    """(N-1,) whether the policy gave the action of a tick and that of the next control period."""
    return ticks.consecutive() & ticks.has_policy[:-1] & ticks.has_policy[1:]


def step_sizes(steps: np.ndarray) -> StepSizes | None:
    """Percentiles of absolute steps; None for no finite one."""
    finite = np.abs(steps[np.isfinite(steps)])
    if not len(finite):
        return None
    p50, p99 = np.percentile(finite, (50, 99)).tolist()
    return StepSizes(len(finite), p50, p99, float(finite.max()))


def counterparts(ticks: ControlTicks, meaning: ActionMeaning | None) -> dict[int, MeasuredAs]:
    """Measured positions by action element, for position targets; see `measured_as`."""
    if meaning is None or meaning.kind != "position":
        return {}
    observations = {
        key: (ticks.header["observations"][key], meaning.observation_units[key])
        for key in ticks.observation_keys
        if ticks.is_flat(key)
    }
    found = {
        i: measured_as(name, unit, observations)
        for i, (name, unit) in enumerate(zip(ticks.names, meaning.units, strict=True))
    }
    return {i: one for i, one in found.items() if one is not None}


def tracking_error(ticks: ControlTicks, element: int, counterpart: MeasuredAs) -> TrackingError | None:
    """Error of one position target; None if no target was followed by a measurement one control period later."""
    measured = ticks.observed(counterpart.key, counterpart.element)
    target = ticks.sent[:, element].astype(np.float64) * counterpart.factor
    pairs = ticks.consecutive() & (ticks.mode[:-1] == Mode.ACTIVE)
    error = (measured[1:] - target[:-1])[pairs]
    error = error[np.isfinite(error)]
    if not len(error):
        return None
    return TrackingError(
        measured=f"{counterpart.key}/{counterpart.name}",
        unit=counterpart.unit,
        count=len(error),
        mean=float(error.mean()),
        rms=float(np.sqrt((error**2).mean())),
        p99_abs=float(np.percentile(np.abs(error), 99)),
        max_abs=float(np.abs(error).max()),
    )


def _element(
    ticks: ControlTicks, element: int, meaning: ActionMeaning | None, counterpart: MeasuredAs | None
) -> ActionElement:
    policy, sent = ticks.policy[:, element], ticks.sent[:, element]
    low, high = (array_of(ticks.header[field])[element] for field in ("low", "high"))
    active = (ticks.mode == Mode.ACTIVE) & ticks.has_policy
    wanted = np.clip(policy, low, high)
    of_rate = ((ticks.reason & Reason.RATE_LIMITED) != 0) & ((ticks.reason & Reason.RAMPED) == 0)
    steps, seam = np.diff(policy), seams(ticks)
    return ActionElement(
        name=ticks.names[element],
        unit="" if meaning is None else meaning.units[element],
        clamped=_share((wanted != policy) & active, active),
        rate_limited=_share(of_rate & active & (sent != wanted), active),
        inside=step_sizes(steps[_pairs(ticks) & ~seam]),
        seams=step_sizes(steps[seam]),
        tracking=None if counterpart is None else tracking_error(ticks, element, counterpart),
    )


def _share(hit: np.ndarray, among: np.ndarray) -> float:
    return float(hit.sum() / among.sum()) if among.any() else 0.0


def _untracked(meaning: ActionMeaning | None, found: dict[int, MeasuredAs]) -> str:
    if found:
        return ""
    if meaning is None:
        return "the log is of an older version, which does not state the kind of the actions; --bundle does"
    if meaning.kind != "position":
        return f"the actions are of kind {meaning.kind}, not position targets"
    return "no observation has the name and unit of a position target"


def nearest_tick(ticks: ControlTicks, episode: int, tick: int) -> tuple[int, int]:
    """Episode and tick of the log that are nearest to given ones; the episode counts first."""
    episodes: Sequence[int] = [logged.number for logged in ticks.episodes]
    near = min(episodes, key=lambda number: abs(number - episode))
    numbers = ticks.tick[ticks.episode == near]
    return near, int(numbers[np.argmin(np.abs(numbers - tick))])
