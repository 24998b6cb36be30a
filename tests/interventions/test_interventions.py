"""Interventions: mapping by hand, a real pseudo-terminal, real joystick bytes, the scripted corrector on a real sim."""

from __future__ import annotations

import contextlib
import os
import pty
import struct
import termios
import time

import numpy as np
import pytest
import torch

from robotrl.errors import CapabilityError, ConfigError, RobotrlError
from robotrl.interventions.config import InterventionCfg
from robotrl.interventions.gamepad import Gamepad, default_axes, default_buttons, read_events
from robotrl.interventions.keyboard import Keyboard, default_keys, split_keys
from robotrl.interventions.mapping import Binding, DeviceState, VelocityMap, grippers, past_dead_zone
from robotrl.interventions.scripted import AtRandom, Drifted, ScriptedCorrector, Stalled, distance_of
from robotrl.interventions.teleoperation import Teleoperation
from robotrl.registry import make_sim
from robotrl.replay.buffer import SOURCES, Replay
from robotrl.rollout.collector import Collector, Decision
from robotrl.spec import HasDistance, HasExpert, Spec
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import BareWalk, Walk

ARM = Spec((3,), ("step_x_w", "step_y_w", "gripper"), ("m", "m", "1"), (-1.0, -2.0, 0.0), (1.0, 4.0, 1.0))
HUMAN = SOURCES.index("human")


# mapping


@pytest.mark.parametrize(
    ("deflection", "dead_zone", "expected"),
    [
        (0.1, 0.2, 0.0),
        (-0.2, 0.2, 0.0),
        (0.6, 0.2, 0.5),
        (-0.6, 0.2, -0.5),
        (1.0, 0.2, 1.0),
        (-3.0, 0.2, -1.0),
        (0.3, 0.0, 0.3),
    ],
)
def test_the_dead_zone_by_hand(deflection, dead_zone, expected):
    assert past_dead_zone(deflection, dead_zone) == pytest.approx(expected, abs=1e-12)


def test_deflections_become_actions_by_hand():
    half = VelocityMap(ARM, scale=0.5, held=("gripper",))
    # the middle of (-2, 4) is 1; half of the way to its bound 4 is 2.5; the held axis goes all the way
    assert half.action(np.array([0.0, 1.0, -1.0])).tolist() == [0.0, 2.5, 0.0]
    assert half.action(np.array([-0.5, -1.0, 1.0])).tolist() == [-0.25, -0.5, 1.0]
    assert VelocityMap(ARM).action(np.array([9.0, -9.0, 0.0])).tolist() == [1.0, -2.0, 0.5]
    assert half.is_held().tolist() == [False, False, True]


def test_mappings_that_cannot_be_are_refused():
    with raises_naming(ConfigError, "scale", 0, 0, 1):
        VelocityMap(ARM, scale=0)
    with raises_naming(ConfigError, "axis", "griper", nearest="gripper"):
        VelocityMap(ARM, held=("griper",))
    free = Spec((1,), ("torque",), ("Nm",), (-np.inf,), (np.inf,))
    with pytest.raises(ConfigError, match="action 'torque' has the bounds -inf to inf"):
        VelocityMap(free)


def test_grippers_are_found_by_name():
    assert grippers(ARM) == ("gripper",)
    assert grippers(make_sim("mujoco/pick-place", 1).action_spec) == ("finger_target",)


# keyboard


