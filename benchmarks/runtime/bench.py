"""Lateness of the servos beside inference and a busy core, against loops that only sleep, and with inference frozen.

A flow policy of the quickstart's size infers at 20 Hz in its own process while the Python servo runs at 500 Hz, the C++
servo at 1,000 Hz, and one more process keeps a core busy. Blocks of a few seconds alternate in one run: a bare loop of
the same rate and language in a process of its own, the servo, and the servo whose inference process is stopped
(SIGSTOP). The lateness of all servo ticks of a block counts, from the first on. Bare loops begin a session of their
own, as the servo does, since Linux shares the processor among sessions first.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.kit.figures import Figure, spread
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.manifest import MANIFEST_FILE, parse, sealed
from robotrl.deploy.control.realtime import sleep_until, steady
from robotrl.deploy.control.report import ControlReport
from robotrl.deploy.control.run import run_control
from robotrl.utils.installation import install_line

DESCRIPTION = "lateness of both servos (500 Hz, C++ 1,000 Hz) beside inference and a busy core, against bare loops"
PEERS = {"torch": install_line("train"), "g++": "apt install g++"}
RATE_HZ, NATIVE_RATE_HZ = 500, 1000
ROBOT = "sim:benchmarks.runtime.robot:make"
BARE, SERVO, FROZEN = "bare loop", "servo", "servo, inference frozen"
NATIVE_BARE, NATIVE, NATIVE_FROZEN = "bare C++ loop", "C++ servo", "C++ servo, inference frozen"
_FREEZE_AFTER_S = 0.5


class Block(NamedTuple):
    """Lateness of one block's ticks, microseconds."""

    p50: float
    p99: float
    max: float
    inference_us: float = 0.0
    """Median time from request to chunk; 0 for none."""


def run(quick: bool = False) -> dict[str, Figure]:
    """Measure all kinds of block in turn."""
    seconds, rounds = (1.5, 1) if quick else (6.0, 7)
    with tempfile.TemporaryDirectory() as folder:
        return measured(patient_bundle(Path(folder)), native_loop(Path(folder)), seconds, rounds)


def measured(bundle: Path, loop: Path, seconds: float, rounds: int) -> dict[str, Figure]:
    """Figures of so many blocks of each kind, of a bundle and of the C++ loop."""
    kinds = (BARE, SERVO, FROZEN, NATIVE_BARE, NATIVE, NATIVE_FROZEN)
    blocks: dict[str, list[Block]] = {kind: [] for kind in kinds}
    with busy_core():
        for _ in range(rounds):
            blocks[BARE].append(bare_block(seconds))
            blocks[SERVO].append(servo_block(bundle, seconds, "python"))
            with frozen_inference():
                blocks[FROZEN].append(servo_block(bundle, seconds, "python"))
            blocks[NATIVE_BARE].append(native_bare_block(loop, seconds))
            blocks[NATIVE].append(servo_block(bundle, seconds, "native"))
            with frozen_inference():
                blocks[NATIVE_FROZEN].append(servo_block(bundle, seconds, "native"))
    figures: dict[str, Figure] = {}
    compared = (
        (SERVO, "servo", BARE, RATE_HZ),
        (FROZEN, "servo_inference_frozen", BARE, RATE_HZ),
        (NATIVE, "native_servo", NATIVE_BARE, NATIVE_RATE_HZ),
        (NATIVE_FROZEN, "native_servo_inference_frozen", NATIVE_BARE, NATIVE_RATE_HZ),
    )
    for kind, key, peer, rate_hz in compared:
        note = f"{rounds} blocks of {seconds:g} s, medians over blocks; {rate_hz} Hz, beside a busy process"
        for which in ("p50", "p99", "max"):
            ours, theirs = ([block._asdict()[which] for block in blocks[one]] for one in (kind, peer))
            figures[f"{key}_lateness_{which}_us"] = against(ours, theirs, note, peer)
    for kind, key in ((SERVO, "inference_us"), (NATIVE, "native_inference_us")):
        asked = spread([block.inference_us for block in blocks[kind]])
        note = "median from request to chunk in a block"
        figures[key] = Figure(asked.median, "us", runs=rounds, low=asked.low, high=asked.high, note=note)
    return figures


