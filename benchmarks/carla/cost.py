"""Cost of a step of the CARLA adapter at 100 actors, beside a client that only sends a control and ticks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import robotrl
from benchmarks.carla.town import town
from benchmarks.kit.figures import Paired, paired
from robotrl.errors import ConfigError
from robotrl.sims.carla.stub.launch import StubServer
from robotrl.sims.driving.opendrive import reader

ACTORS = 100
EVERY_M = 9.0
"""Distance between two cars on a lane."""
TICK_S, TICKS = 0.05, 2


def measure(obs: str, steps: int, rounds: int, work: Path) -> Paired:
    """Seconds per step of the sim ("sim") and of the bare client ("bare"), in turns.

    Args:
        obs: observation of the sim.
        steps: steps in a round.
        rounds: rounds of each.
        work: folder for the map.
    """
    path = work / "cost.xodr"
    path.write_text(town())
    places = cars(path)
    with StubServer([f"cost={path}"]) as ours, StubServer([f"cost={path}"]) as theirs:
        options: dict[str, Any] = {"obs": obs, "vehicles": 0, "walkers": 0, "limit_s": 3600.0, "blocked_s": 1e5}
        sim = robotrl.make_sim("carla/cost", num_envs=1, ports=(ours.port,), agents=64, tick_s=TICK_S, **options)
        sim.reset(seed=0)
        fill(ours, places)
        ego = ours.control("actors", type="vehicle.lincoln*")[0]["pose"]
        theirs.control("spawn", type="vehicle.lincoln.mkz_2020", pose=ego)
        theirs.control("tick")
        fill(theirs, places)
        bare = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.carla.bare", str(theirs.port), str(TICK_S), str(TICKS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # the client sends a control only if it is another one
        still = [torch.tensor([[0.001 * k, -1.0]]) for k in range(2)]

        def step() -> float:
            begun = time.perf_counter()
            for number in range(steps):
                sim.step(still[number % 2])
            return (time.perf_counter() - begun) / steps

        def alone() -> float:
            assert bare.stdin is not None and bare.stdout is not None
            print(steps, file=bare.stdin, flush=True)
            return float(bare.stdout.readline()) / steps

        try:
            return paired({"bare": alone, "sim": step}, rounds)
        finally:
            bare.kill()
            bare.wait()
            sim.close()


def cars(path: Path) -> list[list[float]]:
    """Places of cars on the lanes of a map, as poses of CARLA's."""
    found: list[list[float]] = []
    for lane in reader.read(path).lanes:
        for k in range(6, len(lane.points) - 6, int(EVERY_M)):
            (x, y), (x1, y1) = lane.points[k], lane.points[k + 1]
            yaw = -float(torch.rad2deg(torch.atan2(torch.tensor(y1 - y), torch.tensor(x1 - x))))
            found.append([float(x), -float(y), 0.0, yaw])
    return found


def fill(server: StubServer, places: list[list[float]]) -> None:
    """Put cars on a server until it has `ACTORS` of them, where there is room."""
    for place in places:
        if len(server.control("actors", type="vehicle.*")) == ACTORS:
            return
        try:
            server.control("spawn", type="vehicle.tesla.model3", pose=place)
        except ConfigError:
            continue
    raise ConfigError(f"the map has no room for {ACTORS} cars")
