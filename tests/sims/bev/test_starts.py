"""Starts of the driving world: ten thousand of them, what they must be like, and what is refused when a sim is made."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from robotrl.errors import ConfigError, RobotrlError
from robotrl.sims import starts
from robotrl.sims.bev import procedural
from robotrl.sims.bev.core import LAYOUTS, map_keys
from robotrl.sims.bev.traffic.scenarios import SCENARIOS, ScenarioEvent
from robotrl.sims.driving import tables
from robotrl.sims.driving.geometry import BRAKE_MPS2
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.rewards import RewardCfg
from tests.kits.bev_kit import Array, drivable, make, overlapping

STARTS = 10_000
ROWS = 500


def random_ids() -> Array:
    """Start ids of all splits and scenarios, on a quarter of the layouts of each: building maps takes longest."""
    rng = np.random.default_rng(0)
    found: list[Array] = []
    for split, part in starts.SPLITS.items():
        ids = rng.integers(part.start, part.stop, 2 * STARTS)
        seeds = np.array([seed for _, seed in map_keys(ids, ["straight"] * len(ids))])
        first, count = LAYOUTS[split]
        found.append(ids[seeds - first < count // 4][: STARTS // 3 + 1])
    return rng.permutation(np.concatenate(found))[:STARTS]


def with_parked(sim: Any) -> Array:
    """(N, A + P) road users, then the boxes that stand on each env's map."""
    world, arrays = sim.core.world, sim.core.bank.arrays
    rows = arrays.maps[world.episodes["map"]]
    out = np.zeros((sim.num_envs, world.agents.shape[1] + int(rows["parkeds"].max())), tables.AGENT)
    out[:, : world.agents.shape[1]] = world.agents
    for env, row in enumerate(rows):
        boxes = arrays.parked[row["parked"] : row["parked"] + row["parkeds"]]
        part = out[env, world.agents.shape[1] : world.agents.shape[1] + len(boxes)]
        part["kind"] = 9
        for name in ("x", "y", "cos", "sin", "length", "width"):
            part[name] = boxes[name]
    return out


class Facts(NamedTuple):
    """What was found at ten thousand starts, an entry each."""

    ids: Array
    scenario: Array
    overlaps: list[tuple[int, int, int]]
    """Start id and kinds of each pair of boxes that overlap."""
    egos: Array
    episodes: Array
    route: Array
    """Their routes' records."""
    limit: Array
    """m/s at the start."""
    on_road: Array
    """Whether the ego's corners and middle are."""
    ends_on_road: Array
    users: Array
    """Road users beside the ego."""


@pytest.fixture(scope="module")
def facts() -> Facts:
    sim = make(num_envs=ROWS, threads=0)
    ids = random_ids()
    overlaps: list[tuple[int, int, int]] = []
    parts: list[tuple[Array, ...]] = []
    for chunk in ids.reshape(-1, ROWS):
        sim.reset(options={"state_ids": chunk})
        world, arrays = sim.core.world, sim.core.bank.arrays
        boxes = with_parked(sim)
        for env, one, two in overlapping(boxes):
            kinds = boxes["kind"][env, [one, two]]
            if kinds.max() < 9 or kinds.min() < 9:  # not two that are parked
                overlaps.append((int(chunk[env]), int(kinds[0]), int(kinds[1])))
        egos, me = world.egos.copy(), world.agents[:, 0]
        u, w = np.array([0, 0.5, 0.5, -0.5, -0.5]), np.array([0, 0.5, -0.5, -0.5, 0.5])
        u, w = u * me["length"][:, None], w * me["width"][:, None]
        x = egos["x"][:, None] + u * egos["cos"][:, None] - w * egos["sin"][:, None]
        y = egos["y"][:, None] + u * egos["sin"][:, None] + w * egos["cos"][:, None]
        every = np.arange(ROWS)
        route = arrays.routes[world.episodes["route"]]
        last = arrays.route_points[route["first"] + route["count"] - 1]
        parts.append(
            (
                world.episodes["scenario"].copy(),
                egos,
                world.episodes.copy(),
                route.copy(),
                arrays.route_points["speed"][route["first"]],
                drivable(sim, every, x, y).all(axis=1),
                drivable(sim, every, last["x"][:, None], last["y"][:, None])[:, 0],
                (world.agents["kind"][:, 1:] > 0).sum(axis=1),
            )
        )
    sim.close()
    scenario, egos, episodes, route, limit, on_road, ends, users = (np.concatenate(p) for p in zip(*parts, strict=True))
    return Facts(ids, scenario, overlaps, egos, episodes, route, limit, on_road, ends, users)