@pytest.fixture
def terminal():
    """(our end, the end that a program sees) of a real pseudo-terminal."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        with contextlib.suppress(OSError):  # a test has closed it already
            os.close(end)


def test_keys_and_escape_sequences_are_told_apart():
    assert split_keys("aw") == (["a", "w"], "")
    assert split_keys("\x1b[A\x1b[Dx\x1bOC") == (["up", "left", "x", "right"], "")
    assert split_keys("a\x1b") == (["a"], "\x1b")
    assert split_keys("\x1b[") == ([], "\x1b[")
    assert split_keys("\x1b[1;5") == ([], "\x1b[1;5")
    # page up, control and arrow, and the escape key alone are no keys of ours
    assert split_keys("\x1b[5~b\x1b[1;5Ac\x1bd") == (["b", "c", "d"], "")


def test_a_key_deflects_its_axis_for_a_while(terminal):
    ours, theirs = terminal
    keyboard = Keyboard(ARM, hold_s=0.2, terminal=theirs)
    assert keyboard.poll(0.0).touched is False
    os.write(ours, b"wd")
    reading = keyboard.poll(1.0)
    assert reading.deflection.tolist() == [1.0, -1.0, 0.0]
    assert (reading.touched, reading.toggled) == (True, False)
    assert keyboard.poll(1.19).deflection.tolist() == [1.0, -1.0, 0.0]
    os.write(ours, b"w")
    assert keyboard.poll(1.21).deflection.tolist() == [1.0, 0.0, 0.0]
    assert keyboard.poll(1.42).touched is False
    os.write(ours, b"ws")  # both ways at once
    assert keyboard.poll(2.0).deflection.tolist() == [0.0, 0.0, 0.0]
    os.write(ours, b" ")
    assert keyboard.poll(3.0).toggled
    os.write(ours, b"  c")
    reading = keyboard.poll(4.0)
    assert (reading.toggled, reading.deflection[2]) == (False, -1.0)
    keyboard.close()


def test_an_arrow_that_arrives_in_two_parts_is_one_key(terminal):
    ours, theirs = terminal
    keyboard = Keyboard(ARM, {"up": Binding("step_x_w", 0.5)}, terminal=theirs)
    os.write(ours, b"\x1b")
    assert not keyboard.poll(0.0).touched
    os.write(ours, b"[A")
    assert keyboard.poll(0.1).deflection[0] == 0.5
    keyboard.close()


def test_the_terminal_is_put_back(terminal):
    _, theirs = terminal
    before = termios.tcgetattr(theirs)
    keyboard = Keyboard(ARM, terminal=theirs)
    during = termios.tcgetattr(theirs)
    assert not during[3] & (termios.ICANON | termios.ECHO)
    assert during[3] & termios.ISIG, "Ctrl-C must still interrupt"
    keyboard.close()
    keyboard.close()
    assert termios.tcgetattr(theirs) == before


def test_what_is_no_terminal_is_refused():
    reader, writer = os.pipe()
    with pytest.raises(ConfigError, match=f"file descriptor {reader} is no terminal"):
        Keyboard(ARM, terminal=reader)
    os.close(reader)
    os.close(writer)


def test_a_terminal_that_is_closed_ends_with_a_reason(terminal):
    ours, theirs = terminal
    keyboard = Keyboard(ARM, terminal=theirs)
    os.close(ours)
    with pytest.raises(RobotrlError, match="terminal of the keyboard"):
        keyboard.poll(0.0)
    keyboard.close()


def test_keys_for_what_is_not_there_are_refused(terminal):
    _, theirs = terminal
    with pytest.raises(ConfigError, match="key 'k': axis 'step_z_w' is unknown: did you mean 'step_y_w'"):
        Keyboard(ARM, {"k": Binding("step_z_w", 1.0)}, terminal=theirs)
    with pytest.raises(ConfigError, match="key 'k': value is 2"):
        Keyboard(ARM, {"k": Binding("step_x_w", 2)}, terminal=theirs)
    with pytest.raises(ConfigError, match="the space bar takes over"):
        Keyboard(ARM, {" ": Binding("step_x_w", 1.0)}, terminal=theirs)


def test_default_keys_reach_every_axis_of_our_arms():
    for name in ("mujoco/reach", "mujoco/pick-place"):
        spec = make_sim(name, 1).action_spec
        pad = [*default_axes(spec).values(), *default_buttons(spec).values()]
        for bindings in (default_keys(spec).values(), pad):
            assert {binding.axis for binding in bindings} == set(spec.names)


# gamepad


def js(value: int, kind: int, number: int) -> bytes:
    """An event as <linux/joystick.h> documents it: u32 time, s16 value, u8 type, u8 number."""
    return struct.pack("=I", 123456) + struct.pack("=h", value) + bytes([kind, number])


@pytest.fixture
def pipe(tmp_path):
    """A named pipe and a descriptor to write events to."""
    path = tmp_path / "js0"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY)
    os.close(reader)
    yield path, writer
    os.close(writer)


def test_events_are_eight_bytes():
    data = js(-32767, 0x02, 1) + js(1, 0x81, 7)
    events, rest = read_events(data + b"\x01\x02\x03")
    assert [(e.time_ms, e.value, e.kind, e.number) for e in events] == [(123456, -32767, 2, 1), (123456, 1, 0x81, 7)]
    assert rest == b"\x01\x02\x03"


def test_sticks_and_buttons_through_a_real_pipe(tmp_path):
    path = tmp_path / "js0"
    os.mkfifo(path)
    pad = Gamepad(ARM, path, dead_zone=0.2)
    writer = os.open(path, os.O_WRONLY)
    assert not pad.poll(0.0).touched  # a writer, and nothing written
    # the state on opening: sticks at rest, the toggle held down
    os.write(writer, js(0, 0x82, 0) + js(300, 0x82, 1) + js(1, 0x81, 7))
    assert pad.poll(0.0)[1:] == (False, False, None)
    # left stick up to 60 %: (0.6 - 0.2) / 0.8 = 0.5, and up is forward
    event = js(round(-0.6 * 32767), 0x02, 1)
    os.write(writer, event[:3])
    assert not pad.poll(0.0).touched
    os.write(writer, event[3:] + js(1, 0x01, 0))
    reading = pad.poll(0.0)
    assert reading.deflection == pytest.approx([0.5, 0.0, -1.0], abs=1e-4)
    assert reading.touched
    os.write(writer, js(0, 0x01, 0) + js(0, 0x02, 1) + js(0, 0x01, 7))
    assert pad.poll(0.0)[1:] == (False, False, None)
    os.write(writer, js(1, 0x01, 7))
    assert pad.poll(0.0).toggled
    os.write(writer, js(32767, 0x02, 9) + js(1, 0x01, 9))  # what is bound to nothing
    assert pad.poll(0.0)[1:] == (False, False, None)
    os.close(writer)
    assert not pad.poll(0.0).touched
    pad.close()
    pad.close()


def test_a_recorded_file_of_events_is_read_to_its_end(tmp_path):
    path = tmp_path / "js0"
    path.write_bytes(b"".join(js(-300 * i, 0x02, 0) for i in range(100)))
    pad = Gamepad(ARM, path, dead_zone=0.0)
    assert pad.poll(0.0).deflection[1] == pytest.approx(29700 / 32767)
    pad.close()


def test_an_absent_gamepad_is_named_with_those_that_are_there(tmp_path):
    (tmp_path / "js1").write_bytes(b"")
    with pytest.raises(ConfigError, match=rf"gamepad {tmp_path}/js0 does not exist.*there: {tmp_path}/js1"):
        Gamepad(ARM, tmp_path / "js0")
    with pytest.raises(ConfigError, match=r"there: none"):
        Gamepad(ARM, tmp_path / "absent" / "js0")


def test_gamepad_settings_that_do_not_fit_are_refused(pipe):
    path, _ = pipe
    with raises_naming(ConfigError, "dead_zone", 1, 0, 1):
        Gamepad(ARM, path, dead_zone=1)
    with pytest.raises(ConfigError, match="button 7 cannot be bound"):
        Gamepad(ARM, path, buttons={7: Binding("gripper", 1.0)})
    with pytest.raises(ConfigError, match="axis 0: axis 'x' is unknown"):
        Gamepad(ARM, path, axes={0: Binding("x", 1.0)})


# a human


class Script:
    """A device whose readings were written down; a real one, of a very patient human."""

    def __init__(self, readings: list[DeviceState]) -> None:
        self.readings = readings

    def poll(self, now_s: float) -> DeviceState:
        return self.readings.pop(0)

    def close(self) -> None: ...


class Hand:
    """A clock that goes on by a tenth of a second each step."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def touch(*deflection: float, toggled: bool = False) -> DeviceState:
    values = np.array(deflection)
    return DeviceState(values, bool(values.any()), toggled)


