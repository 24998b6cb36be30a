"""Signals end control in order, whatever it is at; and what the command writes is looked at before anything moves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

import tests.kits.deploy_kit as kit
from robotrl.cli.main import main
from robotrl.deploy.control.log import read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Reason
from robotrl.errors import DataError
from tests.kits.paths_kit import KITS
from tests.kits.real_time import undisturbed

HERE = KITS
CART = "sim:tests.kits.deploy_cart:make_cart"
SLOW = "sim:slow_robot:make"
SLOW_ROBOT = """
import os, time
from tests.kits.deploy_cart import Cart

class Slow(Cart):
    limit_s = 60.0

    def reset(self, state_id):
        open(os.environ["RESETS"], "a").write("x")
        time.sleep(float(os.environ.get("RESET_S", "0")))
        return super().reset(state_id)

    def command(self, action):
        super().command(action)
        with open(os.environ["RESETS"] + ".push", "a") as file:
            file.write(f"{action[0]}\\n")

    def success(self):
        return False

def make(seed):
    time.sleep(float(os.environ.get("START_S", "0")))
    return Slow(seed)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.patient("goal", tmp_path_factory.getbasetemp())


class Started:
    """`robotrl deploy` in a process of its own, in a folder of its own."""

    def __init__(self, bundle: Path, folder: Path, **environment: str) -> None:
        (folder / "slow_robot.py").write_text(SLOW_ROBOT)
        self.resets = folder / "resets"
        self.log = folder / "log.jsonl"
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        command = [
            sys.executable,
            "-m",
            "robotrl.cli",
            "deploy",
            str(bundle),
            "--robot",
            SLOW,
            "--log",
            str(self.log),
        ]
        self.process = subprocess.Popen(
            [*environment.pop("before", "").split(), *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "RESETS": str(self.resets), **environment},
            stderr=subprocess.PIPE,
            text=True,
            # whoever runs the tests by `nohup` ignores it, and so would their children
            preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),
        )

    def wait_for(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.02)

    def in_episode(self) -> bool:
        return self.log.exists() and (Path(f"{self.resets}.push")).exists()

    def end(self, number: int) -> str:
        """Send a signal, wait for the end, and return what was said; nobody may be left."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=60)
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
        assert "Traceback" not in said
        return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@undisturbed
def test_in_an_episode(bundle: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Damped, with all ticks in the log and the reason."""
    started = Started(bundle, tmp_path)
    started.wait_for(started.in_episode)
    time.sleep(0.3)
    said = started.end(number)
    assert started.process.returncode == 128 + number
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert said.splitlines()[-1].startswith("interrupted" if number == signal.SIGINT else name)
    _, records = read_log(started.log)
    assert records[-1] == {"kind": "stopped", "text": name}
    ticks = [r for r in records if r["kind"] == "tick"]
    assert len(ticks) > 3
    assert [r["mode"] for r in ticks[-2:]] == [0, 2]
    assert Reason(ticks[-1]["reason"]) & Reason.STOPPED
    assert ticks[-1]["sent"] == [0.0, 0.0]
    assert Path(f"{started.resets}.push").read_text().splitlines()[-1] == "0.0"
    assert replay(started.log, bundle).sent_max_abs == 0.0


def test_while_the_robot_starts_or_is_reset(bundle: Path, tmp_path: Path) -> None:
    both: dict[str, Started] = {}
    for name, environment in (("start", {"START_S": "30"}), ("reset", {"RESET_S": "30"})):
        folder = tmp_path / name
        folder.mkdir()
        both[name] = Started(bundle, folder, **environment)
    for name, started in both.items():

        def robot_runs(started: Started = started) -> bool:
            return bool(psutil.Process(started.process.pid).children())

        started.wait_for(robot_runs if name == "start" else started.resets.exists)
        time.sleep(0.2)
        started.end(signal.SIGTERM)
        assert started.process.returncode == 128 + signal.SIGTERM
        if name == "reset":
            _, records = read_log(started.log)
            assert records == [{"kind": "stopped", "text": "SIGTERM"}]