def test_all_scenarios_and_splits_are_among_them(facts: Facts) -> None:
    assert len(facts.ids) == STARTS
    assert np.array_equal(facts.scenario, facts.ids % len(SCENARIOS))
    assert np.bincount(facts.scenario).min() > STARTS / len(SCENARIOS) / 2
    for part in starts.SPLITS.values():
        assert ((facts.ids >= part.start) & (facts.ids < part.stop)).sum() > STARTS / 4
    # traffic is there, more and less of it
    assert np.median(facts.users) > 4 and len(np.unique(facts.users)) > 10


def test_no_boxes_overlap(facts: Facts) -> None:
    """Kinds: 1 car, 2 cyclist, 3 on foot, 4 what stands in the way, 9 parked."""
    assert not facts.overlaps, f"{len(facts.overlaps)} of {STARTS} starts, start id and kinds: {facts.overlaps[:6]}"


def test_the_ego_starts_on_its_route_on_the_road_within_the_limit(facts: Facts) -> None:
    egos = facts.egos
    assert facts.on_road.all(), facts.ids[~facts.on_road][:5]
    # some centimetres aside of a lane's middle, of the route's or of one beside it, and hardly turned
    assert np.abs(egos["lane_d"]).max() <= 0.4 + 1e-3
    assert 0.1 < (np.abs(egos["d"]) > 2.0).mean() < 0.5
    assert np.abs(egos["psi"]).max() < 0.1
    assert (egos["progress"] < 0.5).all() and (egos["outside"] == 0).all()
    assert (egos["v"] >= 0.29 * facts.limit).all() and (egos["v"] <= 0.81 * facts.limit).all()


def test_the_ego_can_stop_behind_whoever_is_ahead(facts: Facts) -> None:
    egos = facts.egos
    needed = (egos["v"] ** 2 - np.where(egos["leader"] >= 0, egos["leader_v"], 0.0) ** 2) / (2 * BRAKE_MPS2)
    short = egos["gap"] < np.maximum(needed, 0.5)
    assert not short.any(), (facts.ids[short][:6], egos["gap"][short][:6])


def test_routes_are_long_enough_and_end_on_the_map(facts: Facts) -> None:
    assert facts.ends_on_road.all()
    assert facts.route["length"].min() > 60.0
    # at 60 % of the limit there is time for it
    assert (facts.route["length"] / (0.6 * facts.limit)).max() < 80.0


def test_starts_differ(facts: Facts) -> None:
    free = facts.scenario != [scenario.event for scenario in SCENARIOS].index(ScenarioEvent.RED_LIGHT_RUNNER)
    assert len(np.unique(facts.episodes["offset"][free])) > 0.99 * len(np.unique(facts.ids[free]))
    assert len(np.unique(facts.egos["v"])) > 0.9 * STARTS


# identity