class ArmWalk(BareWalk):
    """The walk with another action, for mappings: it is never stepped."""

    def __init__(self) -> None:
        super().__init__(2)
        self.action_spec = ARM


def test_who_moves_is_in_command_until_a_while_after():
    clock = Hand()
    script = [touch(0, 0, 0), touch(1, 0, 0), touch(0, 0, 0), touch(0, 0, 0), touch(0, 0, 0)]
    human = Teleoperation(Script(script), VelocityMap(ARM), ArmWalk(), env=1, release_s=0.25, pace=False, clock=clock)
    policy = torch.tensor([[0.3, 0.3, 0.3], [0.4, 0.4, 0.4]])
    seen = []
    for _ in range(5):
        correction = human({}, policy, torch.zeros(2, dtype=torch.bool))
        assert not correction.taken[0]
        assert torch.equal(correction.action[0], policy[0])
        seen.append(bool(correction.taken[1]))
        clock.now_s += 0.1
    # moved at 0.1 s; at 0.2 and 0.3 s still in command; at 0.4 s no longer
    assert seen == [False, True, True, True, False]


def test_the_toggle_takes_over_to_hold_still_and_a_gripper_keeps_its_value():
    script = [
        touch(0, 0, 0, toggled=True),
        touch(0, 1, 0),
        touch(0, 0, 1),
        touch(0, 0, 0),
        touch(0, 0, 0, toggled=True),
    ]
    mapping = VelocityMap(ARM, held=("gripper",))
    human = Teleoperation(Script(script), mapping, ArmWalk(), release_s=10.0, pace=False)
    policy, none = torch.tensor([[0.3, 0.3, 0.25], [0.0, 0.0, 0.0]]), torch.zeros(2, dtype=torch.bool)
    out = [human({}, policy, none) for _ in range(5)]
    assert [bool(c.taken[0]) for c in out] == [True, True, True, True, False]
    # rest is the middle of the bounds; the gripper begins with the policy's and keeps what the human gave it
    assert [c.action[0].tolist() for c in out[:4]] == [[0, 1, 0.25], [0, 4, 0.25], [0, 1, 1], [0, 1, 1]]
    assert torch.equal(out[4].action, policy)
    assert torch.equal(policy[0], torch.tensor([0.3, 0.3, 0.25])), "the policy's actions are not written into"


