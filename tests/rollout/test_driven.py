"""Demonstrations of a person: real pseudo-terminals, real joystick bytes, real sims; and episodes of a single env."""

import contextlib
import os
import pty
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from robotrl.cli.main import main
from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import ConfigError, RobotrlError
from robotrl.interventions.gamepad import Gamepad
from robotrl.interventions.keyboard import Keyboard
from robotrl.interventions.mapping import DeviceState
from robotrl.registry import make_sim
from robotrl.rollout.driven import HumanActor, drive_demos
from robotrl.rollout.evaluate import Turn
from robotrl.rollout.single import run_single
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import GOAL, Walk

REACH = "mujoco/reach"
PENDULUM = "gym/Pendulum-v1"


# episodes of a single env


class Right:
    """Goes right, and ends the episode by itself after some steps."""

    def __init__(self, steps: int, by: float = 0.5) -> None:
        self.steps, self.by = steps, by

    def act(self, obs, turn: Turn):
        self.steps -= 1
        return None if self.steps < 0 else torch.full((1, 1), self.by)


def test_an_episode_that_the_sim_ends():
    # start 2 stands at 0; four steps of 0.5 reach the goal at 2
    run = run_single(Right(99), Walk(1), 2)
    episode = run.episode
    assert run.ended
    assert (episode.success, episode.terminated, episode.length, episode.state_id) == (True, True, 4, 2)
    assert episode.obs["walk"][:, 0].tolist() == [0.0, 0.5, 1.0, 1.5, GOAL]
    assert episode.rewards.tolist() == [0.5, 1.0, 1.5, 2.0]
    assert episode.ret == 5.0
    assert episode.actions.tolist() == [[0.5]] * 4


def test_an_episode_that_the_actor_ends():
    run = run_single(Right(2), Walk(1), 2)
    assert (run.ended, run.episode.length, run.episode.success, run.episode.terminated) == (False, 2, False, False)
    assert run.episode.obs["walk"][:, 0].tolist() == [0.0, 0.5, 1.0]
    nothing = run_single(Right(0), Walk(1), 2).episode
    assert (nothing.length, len(nothing.obs["walk"]), nothing.actions.shape) == (0, 1, (0, 1))
    with raises_naming(ConfigError, "num_envs", 2, 1):
        run_single(Right(1), Walk(2), 2)


# the person


class Hand:
    """A device whose readings were written down, and a clock that nobody waits for."""

    def __init__(self, *readings: DeviceState) -> None:
        self.readings, self.now_s, self.polls = list(readings), 0.0, 0

    def poll(self, now_s: float) -> DeviceState:
        self.polls += 1
        return self.readings.pop(0)

    def close(self) -> None: ...

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def moved(by: float, verdict=None) -> DeviceState:
    return DeviceState(np.array([by]), bool(by), False, verdict)


def test_an_episode_waits_for_the_first_movement_and_ends_with_a_verdict():
    hand = Hand(moved(0), moved(0), moved(1), moved(1), moved(0), moved(0, "keep"))
    shown: list[float] = []
    sim = Walk(1)
    driver = HumanActor(hand, sim, 0.5, show=lambda sim: shown.append(hand.now_s), clock=hand, sleep=hand.sleep)
    run = run_single(driver, sim, 2)
    # the touch that begins is not a step; then 0.5 of the bound, rest, and the verdict
    assert run.episode.actions.tolist() == [[0.5], [0.0]]
    assert driver.verdict() == "keep"
    assert hand.now_s == pytest.approx(2 * 0.02 + 2 * 0.1), "two looks while nothing moved, two steps at 10 Hz"
    assert len(shown) == 6


def test_after_an_end_by_the_sim_the_person_is_asked():
    hand = Hand(moved(1), *[moved(1)] * 4, moved(0), moved(0), moved(0, "discard"))
    sim = Walk(1)
    driver = HumanActor(hand, sim, 0.5, show=lambda sim: None, clock=hand, sleep=hand.sleep)
    run = run_single(driver, sim, 2)
    assert run.ended and run.episode.success
    assert driver.verdict() == "discard"
    assert hand.polls == 8


