"""`robotrl.testing.robots`: all robots of ours pass, and drivers with one fault each are refused by name."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType

import numpy as np
import pytest

from robotrl.deploy.robots.driver import TimedObservation
from robotrl.deploy.robots.sim_robot import factory
from robotrl.deploy.robots.two_joints import ACTION_SPEC, OBSERVATION_SPEC, TwoJointsRobot
from robotrl.registry import ROBOT_SIMS
from robotrl.spec import Spec
from robotrl.testing import robots as checks
from robotrl.testing.robots import CHECKS, RobotCase, check_robot
from tests.kits.deploy_cart import make_cart
from tests.kits.refusals import times_named

STATE = OBSERVATION_SPEC["state"]
TEMPLATE = "robotrl.deploy.robots.two_joints:make"
SHORT = 0.06


@pytest.mark.parametrize("name", [*sorted(ROBOT_SIMS.rows()), "mujoco/hopper", "gym/CartPole-v1", TEMPLATE])
def test_every_robot_of_ours_passes(name: str) -> None:
    # sims with a control period of 50 ms need two of them until a change shows
    check_robot(factory(name), motion_s=0.1)


def test_the_checks_load_neither_torch_nor_a_simulator() -> None:
    code = "import sys, robotrl.testing.robots; print({'torch', 'mujoco', 'gymnasium'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class RealJoints(TwoJointsRobot):
    """A robot that moves by itself, in a thread as an SDK has one; its driver's `advance` does nothing."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.measured = super().observe()
        self.reply = threading.Lock()
        threading.Thread(target=self.move, daemon=True).start()

    def move(self) -> None:
        before = time.monotonic()
        while True:
            time.sleep(0.002)
            with self.reply:
                now = time.monotonic()
                self.joints = self.joints + (1 - math.exp((before - now) / 0.05)) * (self.target - self.joints)
                self.measured, before = super().observe(), now

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        with self.reply:
            super().reset(state_id)
            self.measured = super().observe()
            return self.measured.observations

    def advance(self, inner_steps: int) -> None:
        pass

    def observe(self) -> TimedObservation:
        return self.measured


def test_a_robot_that_moves_by_itself_passes() -> None:
    # 0.6 rad are commanded for 0.2 s, four time constants: equal runs agree to 0.01 rad, and to 0.3 on a busy machine
    check_robot(RealJoints, amplitude=0.1, motion_s=0.2, tolerance=0.3)


def test_a_tolerance_is_needed_and_heard() -> None:
    class Noisy(TwoJointsRobot):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self.rng = np.random.default_rng(0)

        def observe(self) -> TimedObservation:
            obs, stamp = super().observe()
            return TimedObservation({"state": np.float32(obs["state"] + self.rng.uniform(-1e-3, 1e-3, 4))}, stamp)

    with pytest.raises(AssertionError, match=r"element 'joint_.*returned by reset"):
        checks.reset_restores_the_start(RobotCase(Noisy, motion_s=SHORT))
    check_robot(Noisy, motion_s=SHORT, tolerance=2.1e-3)


def spec(**changes: object) -> type[TwoJointsRobot]:
    """A robot whose observation has another spec."""
    return type("Specified", (TwoJointsRobot,), {"observation_spec": {"state": replace(STATE, **changes)}})


def acts(**changes: object) -> type[TwoJointsRobot]:
    return type("Acting", (TwoJointsRobot,), {"action_spec": replace(ACTION_SPEC, **changes)})


def showing(change: Callable[[np.ndarray], object], key: str = "state") -> type[TwoJointsRobot]:
    """A robot whose observations are changed while it moves."""

    class Showing(TwoJointsRobot):
        def observe(self) -> TimedObservation:
            obs, stamp = super().observe()
            moved = bool(np.abs(self.joints).max() > 0.01)
            return TimedObservation({key: change(obs["state"])} if moved else obs, stamp)  # type: ignore[dict-item]

    return Showing


def stamped(stamp_ns: Callable[[int], object]) -> type[TwoJointsRobot]:
    """A robot that states other times, from its k-th observation."""

    class Stamped(TwoJointsRobot):
        seen = 0

        def observe(self) -> TimedObservation:
            self.seen += 1
            return TimedObservation(super().observe().observations, stamp_ns(self.seen))  # type: ignore[arg-type]

    return Stamped


