"""Inference latency at a robot's control rate: our runtimes, eager torch, and plain C++ loops of the same network.

A loop without pauses underestimates latency: at 20 Hz the processor has slept and its caches are cold at each tick.
Therefore each tick waits for its deadline, as in control; the routes alternate in one run, on one thread. All map an
observation and given noise to clipped actions; drawing the noise is not measured, but for the C++ process. The times
of the C++ loop and of the C++ engine are measured inside C++; our controller, in Python, runs on onnxruntime and on the
C++ engine. The C++ process is the one that infers in control: its time is what its answer tells, from the request's
numbers to the chunk's, noise included.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kit.figures import Figure, paired
from benchmarks.kit.markdown import table_row
from robotrl.deploy.control.realtime import sleep_until, steady, warm_leads_ns
from robotrl.deploy.runtime import Controller
from robotrl.errors import RobotrlError
from robotrl.utils.installation import install_line

DESCRIPTION = "microseconds for one inference tick, paced at 20, 50 and 500 Hz, against eager torch and plain C++ loops"
PEERS = {"torch": install_line("train"), "g++": "apt install g++"}
RATES_HZ = (20, 50, 500)
STEPS = 4
OURS, TORCH, CPP = "controller", "eager torch", "plain C++ loop"
ENGINE, NATIVE, PROGRAM = "C++ engine", "controller on the C++ engine", "C++ process"
IN_CPP = {ENGINE: "engine", NATIVE: "native", PROGRAM: "program"}
"""Ways with a part in C++ of ours, and the beginning of their figures' names."""
_COLD = ", cold"
_SKIPPED_TICKS = 10
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")


class Way(NamedTuple):
    """An implementation of inference."""

    tick: Callable[[int], int]
    """Runs one inference and returns its nanoseconds; given is the time at which the next one is due, 0: unknown."""
    warm: Callable[[], object]
    """Runs one inference for warm-up."""


class Route(NamedTuple):
    """An implementation with or without warm-up before the deadline."""

    way: Way
    leads_ns: tuple[int, ...]
    """Times of warm-up inferences before each deadline; empty: none."""


def run(quick: bool = False) -> dict[str, Figure]:
    """Measure all routes at all rates."""
    seconds, rounds = (0.5, 2) if quick else (2.0, 5)
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder, steady(), ExitStack() as ending:
        routes = _with_cold(_ways(Path(folder), ending))
        for rate_hz in RATES_HZ:
            figures |= _at_rate(routes, rate_hz, seconds, rounds)
    return figures


def _with_cold(ways: dict[str, Way]) -> dict[str, Route]:
    """Each implementation twice: warmed up before the deadline as in the control loop, and cold."""
    routes: dict[str, Route] = {}
    for name, way in ways.items():
        back_to_back = statistics.median(way.tick(0) for _ in range(100))
        routes[name] = Route(way, warm_leads_ns(back_to_back * 1e-9))
        routes[name + _COLD] = Route(way, ())
    return routes


