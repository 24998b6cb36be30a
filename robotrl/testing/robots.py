"""Checks that every robot driver must pass; `CHECKS` lists them, each raises AssertionError.

A driver of one's own is checked by `check_robot(make)`, or one by one: `for check in CHECKS: check(RobotCase(make))`.
The checks run it in real time, as the control loop does, and so are the same for a simulated and a real robot. They
move it: each action element alone, by `RobotCase.amplitude` of its range. They need neither torch nor a simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from robotrl.deploy.control.realtime import sleep_until
from robotrl.deploy.robots.driver import RobotSim, TimedObservation
from robotrl.deploy.robots.link import MAX_ACTION, MAX_OBSERVATION, now_ns
from robotrl.deploy.robots.start_motion import StartMotion, StartsByCommands
from robotrl.errors import nearest, short
from robotrl.spec import Spec, Split

SPLITS: tuple[Split, ...] = ("train", "val", "test")
MEMBERS = (*RobotSim.__annotations__, *(name for name in vars(RobotSim) if not name.startswith("_")))
"""Names that a driver must have."""
SI_OF = {
    "deg": "rad",
    "degree": "rad",
    "degrees": "rad",
    "deg/s": "rad/s",
    "rpm": "rad/s",
    "mm": "m",
    "cm": "m",
    "inch": "m",
    "mm/s": "m/s",
    "cm/s": "m/s",
    "km/h": "m/s",
    "ms": "s",
    "g": "kg",
    "Ncm": "N m",
}
"""Units that drivers often have, and the SI units in which bundles expect them."""
_RATIO_TOLERANCE = 1e-6


class RobotCase(NamedTuple):
    """A driver to be checked, and how far it may be moved."""

    make: Callable[[int], RobotSim]
    """Seed to the driver. Each check makes one; a real robot that can be connected once takes `functools.cache`."""
    rest: tuple[float, ...] | None = None
    """(A,) action under which the robot stands still; None takes 0, or the bound nearest to it."""
    amplitude: float = 0.1
    """Motions, as a fraction of the range of an action element, above 0 and up to 1."""
    motion_s: float = 0.2
    """Length of a motion in seconds, rounded up to control periods."""
    tolerance: float = 0.0
    """Largest difference between two equal runs, in the units of the observations; 0 for an exact simulation."""


def check_robot(
    make: Callable[[int], RobotSim],
    *,
    rest: tuple[float, ...] | None = None,
    amplitude: float = 0.1,
    motion_s: float = 0.2,
    tolerance: float = 0.0,
) -> None:
    """Run all checks of a driver; the arguments are those of `RobotCase`.

    Raises:
        AssertionError: names what is wrong, its value and what was expected.
    """
    case = RobotCase(make, rest, amplitude, motion_s, tolerance)
    for check in CHECKS:
        check(case)


def has_all_members(case: RobotCase) -> None:
    """The driver has all attributes and methods of `RobotSim`."""
    robot = case.make(0)
    present = [name for name in dir(robot) if not name.startswith("_")]
    for name in MEMBERS:
        close = nearest(name, present)
        hint = f"did you mean {name!r} by {close!r}? " if close else ""
        assert name in present, f"driver {type(robot).__name__} lacks {name!r}: {hint}expected {', '.join(MEMBERS)}"


def specs_state_units_and_bounds(case: RobotCase) -> None:
    """Every element has a name, an SI unit and bounds, and an action element has finite ones."""
    robot = case.make(0)
    assert isinstance(robot.observation_spec, Mapping), _kind("observation_spec", robot.observation_spec, "a dict")
    assert robot.observation_spec, "observation_spec is empty: expected a Spec for each observation"
    for key, spec in robot.observation_spec.items():
        _check_spec(f"observation {key!r}", spec)
    _check_spec("action", robot.action_spec)
    spec = robot.action_spec
    assert len(spec.shape) == 1, f"action has shape {spec.shape}: expected one axis"
    for name, low, high in zip(spec.names, spec.low, spec.high, strict=True):
        assert math.isfinite(low) and math.isfinite(high), (
            f"action element {name!r} has bounds {low} and {high}: expected finite numbers, within which it may move"
        )
    size = sum(int(np.prod(spec.shape)) for spec in robot.observation_spec.values())
    assert size <= MAX_OBSERVATION, f"the observations have {size} elements: expected {MAX_OBSERVATION} or fewer"
    assert len(spec.names) <= MAX_ACTION, f"action has {len(spec.names)} elements: expected {MAX_ACTION} or fewer"
    if isinstance(robot, StartsByCommands):
        _check_start_motion(robot)


def _check_spec(what: str, spec: Any) -> None:
    assert isinstance(spec, Spec), _kind(what, spec, "a robotrl.spec.Spec")
    for name, unit, low, high in zip(spec.names, spec.units, spec.low, spec.high, strict=True):
        where = f"{what} element {name!r}"
        assert name.strip(), f"{what} has an element named {name!r}: expected a name that says what it is"
        assert unit.strip(), f"{where} has unit {unit!r}: expected an SI unit, '1' for a number without one"
        assert unit not in SI_OF, f"{where} has unit {unit!r}: expected SI, {SI_OF.get(unit)!r}"
        assert low < high, (
            f"{where} has bounds {low} and {high}: expected numbers, the lower first (-inf, inf for none)"
        )


def _kind(what: str, found: object, expected: str) -> str:
    return f"{what} is {short(repr(found))} of type {type(found).__name__}: expected {expected}"


def periods_divide(case: RobotCase) -> None:
    """Both periods are above 0, and a control period is a whole number of inner ones."""
    robot = case.make(0)
    for field, value in (("control_dt_s", robot.control_dt_s), ("inner_dt_s", robot.inner_dt_s)):
        assert 0 < value < math.inf, f"{field} is {value!r}: expected seconds above 0"
    ratio = robot.control_dt_s / robot.inner_dt_s
    whole = max(1, round(ratio))
    assert abs(ratio - whole) <= _RATIO_TOLERANCE * whole, (
        f"inner_dt_s is {robot.inner_dt_s!r}: expected a whole part of control_dt_s ({robot.control_dt_s!r}), "
        f"such as {robot.control_dt_s / whole:.6g}"
    )


def starts_are_numbered(case: RobotCase) -> None:
    """Each split is a range of ids of its own; that of "test" has one at least."""
    robot = case.make(0)
    splits = {split: robot.state_ids(split) for split in SPLITS}
    for split, ids in splits.items():
        assert isinstance(ids, range), _kind(f"state_ids({split!r})", ids, "a range of ids")
        assert ids.step == 1 and ids.start >= 0, f"state_ids({split!r}) is {ids}: expected step 1, from 0 or more"
    assert splits["test"], f"state_ids('test') is empty ({splits['test']}): expected one id at least, to start from"
    for (a, first), (b, second) in combinations(splits.items(), 2):
        shared = range(max(first.start, second.start), min(first.stop, second.stop))
        assert not shared, f"id {shared[0]} is in state_ids({a!r}) and state_ids({b!r}): expected disjoint splits"


def _check_start_motion(robot: Any) -> None:
    """A robot that the servo moves to its start says a pose within its bounds, speeds and tolerances above 0."""
    spec, motion = robot.action_spec, robot.start_motion
    assert isinstance(motion, StartMotion), _kind("start_motion", motion, "a StartMotion")
    for field, values in motion._asdict().items():
        assert len(values) == len(spec.names), (
            f"start_motion.{field} has {len(values)} numbers: expected {len(spec.names)}, one for each action element"
        )
    for i, name in enumerate(spec.names):
        assert spec.low[i] <= motion.pose[i] <= spec.high[i], (
            f"start_motion.pose of {name!r} is {motion.pose[i]}: expected {spec.low[i]} to {spec.high[i]}, its bounds"
        )
        for field, value in (("speed", motion.speed[i]), ("tolerance", motion.tolerance[i])):
            assert 0 < value < math.inf, f"start_motion.{field} of {name!r} is {value}: expected more than 0"


def observations_match_their_specs(case: RobotCase) -> None:
    """Observations have keys, shapes, types and bounds of their specs and finite values, at rest and in motion."""
    robot = case.make(0)
    _check_observation(robot, robot.reset(_start(robot)), "returned by reset")
    rest = _rest(case, robot.action_spec)
    periods = _periods(case, robot)
    for element in range(len(rest)):
        robot.reset(_start(robot))
        robot.command(_moved(case, robot.action_spec, rest, element))
        for period in range(periods):
            _let_pass(robot, (1,) * _inner_steps(robot))
            _check_observation(robot, _observed(robot), f"after {period + 1} control periods")


def _check_observation(robot: RobotSim, obs: Any, when: str) -> None:
    assert isinstance(obs, Mapping), _kind(f"the observation {when}", obs, "a dict of arrays")
    lacking = [key for key in robot.observation_spec if key not in obs]
    assert not lacking, f"the observation {when} lacks {lacking[0]!r}: it has {', '.join(obs)}"
    extra = [key for key in obs if key not in robot.observation_spec]
    known = ", ".join(robot.observation_spec)
    assert not extra, f"the observation {when} has {extra[0]!r}: expected the keys of observation_spec: {known}"
    for key, spec in robot.observation_spec.items():
        what, value = f"observation {key!r} {when}", obs[key]
        assert isinstance(value, np.ndarray), _kind(what, value, "a numpy array")
        assert value.shape == spec.shape, f"{what} has shape {value.shape}: expected {spec.shape}"
        assert value.dtype in (np.float32, np.dtype(spec.dtype)), f"{what} is {value.dtype}: expected float32"
        for column, name in enumerate(spec.names):
            numbers = np.asarray(value[..., column], np.float32).ravel()
            bad = numbers[~np.isfinite(numbers)]
            assert not len(bad), f"{what} has element {name!r} at {bad[0]}: expected a finite number"
            low, high = np.float32(spec.low[column]), np.float32(spec.high[column])
            beyond = numbers[(numbers < low) | (numbers > high)]
            assert not len(beyond), (
                f"{what} has element {name!r} at {beyond[0]} {spec.units[column]}: expected {low} to {high}"
            )


def measurements_have_a_time(case: RobotCase) -> None:
    """A `TimedObservation` states a time that is not in the future, never goes back, and goes on."""
    robot = case.make(0)
    robot.reset(_start(robot))
    robot.command(_rest(case, robot.action_spec))
    stamps: list[int] = []
    for _ in range(_periods(case, robot) + 1):
        found = robot.observe()
        if not isinstance(found, TimedObservation):
            return
        stamp, now = found.stamp_ns, now_ns()
        assert type(stamp) is int, _kind("stamp_ns", stamp, "whole nanoseconds of time.monotonic_ns()")
        assert stamp <= now, (
            f"stamp_ns is {stamp}, {(stamp - now) * 1e-9:.3g} s ahead of time.monotonic_ns(): expected that clock"
        )
        stamps.append(stamp)
        _let_pass(robot, (1,) * _inner_steps(robot))
    for before, after in pairwise(stamps):
        assert after >= before, f"stamp_ns went from {before} back to {after}: expected a time that never goes back"
    assert stamps[-1] > stamps[0], (
        f"stamp_ns stayed {stamps[0]} for {len(stamps) - 1} control periods: expected the time of each measurement"
    )


def each_action_element_is_executed(case: RobotCase) -> None:
    """Each action element alone changes an observation."""
    robot = case.make(0)
    spec = robot.action_spec
    rest = _rest(case, spec)
    still = _run(case, robot, rest)
    for element, name in enumerate(spec.names):
        action = _moved(case, spec, rest, element)
        found = _difference(robot, still, _run(case, robot, action))
        assert found is not None and found.size > case.tolerance, (
            f"action element {name!r} at {action[element]} instead of {rest[element]} {spec.units[element]} for "
            f"{_periods(case, robot)} control periods changes no observation"
            f"{f' by more than {case.tolerance}' if case.tolerance else ''}: expected that `command` executes it"
        )


def reset_restores_the_start(case: RobotCase) -> None:
    """After a motion, a reset gives the start again: its observation, rest before a command, and the same motion."""
    robot = case.make(0)
    if isinstance(robot, StartsByCommands):
        return  # the servo moves it there
    rest = _rest(case, robot.action_spec)
    away = _moved(case, robot.action_spec, rest, 0)
    rounds: list[tuple[dict[str, np.ndarray], ...]] = []
    for _ in range(2):
        first = _copied(robot.reset(_start(robot)))
        shown = _observed(robot)
        _let_pass(robot, (1,) * _inner_steps(robot))
        waiting = _observed(robot)
        rounds.append((first, shown, waiting, _run_on(case, robot, away)))
    moments = ("returned by reset", "observed after reset", "before the first command", "after a motion from the start")
    for moment, before, after in zip(moments, *rounds, strict=True):
        _assert_alike(case, robot, before, after, f"{moment}, after the second reset to start {_start(robot)}")
    _assert_alike(case, robot, rounds[0][1], rounds[0][0], "returned by reset, unlike the one observed after it")


def late_steps_are_caught_up(case: RobotCase) -> None:
    """`advance(n)` does what n calls of `advance(1)` do, since a late driver catches up in one call."""
    robot = case.make(0)
    steps = _periods(case, robot) * _inner_steps(robot)
    away = _moved(case, robot.action_spec, _rest(case, robot.action_spec), 0)
    ends: list[dict[str, np.ndarray]] = []
    for strides in ((1,) * steps, (steps,)):
        robot.reset(_start(robot))
        robot.command(away)
        _let_pass(robot, strides)
        ends.append(_observed(robot))
    _assert_alike(case, robot, ends[0], ends[1], f"after advance({steps}), unlike that after {steps} times advance(1)")


def success_is_true_or_false(case: RobotCase) -> None:
    """`success` returns a bool at the start and after a motion."""
    robot = case.make(0)
    robot.reset(_start(robot))
    for _ in range(2):
        found: object = robot.success()
        assert isinstance(found, bool | np.bool_), _kind("success()", found, "True or False")
        _run_on(case, robot, _moved(case, robot.action_spec, _rest(case, robot.action_spec), 0))


def _start(robot: RobotSim) -> int:
    """Start of the checks: the first held-out one."""
    return robot.state_ids("test")[0]


def _inner_steps(robot: RobotSim) -> int:
    """Inner steps of a control period."""
    return max(1, round(robot.control_dt_s / robot.inner_dt_s))


def _periods(case: RobotCase, robot: RobotSim) -> int:
    """Control periods of a motion."""
    return max(1, math.ceil(case.motion_s / robot.control_dt_s))


def _rest(case: RobotCase, spec: Spec) -> np.ndarray:
    rest = np.zeros(spec.shape) if case.rest is None else np.asarray(case.rest)
    assert rest.shape == spec.shape, f"rest has shape {rest.shape}: expected {spec.shape}, as the action"
    return np.clip(rest, spec.low, spec.high).astype(np.float32)


def _moved(case: RobotCase, spec: Spec, rest: np.ndarray, element: int) -> np.ndarray:
    """The rest with one element moved towards the bound that is farther away, or to another choice."""
    assert 0 < case.amplitude <= 1, f"amplitude is {case.amplitude!r}: expected above 0 and up to 1"
    low, high = spec.low[element], spec.high[element]
    way = 1.0 if high - rest[element] >= rest[element] - low else -1.0
    out = rest.copy()
    out[element] += way * (1.0 if spec.choices is not None else case.amplitude * (high - low))
    return np.clip(out, spec.low, spec.high).astype(np.float32)


def _let_pass(robot: RobotSim, strides: Sequence[int]) -> None:
    """Advance in calls of so many inner steps each, in real time."""
    began, steps = now_ns(), 0
    for stride in strides:
        robot.advance(stride)
        steps += stride
        sleep_until(began + round(steps * robot.inner_dt_s * 1e9))


def _observed(robot: RobotSim) -> dict[str, np.ndarray]:
    found = robot.observe()
    return _copied(found.observations if isinstance(found, TimedObservation) else found)


def _copied(obs: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of an observation, which a later step does not overwrite; what is no array is left as it is."""
    return {key: value.copy() if isinstance(value, np.ndarray) else value for key, value in obs.items()}


