"""What the tests of the driving world share: roads of one's own, situations of one's own, and plain arithmetic.

A situation is made through the exact state of a sim (`get_state`, `set_state`), so nothing of the sim is replaced: road
users are put on lanes, the ego anywhere. `pose_on` and `overlapping` are written in numpy, apart from the kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import robotrl
import robotrl.sims.bev.sim as bev_sim
from robotrl.sims.driving import tables
from robotrl.sims.driving.roads import maps
from robotrl.sims.driving.roads.lanes import RoadBuilder

Array = NDArray[Any]
EGO_HALF_M = 4.7 / 2
AWAY_M = 1.0e6


def make(num_envs: int = 1, **options: Any) -> Any:
    return robotrl.make_sim("bev/drive", **{"num_envs": num_envs, "obs": "none", "seed": 0, **options})


def on_roads(
    monkeypatch: pytest.MonkeyPatch, builder: RoadBuilder, num_envs: int = 1, route: int | None = None, **options: Any
) -> Any:
    """A sim on roads of one's own, all envs at one and the same start; nobody is there but the ego, which stands."""
    road = maps.finish(builder)
    monkeypatch.setattr(bev_sim, "procedural_map", lambda family, seed: road)
    sim = make(num_envs, **{"scenarios": ("straight",), "agents": 16, "threads": 1, **options})
    sim.reset(options={"state_ids": [0] * num_envs})
    scene = Scene(sim)
    scene.clear()
    if route is not None:
        scene["episodes/route"] = route
        scene.apply()
    scene.ego(0.0, 0.0)
    scene.apply()
    return sim


def drive(sim: Any, steer: float = 0.0, accel: float = 0.0) -> Any:
    """One step of all envs under one action."""
    return sim.step(torch.tensor([[steer, accel]], dtype=torch.float32).expand(sim.num_envs, 2).contiguous())


def lanes_of(sim: Any, env: int = 0) -> Array:
    """Lanes of an env's map."""
    row = sim.core.bank.arrays.maps[sim.core.world.episodes["map"][env]]
    return sim.core.bank.arrays.lanes[row["lane"] : row["lane"] + row["lanes"]]


def route_of(sim: Any, env: int = 0) -> Array:
    """Points of an env's route."""
    row = sim.core.bank.arrays.routes[sim.core.world.episodes["route"][env]]
    return sim.core.bank.arrays.route_points[row["first"] : row["first"] + row["count"]]


def pose_on(sim: Any, lane: Any, s: Any, d: Any) -> tuple[Array, Array, Array, Array]:
    """x, y, cos, sin on lanes, numbered as the bank does, at `s` m along and `d` m left of the centre; arrays."""
    arrays = sim.core.bank.arrays
    row = arrays.lanes[np.asarray(lane)]
    u = np.asarray(s) / row["spacing"]
    i = np.clip(u.astype(int), 0, row["count"] - 2)
    u = u - i
    a, b = arrays.points[row["first"] + i], arrays.points[row["first"] + i + 1]
    cos, sin = a["cos"] + u * (b["cos"] - a["cos"]), a["sin"] + u * (b["sin"] - a["sin"])
    norm = np.hypot(cos, sin)
    cos, sin = cos / norm, sin / norm
    return a["x"] + u * (b["x"] - a["x"]) - d * sin, a["y"] + u * (b["y"] - a["y"]) + d * cos, cos, sin


def drivable(sim: Any, env: Array, x: Array, y: Array) -> Array:
    """Whether points (n, k) lie on the surface of the maps of the envs `env` (n,)."""
    arrays = sim.core.bank.arrays
    row = arrays.maps[sim.core.world.episodes["map"][env]][:, None]
    r = np.floor((y - row["y0"]) / row["cell"]).astype(np.int64)
    c = np.floor((x - row["x0"]) / row["cell"]).astype(np.int64)
    inside = (r >= 0) & (c >= 0) & (r < row["rows"]) & (c < row["columns"])
    cell = arrays.tiles[np.where(inside, row["tile"] + r * row["columns"] + c, 0)]
    return inside & (cell & tables.DRIVABLE > 0)