class Misspelt:
    """A driver whose `advance` has another name."""

    observation_spec, action_spec, control_dt_s, inner_dt_s = OBSERVATION_SPEC, ACTION_SPEC, 0.02, 0.005

    def __init__(self, seed: int) -> None:
        pass

    def reset(self) -> None: ...

    command = advances = observe = success = state_ids = reset


class SecondOnly(TwoJointsRobot):
    def command(self, action: np.ndarray) -> None:
        self.target = np.array([self.target[0], action[1]])


class KeepsCommand(TwoJointsRobot):
    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        kept = self.target
        super().reset(state_id)
        self.target = kept
        return self.observe().observations


class KeepsPose(TwoJointsRobot):
    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        kept = self.joints
        super().reset(state_id)
        self.joints = kept
        return self.observe().observations


class OldReset(TwoJointsRobot):
    """What `reset` returns is what was there before it."""

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        before = self.observe().observations
        super().reset(state_id)
        return before


class OneStep(TwoJointsRobot):
    def advance(self, inner_steps: int) -> None:
        super().advance(1)


class Overlap(TwoJointsRobot):
    def state_ids(self, split: str) -> range:
        return {"train": range(0, 10), "val": range(10, 20), "test": range(19, 30)}[split]


def with_members(**members: object) -> type[TwoJointsRobot]:
    return type("Changed", (TwoJointsRobot,), members)


FAULTY: list[tuple[type, str, tuple[object, ...]]] = [
    (Misspelt, "has_all_members", ("Misspelt", "'advance'", "'advances'")),
    (spec(units=("rad", "", "rad", "rad")), "specs_state_units_and_bounds", ("'joint_2_pos'", "''", "'1'")),
    (spec(units=("rad", "deg", "rad", "rad")), "specs_state_units_and_bounds", ("'joint_2_pos'", "'deg'", "'rad'")),
    (spec(low=(4.0, -3, -2, -2)), "specs_state_units_and_bounds", ("'joint_1_pos'", "4.0", "3.2")),
    (spec(low=(math.nan, -3, -2, -2)), "specs_state_units_and_bounds", ("'joint_1_pos'", "nan")),
    (spec(names=("a", " ", "b", "c")), "specs_state_units_and_bounds", ("'state'", "' '")),
    (acts(high=(3.0, math.inf)), "specs_state_units_and_bounds", ("'joint_2_target'", "inf", "finite")),
    (with_members(observation_spec={}), "specs_state_units_and_bounds", ("observation_spec", "Spec")),
    (with_members(observation_spec=STATE), "specs_state_units_and_bounds", ("observation_spec", "Spec", "dict")),
    (with_members(action_spec=(2,)), "specs_state_units_and_bounds", ("action", "(2,)", "robotrl.spec.Spec")),
    (
        with_members(action_spec=Spec((1, 2), *(("a", "b"), ("N", "N"), (-1.0, -1.0), (1.0, 1.0)))),
        "specs_state_units_and_bounds",
        ("action", "(1, 2)"),
    ),
    (with_members(inner_dt_s=0.003), "periods_divide", ("inner_dt_s", "0.003", "0.02", "0.00285714")),
    (with_members(inner_dt_s=0.03), "periods_divide", ("inner_dt_s", "0.03", "0.02")),
    (with_members(inner_dt_s=0.0), "periods_divide", ("inner_dt_s", "0.0")),
    (with_members(control_dt_s=math.nan), "periods_divide", ("control_dt_s", "nan")),
    (with_members(state_ids=lambda self, split: range(0)), "starts_are_numbered", ("'test'", "range(0, 0)")),
    (with_members(state_ids=lambda self, split: [1]), "starts_are_numbered", ("'train'", "[1]", "range")),
    (with_members(state_ids=lambda self, split: range(9, 0, -1)), "starts_are_numbered", ("'train'", "step")),
    (Overlap, "starts_are_numbered", ("19", "'val'", "'test'")),
    (showing(lambda state: state[:3]), "observations_match_their_specs", ("'state'", "(3,)", "(4,)")),
    (showing(lambda state: state, "stat"), "observations_match_their_specs", ("'state'", "stat")),
    (showing(list), "observations_match_their_specs", ("'state'", "list", "numpy")),
    (showing(lambda s: s.astype(np.float64)), "observations_match_their_specs", ("'state'", "float64", "float32")),
    (showing(lambda s: s * np.float32(math.nan)), "observations_match_their_specs", ("'joint_1_pos'", "nan")),
    (showing(lambda s: s - np.float32(9.5)), "observations_match_their_specs", ("'joint_1_pos'", "rad", "3.2")),
    (
        with_members(observation_spec={**OBSERVATION_SPEC, "touch": ACTION_SPEC}),
        "observations_match_their_specs",
        ("'touch'", "state"),
    ),
    (stamped(lambda seen: time.monotonic_ns() + 10**9), "measurements_have_a_time", ("stamp_ns", "time.monotonic_ns")),
    (stamped(lambda seen: 5), "measurements_have_a_time", ("stamp_ns", "5")),
    (stamped(lambda seen: 10**6 - seen), "measurements_have_a_time", ("stamp_ns", "999997", "999998")),
    (stamped(lambda seen: time.monotonic()), "measurements_have_a_time", ("stamp_ns", "float", "time.monotonic_ns")),
    (SecondOnly, "each_action_element_is_executed", ("'joint_1_target'", "rad", "'command'")),
    (KeepsPose, "reset_restores_the_start", ("'joint_1_pos'", "0")),
    (KeepsCommand, "reset_restores_the_start", ("'joint_1_pos'", "before the first command", "0")),
    (OldReset, "reset_restores_the_start", ("'joint_1_goal'", "returned by reset", "0")),
    (OneStep, "late_steps_are_caught_up", ("'joint_1_pos'", "advance(12)", "advance(1)")),
    (with_members(success=lambda self: 1), "success_is_true_or_false", ("success()", "1", "int")),
    (with_members(success=lambda self: None), "success_is_true_or_false", ("success()", "None")),
]


