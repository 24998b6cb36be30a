"""A bundle in command of a robot that is another process: the whole way, and the ways in which it fails."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import tests.kits.deploy_kit as kit
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.control.log import read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.report import histogram, percentiles
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Reason
from robotrl.deploy.export import export
from robotrl.deploy.robots.link import Link, RobotFault
from robotrl.deploy.robots.process import RobotProcess
from robotrl.errors import ConfigError, DataError
from tests.kits import serve_kit
from tests.kits.deploy_cart import BETWEEN, NEAR_THEN_FAR, TOLD_SPEC
from tests.kits.real_time import undisturbed
from tests.kits.refusals import raises_naming

CART = "sim:tests.kits.deploy_cart:make_cart"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.patient("goal", tmp_path_factory.getbasetemp())


def robots_of(pid: int) -> list[psutil.Process]:
    """The robots' processes that a process has started and that still run."""
    found: list[psutil.Process] = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "robotrl.deploy.robots" in " ".join(child.cmdline()):
                found.append(child)
    return found


def no_children() -> bool:
    """No process of control is left: neither robot nor servo nor the one that infers."""
    names = [" ".join(child.cmdline()) for child in psutil.Process(os.getpid()).children()]
    return not any("robotrl.deploy" in name for name in names)


@undisturbed
def test_the_whole_way(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    seen = []
    report = run_control(bundle, CART, episodes=3, log=tmp_path / "log.jsonl", progress=seen.append, runtime=runtime)
    assert [e.state_id for e in report.episodes] == [1100, 1101, 1102]
    assert seen == list(report.episodes)
    assert report.successes == 3
    assert report.rate_hz == pytest.approx(50)
    assert report.ticks == sum(e.ticks for e in report.episodes) > 20
    assert report.lateness_us.p50 <= report.lateness_us.p99 <= report.lateness_us.p999 <= report.lateness_us.max
    assert sum(report.lateness_histogram_us.counts) == report.ticks
    assert report.safety.ticks == report.ticks
    assert (report.safety.held, report.safety.damped) == (0, 0)
    assert report.log_error is None
    assert no_children()
    header, records = read_log(tmp_path / "log.jsonl")
    assert header["bundle_id"] == report.bundle_id
    assert [r["success"] for r in records if r["kind"] == "episode"] == [True] * 3
    ticks = [r for r in records if r["kind"] == "tick"]
    assert len(ticks) == report.ticks
    # The robot was where the policy saw it: it starts at rest and moves towards the goal.
    assert ticks[0]["obs"]["state"][:2] == [0.0, 0.0]
    assert abs(ticks[5]["obs"]["state"][1]) > 0
    again = replay(tmp_path / "log.jsonl", bundle)
    assert again.ticks == report.ticks
    assert again.policy_max_abs == again.sent_max_abs == 0.0


@undisturbed
def test_a_robot_that_lists_its_elements_in_another_order(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    report = run_control(
        bundle, "sim:tests.kits.deploy_cart:make_swapped", episodes=2, log=tmp_path / "log.jsonl", runtime=runtime
    )
    assert report.successes == 2
    assert replay(tmp_path / "log.jsonl", bundle).sent_max_abs == 0.0


@undisturbed
def test_starts_limit_and_failure(bundle: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path / "log.jsonl"
    report = run_control(bundle, CART, state_ids=[7], limit_s=0.1, log=log)
    (episode,) = report.episodes
    assert (episode.state_id, episode.success) == (7, False)
    assert episode.ticks + report.deadline_misses >= 5
    assert episode.ticks <= 5
    # 50 Hz: a missed period between two ticks counts
    assert 0.02 * episode.ticks - 1e-9 <= episode.duration_s <= 0.1 + 1e-9
    logs_of_another_bundle_are_refused(log, bundle, kit.made("flow", tmp_path_factory.getbasetemp())[0])


def logs_of_another_bundle_are_refused(log: Path, bundle: Path, other: Path) -> None:
    with pytest.raises(DataError, match="is of bundle"):
        replay(log, other)
    log.write_bytes(log.read_bytes()[:-20])  # as a kill leaves it: the last line is cut
    assert replay(log, bundle).ticks >= 1
    log.write_text("{}\n")
    with pytest.raises(DataError, match="does not begin with a header"):
        replay(log, bundle)


def test_another_robot_is_refused_before_it_moves(bundle: Path) -> None:
    with pytest.raises(ConfigError, match="action of the robot lacks 'push': did you mean 'pull'"):
        run_control(bundle, "sim:tests.kits.deploy_cart:make_other", episodes=1)
    assert no_children()


@pytest.mark.parametrize(
    ("robot", "says"),
    [
        ("sym:mujoco/peg-insert", "robot 'sym' is unknown: did you mean 'sim'?"),
        ("sim", "expected sim:ARGUMENT"),
        ("sim:mujoco/peg-insrt", "did you mean 'mujoco/peg-insert'?"),
    ],
)
def test_unknown_robots_are_named(bundle: Path, robot: str, says: str) -> None:
    with pytest.raises((ConfigError, RobotFault)) as caught:
        run_control(bundle, robot, episodes=1)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("robot", "says"),
    [
        ("sim:tests.kits.deploy_cart:make_crt", "did you mean 'tests.kits.deploy_cart:make_cart'"),
        ("sim:no_such_module:x", "needs the module 'no_such_module', which is not installed"),
    ],
)
def test_functions_that_make_no_robot_are_named(robot: str, says: str) -> None:
    """By the robot's process, as `run_control` starts it."""
    with (
        contextlib.closing(Link.create()) as link,
        RobotProcess(robot, link) as process,
        pytest.raises(RobotFault) as caught,
    ):
        process.introduction()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unusable_arguments(bundle: Path, tmp_path: Path) -> None:
    with raises_naming(ConfigError, "episodes", 0, 1, 100):
        run_control(bundle, CART, episodes=0)
    with raises_naming(ConfigError, "limit_s", -1):
        run_control(bundle, CART, limit_s=-1)
    with raises_naming(ConfigError, "state_ids", "empty"):
        run_control(bundle, CART, state_ids=[])
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        run_control(bundle, CART, log=tmp_path / "file" / "log")


@undisturbed
def test_nan_from_the_robot_holds_then_stops_with_the_reason(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    monkeypatch.setenv("CART_NAN_AT", "100")
    with pytest.raises(RobotFault, match=r"observation 'state' element 'cart_vel' is nan for 5 ticks in a row"):
        run_control(bundle, CART, episodes=1, log=tmp_path / "log.jsonl", runtime=runtime)
    _, records = read_log(tmp_path / "log.jsonl")
    ticks = [r for r in records if r["kind"] == "tick"]
    bad = [r for r in ticks if "nan" in r["obs"]["state"]]
    assert [r["mode"] for r in bad] == [1, 1, 1, 1, 2]
    assert all(r["sent"] == [0.0, 0.0] and r["policy"] is None for r in bad)
    assert records[-1]["kind"] == "fault"
    assert replay(tmp_path / "log.jsonl", bundle).sent_max_abs == 0.0


class Told(kit.SteerToGoal):
    """Steers the cart that hands on a word."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = TOLD_SPEC


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for that cart."""
    path = tmp_path_factory.mktemp("told") / "bundle"
    export(Told(), path, observations=kit.recorded())
    kit.wait_for_observations(path)
    return path


@undisturbed
def test_a_word_that_is_none_holds_then_stops_with_the_reason(
    told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    """The controller refuses it: a bad tick like any other, not the end of the process."""
    robot, log = "sim:tests.kits.deploy_cart:make_told", tmp_path / "log.jsonl"
    monkeypatch.setenv("CART_WORD_AT", str(BETWEEN))
    says = (
        r"observation 'touch' holds word number 7: expected whole numbers from 0 \(none\) to 2 \('stop'\), for 5 ticks"
    )
    with pytest.raises(RobotFault, match=says):
        run_control(told, robot, state_ids=NEAR_THEN_FAR, log=log, runtime=runtime)
    _, records = read_log(log)
    assert [r["success"] for r in records if r["kind"] == "episode"] == [True]
    bad = [r for r in records if r["kind"] == "tick" and r["obs"]["touch"] == [7.0]]
    assert [r["mode"] for r in bad] == [1, 1, 1, 1, 2]
    assert all(r["sent"] == [0.0, 0.0] and r["policy"] is None for r in bad)
    assert all(Reason(r["reason"]) & Reason.OBS_MISFIT for r in bad)
    again = replay(log, told)
    assert (again.sent_max_abs, again.verdicts_differ) == (0.0, 0)


@undisturbed
def test_a_robot_that_dies_ends_the_run(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CART_DIE_AT", "100")
    with pytest.raises(RobotFault, match=r"ended with exit code 7 in episode 1 \(start 1100\) at tick \d+"):
        run_control(bundle, CART, episodes=1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@undisturbed
def test_a_robot_that_is_killed_or_stopped_from_outside(bundle: Path, how: signal.Signals, tmp_path: Path) -> None:
    """A real signal at a random moment of a run; it ends by itself, with a reason, and leaves no process."""
    script = (
        "import sys; from robotrl.deploy.control.run import run_control; from robotrl.errors import RobotrlError\n"
        "try:\n    run_control(sys.argv[1], sys.argv[2], episodes=100, log=sys.argv[3])\n"
        "except RobotrlError as error:\n    print(error); sys.exit(2)"
    )
    log = tmp_path / "log.jsonl"
    arguments = [sys.executable, "-c", script, str(bundle), CART, str(log)]
    controller = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    robot = child_of(controller.pid)
    began = time.monotonic()
    while not (log.exists() and '"kind": "tick"' in log.read_text()):
        assert time.monotonic() < began + 60, "no control tick"
        time.sleep(0.05)
    robot.send_signal(how)
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 2
    expected = "was ended by SIGKILL" if how == signal.SIGKILL else "the last observation is"
    assert expected in out
    assert len(out.strip().splitlines()) == 1
    assert not psutil.pid_exists(robot.pid)


def test_a_robot_whose_controller_is_killed_ends_by_itself(bundle: Path) -> None:
    script = (
        "import sys; from robotrl.deploy.control.run import run_control\n"
        "run_control(sys.argv[1], sys.argv[2], episodes=100)"
    )
    controller = subprocess.Popen([sys.executable, "-c", script, str(bundle), CART])
    robot = child_of(controller.pid)
    time.sleep(1.0)
    controller.kill()
    controller.wait()
    gone, alive = psutil.wait_procs([robot], timeout=60)
    assert robot in gone
    assert not alive


def test_a_robot_whose_controller_hangs_ends_by_itself(bundle: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from robotrl.deploy.control.run import run_control; from robotrl.errors import RobotrlError\n"
        "try:\n    run_control(sys.argv[1], sys.argv[2], episodes=1)\n"
        "except RobotrlError as error:\n    print(error); sys.exit(2)"
    )
    mark = tmp_path / "moving"
    controller = subprocess.Popen(
        [sys.executable, "-c", script, str(bundle), "sim:tests.kits.serve_cart:make"],
        env={**os.environ, "CART_MARK": str(mark)},
        stdout=subprocess.PIPE,
        text=True,
    )
    robot = child_of(controller.pid)
    serve_kit.until(mark.exists, 60.0)
    controller.send_signal(signal.SIGSTOP)
    # It cannot be reaped while its parent stands still, so it ends as a zombie: the servo damps it after 10 s.
    deadline = time.monotonic() + 60
    while robot.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    controller.send_signal(signal.SIGCONT)
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 2
    assert re.search("sent no command for 5 s|the supervisor was silent for 10 s; damped", out)


def child_of(pid: int) -> psutil.Process:
    """The robot's process of a controller, once it has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = robots_of(pid)
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("no robot was started")


@undisturbed
def test_a_log_on_a_full_disk_ends_and_the_control_does_not(bundle: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.fail("this test needs /dev/full")
    report = run_control(bundle, CART, episodes=1, log="/dev/full")
    assert report.successes == 1
    assert report.log_error == "log '/dev/full' ended early: No space left on device"


def test_percentiles_and_histogram_by_hand() -> None:
    times = [1000 * i for i in range(1, 1001)]  # 1 us to 1000 us
    found = percentiles(times)
    assert found.p50 == pytest.approx(500.5)
    assert found.p99 == pytest.approx(990.01)
    assert found.max == 1000
    counted = histogram([500, 1500, 200_000_000])
    assert counted.counts[0] == 1
    assert counted.counts[-1] == 1
    assert sum(counted.counts) == 3
    assert percentiles([]).max == 0
    assert np.all(np.diff(counted.edges) > 0)