PRINTED = (
    "import hashlib, json, sys\n"
    "import numpy as np, robotrl\n"
    "ids = json.loads(sys.argv[1])\n"
    "sim = robotrl.make_sim('bev/drive', num_envs=len(ids), obs='none', seed=5)\n"
    "sim.reset(options={'state_ids': ids})\n"
    "state = sim.get_state()\n"
    "skip = ('queue', 'draws', 'order')\n"
    "rows = [hashlib.sha256(b''.join(np.ascontiguousarray(v[e]).tobytes() for k, v in sorted(state.items()) if k not in"
    " skip)).hexdigest() for e in range(len(ids))]\n"
    "print(json.dumps(rows))\n"
)


def digests(sim: Any) -> list[str]:
    """Of each env's state, without what belongs to the whole batch or is only an order among equals."""
    state = sim.get_state()
    skip = ("queue", "draws", "order")
    return [
        hashlib.sha256(
            b"".join(np.ascontiguousarray(v[e]).tobytes() for k, v in sorted(state.items()) if k not in skip)
        ).hexdigest()
        for e in range(sim.num_envs)
    ]


def test_an_id_is_one_start_in_every_process_and_order(tmp_path: Path) -> None:
    ids = [int(i) for i in random_ids()[:24]]
    sim = make(num_envs=len(ids))
    sim.reset(options={"state_ids": ids[12:] + ids[:12]})  # maps are numbered in another order
    sim.reset(options={"state_ids": ids})
    here = digests(sim)
    assert len(set(here)) == len(here)
    done = subprocess.run(
        [sys.executable, "-c", PRINTED, json.dumps(ids[::-1])], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == here[::-1]
    # and drawn one by one, with other neighbours
    small = make(num_envs=2)
    for i in range(0, 8, 2):
        small.reset(options={"state_ids": [ids[i + 1], ids[i]]})
        assert digests(small) == [here[i + 1], here[i]]


def test_the_splits_share_no_layout() -> None:
    keys: dict[str, set[tuple[str, int]]] = {}
    rng = np.random.default_rng(1)
    for split, part in starts.SPLITS.items():
        ids = rng.integers(part.start, part.stop, 20_000)
        families = [SCENARIOS[i % len(SCENARIOS)].family for i in ids]
        keys[split] = set(map_keys(ids, families))
        first, count = LAYOUTS[split]
        assert {seed for _, seed in keys[split]} == set(range(first, first + count))
    assert not (keys["train"] & keys["val"] or keys["train"] & keys["test"] or keys["val"] & keys["test"])
    # not only their numbers: the roads themselves differ
    seeds = [first + k for first, _ in LAYOUTS.values() for k in range(5)]
    shapes = {
        hashlib.sha256(b"".join(lane.points.tobytes() for lane in procedural.layout(family, seed).lanes)).hexdigest()
        for family in procedural.FAMILIES
        for seed in seeds
    }
    assert len(shapes) == len(procedural.FAMILIES) * len(seeds)


@pytest.mark.parametrize("agents", [4, 256])
def test_every_scenario_runs_with_few_and_many_road_users(agents: int) -> None:
    sim = make(num_envs=2 * len(SCENARIOS), agents=agents, obs="vector", nearest=32)
    sim.queue_states(sim.state_ids("val")[:100])
    obs = sim.reset()
    names = {sim.scenario_of(int(i)) for i in sim.core.state_ids}
    assert names == {scenario.name for scenario in SCENARIOS}
    expert = sim.make_expert()
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    for _ in range(20):
        out = sim.step(expert.act(started))
        started = out.terminated | out.truncated
        obs = out.obs
        assert all(torch.isfinite(value).all() for value in obs.values())
    assert (sim.core.world.agents["kind"] > 0).sum(axis=1).max() <= agents


# what is refused

HUGE = {"obs": "raster", "raster_pixels": 4096, "num_envs": 2000}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scenarios": ("rondabout",)},
            r"scenario 'rondabout' is unknown: did you mean 'roundabout'\? known: .*signal",
        ),
        ({"scenarios": ()}, r"scenarios is \(\): expected each name once, and one or more"),
        ({"scenarios": ("curve", "curve")}, r"scenarios is \('curve', 'curve'\): expected each name once"),
        ({"agents": 3}, "agents is 3: expected a whole number from 4 to 256"),
        ({"agents": 257}, "agents is 257: expected a whole number from 4 to 256"),
        ({"nearest": 33}, "nearest is 33: expected a whole number from 0 to 32"),
        ({"polylines": -1}, "polylines is -1: expected a whole number from 0 to 16"),
        ({"threads": -1}, "threads is -1: expected a whole number from 0 to"),
        ({"num_envs": 0}, "num_envs is 0: expected 1 or more"),
        ({"limit_s": 0.5}, "limit_s is 0.5: expected a number from 1 to 3600 s"),
        ({"limit_s": float("nan")}, "limit_s is nan: expected a number from 1 to 3600 s"),
        ({"blocked_s": 0.0}, r"blocked_s is 0\.0: expected a number from 1 to"),
        ({"throttle_mps2": 0.0}, r"throttle_mps2 is 0\.0: expected a number from 0\.1 to 10 m/s\^2"),
        ({"obs": "rastr"}, "obs 'rastr' is unknown: did you mean 'raster'"),
        ({"reward": "roach", "end_penalty": 5.0}, "end_penalty is 5.0, but reward is not 'carl'"),
        ({"end_penalty": -1.0}, r"end_penalty is -1\.0: expected a number from 0 to 100"),
        ({"reward": "carll"}, "reward 'carll' is unknown: did you mean 'carl'"),
        (
            {"reward_terms": RewardCfg(factors=("speding",))},
            "reward factor 'speding' is unknown: did you mean 'speeding'",
        ),
        ({"reward_terms": RewardCfg(weights={"sped": 1.0})}, "reward term 'sped' is unknown: did you mean 'speed'"),
        (
            {"reward_terms": RewardCfg(ends={"vehicles": 1.0})},
            "reward event 'vehicles' is unknown: did you mean 'vehicle'",
        ),
        ({"reward_terms": RewardCfg(hold_s=-1.0)}, r"reward\.hold_s is -1\.0: expected a number from 0 to"),
        ({"obs": "raster", "raster_pixels": 7}, "raster_pixels is 7: expected pixels from 8 to 4096"),
        ({"obs": "raster", "raster_pixels": 4097}, "raster_pixels is 4097: expected pixels from 8 to 4096"),
        ({"obs": "raster", "raster_pixels": 37}, "raster_pixels is 37: expected an even number, 36 or 38"),
        ({"obs": "raster", "pixels_per_m": 0.0}, r"pixels_per_m is 0\.0: expected a number from 0\.1 to 20"),
        (HUGE, r"raster of 4096 x 4096 for 2000 envs would take 3[0-9.]+ GiB: expected 16 or less; use fewer envs"),
        ({"map": "town.xodr", "scenarios": ("curve",)}, "scenarios and map are both given: expected one of them"),
        ({"map": "no-such-town.xodr"}, "no-such-town.xodr: cannot be read .*: expected an OpenDRIVE file"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_bad_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RobotrlError, match=message) as error:
        make(**options)
    assert "\n" not in str(error.value)


def test_packed_views_may_be_as_many_as_memory_holds() -> None:
    """Packed, a pixel takes two bytes; unpacked ten more, as the message that refuses those promises."""
    cfg = raster.RasterCfg()
    most = raster.MAX_BYTES // (cfg.height * cfg.width * 12)
    assert raster.raster_spec(cfg, False, most).shape == (96, 96, 10)
    with pytest.raises(ConfigError, match="use fewer envs, fewer pixels or packed views"):
        raster.raster_spec(cfg, False, most * 12 // 10 + 1)
    assert raster.raster_spec(cfg, True, 5 * most).shape == (96, 96, 2)
    with pytest.raises(ConfigError, match="expected 16 or less"):
        raster.raster_spec(cfg, True, 6 * most + 12)