@pytest.mark.parametrize(("make", "check", "named"), FAULTY, ids=lambda value: getattr(value, "__name__", None))
def test_a_faulty_driver_is_refused_by_name(make: type, check: str, named: tuple[object, ...]) -> None:
    with pytest.raises(AssertionError) as caught:
        check_robot(make, motion_s=SHORT)
    said = str(caught.value)
    assert caught.traceback[2].name == check, f"refused by {caught.traceback[2].name}: {said}"
    assert "\n" not in said
    missing = [part for part in named if not times_named(said.replace("`", "'"), part) and str(part) not in said]
    assert not missing, f"{said!r} does not name {missing}"


def test_an_element_that_the_cart_ignores_is_named() -> None:
    with pytest.raises(AssertionError, match=r"action element 'brake' at 0\.2"):
        checks.each_action_element_is_executed(RobotCase(make_cart, motion_s=SHORT))


def test_actions_are_moved_from_rest_within_their_bounds() -> None:
    case = RobotCase(TwoJointsRobot, rest=(2.9, 0.0), amplitude=0.5)
    rest = np.float32([2.9, 0.0])
    # half of the range of 6 rad, towards the farther bound: 2.9 - 3 and 0 + 3
    assert checks._moved(case, ACTION_SPEC, rest, 0) == pytest.approx([-0.1, 0.0], abs=1e-6)
    assert checks._moved(case, ACTION_SPEC, rest, 1) == pytest.approx([2.9, 3.0])
    with pytest.raises(AssertionError, match="rest has shape"):
        checks._rest(case._replace(rest=(0.0,)), ACTION_SPEC)
    with pytest.raises(AssertionError, match="amplitude is 0: expected above 0"):
        checks._moved(case._replace(amplitude=0), ACTION_SPEC, rest, 0)


def test_all_checks_are_listed() -> None:
    functions = [value for name, value in vars(checks).items() if isinstance(value, FunctionType) and name[0] != "_"]
    of_a_case = [value for value in functions if value.__annotations__ == {"case": "RobotCase", "return": "None"}]
    assert of_a_case == list(CHECKS)