def test_steps_are_paced_for_a_human():
    clock, waits = Hand(), list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now_s += seconds

    human = Teleoperation(Script([touch(0, 0, 0)] * 3), VelocityMap(ARM), ArmWalk(), clock=clock, sleep=sleep)
    for work_s in (0.03, 0.25, 0.0):
        human({}, torch.zeros(2, 3), torch.zeros(2, dtype=torch.bool))
        clock.now_s += work_s
    # control_dt_s is 0.1: after 30 ms of work 70 ms are left, after 250 ms none
    assert waits == pytest.approx([0.07])


def test_a_human_at_an_env_that_is_not_there_is_refused():
    with raises_naming(ConfigError, "env", 2, 0, 1):
        Teleoperation(Script([]), VelocityMap(ARM), ArmWalk(), env=2)
    with raises_naming(ConfigError, "release_s", -1, 0):
        Teleoperation(Script([]), VelocityMap(ARM), ArmWalk(), release_s=-1)


# the criteria


def test_a_stall_by_hand():
    distance = torch.tensor([1.0, 1.0])
    stalled = Stalled(lambda: distance, steps=2, gain_m=0.1)
    none, all_watched = torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool)

    def told(first: float, second: float, started=none, watched=all_watched) -> list[bool]:
        distance[:] = torch.tensor([first, second])
        return stalled(started, watched).tolist()

    assert told(1.0, 1.0, started=all_watched) == [False, False]
    assert told(0.95, 0.8) == [False, False]  # env 0 gained too little
    assert told(0.95, 0.8) == [True, False]
    assert told(0.85, 0.8) == [False, True]  # 0.15 nearer than the best before
    assert told(0.85, 0.8, watched=torch.tensor([True, False])) == [False, False]  # taken over: it begins anew
    assert told(0.85, 0.8) == [True, False]
    assert told(2.0, 2.0, started=all_watched) == [False, False]