def _at_rate(routes: dict[str, Route], rate_hz: int, seconds: float, rounds: int) -> dict[str, Figure]:
    ticks = max(10, round(seconds * rate_hz))
    every: dict[str, list[float]] = {name: [] for name in routes}

    def measured(name: str) -> Callable[[], float]:
        def one() -> float:
            samples = pace(routes[name], rate_hz, ticks)
            every[name] += samples
            return statistics.median(samples)

        return one

    found = paired({name: measured(name) for name in routes}, rounds)
    size = f"median of {ticks} ticks a run, {STEPS} denoising steps, one thread"
    warmed = f"each route warmed by inferences of its own shortly before the deadline; {size}"
    cold = f"no route warmed before the deadline; {size}"
    figures = {
        f"tick_us_{rate_hz}hz_vs_torch": found.figure(OURS, TORCH, "us", "lower", warmed),
        f"tick_us_{rate_hz}hz_vs_cpp": found.figure(OURS, CPP, "us", "lower", warmed),
        f"tick_cold_us_{rate_hz}hz_vs_torch": found.figure(OURS + _COLD, TORCH + _COLD, "us", "lower", cold),
        f"tick_cold_us_{rate_hz}hz_vs_cpp": found.figure(OURS + _COLD, CPP + _COLD, "us", "lower", cold),
        f"tick_warming_us_{rate_hz}hz": found.figure(OURS, OURS + _COLD, "us", "lower", f"what warming gives; {size}"),
    }
    for name, key in IN_CPP.items():
        if name in routes:
            figures[f"{key}_us_{rate_hz}hz_vs_cpp"] = found.figure(name, CPP, "us", "lower", warmed)
            figures[f"{key}_cold_us_{rate_hz}hz_vs_cpp"] = found.figure(name + _COLD, CPP + _COLD, "us", "lower", cold)
    # Also discards the round that `paired` discards.
    kept = {name: samples[ticks:] for name, samples in every.items()}
    figures[f"tick_p99_us_{rate_hz}hz_vs_torch"] = _p99(kept, TORCH, rounds)
    figures[f"tick_p99_us_{rate_hz}hz_vs_cpp"] = _p99(kept, CPP, rounds)
    for name, key in IN_CPP.items():
        if name in routes:
            figures[f"{key}_p99_us_{rate_hz}hz_vs_cpp"] = _p99(kept, CPP, rounds, name)
    return figures


def _p99(kept: dict[str, list[float]], peer: str, rounds: int, name: str = OURS) -> Figure:
    ours = float(np.percentile(kept[name], 99))
    note = f"99th percentile of all {len(kept[name])} ticks; warmed"
    if peer not in kept:
        return Figure(ours, "us", peer=peer, runs=rounds, note=note)
    theirs = float(np.percentile(kept[peer], 99))
    return Figure(ours, "us", peer=peer, peer_value=theirs, ratio=theirs / ours, runs=rounds, note=note)


def pace(route: Route, rate_hz: int, ticks: int) -> list[float]:
    """Microseconds of `ticks` ticks at absolute deadlines; the first few of each call are not counted."""
    period = round(1e9 / rate_hz)
    start = time.monotonic_ns() + period
    samples: list[float] = []
    for i in range(_SKIPPED_TICKS + ticks):
        deadline = start + i * period
        for lead in route.leads_ns:
            if time.monotonic_ns() < deadline - lead:
                sleep_until(deadline - lead)
                route.way.warm()
        sleep_until(deadline)
        spent = route.way.tick(deadline + period if route.leads_ns else 0)
        if i >= _SKIPPED_TICKS:
            samples.append(spent / 1e3)
    return samples


def _ways(folder: Path, ending: ExitStack) -> dict[str, Way]:
    import torch

    from robotrl.deploy.export import export

    torch.set_num_threads(1)
    policy = make_policy()
    rng = np.random.default_rng(0)
    recorded = rng.normal(size=(1000, policy.context_width)).astype(np.float32)
    export(policy, folder / "bundle", observations={"state": recorded}, samples=1000, control_dt_s=0.05)
    controller = Controller.load(folder / "bundle")
    obs = {"state": recorded[0]}

    noise = rng.normal(size=(1, policy.horizon, policy.action_width)).astype(np.float32)

    def eager(due_ns: int = 0) -> int:
        del due_ns
        begun = time.perf_counter_ns()
        with torch.inference_mode():
            batch = {"state": torch.from_numpy(recorded[0])[None]}
            policy.deploy(batch, torch.from_numpy(noise)).actions[0].numpy()
        return time.perf_counter_ns() - begun

    ways = {OURS: controlled(controller, obs), TORCH: Way(eager, eager)}
    if shutil.which("g++") is not None:
        ways |= _native_ways(folder / "bundle", obs, noise) | {PROGRAM: _program(folder / "bundle", obs, ending)}
        infer = build_cpp(policy, folder)
        with torch.inference_mode():
            wanted = policy.deploy({"state": torch.from_numpy(recorded[:1])}, torch.from_numpy(noise)).actions[0]
        actions, _ = infer(recorded[0], noise[0])
        error = float(np.abs(actions - wanted.numpy()).max())
        if not error < 1e-5:
            raise RobotrlError(f"the C++ loop differs from torch by {error:.3g}: expected the same network")

        def plain(due_ns: int = 0) -> int:
            del due_ns
            return infer(recorded[0], noise[0])[1]

        ways[CPP] = Way(plain, plain)
    return ways


