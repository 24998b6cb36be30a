"""The servo beside an inference that is slow, frozen or dead; its plan of actions, its ring and its records."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.manifest import parse
from robotrl.deploy.control.log import Tick, read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Reason
from robotrl.deploy.inference.request import committed_inputs, packed, unpacked
from robotrl.deploy.native.build import native_runtime
from robotrl.deploy.robots.cameras import CameraFrame
from robotrl.deploy.robots.driver import CONTROLLER_TIMEOUT_S
from robotrl.deploy.robots.link import RobotFault
from robotrl.deploy.servo.plan import Chunk, ChunkPlan, Latency, lead_ticks
from robotrl.deploy.servo.records import most_lateness, room, tick_of_record, tick_to_record
from robotrl.deploy.servo.ring import NUMBERS, RecordRing, slot_bytes, slot_count
from robotrl.errors import ConfigError, DataError
from tests.kits import serve_kit
from tests.kits.real_time import undisturbed

CART, ENDLESS = "sim:tests.kits.deploy_cart:make_cart", "sim:tests.kits.serve_cart:make"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.patient("goal", tmp_path_factory.getbasetemp())


# the plan


def chunk(zero_tick: int, decision: int = 0, length: int = 4) -> Chunk:
    actions = np.arange(length, dtype=np.float32)[:, None] + 10 * decision
    return Chunk(actions, decision, 0, zero_tick)


def test_actions_belong_to_control_ticks() -> None:
    plan = ChunkPlan(4, 2)
    assert plan.index(0) is None and plan.wants(0, 0)
    plan.start(chunk(5))
    assert [plan.index(tick) for tick in range(4, 10)] == [None, 0, 1, 2, 3, None]
    # two of the four are executed; the next chunk is asked for at tick 7, or one tick ahead of that
    assert [plan.wants(tick, 0) for tick in (5, 6, 7)] == [False, False, True]
    assert [plan.wants(tick, 1) for tick in (5, 6, 7)] == [False, True, True]
    assert plan.due(7, 0, 0) == 9 and plan.due(6, 1, 0) == 7 and plan.due(6, 3, 0) == 7
    # one committed action: the chunk begins at tick 7, its two actions end at 8, and its successor is asked for at 8
    assert plan.due(6, 1, 1) == 8
    assert plan.planned(6, 2).tolist() == [[1.0], [2.0]]
    assert plan.planned(8, 5).tolist() == [[3.0]]
    plan.drop()
    assert plan.index(6) is None and len(plan.planned(6, 2)) == 0


def test_chunks_are_asked_for_ahead_once_an_inference_takes_half_a_period() -> None:
    period = 20_000_000
    assert lead_ticks(10e6, period, 3) == 0
    assert lead_ticks(10.1e6, period, 3) == 1
    assert lead_ticks(20.1e6, period, 3) == 2
    assert lead_ticks(200e6, period, 3) == 3
    assert lead_ticks(200e6, period, 0) == 0, "a chunk of one action leaves nothing to execute meanwhile"


def test_latency_is_the_p95_of_the_last_answers() -> None:
    latency = Latency(0.001)
    assert latency.p95_ns == 1e6
    for measured in range(1, 101):
        latency.add(measured)
    # of 37 to 100: 37 + 0.95 * 63
    assert latency.p95_ns == pytest.approx(96.85)


# memory


def test_a_ring_keeps_order_and_counts_what_it_lost() -> None:
    most = 3
    slots = slot_count(most)
    memory = memoryview(bytearray(slots * slot_bytes(most)))
    writer, reader = RecordRing(memory, 0, most), RecordRing(memory, 0, most)
    assert reader.read() is None
    for i in range(5):
        writer.write((i,) * NUMBERS, np.float32([i, i + 0.5]))
    for i in range(5):
        found = reader.read()
        assert found is not None and found.numbers == (i,) * NUMBERS and found.values.tolist() == [i, i + 0.5]
    assert reader.read() is None and reader.lost == 0
    for i in range(slots + 7):
        writer.write((i,) * NUMBERS, np.zeros(0, np.float32))
    numbers = []
    while (record := reader.read()) is not None:
        numbers.append(record.numbers[0])
    assert numbers == list(range(7, slots + 7))
    assert reader.lost == 7
    with pytest.raises(ValueError, match="record has 4 values: the ring takes 3"):
        writer.write((0,) * NUMBERS, np.zeros(4, np.float32))


def test_a_ring_that_is_half_full_says_so() -> None:
    slots = slot_count(2)
    memory = memoryview(bytearray(slots * slot_bytes(2)))
    writer, reader = RecordRing(memory, 0, 2), RecordRing(memory, 0, 2)
    for turn in range(3):  # also where it is written over
        for i in range(slots // 2):
            assert not reader.is_filling, (turn, i)
            writer.write((i,) * NUMBERS, np.float32([1, 2]))
        assert reader.is_filling
        reader.read()
        assert not reader.is_filling
        while reader.read() is not None:
            pass
    for _ in range(2 * slots):
        writer.write((0,) * NUMBERS, np.float32([1, 2]))
    assert reader.is_filling, "overtaken"


def test_a_record_that_is_damaged_is_not_accepted() -> None:
    memory = memoryview(bytearray(slot_count(2) * slot_bytes(2)))
    writer, reader = RecordRing(memory, 0, 2), RecordRing(memory, 0, 2)
    writer.write((1,) * NUMBERS, np.float32([1, 2]))
    writer.write((2,) * NUMBERS, np.float32([3, 4]))
    memory[40] ^= 1
    found = reader.read()
    assert found is not None and found.numbers[0] == 2
    assert reader.lost == 1


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("acts", [True, False])
def test_a_tick_survives_its_record(complete: bool, acts: bool) -> None:
    tick = Tick(
        tick=7,
        deadline_ns=1,
        lateness_ns=-2,
        age_ns=-3,
        read_ns=4,
        busy_ns=5,
        inference_ns=6,
        decision=-1,
        cursor=2,
        observation=np.float32([1, np.nan, 3]) if complete else np.zeros(0, np.float32),
        policy=np.float32([4, 5]) if acts else None,
        sent=np.float32([6, 7]),
        mode=1,
        reason=4096,
        asked=3,
        committed=2,
        frames=(CameraFrame(2**40 + 1, 2**60 + 7, 9, 2**32 - 1),),
    )
    numbers, values = tick_to_record(9, tick, [0.5, 1.5])
    assert len(values) <= room(3, 2, 1, 4) and most_lateness(4) >= 2
    memory = memoryview(bytearray(slot_count(80) * slot_bytes(80)))
    RecordRing(memory, 0, 80).write(numbers, values)
    record = RecordRing(memory, 0, 80).read()
    assert record is not None
    episode, found, lateness = tick_of_record(record, 3, 2, 1)
    assert episode == 9 and lateness.tolist() == [0.5, 1.5]
    for name, value in tick._asdict().items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(found._asdict()[name], value, equal_nan=True), name
        else:
            assert found._asdict()[name] == value, name


def test_a_request_holds_the_inputs_and_committed_actions(tmp_path: Path) -> None:
    committed = serve_kit.committed_bundle(tmp_path)
    manifest = parse((committed / "manifest.json").read_bytes())
    rng = np.random.default_rng(0)
    obs = {port.name: rng.normal(size=port.shape).astype(np.float32) for port in manifest.observations}
    names = {port.role: port for port in manifest.prefix}
    steps, width = names["prefix_mask"].shape[0], len(manifest.action.names)
    actions = np.float32([[1.0] * width])
    prefix = committed_inputs(manifest, actions, 1)
    assert prefix[names["prefix"].name].tolist() == [1.0] * width + [0.0] * (steps - 1) * width
    assert prefix[names["prefix_mask"].name].tolist() == [1.0] + [0.0] * (steps - 1)
    # planned and not committed: the policy is not trained with it
    two = committed_inputs(manifest, np.ones((2, width), np.float32), 1)
    assert two[names["prefix_mask"].name].tolist() == [1.0] + [0.0] * (steps - 1)
    # more than the policy knows: the next ones are kept
    many = committed_inputs(manifest, np.ones((steps + 3, width), np.float32), steps + 3)
    assert many[names["prefix_mask"].name].tolist() == [1.0] * steps
    for given in (None, prefix):
        values = packed(obs, manifest, given, [])
        found, numbers = unpacked(values, manifest, given is not None)
        assert numbers == []
        wanted = obs if given is None else {**obs, **given}
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[key], wanted[key]) for key in wanted)
    with pytest.raises(ConfigError, match="request has 1 values: expected"):
        unpacked(np.zeros(1, np.float32), manifest, False)


# processes


def control_process(pid: int, module: str) -> psutil.Process:
    """The process of a part of control, once it has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            try:
                if f"robotrl.deploy.{module}" in child.cmdline():
                    return child
            except psutil.Error:
                continue
        time.sleep(0.002)
    raise AssertionError(f"no {module} was started")