def test_drift_by_hand():
    distance = torch.tensor([1.0])
    drifted = Drifted(lambda: distance, by_m=0.2)
    one, none = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
    told = []
    for value, started, watched in (
        (1.0, one, one),
        (0.5, none, one),
        (0.69, none, one),
        (0.71, none, one),
        (0.9, none, none),
        (1.0, none, one),
    ):
        distance[:] = value
        told.append(bool(drifted(started, watched)))
    assert told == [False, False, False, True, False, False]


def test_chance_takes_its_share():
    none = torch.zeros(20000, dtype=torch.bool)
    assert AtRandom(0.1)(none, ~none).float().mean() == pytest.approx(0.1, abs=0.01)
    assert not AtRandom(0.0)(none, ~none).any()
    assert AtRandom(1.0)(none, ~none).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: Stalled(d, 0, 0.1), "steps is 0: expected 1 or more"),
        (lambda d: Stalled(d, 1, 0.0), "gain_m is 0.0: expected above 0"),
        (lambda d: Drifted(d, -1.0), "by_m is -1.0: expected above 0"),
        (lambda d: AtRandom(1.5), "probability is 1.5: expected 0 to 1"),
    ],
)
def test_criteria_that_cannot_be_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make(lambda: torch.zeros(1))


# the scripted corrector on a real sim


def idle(horizon: int = 4):
    """A policy that does nothing, so that somebody has to."""
    return lambda obs: Decision(torch.zeros(len(next(iter(obs.values()))), horizon, 4), {})


def replay_for(sim, capacity: int = 4000) -> Replay:
    return Replay.create(None, sim.observation_spec, sim.action_spec, streams=sim.num_envs, capacity=capacity)


def test_a_stalled_policy_is_helped_and_both_replays_get_the_steps():
    sim = make_sim("mujoco/reach", num_envs=8, seed=0)
    corrector = ScriptedCorrector(sim, [Stalled(distance_of(sim), steps=10, gain_m=0.005)], steps=15)
    online, demos = replay_for(sim), replay_for(sim)
    collector = Collector(sim, 4, 0.99)
    collector.reset(0)
    out = collector.collect_into(online, idle(), 160, corrector=corrector, corrections=demos)
    everything = online.view(online.indices(1), 1, 0.99)
    by_hand = everything.source == HUMAN
    # what follows the newest step of an env is not stored yet, so that step cannot be read
    assert out.corrected - 8 <= int(by_hand.sum()) <= out.corrected == len(demos)
    # ten steps idle, fifteen helped: three of five steps, but for the ends of episodes
    assert 0.5 < out.corrected / out.env_steps < 0.65
    assert torch.equal(everything.chunk[~by_hand], torch.zeros_like(everything.chunk[~by_hand]))
    assert (everything.chunk[by_hand].abs().sum(-1) > 0).float().mean() > 0.99
    assert out.episodes.float().mean() > 0.9, "an idle policy never succeeds; a helped one does"
    helped = demos.view(demos.indices(1), 1, 0.99)
    assert (helped.source == HUMAN).all()
    assert helped.terminated.sum() == everything.terminated[by_hand].sum() > 0


def test_the_policy_decides_afresh_when_it_is_handed_back():
    sim = make_sim("mujoco/reach", num_envs=1, seed=0)
    corrector = ScriptedCorrector(sim, [Stalled(distance_of(sim), steps=6, gain_m=0.5)], steps=3)
    collector, replay = Collector(sim, 4, 0.99), replay_for(sim)
    collector.reset(0)
    asked: list[int] = []
    policy = idle()

    def decide(obs):
        asked.append(step)
        return policy(obs)

    for step in range(17):  # noqa: B007  read in `decide`
        collector.collect_into(replay, decide, 1, corrector=corrector)
    sources = (replay.view(replay.indices(1), 1, 0.99).source == HUMAN).tolist()
    # idle from step 0; six steps without progress later the script has 6, 7, 8; the second chunk, begun at 4, is cut
    # short, and the policy, asked again at each helped step, is the one that decides at 9
    assert sources == [6 <= t <= 8 or t == 15 for t in range(16)]
    assert asked == [0, 4, 7, 8, 9, 13, 16]