def _native_ways(bundle: Path, obs: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, Way]:
    """The C++ engine alone, from raw observation and noise to clipped actions, and below the controller."""
    from robotrl.deploy.bundle.bundle import open_bundle
    from robotrl.deploy.native.session import NativeSession

    session = NativeSession(open_bundle(bundle))
    session.inputs["state"][0], session.inputs["noise"][0] = obs["state"], noise[0]
    controller = Controller.load(bundle, runtime="native")
    return {ENGINE: Way(lambda _: session.timed_run(), session.run), NATIVE: controlled(controller, obs)}


def controlled(controller: Controller, obs: dict[str, np.ndarray]) -> Way:
    """A bundle's controller that is asked with one observation."""

    def tick(due_ns: int) -> int:
        del due_ns
        begun = time.perf_counter_ns()
        controller.step(obs)
        spent = time.perf_counter_ns() - begun
        # as in the control loop, after the action is sent
        controller.reset()
        controller.prepare()
        return spent

    return Way(tick, controller.warm)


def _program(bundle: Path, obs: dict[str, np.ndarray], ending: ExitStack) -> Way:
    """The C++ process that infers, asked as the servo asks it; it warms its caches itself."""
    from robotrl.deploy.inference.process import InferenceProcess
    from robotrl.deploy.robots.channel import Message
    from robotrl.deploy.robots.link import Link

    robot = Link.create()
    ending.callback(robot.close)
    process = ending.enter_context(InferenceProcess(robot, str(bundle), 0, runtime="native"))
    process.introduction()
    serials = itertools.count(1)

    def tick(due_ns: int) -> int:
        serial = next(serials)
        request = Message(time.monotonic_ns(), serial, 1, serial, 0, 0, 0, 0, due_ns, obs["state"])
        process.link.requests.write(request)
        os.write(process.doorbell, b".")
        while True:
            answer = process.link.answers.read()
            if answer is not None and answer.tick == serial:
                return answer.lost_ns
            if process.ended():
                raise RobotrlError(f"the process that infers {process.ended()}")
            time.sleep(2e-5)

    return Way(tick, lambda: None)


def make_policy() -> Any:
    """Make an untrained flow policy of the quickstart's size; training does not affect speed."""
    import torch

    from robotrl.policies.flow import FlowCfg, FlowPolicy
    from robotrl.spec import Spec
    from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse, normalize

    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    width = 19
    observation = Spec((width,), tuple(f"s{i}" for i in range(width)), ("1",) * width, (-5.0,) * width, (5.0,) * width)
    action = Spec((4,), tuple(f"a{i}" for i in range(4)), ("1",) * 4, (-1.0,) * 4, (1.0,) * 4)
    transforms = TransformGroup(
        (normalize("state", rng.normal(size=width).tolist(), rng.uniform(0.5, 2, size=width).tolist()),),
        (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high)),
    )
    return FlowPolicy({"state": observation}, action, transforms, FlowCfg(denoising_steps=STEPS)).eval()


