"""One cell of the maps' table: drives on a map of a kind, and on the same map cut at random.

`python -m benchmarks.maps.cell KIND SEED OUT` writes OUT/result.json: figures of the rule-based driver and the traffic.
"""

from __future__ import annotations

import collections
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import robotrl
from benchmarks.maps.bench import EPISODES
from benchmarks.maps.cuts import cut
from benchmarks.maps.kinds import KINDS
from robotrl.errors import unknown
from robotrl.sims import starts
from robotrl.sims.bev.core import BevCore
from robotrl.sims.driving import tables
from robotrl.sims.driving.geometry import boxes_overlap
from robotrl.sims.driving.roads.levels import LEVEL_M
from robotrl.sims.driving.traffic.heights import differ, height_of
from robotrl.sims.driving.traffic.right_of_way import RED, light
from robotrl.utils.files import dump_json, replace_file

ENVS, AGENTS = 8, 24
LOOK_EVERY = 5
"""Steps between two looks for road users that overlap."""
NEAR_M2 = 80.0
"""Squared distance of centres, m^2, within which two road users are looked at."""
JUNCTION_ROUTES = 6
"""Routes that are drawn on a map with a junction."""


class Driven(NamedTuple):
    """Figures of the episodes on a map."""

    episodes: int
    ends: dict[str, int]
    completion: float
    score: float
    reds: int
    """Lines passed on red by others than the ego."""
    passed: int
    """Lines with a light that they passed."""
    overlaps: int
    """Episodes in which two others overlapped."""


def drive(text: str, episodes: int, routes: int = 2, length_m: float = 150.0, block: int = 0) -> Driven:
    """Let the rule-based driver drive on a file's map.

    Args:
        text: the file's text.
        episodes: number of starts.
        routes: routes that are drawn.
        length_m: length of a route, m.
        block: number of the block of `episodes` starts of the split `val`.
    """
    first = starts.SPLITS["val"].start + block * episodes
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, "map.xodr")
        path.write_text(text)
        sim: Any = robotrl.make_sim(
            "bev/drive", num_envs=ENVS, seed=0, map=str(path), agents=AGENTS, routes=routes, route_length_m=length_m,
            threads=1,
        )  # fmt: skip
    sim.reset(options={"state_ids": np.arange(first, first + ENVS)})
    driver, core = sim.make_expert(mode="brisk"), sim.core
    core.queue_states(list(range(first + ENVS, first + episodes)))
    ends: collections.Counter[str] = collections.Counter()
    rows: list[tuple[float, float]] = []
    overlapping, reds, passed, step = set[int](), 0, 0, 0
    started = torch.ones(ENVS, dtype=torch.bool)
    counted = set(range(first, first + episodes))
    while len(rows) < episodes:
        before, times, ids = core.world.agents.copy(), core.world.episodes.copy(), core.state_ids.copy()
        sim.step(driver.act(started))
        started = torch.zeros(ENVS, dtype=torch.bool)
        for e in core.drives:
            started[e] = True
            if int(ids[e]) in counted:
                counted.discard(int(ids[e]))
                ends.update(name for name, bit in tables.EVENTS.items() if core.events[e] & bit)
                rows.append((float(core.completion[e]), float(core.score[e])))
        step += 1
        for e in set(range(ENVS)) - set(core.drives):
            if int(ids[e]) in counted:
                more, red = _lights(core, e, before[e], times)
                passed, reds = passed + more, reds + red
                if step % LOOK_EVERY == 0 and overlap(core.world.agents[e], _heights(core, e)):
                    overlapping.add(int(ids[e]))
    completion, score = np.mean(rows, axis=0)
    return Driven(episodes, dict(ends), float(completion), float(score), reds, passed, len(overlapping))


def _lights(core: BevCore, e: int, before: Any, times: Any) -> tuple[int, int]:
    """Lines with a light that others passed in the last step, and how many of them on red."""
    maps, now = core.bank.arrays, core.world.agents[e]
    passed = reds = 0
    for slot in range(1, len(before)):
        a, b = before[slot], now[slot]
        if a["kind"] != tables.CAR or a["lane"] < 0 or b["lane"] < 0:
            continue
        lane = maps.lanes[a["lane"]]
        half = 0.5 * a["length"]
        over = b["s"] + half if b["lane"] == a["lane"] else lane["length"] + b["s"] + half
        if b["lane"] not in (a["lane"], a["next"]):
            continue
        if lane["control"] == 1 and a["s"] + half < lane["stop"] <= over:
            state, _ = light(maps, core.world._replace(episodes=times), e, lane["group"])
            passed, reds = passed + 1, reds + (state == RED)
    return passed, reds


def _heights(core: BevCore, e: int) -> Any:
    """(A,) height of each road user of an env, m; `UNKNOWN` off the lanes."""
    maps = core.bank.arrays
    row = maps.maps[core.world.episodes["map"][e]]
    return np.array([height_of(maps, row, user, 0.0) for user in core.world.agents[e]])


def overlap(agents: Any, heights: Any) -> bool:
    """True if two road users besides the ego and pedestrians overlap on one level.

    Args:
        agents: (A,) road users.
        heights: (A,) m.
    """
    cars = np.flatnonzero((agents["kind"] > 0) & (agents["kind"] != tables.PEDESTRIAN) & (np.abs(agents["x"]) < 1e5))
    cars = cars[cars > 0]
    x, y = agents["x"][cars], agents["y"][cars]
    for i, j in np.argwhere(np.triu((x[:, None] - x) ** 2 + (y[:, None] - y) ** 2 < NEAR_M2, 1)):
        p, q = agents[cars[i]], agents[cars[j]]
        if differ(heights[cars[i]], heights[cars[j]], LEVEL_M):
            continue
        if boxes_overlap(
            q["x"] - p["x"], q["y"] - p["y"], p["cos"], p["sin"], p["length"] / 2, p["width"] / 2, q["cos"], q["sin"],
            q["length"] / 2, q["width"] / 2,
        ):  # fmt: skip
            return True
    return False


def recut(text: str, seed: int) -> str:
    """The file with its roads cut at random places."""
    draw = random.Random(seed)
    return cut(text, lambda length: [draw.uniform(0.0, length) for _ in range(draw.randint(0, 8))])


def main(kind: str, seed: int, out: Path, episodes: int = EPISODES) -> None:
    """Run one cell in this process.

    Args:
        kind: kind of map.
        seed: seed of the cut and number of the block of starts.
        out: folder of the cell.
        episodes: number of starts.

    Raises:
        ConfigError: the kind is unknown.
    """
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    torch.set_num_threads(1)
    text = KINDS[kind]()
    # a street has one route each way
    routes = JUNCTION_ROUTES if text.count("<connection") > 1 else 2
    whole, again = (drive(one, episodes, routes, block=seed) for one in (text, recut(text, seed)))
    result = {"whole": whole._asdict(), "cut": again._asdict(), "same": whole == again}
    replace_file(out / "result.json", dump_json(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