def when(module: str, act: Callable[[psutil.Process], None], marked: Path | None = None) -> threading.Thread:
    """Act on a process of the control that this process runs, once the robot moves (if `marked`) or at its start."""

    def run() -> None:
        found = control_process(os.getpid(), module)
        if marked is not None:
            serve_kit.until(marked.exists, 60.0)
            time.sleep(0.3)
        act(found)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGSTOP, r"an inference has not ended after 0\.\d+ s; held, then damped"),
        (signal.SIGKILL, r"the process that infers was ended by SIGKILL; held, then damped"),
    ],
)
@undisturbed
def test_an_inference_process_that_freezes_or_dies_moves_no_deadline(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, says: str, runtime: Runtime
) -> None:
    mark, log = tmp_path / "moving", tmp_path / "log.jsonl"
    monkeypatch.setenv("CART_MARK", str(mark))
    thread = when("inference", lambda process: process.send_signal(number), mark)
    with pytest.raises(RobotFault, match=says):
        run_control(bundle, ENDLESS, episodes=1, log=log, runtime=runtime)
    thread.join()
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick"]
    assert [r["mode"] for r in ticks][-6:] == [0, 1, 1, 1, 1, 2]
    assert all(Reason(r["reason"]) & Reason.ACTION_LATE for r in ticks[-5:])
    assert all(r["sent"] == [0.0, 0.0] for r in ticks[-5:])
    # the servo commands every period to the end: only the tick that waited for its chunk took several of them
    numbers = [r["tick"] for r in ticks[-5:]]
    assert numbers[1:] == list(range(numbers[1], numbers[1] + 4))
    assert replay(log, bundle).sent_max_abs == 0.0