def build_cpp(policy: Any, folder: Path) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, int]]:
    """Compile the plain loops and load the policy's weights into them.

    Args:
        policy: result of `make_policy`.
        folder: folder for the library and the weights.

    Returns:
        A function of observation (D,) and noise (H, A) that gives actions (H, A) and nanoseconds.

    Raises:
        RobotrlError: the compiler fails.
    """
    source = Path(__file__).with_name("plain_flow.cpp")
    library = folder / "plain_flow.so"
    done = subprocess.run(
        ["g++", *_FLAGS, str(source), "-o", str(library)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RobotrlError(f"g++ cannot compile {source.name}: {done.stderr.strip().splitlines()[0]}")
    weights = folder / "weights.bin"
    weights.write_bytes(flat_weights(policy))
    code = ctypes.CDLL(str(library))
    if code.flow_load(str(weights).encode()) != 0:
        raise RobotrlError(f"{source.name} cannot read the weights")
    pointer = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
    code.flow_infer.argtypes = [pointer, pointer, pointer]
    code.flow_infer.restype = ctypes.c_long
    actions = np.zeros((policy.horizon, policy.action_width), np.float32)

    def infer(obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, int]:
        spent = int(code.flow_infer(obs, noise, actions))
        return actions, spent

    return infer


def flat_weights(policy: Any) -> bytes:
    """Weights file for `plain_flow.cpp`: sizes, transforms, time features of each step, then the layers."""
    import torch

    from robotrl.transforms import Affine

    steps, width = policy.denoising_steps, policy.action_width
    (normal,) = policy.transforms.inputs
    scale, clip = policy.transforms.outputs
    if not isinstance(normal, Affine):
        raise RobotrlError("the C++ loop knows one affine map on the observation")
    with torch.inference_mode():
        time_rows = policy.time(torch.arange(steps, dtype=torch.float32) / steps).numpy()
        linears = [module for module in policy.net.modules() if isinstance(module, torch.nn.Linear)]
    chunk = policy.horizon * width
    head = struct.pack("<6i", policy.context_width, chunk, width, time_rows.shape[1], steps, len(linears))
    arrays = [normal.scale, normal.offset, time_rows, scale.scale, scale.offset, clip.low, clip.high]
    parts = [head, *(np.asarray(array, np.float32).tobytes() for array in arrays)]
    for linear in linears:
        weight = linear.weight.detach().numpy().T
        parts += [
            struct.pack("<2i", *weight.shape),
            np.ascontiguousarray(weight).tobytes(),
            linear.bias.detach().numpy().tobytes(),
        ]
    return b"".join(parts)


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per rate, warm and cold."""
    figures = document["figures"]
    lines = [
        "| rate | caches | controller | C++ engine | controller on the engine | C++ process | plain C++ loop "
        "| eager torch | controller / loop | engine / loop | process / loop "
        "| p99 / p50 of controller, engine, process |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for rate_hz in RATES_HZ:
        for caches, cold in (("warmed before the tick", ""), ("cold", "_cold")):
            torch, cpp = (figures[f"tick{cold}_us_{rate_hz}hz_vs_{peer}"] for peer in ("torch", "cpp"))
            engine, native, program = (figures.get(f"{key}{cold}_us_{rate_hz}hz_vs_cpp") for key in IN_CPP.values())
            tails = ""
            if not cold:
                pairs = ((cpp, "tick"), (engine, "engine"), (program, "program"))
                found = ((own, figures[f"{key}_p99_us_{rate_hz}hz_vs_cpp"]) for own, key in pairs if own)
                tails = ", ".join(f"{p99['value'] / own['value']:.1f}" for own, p99 in found)
            cells = [
                f"{rate_hz} Hz",
                caches,
                f"{torch['value']:.0f} us",
                "" if engine is None else f"**{engine['value']:.0f} us**",
                "" if native is None else f"{native['value']:.0f} us",
                "" if program is None else f"**{program['value']:.0f} us**",
                _microseconds(cpp["peer_value"]),
                _microseconds(torch["peer_value"]),
                "" if cpp["ratio"] is None else f"{1 / cpp['ratio']:.2f} x",
                _times(engine),
                _times(program),
                tails,
            ]
            lines.append(table_row(cells))
    return "\n".join(lines)


def _times(figure: dict[str, Any] | None) -> str:
    """Multiple of the plain loop's time; empty where it is not known."""
    return "" if figure is None or not figure["ratio"] else f"**{1 / figure['ratio']:.2f} x**"


def _microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} us"
