"""Comparison with other driving simulators, each in a separate process; they alternate, and the others wait."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.kit.figures import Figure, Paired, have, paired
from benchmarks.kit.served import Served
from benchmarks.stepping.tape import Route

METADRIVE_PYTHON = "ROBOTRL_METADRIVE_PYTHON"
"""Environment variable with a Python interpreter that has MetaDrive, whose pygame conflicts with highway-env's
pygame-ce."""
OURS = "robotrl, 1 thread"
HIGHWAY_10HZ, HIGHWAY_DEFAULT = "highway-env, 32 cars at 10 Hz", "highway-env as it comes"
METADRIVE = "MetaDrive"
SETTINGS = {
    HIGHWAY_10HZ: ("highway_env", "10hz", 30),
    HIGHWAY_DEFAULT: ("highway_env", "default", 15),
    METADRIVE: ("metadrive", "default", 30),
}
"""Settings by figure name: the module, its setting in `bev_worker`, and the number of steps that take about a
second."""
UNIT = "vehicle-seconds/s"
TARGET = 1000
HIGHWAY_WORK = (
    "highway-fast-v0 on one straight road without junctions, lights, people or a route, the ego keeping its lane, five"
    " cars observed. It weighs lane changes (MOBIL) once a second as ours does, but each car looks for its neighbours"
    " among all others, and collisions go through all pairs of cars, though only the ego's boxes are compared"
)
METADRIVE_WORK = "rigid bodies in Bullet at 50 Hz, seven blocks of road, no rays cast for observations"


class Worker:
    """A peer in a separate process; the constructor returns after its warm-up.

    Args:
        name: a key of `bev_worker.PEERS`.
        setting: a key of its settings.
        python: the interpreter, which needs the peer but not robotrl.

    Raises:
        RobotrlError: the peer cannot be made, with the last line that its process wrote.
    """

    def __init__(self, name: str, setting: str, python: str = sys.executable) -> None:
        script = Path(__file__).with_name("worker.py")
        # no display for its graphics libraries, and no greeting
        env = {**os.environ, "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
        self._served = Served([python, "-P", str(script), name, setting], env, f"bench bev: {name}")
        ready = self._served.ready
        self.dt_s: float = ready["dt_s"]
        """Simulated seconds per step."""
        self.version: str = ready["version"]
        self.vehicles = 0.0
        """Mean number of vehicles in the last run."""

    def run(self, steps: int) -> float:
        """Run a number of steps; returns simulated seconds of vehicles per second."""
        answer = self._served.ask(str(steps))
        self.vehicles = answer["vehicles"] / steps
        return answer["vehicles"] * self.dt_s / answer["seconds"]

    def close(self) -> None:
        """End the process."""
        self._served.close()


class Ours(NamedTuple):
    """Our measurement, for comparison with the peers."""

    route: Route
    """Env steps per second, one thread."""
    cars: float
    """Mean number of cars in an env, including the ego."""
    dt_s: float
    note: str


class Met(NamedTuple):
    """A measured peer."""

    vehicles: float
    dt_s: float
    version: str


def python_of(name: str) -> str | None:
    """Interpreter of a peer: this one, or the one named for it; None if there is none."""
    if name == "metadrive" and os.environ.get(METADRIVE_PYTHON):
        return os.environ[METADRIVE_PYTHON]
    return sys.executable if have(name) else None


def figures(ours: Ours, quick: bool) -> dict[str, Figure]:
    """Vehicle-seconds per second of ours and of every installed peer, interleaved."""
    per_step = ours.cars * ours.dt_s
    routes: dict[str, Route] = {OURS: lambda: ours.route() * per_step}
    workers: dict[str, Worker] = {}
    with ExitStack() as stack:
        for label, (name, setting, steps) in SETTINGS.items():
            python = python_of(name)
            if python is None:
                continue
            worker = workers[label] = Worker(name, setting, python)
            stack.callback(worker.close)
            routes[label] = _stepping(worker, 2 if quick else steps)
        measured = paired(routes, 2 if quick else 9)
        met = {label: Met(worker.vehicles, worker.dt_s, worker.version) for label, worker in workers.items()}
    return figures_of(measured, ours, met)


def _stepping(worker: Worker, steps: int) -> Route:
    return lambda: worker.run(steps)


def figures_of(measured: Paired, ours: Ours, met: Mapping[str, Met]) -> dict[str, Figure]:
    """The figures from vehicle-seconds per second of `OURS` and of the peers `met`."""
    mine = f"ours: one thread, {ours.note}, {ours.cars:.1f} cars in an env, cyclists and people not counted"
    out: dict[str, Figure] = {}
    for key, label, work in (
        ("vehicle_s_per_s_vs_highway_env", HIGHWAY_10HZ, f"target {TARGET:,} times. {HIGHWAY_WORK}"),
        ("vehicle_s_per_s_vs_highway_env_default", HIGHWAY_DEFAULT, "steps of 0.2 s, five an action of 1 s"),
        ("vehicle_s_per_s_vs_metadrive", METADRIVE, METADRIVE_WORK),
    ):
        peer = met.get(label)
        if peer is None:
            out[key] = measured.figure(OURS, label, UNIT, "higher", f"{mine}; {label}: not installed")
            continue
        found = f"{label} {peer.version}: {peer.vehicles:.1f} vehicles, {peer.dt_s:g} s an env step; {work}"
        out[key] = measured.figure(OURS, label, UNIT, "higher", f"{mine}. {found}")
    rates = {OURS: scaled(measured.samples[OURS], ours.cars * ours.dt_s)}
    if HIGHWAY_10HZ in met:
        peer = met[HIGHWAY_10HZ]
        rates[HIGHWAY_10HZ] = scaled(measured.samples[HIGHWAY_10HZ], peer.vehicles * peer.dt_s)
    note = "the same runs, whatever the number of cars"
    out["env_steps_per_s_vs_highway_env"] = Paired(rates).figure(OURS, HIGHWAY_10HZ, "env steps/s", "higher", note)
    return out


def scaled(samples: tuple[float, ...], per: float) -> tuple[float, ...]:
    """Samples divided by `per`, e.g. vehicle-seconds per second to steps per second."""
    return tuple(sample / per for sample in samples)