class Scene:
    """The exact state of a sim, to be edited and put back."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        self.state = {key: value.copy() for key, value in sim.get_state().items()}

    def __getitem__(self, key: str) -> Array:
        return self.state[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.state[key][...] = value

    def apply(self) -> Any:
        """Put the state back; gives the observations."""
        return self.sim.set_state({key: value.copy() for key, value in self.state.items()})

    def clear(self) -> None:
        """Leave only the ego."""
        for name, value in {"kind": 0, "lane": -1, "next": -1, "walk": -1, "v": 0, "x": AWAY_M, "y": AWAY_M}.items():
            self[f"agents/{name}"][:, 1:] = value
        self["episodes/target"] = -1

    def car(
        self, slot: int, lane: int, s: float, v: float = 0.0, env: Any = slice(None), following: int = -1, **fields: Any
    ) -> None:
        """Put a car, 4.5 m by 1.8 m, on a lane of the map; `following` is the lane that it takes next."""
        envs = np.arange(self.sim.num_envs)[env]
        d = fields.get("d", 0.0)
        values = {
            "kind": tables.CAR,
            "lane": lane,
            "next": following,
            "walk": -1,
            "s": s,
            "d": d,
            "rest": d,
            "v": v,
            "a": 0,
            "length": 4.5,
            "width": 1.8,
            "desire": 1.0,
            "headway": 1.5,
            "wait": 0,
            "hold": 0,
            "reckless": 0,
            "seed": 1 + slot,
            "turns": 0,
        } | fields
        maps = self.sim.core.bank.arrays.maps[self.sim.core.world.episodes["map"][envs]]
        values |= dict(
            zip(("x", "y", "cos", "sin"), pose_on(self.sim, maps["lane"] + values["lane"], s, d), strict=True)
        )
        for name, value in values.items():
            self[f"agents/{name}"][envs, slot] = value

    def walker(self, slot: int, x: float, y: float, yaw: float = 0.0, v: float = 0.0, env: Any = slice(None)) -> None:
        """Put somebody on foot anywhere, who stays there; `v` is only what others see."""
        values = {"kind": tables.PEDESTRIAN, "lane": -1, "walk": -1, "x": x, "y": y, "v": v, "s": 0, "rest": 0}
        values |= {"cos": np.cos(yaw), "sin": np.sin(yaw), "length": 0.6, "width": 0.6}
        for name, value in values.items():
            self[f"agents/{name}"][env, slot] = value

    def ego(
        self, progress: float, v: float, d: float = 0.0, psi: float = 0.0, env: Any = slice(None), best: float = -1.0
    ) -> None:
        """Put the ego beside its route: `progress` m along, `d` m left, turned by `psi` rad."""
        for e in np.arange(self.sim.num_envs)[env]:
            points = route_of(self.sim, int(e))
            i = int(progress)
            p = points[i]
            x = p["x"] + (progress - i) * p["cos"] - d * p["sin"]
            y = p["y"] + (progress - i) * p["sin"] + d * p["cos"]
            yaw = float(np.arctan2(p["sin"], p["cos"])) + psi
            values = {"x": x, "y": y, "yaw": yaw, "cos": np.cos(yaw), "sin": np.sin(yaw), "v": v, "a": 0, "d": d}
            values |= {"index": i, "progress": progress, "best": progress if best < 0 else best, "psi": psi}
            for name, value in values.items():
                self[f"egos/{name}"][e] = value
            for name in ("x", "y", "cos", "sin", "v"):
                self[f"agents/{name}"][e, 0] = values[name]
            self["judges/speeds"][e] = v
            self["judges/yaws"][e] = 0


def overlapping(agents: Array, inset_m: float = 0.0) -> Array:
    """(n, 3) env and two slots of each pair of boxes that overlap, by more than `inset_m` on every axis."""
    one, two = np.triu_indices(agents.shape[1], 1)
    there = (agents["kind"] > 0) & (np.abs(agents["x"]) < AWAY_M / 2)
    x, y = np.where(there, agents["x"], np.nan), np.where(there, agents["y"], np.nan)
    reach = np.hypot(agents["length"], agents["width"]) / 2
    with np.errstate(invalid="ignore"):
        near = (x[:, one] - x[:, two]) ** 2 + (y[:, one] - y[:, two]) ** 2 < (reach[:, one] + reach[:, two]) ** 2
    env, pair = np.nonzero(near)
    a, b = agents[env, one[pair]], agents[env, two[pair]]
    hit = separations(a, b).max(axis=0) < -inset_m
    return np.stack([env[hit], one[pair[hit]], two[pair[hit]]], axis=1)


def separations(a: Array, b: Array) -> Array:
    """(4, n) gap between two boxes along each axis of theirs, m; negative where they overlap along it."""
    corners = [
        np.stack([i * box["length"] / 2 * box["cos"] - j * box["width"] / 2 * box["sin"] for i, j in SIGNS])
        + 1j * np.stack([i * box["length"] / 2 * box["sin"] + j * box["width"] / 2 * box["cos"] for i, j in SIGNS])
        for box in (a, b)
    ]
    corners[1] = corners[1] + (b["x"] - a["x"]) + 1j * (b["y"] - a["y"])
    out: list[Array] = []
    for box in (a, b):
        for axis in (box["cos"] + 1j * box["sin"], -box["sin"] + 1j * box["cos"]):
            p, q = ((c * np.conj(axis)).real for c in corners)
            out.append(np.maximum(q.min(0) - p.max(0), p.min(0) - q.max(0)))
    return np.array(out)


SIGNS = ((1, 1), (1, -1), (-1, -1), (-1, 1))
