"""The C++ process that infers: its noise, its answers against the Python controller's, refusals, and its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.kits.camera_policy as camera_policy
import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
import tests.kits.serve_kit as serve_kit
from robotrl.deploy.buffers import InferenceError, Runtime
from robotrl.deploy.inference.link import AnswerKind
from robotrl.deploy.inference.process import InferenceProcess
from robotrl.deploy.inference.request import packed
from robotrl.deploy.native.build import native_runtime
from robotrl.deploy.native.noise import NativeNoise
from robotrl.deploy.native.session import engine_library
from robotrl.deploy.noise import CounterNoise
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import Link
from robotrl.deploy.runtime import Controller
from robotrl.errors import NumericsError

SEED = 5


class Asked:
    """A process that infers, asked as the servo asks it."""

    def __init__(self, process: InferenceProcess) -> None:
        self.process = process
        self._serial = 0

    def ask(self, values: np.ndarray, decision: int, committed: bool = False, due_ns: int = 0) -> Message:
        """The answer to a request."""
        self._serial += 1
        stamp_ns = time.monotonic_ns()
        request = Message(stamp_ns, self._serial, 1, decision, 0, int(committed), 0, 0, due_ns, values)
        self.process.link.requests.write(request)
        os.write(self.process.doorbell, b".")
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            answer = self.process.link.answers.read()
            if answer is not None and answer.tick == self._serial:
                assert (answer.state_id, answer.stamp_ns, answer.episode) == (decision, stamp_ns, 1)
                return answer
            time.sleep(1e-4)
        raise AssertionError(f"no answer; the process {self.process.ended() or 'runs'}")


@contextmanager
def asked(bundle: Path, runtime: Runtime, engine: str = "") -> Generator[Asked]:
    robot = Link.create()
    with InferenceProcess(robot, str(bundle), SEED, runtime=runtime) as process:
        usual = "native" if runtime == "native" else "onnxruntime"
        assert process.introduction()["engine"] == (engine or usual)
        yield Asked(process)
    robot.close()


def becomes(pid: int, program: str) -> bool:
    """True if the process runs a program within a minute."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        if Path(os.readlink(f"/proc/{pid}/exe")).name == program:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.made("flow", tmp_path_factory.getbasetemp())[0]


def observations(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"state": rng.normal(size=4).astype(np.float32), "touch": rng.normal(size=1).astype(np.float32)}


@pytest.mark.parametrize("seed", [0, 3, (1 << 64) + 7])
def test_noise_is_that_of_numpy_but_for_the_last_bit(seed: int) -> None:
    shape = (5, 3)  # an odd number
    native, usual = NativeNoise(shape, seed, engine_library()), CounterNoise(shape, seed)
    pairs = [(native.draw(d), usual.draw(d)) for d in (*range(2000), (1 << 40) + 1)]
    found, wanted = (np.stack(side) for side in zip(*pairs, strict=True))
    steps = np.abs(found.view(np.int32).astype(np.int64) - wanted.view(np.int32).astype(np.int64))
    assert steps.max() <= 1 and (steps > 0).mean() < 1e-4


def test_answers_are_the_bits_of_the_controller(flow: Path) -> None:
    controller = Controller.load(flow, seed=SEED, runtime="native")
    rng = np.random.default_rng(0)
    with asked(flow, "native") as process:
        for decision in (*range(40), 1 << 40):
            obs = observations(rng)
            # a due time makes it warm its caches meanwhile, which must not change an answer
            due_ns = time.monotonic_ns() + 4_000_000 if decision % 3 == 0 else 0
            answer = process.ask(packed(obs, controller.manifest, None, []), decision, due_ns=due_ns)
            time.sleep(0.005)
            assert answer.kind == AnswerKind.CHUNK and answer.lost_ns > 0
            assert answer.values.tobytes() == controller.infer(obs, decision).tobytes()
        assert becomes(process.process.pid, native_runtime().infer.name)


@pytest.mark.parametrize("kind", ["committed_bundle", "guided_bundle"])
def test_committed_actions_reach_the_graph_and_leave_it(tmp_path: Path, kind: str) -> None:
    bundle = {"committed_bundle": serve_kit.committed_bundle, "guided_bundle": serve_kit.guided_bundle}[kind](tmp_path)
    controller = Controller.load(bundle, seed=SEED, runtime="native")
    assert controller.engine == "native"
    manifest, rng = controller.manifest, np.random.default_rng(1)
    with asked(bundle, "native") as process:
        for decision in range(12):
            obs = {port.name: rng.normal(size=port.shape).astype(np.float32) for port in manifest.observations}
            prefix: dict[str, Any] | None = None
            if decision % 2:
                prefix = {port.name: rng.uniform(size=port.shape).astype(np.float32) for port in manifest.prefix}
            answer = process.ask(packed(obs, manifest, prefix, []), decision, committed=prefix is not None)
            assert answer.values.tobytes() == controller.infer({**obs, **(prefix or {})}, decision).tobytes()
        assert becomes(process.process.pid, native_runtime().infer.name)


