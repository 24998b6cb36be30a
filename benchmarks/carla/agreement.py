"""Agreement of rasters: scenes of `bev/drive` on a map are rebuilt on a server, and drawn by the CARLA adapter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import robotrl
from robotrl.errors import RobotrlError
from robotrl.sims.carla.stub.launch import StubServer
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.render.raster import CHANNELS
from robotrl.sims.driving.render.vectors import AGENTS as AGENT_FIELDS
from robotrl.sims.driving.render.vectors import SCALARS
from robotrl.sims.driving.tables import CYCLIST, PEDESTRIAN
from robotrl.sims.driving.traffic.right_of_way import light

AGENTS = 24
ROUTES, ROUTE_M, FEWEST_M = 16, 200.0, 60.0
STEPS_BETWEEN = 23
"""Control steps of the rule-based driver between two scenes."""
EVERY_M = 12
"""Distance of the waypoints of a route file."""
MODELS = {CYCLIST: "vehicle.bh.crossbike", PEDESTRIAN: "walker.pedestrian.0001"}
CAR = "vehicle.tesla.model3"
STATES = (2, 1, 0)
"""CARLA's numbers of green, yellow and red."""


class Agreement(NamedTuple):
    """Agreement of one scene."""

    pixels: NDArray[np.int64]
    """(channels, 2) drawn pixels in both pictures, and in either."""
    scalars: dict[str, float]
    """Difference of each scalar observation."""
    agents: float
    """Largest difference in the observation of road users, their accelerations left out."""


def compare(text: str, scenes: int, seed: int, work: Path) -> list[Agreement]:
    """Compare scenes of both sims.

    Args:
        text: OpenDRIVE map.
        scenes: number of scenes.
        seed: seed of the routes and the traffic.
        work: folder for files.
    """
    path = work / "agreement.xodr"
    path.write_text(text)
    signal_ids = reader.parse(text, "agreement").signal_ids
    options = {"routes": ROUTES, "route_length_m": ROUTE_M}
    bev = robotrl.make_sim("bev/drive", num_envs=1, seed=seed, map=str(path), obs="both", agents=AGENTS, **options)
    bev.reset(seed=seed)
    driver, started = bev.make_expert(), torch.ones(1, dtype=torch.bool)
    found: list[Agreement] = []
    with StubServer([f"agreement={path}"]) as server:
        while len(found) < scenes:
            for _ in range(STEPS_BETWEEN):
                step = bev.step(driver.act(started))
                started = step.terminated | step.truncated
            if _left_m(bev) > FEWEST_M:
                found.append(_both(bev, server, signal_ids, work / f"route{len(found)}.xml"))
    return found


def _left_m(bev: Any) -> float:
    """Way to the end of the route, m."""
    world = bev.core.world
    return float(bev.core.bank.arrays.routes["length"][world.episodes["route"][0]] - world.egos["progress"][0])


def _both(bev: Any, server: StubServer, signal_ids: list[tuple[str, ...]], routes: Path) -> Agreement:
    """Rebuild the present scene on the server, and compare the observations of both."""
    world, maps = bev.core.world, bev.core.bank.arrays
    world.agents["v"][0][world.agents["kind"][0] == PEDESTRIAN] = 0.0  # nobody moves walkers here
    route = maps.routes[world.episodes["route"][0]]
    # a route that begins here: the adapter follows an ego along its route, not one that is put elsewhere
    points = maps.route_points[route["first"] + world.egos["index"][0] : route["first"] + route["count"]]
    _write_route(routes, points)
    options: dict[str, Any] = {
        "obs": "both",
        "agents": AGENTS,
        "vehicles": 0,
        "walkers": 0,
        "settle_ticks": 1,
        "tick_s": 0.1,
    }
    carla = robotrl.make_sim(f"carla/{routes}", num_envs=1, ports=(server.port,), pedals="direct", **options)
    try:
        carla.reset()
        dt = carla.control_dt_s
        for slot in np.flatnonzero(world.agents["kind"][0])[1:]:
            agent = world.agents[0, slot]
            pose = _pose(agent, -float(agent["v"]) * dt)
            try:
                number = server.control("spawn", type=MODELS.get(int(agent["kind"]), CAR), pose=pose)
            except RobotrlError:  # the server's model is larger than the road user, and touches another one
                agent["kind"] = 0
                continue
            server.control("place", id=number, pose=pose, speed=float(agent["v"]))
        ego = world.agents[0, 0]
        hero = server.control("actors", type="vehicle.lincoln*")[0]["id"]
        server.control("place", id=hero, pose=_pose(ego, -float(ego["v"]) * dt), speed=float(ego["v"]))
        for group, ids in enumerate(signal_ids):
            state, _ = light(maps, world, 0, group)
            for one in ids:
                server.control("light", id=one, state=STATES[state])
        theirs = {key: value[0].numpy().copy() for key, value in carla.step(torch.zeros(1, 2)).obs.items()}
        _take_sizes(world.agents[0], carla.core.world.agents[0])
        bev.core.observe(np.zeros(1, np.int64))
        ours = {key: value[0] for key, value in bev.core.obs.items()}
        drawn = theirs["bev"] > 0, ours["bev"] > 0
        both, either = drawn[0] & drawn[1], drawn[0] | drawn[1]
        apart = np.abs(theirs["scalars"] - ours["scalars"]).tolist()
        return Agreement(
            np.stack([both.sum((0, 1)), either.sum((0, 1))], 1).astype(np.int64),
            dict(zip(SCALARS, apart, strict=True)),
            float(np.abs(theirs["agents"] - ours["agents"])[:, : AGENT_FIELDS.index("accel")].max()),
        )
    finally:
        carla.close()


def _take_sizes(agents: Any, models: Any) -> None:
    """Give road users the sizes of the server's models at their places."""
    there = models[models["kind"] > 0]
    for agent in agents[agents["kind"] > 0]:
        near = np.argmin(np.hypot(there["x"] - agent["x"], there["y"] - agent["y"]))
        at = np.flatnonzero((agents["x"] == agent["x"]) & (agents["y"] == agent["y"]))[0]
        agents["length"][at], agents["width"][at] = there["length"][near], there["width"][near]


def _pose(agent: Any, ahead_m: float) -> list[float]:
    """Pose of CARLA's of a road user, moved along its heading."""
    x, y = agent["x"] + ahead_m * agent["cos"], agent["y"] + ahead_m * agent["sin"]
    return [float(x), -float(y), 0.0, -math.degrees(math.atan2(agent["sin"], agent["cos"]))]


def _write_route(path: Path, points: Any) -> None:
    """Route file of the leaderboard 1.0 along points."""
    rows = [*points[::EVERY_M][:-1], points[-1]]
    inside = "".join(
        f'<waypoint x="{p["x"]}" y="{-p["y"]}" z="0" pitch="0" roll="0"'
        f' yaw="{-math.degrees(math.atan2(p["sin"], p["cos"]))}"/>'
        for p in rows
    )
    path.write_text(f'<routes><route id="0" town="agreement">{inside}</route></routes>')


def overlap(scenes: Sequence[Agreement]) -> dict[str, float]:
    """Intersection over union of each channel over all scenes; channels that are empty in both are left out."""
    both, either = np.stack([scene.pixels for scene in scenes]).sum(0).T
    return {name: float(b / e) for name, b, e in zip(CHANNELS, both, either, strict=True) if e}
