"""Motions to a start pose: commands of the servo's own, through the safety chain, in the log and computed again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.cli.main import main
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.bundle.site import SiteLimits
from robotrl.deploy.control.bad_tick import fault_words
from robotrl.deploy.control.log import START_TICK, read_log
from robotrl.deploy.control.replay import replay, replayed_ticks
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Reason
from robotrl.deploy.control.start import MotionToStart, away_from_start, toward
from robotrl.deploy.native import lockstep
from robotrl.deploy.native.lockstep import LockstepCfg, robot_info, run_in_lockstep
from robotrl.deploy.robots.link import RobotCommand, RobotFault
from robotrl.deploy.robots.start_motion import StartMotion, started_by
from robotrl.deploy.robots.two_joints import TwoJointsRobot
from robotrl.deploy.servo.link import Order, RecordKind
from robotrl.errors import ConfigError, DataError
from robotrl.testing.robots import RobotCase, specs_state_units_and_bounds
from tests.kits.deploy_cart import Cart, make_cart
from tests.kits.lockstep_log import lockstep_log
from tests.kits.real_time import undisturbed
from tests.kits.started_joints import PARKED, PERIOD_S, StartedJoints, joints_bundle, make

JOINTS = "sim:tests.kits.started_joints:make"
CFG = LockstepCfg(limit_s=0.6)
POSE, STEP = StartedJoints.start_motion.pose, np.float32([2.0, 4.0]) * np.float32(PERIOD_S)


def smooth(data: dict[str, Any]) -> None:
    data["safety"] |= {"ramp_in_s": 0.1, "max_step": [0.15, 0.15], "bad_ticks_to_damp": 4}
    data["timing"]["interpolation"] = "linear"


@pytest.fixture(scope="module", params=["plain", "smooth"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("joints") / f"{request.param}.bundle"
    return joints_bundle(path, smooth if request.param == "smooth" else lambda data: None)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return joints_bundle(tmp_path_factory.mktemp("joints") / "plain.bundle")


def test_the_way_to_the_pose_by_hand() -> None:
    plan = MotionToStart(np.float32([1.0, -1.0]), np.float32([0.5, 0.25]), np.float32([0.1, 0.1]))
    sent = np.float32([0.0, -0.5])
    way = [sent := toward(plan, sent) for _ in range(3)]
    assert np.stack(way).tolist() == [[0.5, -0.75], [1.0, -1.0], [1.0, -1.0]]
    assert away_from_start(plan, way[0], np.float32([1.0, -1.0])) == 0, "not commanded there yet"
    assert away_from_start(plan, way[1], np.float32([1.05, -0.85])) == 1, "measured elsewhere"
    assert away_from_start(plan, way[1], np.float32([np.nan, -1.0])) == 0
    assert away_from_start(plan, way[1], np.float32([1.05, -0.95])) is None


def test_the_servo_moves_the_robot_to_its_pose_and_the_policy_goes_on_from_there(
    bundle: Path, tmp_path: Path, runtime: Runtime
) -> None:
    log = tmp_path / "log.jsonl"
    lines = lockstep_log(log, bundle, runtime, lambda: StartedJoints(0), CFG, episodes=2)
    tight = "smooth" in bundle.name
    for episode in (1, 2):
        started = [line for line in lines if line["episode"] == episode and line["kind"] == START_TICK]
        ticks = [line for line in lines if line["episode"] == episode and line["kind"] == "tick"]
        assert [line["tick"] for line in started] == list(range(len(started))) and len(started) > 10
        assert all(line["reason"] & Reason.STARTING and line["mode"] == 0 for line in started)
        assert not any(line["reason"] & Reason.STARTING for line in ticks)
        way = np.array([line["sent"] for line in started])
        # from where it stands, in steps of the robot's and the bundle's speed, to the pose
        if episode == 1:
            assert np.abs(way[0] - PARKED).max() <= STEP.max() + 1e-6
        most = np.minimum(STEP, 0.15) if tight else STEP
        assert (np.abs(np.diff(way, axis=0)) <= most + 1e-6).all()
        assert way[-1].tolist() == list(POSE)
        measured = np.array(started[-1]["obs"]["state"])[:2]
        assert np.abs(measured - POSE).max() <= 0.02
        # the policy's first command starts from the pose
        first = np.array(ticks[0]["sent"])
        if tight:
            assert np.abs(first - POSE).max() <= 0.15 + 1e-6 and ticks[0]["reason"] & Reason.RAMPED
        else:
            assert first.tolist() == ticks[0]["policy"]
    found = replay(log, bundle)
    assert found.ticks == len(lines)
    assert (found.policy_max_abs, found.sent_max_abs, found.verdicts_differ) == (0, 0, 0)
    # an altered command is found, and so is a header without the motion
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows[3]["policy"][0] += 0.001
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert replay(log, bundle).policy_at == (1, 2)
    del rows[0]["start_motion"]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="its header does not say which"):
        list(replayed_ticks(log, bundle))


def servos(bundle: Path, robot: type[StartedJoints], cfg: LockstepCfg = CFG) -> Any:
    """Run both servos; the same bits. Returns the Python one's result."""
    opened = open_bundle(bundle)
    size = opened.manifest.timing.chunk_length * 2
    found = []
    for runtime in ("python", "native"):

        def infer(request: Any) -> Any:
            return request._replace(kind=1, mode=0, values=np.full(size, 0.5, np.float32)), 1_000_000

        found.append(run_in_lockstep(runtime, opened.manifest, robot(0), infer, (901, 902), cfg))
    ours, theirs = found
    for one, other in zip(ours.records, theirs.records, strict=True):
        assert (one.numbers, one.values.tobytes()) == (other.numbers, other.values.tobytes())
    for one, other in zip(ours.commands, theirs.commands, strict=True):
        assert (one[:-1], one.values.tobytes()) == (other[:-1], other.values.tobytes())
    assert ours.summary == theirs.summary
    return ours