def test_a_choice_is_not_driven():
    sim = make_sim("gym/CartPole-v1", 1)
    with pytest.raises(ConfigError, match=r"is a choice of 2: expected a continuous one .*--sim.actions scores"):
        HumanActor(Hand(), sim, 0.5, show=lambda sim: None)


# a keyboard


@pytest.fixture
def terminal():
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        with contextlib.suppress(OSError):
            os.close(end)


class Typist:
    """Types at a terminal for each episode that is announced: a movement until it is recorded, then a verdict."""

    def __init__(self, terminal: int, verdicts: list[bytes]) -> None:
        self.terminal, self.verdicts, self.said = terminal, verdicts, list[str]()
        self.recording = threading.Event()

    def __call__(self, text: str) -> None:
        self.said.append(text)
        if "recording" in text:
            self.recording.set()
        if "move to begin" in text:
            self.recording.clear()
            threading.Thread(target=self._type, args=(self.verdicts.pop(0),), daemon=True).start()

    def _type(self, verdict: bytes) -> None:
        while not self.recording.wait(0.02):
            os.write(self.terminal, b"w")
        for _ in range(5):
            time.sleep(0.06)
            os.write(self.terminal, b"w")
        time.sleep(0.06)
        os.write(self.terminal, verdict)


def test_a_person_at_a_keyboard_keeps_and_discards(terminal, tmp_path):
    ours, theirs = terminal
    typist = Typist(ours, [b"\n", b"\x7f", b"\n"])
    report = drive_demos(
        REACH, tmp_path / "d", lambda spec: Keyboard(spec, terminal=theirs), by="keyboard", episodes=2, say=typist
    )
    assert (report.episodes, report.tried, report.stopped) == (2, 3, "")
    assert [text.strip() for text in typist.said if "kept" in text or "discarded" in text] == [
        "kept",
        "discarded",
        "kept",
    ]
    dataset = read_dataset(report.path)
    assert dataset.provenance["expert"] == {"name": "keyboard", "scale": 0.5}
    assert dataset.num_episodes == 2
    action = dataset.frames("action")
    assert action[0].tolist() == [0.5, 0.0, 0.0, 0.0], "an episode begins with the first movement"
    assert not action[:, 1:].any()
    for episode in range(2):
        x = dataset.episode(episode)["observation.state"]
        names = make_sim(REACH, 1).observation_spec["state"].names
        assert x[-1, names.index("tip_pos_x_w")] > x[0, names.index("tip_pos_x_w")]
    assert dataset.frames("next.truncated").sum() == 2, "cut by the person, no end of the task"


def test_ctrl_d_ends_with_what_was_kept(terminal, tmp_path):
    ours, theirs = terminal
    typist = Typist(ours, [b"\n", b"\x04"])
    report = drive_demos(
        REACH, tmp_path / "d", lambda spec: Keyboard(spec, terminal=theirs), by="keyboard", episodes=9, say=typist
    )
    assert (report.episodes, report.tried) == (1, 1)
    assert read_dataset(report.path).num_episodes == 1
    typist.verdicts = [b"\x04"]
    with pytest.raises(ConfigError, match="0 episodes were kept of 9"):
        drive_demos(
            REACH, tmp_path / "e", lambda spec: Keyboard(spec, terminal=theirs), by="keyboard", episodes=9, say=typist
        )
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_terminal_that_is_closed_loses_nothing_that_was_kept(terminal, tmp_path):
    ours, theirs = terminal
    typist = Typist(ours, [b"\n"])

    def say(text: str) -> None:
        if "episode 2" in text:
            os.close(ours)
        else:
            typist(text)

    def device(spec):
        return Keyboard(spec, terminal=theirs)

    report = drive_demos(REACH, tmp_path / "d", device, by="keyboard", episodes=2, say=say)
    assert "terminal of the keyboard" in report.stopped
    assert read_dataset(report.path).num_episodes == 1