def servo_block(bundle: Path, seconds: float, runtime: Runtime) -> Block:
    """Lateness of a servo in a control run of one episode."""
    rate_hz = RATE_HZ if runtime == "python" else NATIVE_RATE_HZ
    return of_report(run_control(bundle, ROBOT, episodes=1, limit_s=seconds, servo_hz=rate_hz, runtime=runtime))


def native_loop(folder: Path) -> Path:
    """Compile the bare C++ loop."""
    source, program = Path(__file__).with_name("bare_loop.cpp"), folder / "bare_loop"
    subprocess.run(["g++", "-std=c++17", "-O2", str(source), "-o", str(program)], check=True)
    return program


def native_bare_block(program: Path, seconds: float) -> Block:
    """Lateness of the bare C++ loop."""
    command = [str(program), str(NATIVE_RATE_HZ), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    late = [float(line) for line in done.stdout.split()]
    p50, p99 = np.percentile(late, (50, 99)).tolist()
    return Block(p50, p99, max(late))


def against(ours: list[float], theirs: list[float], note: str, peer: str) -> Figure:
    """A figure of our blocks beside those of the bare loop; the ratio is that of the medians."""
    found, other = spread(ours), spread(theirs)
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return Figure(
        found.median,
        "us",
        peer=peer,
        peer_value=other.median,
        ratio=other.median / found.median,
        runs=len(ours),
        low=found.low,
        high=found.high,
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        note=note,
    )


def of_report(report: ControlReport) -> Block:
    """The servo's lateness in a control run of one episode."""
    late = report.servo_lateness_us
    return Block(late.p50, late.p99, late.max, report.inference_us.p50)


def bare_block(seconds: float) -> Block:
    """Lateness of a loop that does nothing, in a process of its own."""
    program = "import sys; from benchmarks.runtime.bench import bare; bare(float(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    return Block(*json.loads(done.stdout))


def bare(seconds: float) -> None:
    """Sleep until each deadline, then print p50, p99 and maximum of the lateness in microseconds."""
    period, late = round(1e9 / RATE_HZ), []
    with steady():
        start = time.monotonic_ns() + 5_000_000
        step = 0
        while step * period < seconds * 1e9:
            deadline = start + step * period
            sleep_until(deadline)
            woke = time.monotonic_ns()
            late.append((woke - deadline) / 1e3)
            # missed periods are skipped, as the servo does
            step = max(step, (woke - start) // period) + 1
    p50, p99 = np.percentile(late, (50, 99)).tolist()
    print(json.dumps([p50, p99, max(late)]))


def patient_bundle(folder: Path) -> Path:
    """A bundle of an untrained flow policy that holds and never damps, so that a frozen inference can be watched."""
    from benchmarks.latency.bench import make_policy
    from benchmarks.runtime.robot import CONTROL_DT_S
    from robotrl.deploy.export import export

    policy = make_policy()
    recorded = np.random.default_rng(0).uniform(-1, 1, (1000, policy.context_width)).astype(np.float32)
    export(policy, folder / "bundle", observations={"state": recorded}, samples=1000, control_dt_s=CONTROL_DT_S)
    place = folder / "bundle" / MANIFEST_FILE
    manifest = parse(place.read_bytes())
    patient = replace(manifest, safety=replace(manifest.safety, bad_ticks_to_damp=1000))
    place.write_bytes(sealed(patient).to_bytes())
    return folder / "bundle"


@contextlib.contextmanager
def busy_core() -> Generator[None, None, None]:
    """Context with a process that computes all the while."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def frozen_inference() -> Generator[None, None, None]:
    """Context in which the inference process of this process's control is stopped once it has begun to serve."""
    ended = threading.Event()

    def freeze() -> None:
        while not ended.wait(0.02):
            children = psutil.Process(os.getpid()).children()
            lines = {child: " ".join(child.cmdline()) for child in children if child.is_running()}
            if any("robotrl.deploy.servo" in line for line in lines.values()):
                ended.wait(_FREEZE_AFTER_S)
                for child, line in lines.items():
                    if "robotrl.deploy.inference" in line:
                        child.suspend()
                return

    thread = threading.Thread(target=freeze)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