def words(bundle: Path, found: Any, robot: StartedJoints) -> str:
    manifest = open_bundle(bundle).manifest
    wiring = wire(manifest, robot_info(robot))
    return fault_words(found.summary["fault"], "arm", manifest, wiring, None)


def test_both_servos_write_the_same_bits(bundle: Path) -> None:
    found = servos(bundle, StartedJoints)
    assert sum(r.numbers[0] == RecordKind.START for r in found.records) > 20
    # what is interpolated goes on from where the robot stands, never by way of the neutral action
    sent = np.array([c.values for c in found.commands if c.kind == RobotCommand.ACT and c.mode == 0 and c.episode == 1])
    assert np.abs(sent[0] - PARKED).max() <= STEP.max() + 1e-6


def test_ticks_and_misses_on_the_way_are_counted_apart(plain: Path, runtime: Runtime) -> None:
    robot, late = StartedJoints(0), [70_000_000]
    opened = open_bundle(plain)

    def lateness_ns() -> int:
        # once, on the way: three and a half control periods
        return late.pop() if late and robot.joints[0] > -1.0 else 0

    def infer(request: Any) -> Any:
        return request._replace(kind=1, mode=0, values=np.full(4, 0.5, np.float32)), 1_000_000

    cfg = replace(CFG, limit_s=0.2)
    found = run_in_lockstep(runtime, opened.manifest, robot, infer, (901,), cfg, lateness_ns)
    started, ticks = (
        [r.numbers[2] for r in found.records if r.numbers[0] == kind] for kind in (RecordKind.START, RecordKind.TICK)
    )
    gaps = int((np.diff(started) - 1).sum())
    start, policy = found.summary["start"], found.summary["policy"]
    assert gaps in (2, 3) and (start["misses"], policy["misses"]) == (gaps, 0)
    assert start["ticks"] == start["reasons"]["starting"] == len(started)
    assert policy["ticks"] == len(ticks) == round(0.2 / PERIOD_S) and policy["reasons"]["starting"] == 0