def _run_on(case: RobotCase, robot: RobotSim, action: np.ndarray) -> dict[str, np.ndarray]:
    """Observation after a motion from the present state."""
    robot.command(action)
    _let_pass(robot, (1,) * (_periods(case, robot) * _inner_steps(robot)))
    return _observed(robot)


def _run(case: RobotCase, robot: RobotSim, action: np.ndarray) -> dict[str, np.ndarray]:
    """Observation after a motion from the start."""
    robot.reset(_start(robot))
    return _run_on(case, robot, action)


class _Difference(NamedTuple):
    """The element in which two observations differ most."""

    size: float
    where: str
    before: float
    after: float


def _difference(
    robot: RobotSim, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> _Difference | None:
    """The largest difference of two observations; None if they are equal."""
    found: _Difference | None = None
    for key, spec in robot.observation_spec.items():
        a, b = (obs[key].reshape(-1, len(spec.names)).astype(np.float64) for obs in (before, after))
        size = np.abs(a - b)
        row, column = np.unravel_index(int(np.argmax(size)), size.shape)
        if size[row, column] > (0.0 if found is None else found.size):
            where = f"observation {key!r} element {spec.names[int(column)]!r}"
            found = _Difference(float(size[row, column]), where, float(a[row, column]), float(b[row, column]))
    return found


def _assert_alike(
    case: RobotCase, robot: RobotSim, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], when: str
) -> None:
    found = _difference(robot, before, after)
    within = f", within {case.tolerance}" if case.tolerance else ""
    assert found is None or found.size <= case.tolerance, (
        f"{found.where} is {found.after:.9g} {when}: expected {found.before:.9g}{within}"
    )


CHECKS: tuple[Callable[[RobotCase], None], ...] = (
    has_all_members,
    specs_state_units_and_bounds,
    periods_divide,
    starts_are_numbered,
    observations_match_their_specs,
    measurements_have_a_time,
    each_action_element_is_executed,
    reset_restores_the_start,
    late_steps_are_caught_up,
    success_is_true_or_false,
)
"""All checks of a driver."""