@undisturbed
def test_a_second_signal_ends_at_once(bundle: Path, tmp_path: Path) -> None:
    started = Started(bundle, tmp_path)
    started.wait_for(started.in_episode)
    robot = psutil.Process(started.process.pid).children()
    # the robot stands still, so that the end in order takes its time
    for process in robot:
        process.suspend()
    started.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(timeout=1.5) == -signal.SIGTERM
    for process in robot:
        process.resume()
    assert not psutil.wait_procs(robot, timeout=60)[1]


@undisturbed
def test_what_is_ignored_stays_ignored_and_timeout_ends_it(bundle: Path, tmp_path: Path) -> None:
    """As of a background job: `nohup` ignores SIGHUP; `timeout` sends SIGTERM."""
    started = Started(bundle, tmp_path, before="timeout 600 nohup")
    started.wait_for(started.in_episode)
    (control,) = [p for p in psutil.Process(started.process.pid).children() if "robotrl.cli" in p.cmdline()]
    control.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert control.is_running()
    # the alarm that `timeout` has set for the end of its time, at once
    started.process.send_signal(signal.SIGALRM)
    _, said = started.process.communicate(timeout=30)
    assert started.process.returncode == 124
    assert "SIGTERM: the robot was stopped" in said
    assert read_log(started.log)[1][-1] == {"kind": "stopped", "text": "SIGTERM"}


# what is written


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], says: str) -> None:
    assert main(["deploy", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert len(said.splitlines()) == 1


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.mark.usefixtures("found")
def test_reports_and_logs_are_made_with_their_folder_and_replaced(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, report = tmp_path / "new" / "log", tmp_path / "other" / "deep" / "report"
    arguments = [str(bundle), "--robot", CART, "--episodes", "1", "--log", str(log), "--json", str(report)]
    for _ in range(2):
        assert main(["deploy", *arguments]) == 0
    assert json.loads(report.read_text())["successes"] == 1
    # but never one by the other
    capsys.readouterr()
    arguments[-1], arguments[-3] = arguments[-3], arguments[-1]
    refused(arguments, capsys, "exists and is no control log: expected a new name")


@pytest.mark.parametrize("option", ["--log", "--json"])
def test_what_must_not_be_written_is_refused_before_anything_moves(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    (tmp_path / "notes").write_text("years of work")
    (tmp_path / "linked").symlink_to(copy / "policy.onnx")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "hard").hardlink_to(copy / "policy.onnx")
    os.mkfifo(tmp_path / "pipe")
    before = {path: path.read_bytes() for path in copy.iterdir()}
    for place, says in (
        ("bundle/policy.onnx", "lies in the bundle"),
        ("bundle/new", "lies in the bundle"),
        ("linked", "lies in the bundle"),
        ("hard", "exists and is no control"),
        ("notes", "exists and is no control"),
        ("notes/below", "cannot be written"),
        ("dangling", "is a link to nothing"),
        ("pipe", "expected a plain file"),
        (".", "expected a plain file"),
        ("x" * 300, "cannot be written: File name too long"),
    ):
        refused([str(copy), "--robot", CART, option, str(tmp_path / place)], capsys, says)
    assert {path: path.read_bytes() for path in copy.iterdir()} == before
    assert (tmp_path / "notes").read_text() == "years of work"
    assert len(list(tmp_path.iterdir())) == 6
    if option == "--json":
        refused([str(copy), "--robot", CART, option, "/dev/null"], capsys, "expected a plain file")
        refused([str(copy), "--robot", CART, option, "same", "--log", "same"], capsys, "expected two files")


def test_the_function_refuses_as_the_command_does(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lies in the bundle"):
        run_control(bundle, CART, log=bundle / "policy.onnx")
    with pytest.raises(DataError, match="cannot be written: embedded null byte"):
        run_control(bundle, CART, log=tmp_path / "a\0b")