@undisturbed
def test_a_servo_that_is_killed_leaves_a_robot_that_holds_and_ends(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    mark = tmp_path / "moving"
    monkeypatch.setenv("CART_MARK", str(mark))
    thread = when("servo", lambda process: process.kill(), mark)
    with pytest.raises(RobotFault, match=r"the servo was ended by SIGKILL in episode 1 \(start 1100\) at tick \d+"):
        run_control(bundle, ENDLESS, episodes=1, runtime=runtime)
    thread.join()
    names = [" ".join(child.cmdline()) for child in psutil.Process(os.getpid()).children()]
    assert not any("robotrl.deploy" in name for name in names)


def slow_to_start(seconds: float, folder: Path) -> Path:
    """A native runtime whose servo comes to life after some seconds. It starts too fast for a signal to meet it."""
    built = native_runtime().servo
    slow = Path(shutil.copytree(built.parent, folder))
    program = slow / built.name
    program.unlink()
    program.write_text(f"#!/bin/sh\nsleep {seconds}\nexec {shlex.quote(str(built))}\n")
    program.chmod(0o755)
    return slow


@undisturbed
def test_a_robot_waits_for_the_first_command_of_a_slow_servo(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    """A servo that comes to nothing for 8 s after its start, longer than a running one may be silent."""
    slow_s = 8.0

    def pause(process: psutil.Process) -> None:
        process.suspend()
        time.sleep(slow_s)
        process.resume()

    begun = time.monotonic()
    if runtime == "native":
        monkeypatch.setenv("ROBOTRL_NATIVE", str(slow_to_start(slow_s, tmp_path / "slow")))
        report = run_control(bundle, CART, episodes=1, runtime=runtime)
    else:
        thread = when("servo", pause)
        report = run_control(bundle, CART, episodes=1, runtime=runtime)
        thread.join()
    assert report.successes == 1
    assert time.monotonic() - begun > slow_s > CONTROLLER_TIMEOUT_S


def slowed(source: Path, target: Path) -> Path:
    """A bundle whose inference multiplies matrices for 30 ms, longer than half a control period."""
    side = 400
    return graphs.grows(Path(shutil.copytree(source, target)), 1, graphs.chain_for(0.03, side), side)


@undisturbed
def test_slow_inferences_are_asked_for_ahead_and_replay_exactly(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    slow = slowed(bundle, tmp_path / "slow")
    log = tmp_path / "log.jsonl"
    report = run_control(slow, CART, episodes=2, log=log, runtime=runtime)
    assert report.inference_us.p50 > 10_000, "slower than half a control period"
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick"]
    ahead = [r for r in ticks if r["asked"] >= 0 and r["policy"] is not None and r["decision"] != r["asked"]]
    assert len(ahead) > 5, "a chunk is asked for while the one before it is executed"
    assert (report.safety.held, report.safety.damped) == (0, 0)
    again = replay(log, slow)
    assert again.decisions > 5 and again.policy_max_abs == again.sent_max_abs == 0.0


@undisturbed
def test_a_policy_that_knows_committed_actions_is_given_them(tmp_path: Path, runtime: Runtime) -> None:
    slow = slowed(serve_kit.committed_bundle(tmp_path), tmp_path / "slow")
    graphs.reseal(slow, lambda data: data["timing"].update(max_observation_age_s=0.2))
    log = tmp_path / "log.jsonl"
    run_control(slow, CART, episodes=1, limit_s=2.0, log=log, runtime=runtime)
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick"]
    assert sum(r["committed"] > 0 for r in ticks) > 5
    asked = {r["asked"]: r for r in ticks if r["committed"] > 0}
    used = [r for r in ticks if r["decision"] in asked and r["policy"] is not None]
    assert len(used) > 5
    for r in used:
        # its first action follows the committed ones, as in training
        begins = asked[r["decision"]]["tick"] + asked[r["decision"]]["committed"]
        assert r["cursor"] - 1 == r["tick"] - begins
    again = replay(log, slow)
    assert again.decisions > 5 and again.policy_max_abs == again.sent_max_abs == 0.0


@pytest.mark.parametrize("pace", ["fast", "slow"])
@undisturbed
def test_guided_chunks_overlap_and_replay_exactly(tmp_path: Path, pace: str, runtime: Runtime) -> None:
    bundle = serve_kit.guided_bundle(tmp_path)
    if pace == "slow":
        bundle = slowed(bundle, tmp_path / "slow")
    graphs.reseal(bundle, lambda data: data["timing"].update(max_observation_age_s=0.4))
    manifest = parse((bundle / "manifest.json").read_bytes())
    assert (manifest.timing.rtc_mode, manifest.timing.chunk_length, manifest.timing.execute) == ("guided", 8, 5)
    log = tmp_path / "log.jsonl"
    report = run_control(bundle, CART, episodes=1, limit_s=1.5, log=log, runtime=runtime)
    # what slows the graph down has no loop in the engine
    by = {("native", "fast"): "native", ("native", "slow"): "onnxruntime, native noise"}
    assert report.engine == by.get((runtime, pace), "onnxruntime")
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick"]
    asked = {r["asked"]: r for r in ticks if r["asked"] >= 0}
    joined = [r for r in asked.values() if r["committed"]]
    assert len(joined) > 5, "all chunks but the first continue another one"
    for r in joined:
        assert r["policy"] is not None and r["decision"] != r["asked"], "it is asked for ahead"
        assert r["cursor"] - 1 >= 5, "H - D actions are executed before the next chunk is asked for"
    for r in ticks:
        if r["policy"] is not None and asked.get(r["decision"], r)["committed"]:
            # it begins at its observation
            assert r["cursor"] - 1 == r["tick"] - asked[r["decision"]]["tick"]
    again = replay(log, bundle)
    assert again.decisions > 5 and again.policy_max_abs == again.sent_max_abs == 0.0


@undisturbed
def test_the_servo_interpolates_where_the_bundle_says_so(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    linear = Path(shutil.copytree(bundle, tmp_path / "linear"))
    graphs.reseal(linear, lambda data: data["timing"].update(interpolation="linear"))
    written = tmp_path / "pushes"
    monkeypatch.setenv("CART_PUSHES", str(written))
    monkeypatch.setenv("CART_MARK", str(tmp_path / "moving"))
    log = tmp_path / "log.jsonl"
    run_control(linear, ENDLESS, episodes=1, limit_s=0.5, servo_hz=200.0, log=log, runtime=runtime)
    pushes = [float(line) for line in written.read_text().splitlines()]
    sent = [r["sent"][0] for r in read_log(log)[1] if r["kind"] == "tick"]
    steps = np.abs(np.diff(pushes))
    assert len(pushes) > 2 * len(sent), "several commands in a control period"
    # a quarter of the largest change at a time
    assert steps.max() < 0.6 * max(np.abs(np.diff([0.0, *sent])))
    assert replay(log, linear).sent_max_abs == 0.0


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), 1e6])
def test_unusable_rates_are_refused(bundle: Path, rate: float) -> None:
    with pytest.raises(ConfigError, match=r"servo_hz is .*: expected 1 to 2000"):
        run_control(bundle, CART, servo_hz=rate)


def test_the_servo_loads_neither_onnxruntime_nor_torch() -> None:
    code = "import sys, robotrl.deploy.servo.worker; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"onnxruntime", "torch", "mujoco", "gymnasium", "onnx", "websockets"})


def test_the_servo_runs_at_a_multiple_of_the_control_rate(bundle: Path, runtime: Runtime) -> None:
    report = run_control(bundle, CART, episodes=1, servo_hz=120.0, runtime=runtime)
    assert (report.rate_hz, report.servo_hz) == (50.0, 100.0)
    assert report.successes == 1


@undisturbed
def test_a_dry_run_decides_and_records_commands_and_sends_none(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    written, log = tmp_path / "pushes", tmp_path / "log.jsonl"
    monkeypatch.setenv("CART_PUSHES", str(written))
    monkeypatch.setenv("CART_MARK", str(tmp_path / "moving"))
    report = run_control(bundle, ENDLESS, episodes=1, limit_s=1.0, log=log, dry_run=True, runtime=runtime)
    assert (report.safety.held, report.safety.damped) == (0, 0), "sensors that stand still are no fault here"
    header, records = read_log(log)
    assert header["dry_run"] is True
    assert any(r["sent"] != [0.0, 0.0] for r in records if r["kind"] == "tick")
    assert not written.exists(), "its driver was told nothing, not even to stand still"
    assert replay(log, bundle).sent_max_abs == 0.0


@undisturbed
def test_a_shadow_is_compared_and_moves_nothing(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    """The same policy: its actions are those of the log where both decide at the same ticks."""
    same = Path(shutil.copytree(bundle, tmp_path / "same"))
    log = tmp_path / "log.jsonl"
    report = run_control(bundle, CART, episodes=1, log=log, shadow=same, runtime=runtime)
    assert report.shadow is not None
    assert (report.shadow.bundle_id, report.shadow.refused) == (report.bundle_id, 0)
    ticks = [r for r in read_log(log)[1] if r["kind"] == "tick" and r["policy"] is not None]
    assert report.shadow.ticks == len(ticks) > 10
    rows = np.asarray([r["shadow"] for r in ticks]) - np.asarray([r["policy"] for r in ticks])
    push = report.shadow.differences["push"]
    assert push.max == pytest.approx(np.abs(rows[:, 0]).max())
    assert push.mean == pytest.approx(rows[:, 0].mean())
    assert push.p50 == pytest.approx(np.median(np.abs(rows[:, 0])), abs=1e-6)
    # the policy is the same, so that the first action of each chunk is
    assert rows[0].tolist() == [0.0, 0.0]


def test_a_shadow_for_another_robot_is_refused_before_anything_moves(bundle: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(bundle, tmp_path / "other"))

    def rename(data: dict[str, Any]) -> None:
        data["action"]["names"][0] = "pull"

    graphs.reseal(other, rename)
    with pytest.raises((ConfigError, DataError), match="pull"):
        run_control(bundle, CART, episodes=1, shadow=other)


@undisturbed
def test_the_limits_of_a_site_hold_and_replay(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    place, log = tmp_path / "robot.json", tmp_path / "log.jsonl"
    place.write_text('{"schema_version": 1, "action": {"push": {"low": -0.5, "high": 0.5, "max_step": 0.25}}}')
    run_control(bundle, CART, episodes=1, limit_s=0.6, log=log, limits=place, runtime=runtime)
    header, records = read_log(log)
    assert header["site"]["action"]["push"]["high"] == 0.5
    sent = [r["sent"][0] for r in records if r["kind"] == "tick"]
    assert max(map(abs, sent)) == 0.5, "the policy pushes with up to 2"
    assert max(np.abs(np.diff([0.0, *sent]))) <= 0.25 + 1e-6
    assert replay(log, bundle).sent_max_abs == 0.0
    place.write_text('{"schema_version": 1, "action": {"pusch": {"low": -0.5}}}')
    with pytest.raises(ConfigError, match="did you mean 'push'"):
        run_control(bundle, CART, episodes=1, limits=place, runtime=runtime)


@undisturbed
def test_a_reset_may_take_longer_than_a_command_may_be_late(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    monkeypatch.setenv("CART_MARK", str(tmp_path / "moving"))
    monkeypatch.setenv("CART_RESET_S", str(CONTROLLER_TIMEOUT_S + 2))
    report = run_control(bundle, ENDLESS, episodes=1, limit_s=0.5, runtime=runtime)
    assert report.ticks > 10 and report.safety.damped == 0