def test_a_stop_on_the_way_is_none_of_the_policys_ticks(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joints = list[StartedJoints]()

    class Stopped(StartedJoints):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            joints.append(self)

    def beat(world: Any) -> None:
        if joints[-1].joints[0] > -1.0 and world.last_order.kind != Order.STOP:
            world.last_order = world.last_order._replace(kind=Order.STOP, tick=world.last_order.tick + 1)
        world.servo.orders.write(world.last_order._replace(stamp_ns=world.now))

    monkeypatch.setattr(lockstep._World, "beat", beat)
    found = servos(plain, Stopped)
    *moved, stopped, end = found.records
    assert end.numbers[0] == RecordKind.STOPPED
    assert {r.numbers[0] for r in (*moved, stopped)} == {RecordKind.START}
    assert stopped.numbers[12] == Reason.STOPPED | Reason.STARTING | Reason.DAMPED
    assert found.summary["policy"]["ticks"] == 0 and found.summary["start"]["reasons"]["stopped"] == 1


def test_a_joint_that_does_not_arrive_ends_the_run(plain: Path) -> None:
    class Blocked(StartedJoints):
        def advance(self, inner_steps: int) -> None:
            super().advance(inner_steps)
            self.joints[1] = max(self.joints[1], 0.25)

    found = servos(plain, Blocked)
    assert found.records[-1].numbers[0] == RecordKind.FAULT
    assert sum(r.numbers[0] == RecordKind.START for r in found.records) == round(30 / PERIOD_S)
    said = words(plain, found, Blocked(0))
    assert "did not arrive at its start pose in episode 1 (start 901) within 30 s: 'joint_2_target' is" in said
    assert "measured at 0.25, expected -0.5; damped" in said


def test_bad_observations_hold_and_damp_it_on_the_way(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOINTS_NAN_AT", "40")
    found = servos(plain, StartedJoints)
    ticks = [r for r in found.records if r.numbers[0] == RecordKind.START]
    assert not any(r.numbers[0] == RecordKind.TICK for r in found.records)
    bad = [r for r in ticks if Reason(r.numbers[12]) & Reason.OBS_NOT_FINITE]
    assert [r.numbers[11] for r in bad] == [1, 1, 1, 1, 2] and ticks[-5:] == bad
    assert found.summary["fault"]["kind"] == "damped"


def test_a_dry_run_moves_nothing(plain: Path) -> None:
    found = servos(plain, StartedJoints, replace(CFG, dry_run=True, accept_start=True))
    assert not any(r.numbers[0] == RecordKind.START for r in found.records)
    assert all(c.mode == 1 for c in found.commands)


def test_the_start_envelope_is_asked_after_the_motion(plain: Path, tmp_path: Path) -> None:
    def narrow(low: float, high: float) -> Path:
        copy = Path(shutil.copytree(plain, tmp_path / f"{low}"))

        def change(data: dict[str, Any]) -> None:
            start = next(one for one in data["safety"]["start"] if "joint_1_pos" in one["names"])
            at = start["names"].index("joint_1_pos")
            start["low"][at], start["high"][at] = low, high

        return graphs.reseal(copy, change)

    # the joint stands at -1.5, and its pose is 0.5
    found = servos(narrow(0.0, 1.0), StartedJoints)
    assert found.summary["fault"] == {} and any(r.numbers[0] == RecordKind.TICK for r in found.records)
    refused = servos(narrow(-2.0, 0.0), StartedJoints)
    assert refused.summary["fault"]["kind"] == "start"
    assert not any(r.numbers[0] == RecordKind.TICK for r in refused.records)


def test_the_tighter_limit_holds_on_the_way(plain: Path, tmp_path: Path, runtime: Runtime) -> None:
    site = SiteLimits.parse(
        json.dumps({"schema_version": 1, "action": {"joint_1_target": {"low": -1.0, "max_step": 0.01}}}).encode()
    )
    lines = lockstep_log(
        tmp_path / "log.jsonl", plain, runtime, lambda: StartedJoints(0), replace(CFG, site=site), episodes=1
    )
    way = np.array([line["sent"][0] for line in lines if line["kind"] == START_TICK])
    assert way.min() >= -1.0 and np.abs(np.diff(way)).max() <= 0.01 + 1e-6
    assert any(line["reason"] & Reason.RATE_LIMITED for line in lines if line["kind"] == START_TICK)
    assert replay(tmp_path / "log.jsonl", plain).verdicts_differ == 0


# who may be moved


def info(**motion: Any) -> RobotInfo:
    described = robot_info(make(0))
    assert described.start_motion is not None
    return replace(described, start_motion=described.start_motion._replace(**motion))


@pytest.mark.parametrize(
    ("motion", "says"),
    [
        ({"pose": (0.5, 3.5)}, r"start_motion.pose of 'joint_2_target' is 3.5: limits .* leave \[-3.0, 3.0\]"),
        ({"pose": (0.5,)}, "start_motion.pose of the robot has 1 numbers: expected 2"),
        ({"speed": (0.0, 1.0)}, "start_motion.speed of 'joint_1_target' is 0.0: expected more than 0"),
        ({"tolerance": (0.1, float("nan"))}, "start_motion.tolerance of 'joint_2_target' is nan: expected more than 0"),
    ],
)
def test_a_motion_that_cannot_be_is_refused(plain: Path, motion: dict[str, Any], says: str) -> None:
    manifest = open_bundle(plain).manifest
    assert wire(manifest, info()).start is not None
    with pytest.raises(ConfigError, match=says):
        wire(manifest, info(**motion))


def test_only_measured_positions_can_be_moved_to(plain: Path, tmp_path: Path) -> None:
    cart = replace(
        robot_info(Cart(0)), started_by="servo", start_motion=StartMotion((0.0, 0.0), (1.0, 1.0), (0.1, 0.1))
    )
    delta = open_bundle(kit.made("goal", tmp_path)[0]).manifest
    with pytest.raises(ConfigError, match="actions are of kind 'delta': expected position targets"):
        wire(delta, cart)
    opened = open_bundle(plain).manifest
    (state, *rest) = opened.io.inputs
    names = ("joint_1_pos", "other", *state.names[2:])
    unmeasured = replace(opened, io=replace(opened.io, inputs=(replace(state, names=names), *rest)))
    described = info()
    spec = replace(described.observation_spec["state"], names=names)
    with pytest.raises(ConfigError, match="'joint_2_target' has no observation that measures it"):
        wire(unmeasured, replace(described, observation_spec={"state": spec}))


def test_the_introduction_says_what_moves_the_robot() -> None:
    assert (started_by(make(0)), started_by(TwoJointsRobot(0)), started_by(make_cart(0))) == (
        "servo",
        "driver",
        "driver",
    )
    described = robot_info(make(0))
    data: dict[str, Any] = {
        "observation_spec": {key: spec.to_json() for key, spec in described.observation_spec.items()},
        "action_spec": described.action_spec.to_json(),
        "control_dt_s": 0.02,
        "inner_dt_s": 0.005,
        "limit_s": None,
        "test_ids": [0, 1],
    }
    assert RobotInfo.from_json(data).started_by == "driver", "a driver with a loop of its own may say nothing"
    motion = StartedJoints.start_motion
    found = RobotInfo.from_json({**data, "started_by": "servo", "start_motion": motion.to_json()})
    assert (found.started_by, found.start_motion) == ("servo", motion)
    for wrong in ({"started_by": "me"}, {"start_motion": {"pose": [0.0]}}):
        with pytest.raises(RobotFault, match="the robot's introduction is not one"):
            RobotInfo.from_json({**data, **wrong})


def test_a_driver_is_checked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    specs_state_units_and_bounds(RobotCase(make))
    wrong = {
        "start_motion.pose of 'joint_2_target' is 4.0": StartMotion((0.5, 4.0), (1.0, 1.0), (0.1, 0.1)),
        "start_motion.speed has 1 numbers: expected 2": StartMotion((0.5, 1.0), (1.0,), (0.1, 0.1)),
        "start_motion.tolerance of 'joint_1_target' is 0.0": StartMotion((0.5, 1.0), (1.0, 1.0), (0.0, 0.1)),
    }
    for says, motion in wrong.items():
        monkeypatch.setattr(StartedJoints, "start_motion", motion)
        with pytest.raises(AssertionError, match=says):
            specs_state_units_and_bounds(RobotCase(make))


# real processes


@undisturbed
def test_a_robot_is_moved_to_its_start_in_real_time(
    plain: Path, tmp_path: Path, runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    report = run_control(plain, JOINTS, episodes=2, limit_s=1.5, log=log, runtime=runtime)
    assert (report.started_by, report.safety.held) == ("servo", 0)
    header, records = read_log(log)
    assert header["started_by"] == "servo" and np.allclose(header["start_motion"]["pose"], POSE)
    started = [r for r in records if r["kind"] == START_TICK]
    assert {r["episode"] for r in started} == {1, 2}
    # ticks of the motion are checked by the chain, and counted apart from the policy's
    assert report.start_safety.ticks == report.start_safety.reasons["starting"] == len(started)
    assert report.safety.ticks == report.ticks and report.safety.reasons["starting"] == 0
    found = replay(log, plain)
    assert (found.policy_max_abs, found.sent_max_abs, found.verdicts_differ) == (0, 0, 0)
    assert main(["report", str(log), "--bundle", str(plain)]) == 0
    said = capsys.readouterr().out
    assert f"starts     the servo moved the robot there, through the safety chain: {len(started)} ticks, 0 held" in said
    assert f"{len(started) + report.ticks:,} ticks and" in said and "bit for bit" in said
    # a tick of the episode, and not that of the motion with its number
    assert main(["report", str(log), "--bundle", str(plain), "--tick", "1:3"]) == 0
    assert "starting" not in capsys.readouterr().out


@undisturbed
def test_a_driver_that_moves_by_itself_is_named(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    robot = ["--robot", "sim:robotrl.deploy.robots.two_joints:make", "--episodes", "1", "--log", str(log)]
    assert main(["deploy", str(plain), *robot]) == 0
    assert "starts: by the driver's own motion, which the safety chain does not see" in capsys.readouterr().out
    header, records = read_log(log)
    assert header["started_by"] == "driver" and "start_motion" not in header
    assert not any(r["kind"] == START_TICK for r in records)