def test_onnxruntime_computes_in_the_program_what_the_engine_cannot(flow: Path, tmp_path: Path) -> None:
    """The same bits as in Python, and the same failure for an observation that the graph cannot be computed for."""
    bundle = graphs.fails_beyond(Path(shutil.copytree(flow, tmp_path / "bundle")))
    controller = Controller.load(bundle, seed=SEED, runtime="native")
    assert controller.engine == "onnxruntime, native noise"
    rng = np.random.default_rng(3)
    beyond = np.float32([1e3, 0, 0, 0, 0])
    with pytest.raises(InferenceError) as failed:
        controller.infer({"state": beyond[:4], "touch": beyond[4:]}, 0)
    with asked(bundle, "native", "onnxruntime, native noise") as process:
        for decision in range(20):
            obs = observations(rng) if decision else {"state": beyond[1:], "touch": beyond[1:2]}
            values = packed(obs, controller.manifest, None, [])
            answer = process.ask(values, decision, due_ns=time.monotonic_ns() + 4_000_000)
            try:
                wanted = controller.infer(obs, decision).tobytes()
            except InferenceError:
                assert answer.kind == AnswerKind.FAILED
            else:
                assert answer.kind == AnswerKind.CHUNK and answer.values.tobytes() == wanted
        assert process.ask(beyond, 0).kind == AnswerKind.FAILED
        # onnxruntime's Python package adds these words of its own
        assert process.process.link.failure == str(failed.value).replace("Error in execution: ", "")
        assert becomes(process.process.pid, native_runtime().infer.name)


def test_refusals_are_those_of_python(flow: Path) -> None:
    controller = Controller.load(flow, seed=SEED, runtime="native")
    rng = np.random.default_rng(2)
    wrong: list[tuple[np.ndarray, str]] = []
    for element, value in ((0, np.nan), (3, np.inf), (4, -np.inf)):
        obs = observations(rng)
        values = packed(obs, controller.manifest, None, [])
        values[element] = value
        with pytest.raises(NumericsError) as refused:
            controller.infer({"state": values[:4], "touch": values[4:]}, 0)
        wrong.append((values, str(refused.value)))
    wrong.append((np.zeros(6, np.float32), "request has 6 values: expected 5"))
    for runtime in ("python", "native"):
        with asked(flow, runtime) as process:
            for values, text in wrong:
                assert process.ask(values, 0).kind == AnswerKind.REFUSED
                assert process.process.link.failure == text
            assert process.process.link.failed == [0] * len(wrong)
            right = observations(rng)
            answer = process.ask(packed(right, controller.manifest, None, []), 1)
            assert answer.kind == AnswerKind.CHUNK, "a refusal does not last"


def test_it_ends_with_its_bell(flow: Path) -> None:
    robot = Link.create()
    process = InferenceProcess(robot, str(flow), SEED, runtime="native")
    process.introduction()
    assert becomes(process.pid, native_runtime().infer.name)
    os.close(process.doorbell)
    process.doorbell = os.open(os.devnull, os.O_WRONLY)
    deadline_s = time.monotonic() + 60
    while not process.ended() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert process.ended() == "ended with exit code 0"
    process.close()
    robot.close()


def test_damaged_settings_end_it_before_it_answers() -> None:
    handle = os.memfd_create("settings", 0)
    os.write(handle, b"rrlblok1" + bytes(40))
    done = subprocess.run(
        [native_runtime().infer, str(handle)], pass_fds=(handle,), capture_output=True, check=False, timeout=60
    )
    os.close(handle)
    assert done.returncode == 1 and b"the settings are damaged" in done.stderr
    done = subprocess.run([native_runtime().infer], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1 and b"expected the number of the file" in done.stderr


def test_a_policy_that_sees_stays_with_python(tmp_path: Path) -> None:
    robot = Link.create()
    with InferenceProcess(robot, str(camera_policy.bundle(tmp_path)), SEED, runtime="native") as process:
        process.introduction()
        time.sleep(0.5)
        assert process.ended() == ""
        assert Path(os.readlink(f"/proc/{process.pid}/exe")).name.startswith("python")
    robot.close()