def test_a_script_until_the_episode_ends():
    sim = make_sim("mujoco/reach", num_envs=4, seed=0)
    corrector = ScriptedCorrector(sim, [Stalled(distance_of(sim), steps=5, gain_m=0.5)], steps=None)
    collector, replay = Collector(sim, 1, 0.99), replay_for(sim)
    collector.reset(0)
    out = collector.collect_into(replay, idle(1), 100, corrector=corrector)
    assert out.episodes.all()
    seen = replay.view(replay.indices(1), 1, 0.99)
    # the first five steps of each episode are the policy's, all others the script's
    ended = int((seen.terminated | seen.truncated).sum())
    policy = int((seen.source != HUMAN).sum())
    assert 5 * ended <= policy <= 5 * (ended + 4)


def test_scripts_that_cannot_be_are_refused():
    with pytest.raises(CapabilityError, match="Walk lacks HasExpert"):
        ScriptedCorrector(Walk(2), [AtRandom(0.5)])
    with pytest.raises(CapabilityError, match="Walk lacks HasDistance"):
        distance_of(Walk(2))
    sim = make_sim("mujoco/reach", 1)
    with raises_naming(ConfigError, "criteria", "empty"):
        ScriptedCorrector(sim, [])
    with raises_naming(ConfigError, "steps", 0):
        ScriptedCorrector(sim, [AtRandom(0.5)], steps=0)


@pytest.mark.parametrize("name", ["mujoco/peg-insert", "mujoco/reach", "mujoco/push", "mujoco/pick-place"])
def test_sims_with_an_expert_know_how_far_they_are(name):
    sim = make_sim(name, num_envs=4, seed=0)
    assert isinstance(sim, HasDistance) and isinstance(sim, HasExpert)
    sim.reset(seed=0)
    before, expert = sim.distance().clone(), sim.make_expert()
    started = torch.ones(4, dtype=torch.bool)
    for _ in range(12):
        step = sim.step(expert.act(started))
        started = step.terminated | step.truncated
        assert not started.any()
    assert (sim.distance() < before).all()


# a keyboard on a real sim, end to end


def test_a_human_at_a_keyboard_steers_a_real_sim(terminal):
    ours, theirs = terminal
    sim = make_sim("mujoco/reach", num_envs=2, seed=0)
    mapping = VelocityMap(sim.action_spec, scale=0.5)
    keyboard = Keyboard(sim.action_spec, hold_s=0.02, terminal=theirs)
    human = Teleoperation(keyboard, mapping, sim, env=1, release_s=0.05, pace=False)
    collector, online, demos = Collector(sim, 2, 0.99), replay_for(sim), replay_for(sim)
    collector.reset(0)
    before = collector.obs["state"].clone()
    for _ in range(5):
        os.write(ours, b"w")
        collector.collect_into(online, idle(2), 1, corrector=human, corrections=demos)
        time.sleep(0.025)  # the key is up again, the human still in command
    time.sleep(0.06)
    out = collector.collect_into(online, idle(2), 3, corrector=human, corrections=demos)
    assert out.corrected == 0
    human.close()
    x = sim.observation_spec["state"].names.index("tip_pos_x_w")
    moved = collector.obs["state"][:, x] - before[:, x]
    assert moved[1] > 0.04 > 0.01 > abs(moved[0])
    seen = demos.view(demos.indices(1), 1, 0.99)
    assert len(seen.chunk) == 5
    assert seen.chunk[:, 0].tolist() == [[0.5, 0.0, 0.0, 0.0]] * 5
    # the hand was taken off: that is no end of the episode, and what follows has a value
    assert seen.terminated.sum() == 0
    assert seen.truncated.tolist() == [False] * 4 + [True]


# config


def test_the_config_builds_who_it_names(tmp_path):
    sim = make_sim("mujoco/reach", 2)
    assert InterventionCfg().build(sim, 0) is None
    assert isinstance(InterventionCfg("script").build(sim, 0), ScriptedCorrector)
    os.mkfifo(tmp_path / "js0")
    pad = InterventionCfg("gamepad", device=str(tmp_path / "js0")).build(sim, 0)
    assert isinstance(pad, Teleoperation)
    pad.close()
    with raises_naming(ConfigError, "by", "scrpt", nearest="script"):
        InterventionCfg("scrpt").build(sim, 0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CapabilityError, match="Walk lacks HasDistance"):
        InterventionCfg("script").build(Walk(2), 0)