def test_the_command_in_a_real_terminal(terminal, tmp_path):
    ours, theirs = terminal
    command = [sys.executable, "-m", "robotrl.cli", "demos", PENDULUM, "--expert", "keyboard", "--episodes", "1"]
    running = subprocess.Popen(
        [*command, "--out", "d", "--sim.camera", "False"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert running.stderr is not None and running.stdout is not None
    typist = Typist(ours, [b"\n"] * 3)
    for line in running.stderr:
        typist(line)
    said = "".join(typist.said)
    assert running.wait() == 0, said
    assert "w: " in said
    assert "Ctrl-D: end the recording" in said
    assert "1 episodes" in running.stdout.read()
    assert read_dataset(tmp_path / "d").num_episodes == 1


# a gamepad


def js(value: int, kind: int, number: int) -> bytes:
    return struct.pack("=IhBB", 0, value, kind, number)


def test_a_gamepad_drives_through_the_command(tmp_path, capsys):
    path = tmp_path / "js0"
    os.mkfifo(path)
    done = threading.Event()
    asked = ["demos", PENDULUM, "--expert", "gamepad", "--device", str(path), "--scale", "1.0", "--episodes", "1"]

    def push() -> None:
        writer = os.open(path, os.O_WRONLY)  # waits for the reader
        os.write(writer, js(-32767, 0x02, 1))
        while not done.wait(0.4):
            os.write(writer, js(1, 0x01, 2) + js(0, 0x01, 2))
        os.close(writer)

    thread = threading.Thread(target=push, daemon=True)
    thread.start()
    assert main([*asked, "--out", str(tmp_path / "d"), "--sim.camera", "False"]) == 0
    done.set()
    thread.join()
    instruction_of = capsys.readouterr()
    assert "X: keep the episode" in instruction_of.err
    assert "1 episodes" in instruction_of.out
    dataset = read_dataset(tmp_path / "d")
    assert dataset.frames("action")[0] == 2.0, "all the way"
    assert dataset.provenance["expert"] == {"name": "gamepad", "scale": 1.0}


def test_buttons_are_verdicts_where_they_are_bound_to_nothing(tmp_path):
    path = tmp_path / "js0"
    spec = make_sim(REACH, 1).action_spec
    for button, verdict in ((2, "keep"), (3, "discard"), (6, "finish")):
        path.write_bytes(js(1, 0x81, button))
        pad = Gamepad(spec, path)
        assert pad.poll(0.0).verdict is None, "held down while the device is opened"
        path.write_bytes(js(1, 0x81, button) + js(0, 0x01, button) + js(1, 0x01, button))
        assert pad.poll(0.0).verdict == verdict
        pad.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--noise", "0.1"], "--noise is 0.1 and --expert is 'gamepad': expected 0.0"),
        (["--mode", "left"], "--mode is 'left' and --expert is 'gamepad': expected none"),
        (["--scale", "2"], "scale is 2.0: expected above 0, at most 1"),
        (["--device", "nowhere"], "gamepad nowhere does not exist"),
    ],
)
def test_what_a_person_cannot_use(tmp_path: Path, capsys, arguments, message):
    pad = tmp_path / "js0"
    pad.write_bytes(b"")
    asked = ["demos", REACH, "--expert", "gamepad", "--device", str(pad), "--out", str(tmp_path / "d"), *arguments]
    assert main(asked) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_a_device_that_fails_at_once_is_an_error(terminal, tmp_path):
    ours, theirs = terminal
    with pytest.raises(RobotrlError, match="terminal of the keyboard"):
        drive_demos(
            REACH,
            tmp_path / "d",
            lambda spec: Keyboard(spec, terminal=theirs),
            by="keyboard",
            episodes=1,
            say=lambda text: os.close(ours),
        )
    assert list(tmp_path.iterdir()) == []
