"""Traffic that a network drives: stored files, determinism, exact state, swapping, forward simulation by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.errors import ConfigError, DataError
from robotrl.registry import TRAFFIC, sim_options
from robotrl.run.tensors import write_weights
from robotrl.sims.bev.sim import DriveCfg
from robotrl.sims.bev.traffic.learned import layout
from robotrl.sims.bev.traffic.learned.cars import Cars
from robotrl.sims.bev.traffic.learned.driving import STREAMS
from robotrl.sims.bev.traffic.learned.forward import DISCOUNT, INFLATE_M, STEPS, TERMS, TICK_S
from robotrl.sims.bev.traffic.learned.stored import MANIFEST, WEIGHTS, named, read_traffic
from robotrl.sims.driving import tables
from robotrl.sims.driving.traffic.populations import aggressive, moderate
from robotrl.traffic.saving import save_traffic
from tests.kits.traffic_kit import net_of, stored

DISCOUNTS = DISCOUNT ** np.arange(STEPS)


def make(*traffic: str, envs: int = 8, **options: Any) -> Any:
    settings = {"obs": "none", "threads": 1, "scenarios": ("straight", "signal"), **options}
    return robotrl.make_sim("bev/drive", num_envs=envs, seed=1, traffic=traffic, **settings)


def coast(sim: Any, steps: int) -> None:
    for _ in range(steps):
        sim.step(torch.zeros(sim.num_envs, 2))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return stored(tmp_path / "net", -2.0, 1.0, temperature=1.0)


# files


def test_a_stored_population_is_read_back(folder: str) -> None:
    found = read_traffic(folder)
    assert np.array_equal(found.weights, net_of(-2.0, 1.0, temperature=1.0).to_flat())
    assert found.drivers == (moderate(),) and len(found.sha256) == 64
    assert STREAMS >= layout.CANDIDATES


def rewrite(folder: str, **changes: Any) -> None:
    path = Path(folder) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def reweigh(folder: str, parameters: dict[str, np.ndarray]) -> None:
    """Write other weights with a hash that fits."""
    _, digest = write_weights(Path(folder) / WEIGHTS, parameters)
    rewrite(folder, weights_sha256=digest)


def test_bad_files_are_refused(folder: str, tmp_path: Path) -> None:
    place, whole = Path(folder), (Path(folder) / WEIGHTS).read_bytes()
    parameters = {name: value.copy() for name, value in named(read_traffic(folder).weights).items()}
    manifest = (place / MANIFEST).read_bytes()

    def refused(message: str, kind: type[Exception] = DataError) -> None:
        with pytest.raises(kind, match=message):
            make(folder)
        (place / MANIFEST).write_bytes(manifest)
        (place / WEIGHTS).write_bytes(whole)

    with pytest.raises(DataError, match=r"nowhere is no folder: expected one of `robotrl traffic clone`"):
        make(str(tmp_path / "nowhere"))
    (place / WEIGHTS).write_bytes(whole[:-4] + b"\0\0\0\1")
    refused(r"weights.safetensors has the hash \w+: expected")
    rewrite(folder, schema_version=2)
    refused("schema_version 2, written by a newer robotrl")
    rewrite(folder, kind="policy")
    refused("is of kind 'policy': expected 'bev-traffic'")
    rewrite(folder, layout={**json.loads(manifest)["layout"], "modes": 6})
    refused("has modes 6: expected 8 of this version")
    rewrite(folder, fingerprint=[0.0] * layout.CANDIDATES)
    refused("scores of its fingerprint differ")
    rewrite(folder, drivers=[])
    refused(r"has drivers \[\]: expected a list of populations")
    rewrite(folder, drivers=[{**json.loads(manifest)["drivers"][0], "accel_mps2": -1.0}])
    refused("accel_mps2 is -1.0", ConfigError)
    reweigh(folder, parameters | {"anchors": np.zeros((6, layout.PIECES), np.float32)})
    refused(r"parameter 'anchors' has the shape \(6, 8\): expected \(8, 8\)")
    reweigh(folder, {name: value for name, value in parameters.items() if name != "temperature"})
    refused("has no parameter 'temperature'")
    reweigh(folder, parameters | {"more": np.zeros(1, np.float32)})
    refused("has a parameter 'more'")
    parameters["line.0.bias"][0] = np.nan
    reweigh(folder, parameters)
    refused("parameter 'line.0.bias' is not finite")


def test_a_name_that_is_no_path_is_unknown() -> None:
    with pytest.raises(ConfigError, match="did you mean 'moderate'"):
        make("moderat")


def test_the_manifest_is_an_input_of_a_run(folder: str) -> None:
    options = sim_options("bev/drive", {"traffic": ("moderate", folder)})
    assert isinstance(options, DriveCfg)
    assert [(one.field, one.kind, one.path) for one in options.inputs()] == [
        ("traffic", "file", str(Path(folder) / MANIFEST))
    ]
    sim = make("moderate", folder)
    assert sim.core.traffic_sha256 == (read_traffic(folder).sha256,)
    sim.close()


def test_a_registered_name_may_point_at_a_folder(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stored_traffic.py").write_text(f"from pathlib import Path\ndef mine():\n    return Path({folder!r})\n")
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[robotrl.traffic]\nmine = stored_traffic:mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    sim = make("mine")
    assert sim.core.traffic_sha256 == (read_traffic(folder).sha256,)
    sim.close()


@pytest.mark.parametrize("name", ["cloned", "rift", "self-play"])
def test_a_shipped_network_drives_by_its_name(name: str) -> None:
    """It is read as strictly as one of one's own, drives, and goes on from an exact state as if nothing had been."""
    sim = make(name, envs=4)
    found = read_traffic(TRAFFIC.load(name)())
    assert sim.core.traffic_sha256 == (found.sha256,) and found.about["method"] == name
    sim.reset(seed=3)
    coast(sim, 8)
    state = sim.get_state()
    coast(sim, 12)
    first = sim.core.world.agents.copy()
    assert (first["plan"][first["kind"] == tables.CAR] != 0.0).any()
    sim.set_state(state)
    coast(sim, 12)
    assert np.array_equal(sim.core.world.agents, first)
    sim.close()


# driving


def test_the_same_start_has_the_same_traffic_whatever_the_number_of_envs(folder: str) -> None:
    ids = list(range(300, 308))
    found, steps = [], []
    for envs in (8, 2):
        sim = make(folder, envs=envs)
        here = []
        for k in range(0, 8, envs):
            sim.reset(options={"state_ids": ids[k : k + envs]})
            coast(sim, 25)
            here.append(sim.core.world.agents.copy())
            steps.append(sim.core.world.episodes["steps"].copy())
        sim.close()
        found.append(np.concatenate(here))
    # none has ended, after which other starts would follow
    assert set(np.concatenate(steps).tolist()) == {25}
    assert (found[0]["kind"] > 0)[:, 1:].sum() > 20
    assert all(np.array_equal(found[0][name], found[1][name]) for name in ("kind", "s", "v", "x", "y", "d"))


def test_exact_state(folder: str) -> None:
    sim, other = make(folder), make(folder)
    sim.reset(seed=3)
    coast(sim, 23)  # between two decisions
    other.reset(seed=8)
    other.set_state(sim.get_state())
    for _ in range(12):
        coast(sim, 1)
        coast(other, 1)
        assert np.array_equal(sim.core.world.agents["v"], other.core.world.agents["v"])
    sim.close()
    other.close()


def decided(sim: Any) -> Any:
    """Cars that move and have decided since they entered."""
    agents = sim.core.world.agents[:, 1:]
    return agents[(agents["kind"] == tables.CAR) & (agents["lane"] >= 0) & (agents["plan"] != 0) & (agents["v"] > 1)]


def test_cars_do_what_the_network_says_and_another_one_is_swapped_in(tmp_path: Path) -> None:
    sim = make(stored(tmp_path / "goes", 1.0, favors=0), envs=16, scenarios=("straight",))
    sim.reset(seed=2)
    coast(sim, 8)
    assert len(decided(sim)) > 50 and decided(sim)["a"] == pytest.approx(1.0, abs=1e-3)
    sim.core.set_network(0, net_of(-3.0, favors=0).to_flat())
    coast(sim, 5)
    assert len(decided(sim)) > 50 and decided(sim)["a"] == pytest.approx(-3.0, abs=1e-3)
    with pytest.raises(ConfigError, match="row is 1: expected a whole number from 0 to 0"):
        sim.core.set_network(1, net_of().to_flat())
    sim.close()


def test_only_its_own_population_is_driven_by_a_network(tmp_path: Path) -> None:
    sim = make("moderate", stored(tmp_path / "net", 1.0, favors=0), envs=32)
    sim.reset(seed=0)
    rows = sim.core.world.episodes["population"]
    assert sim.core.world.populations["network"].tolist() == [-1, -1, 0] and set(rows.tolist()) == {1, 2}
    rolled = Cars(sim.core).rolled()
    assert len(rolled.cars.env) and set(rows[rolled.cars.env].tolist()) == {2}
    sim.close()


def test_drivers_of_a_stored_population_share_its_starts(tmp_path: Path) -> None:
    save_traffic(tmp_path / "two", net_of(), (moderate(), aggressive()), {})
    sim = make("timid", str(tmp_path / "two"), envs=200)
    sim.reset(seed=0)
    counts = np.bincount(sim.core.world.episodes["population"])
    # half, a quarter, a quarter of 200; standard deviation 7
    assert counts[0] == 0 and counts[1:].tolist() == pytest.approx([100, 50, 50], abs=25)
    assert sim.core.world.populations["network"].tolist() == [-1, -1, 0, 0]
    sim.close()


def test_observations_of_decisions(folder: str) -> None:
    sim = make(folder, envs=16)
    sim.reset(seed=5)
    coast(sim, 20)
    found = Cars(sim.core).deciding()
    agents, steps = sim.core.world.agents, sim.core.world.episodes["steps"]
    assert len(found.env) > 5 and bool(((steps[found.env] + found.slot) % 5 == 0).all())
    me = agents[found.env, found.slot]
    names = list(layout.OWN)
    assert found.inputs[:, names.index("speed")] == pytest.approx(me["v"] / 15.0, abs=1e-5)
    assert found.inputs[:, names.index("headway")] == pytest.approx(0.5 * me["headway"], abs=1e-5)
    assert bool((found.inputs[:, layout.MASK_AT] == 1.0).all()) and bool(np.isfinite(found.inputs).all())
    # the nearest other road user comes first
    neighbor = found.inputs[:, len(layout.OWN) : len(layout.OWN) + 2] * (50.0, 20.0)
    for row in range(len(found.env)):
        others = agents[found.env[row]]
        here = (others["kind"] > 0) & (np.arange(len(others)) != found.slot[row])
        far = np.hypot(others["x"] - me["x"][row], others["y"] - me["y"][row])[here]
        if far.min() < 60.0:
            assert np.hypot(*neighbor[row]) == pytest.approx(far.min(), abs=1e-2)
    sim.close()


# forward simulation


def alone(tmp_path: Path, *accels: float, v: float = 10.0) -> tuple[Any, int]:
    """A sim with one car on a straight lane, far from its ends, that decides in the next step; and its slot."""
    sim = make(stored(tmp_path / "net", *accels), envs=1, scenarios=("straight",))
    for seed in range(20):
        sim.reset(seed=seed)
        agents, maps = sim.core.world.agents[0], sim.core.bank.arrays
        for slot in range(1, len(agents)):
            me = agents[slot]
            if me["kind"] != tables.CAR or me["lane"] < 0:
                continue
            lane = maps.lanes[me["lane"]]
            heading = maps.points[lane["first"] : lane["first"] + lane["count"]]
            if lane["length"] > 120.0 and np.ptp(np.arctan2(heading["sin"], heading["cos"])) < 1e-4:
                leave_alone(sim, slot, v)
                return sim, slot
    raise AssertionError("no car on a straight lane")


def leave_alone(sim: Any, slot: int, v: float) -> None:
    """Remove all road users but one, and put it 20 m after the beginning of its lane."""
    agents, maps = sim.core.world.agents[0], sim.core.bank.arrays
    for k in range(len(agents)):
        if k != slot:
            agents[k]["x"] = agents[k]["y"] = 1e6
            agents[k]["lane"], agents[k]["kind"] = -1, tables.CAR if k == 0 else 0
    put(sim, slot, agents[slot]["lane"], 20.0, v)
    row = maps.maps[sim.core.world.episodes["map"][0]]
    maps.parked["x"][row["parked"] : row["parked"] + row["parkeds"]] += 1e5
    sim.core.world.episodes["steps"] = 5 * 10 - slot % 5 + 1  # no time to change lanes


def put(sim: Any, slot: int, number: int, s: float, v: float) -> None:
    me, maps = sim.core.world.agents[0, slot], sim.core.bank.arrays
    lane = maps.lanes[number]
    point = maps.points[lane["first"]]
    me["kind"], me["lane"], me["s"], me["d"], me["rest"] = tables.CAR, number, s, 0.0, 0.0
    me["v"], me["a"], me["length"], me["width"], me["hold"] = v, 0.0, 4.0, 1.8, 9.0
    me["x"], me["y"] = point["x"] + s * point["cos"], point["y"] + s * point["sin"]
    me["cos"], me["sin"] = point["cos"], point["sin"]


def terms_of(sim: Any, slot: int) -> np.ndarray:
    """(MODES, len(TERMS)) of the car's own line."""
    sim.core.world.episodes["steps"] = (-slot) % 5 + 5
    sim.core._settle()
    rolled = Cars(sim.core).rolled()
    assert rolled.cars.slot.tolist() == [slot]
    return rolled.terms[0, : layout.MODES]


def test_constant_speed_by_hand(tmp_path: Path) -> None:
    sim, slot = alone(tmp_path, 0.0)
    found = dict(zip(TERMS, terms_of(sim, slot)[0].tolist(), strict=True))
    total = float(DISCOUNTS.sum())
    expected = {name: 0.0 for name in TERMS} | {"alignment": total, "speed": 10.0 * total, "time": total}
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-2)
    sim.close()


def test_braking_by_hand(tmp_path: Path) -> None:
    """At -2 m/s^2 from 8 m/s the plan is below 3 m/s after 2.5 s; the tracker follows it within a look-ahead of 1 s."""
    sim, slot = alone(tmp_path, -2.0, v=8.0)
    found = dict(zip(TERMS, terms_of(sim, slot)[0].tolist(), strict=True))
    v = 8.0 - 2.0 * TICK_S * np.arange(1, STEPS + 1)
    assert found["speed"] == pytest.approx(float((DISCOUNTS * np.where(v >= 3.0, v, 0.0)).sum()), rel=0.02)
    # from 0 to -2 m/s^2 at once is a jerk, and nothing else is uncomfortable
    assert found["comfort"] == pytest.approx(1.0, abs=1e-3)
    sim.close()


def test_hard_braking_exceeds_a_comfort_limit(tmp_path: Path) -> None:
    sim, slot = alone(tmp_path, -5.0, 0.0)
    terms = terms_of(sim, slot)
    assert terms[0, TERMS.index("comfort")] > 5.0 > terms[1, TERMS.index("comfort")]
    sim.close()


def test_the_first_collision_ends_the_return(tmp_path: Path) -> None:
    """Another car of 4 m stands 20.05 m ahead: at 10 m/s the inflated box is reached in step 15.8 m / 1 m, the 16th."""
    sim, slot = alone(tmp_path, 0.0)
    other = 1 if slot != 1 else 2
    put(sim, other, sim.core.world.agents[0, slot]["lane"], 40.05, 0.0)
    found = dict(zip(TERMS, terms_of(sim, slot)[0].tolist(), strict=True))
    step = int(np.ceil((20.05 - 4.0 - INFLATE_M) / (10.0 * TICK_S)))
    assert step == 16
    assert found["collision"] == pytest.approx(DISCOUNT ** (step - 1), rel=1e-4)
    assert found["collision_speed"] == pytest.approx(10.0 * DISCOUNT ** (step - 1), rel=1e-3)
    assert found["time"] == pytest.approx(float(DISCOUNTS[: step - 1].sum()), rel=1e-4)
    gaps = 20.05 - 4.0 - INFLATE_M - 10.0 * TICK_S * np.arange(1, step)
    near = np.maximum(1.0 - gaps / (2.0 * 10.0), 0.0)
    assert found["near"] == pytest.approx(float((DISCOUNTS[: step - 1] * near).sum()), rel=1e-2)
    sim.close()


def test_others_keep_their_acceleration(tmp_path: Path) -> None:
    """One who brakes ahead at 4 m/s^2 is hit, one who drives on as fast is not, nor one who comes up from behind."""
    sim, slot = alone(tmp_path, 0.0)
    other, lane = 1 if slot != 1 else 2, sim.core.world.agents[0, slot]["lane"]
    collisions = []
    for s, v, a in ((40.0, 10.0, 0.0), (40.0, 10.0, -4.0), (12.0, 11.5, 0.0)):
        put(sim, other, lane, s, v)
        sim.core.world.agents[0, other]["a"] = a
        collisions.append(terms_of(sim, slot)[0, 0] > 0.0)
    assert collisions == [False, True, False]
    sim.close()


def test_a_closed_way_that_is_passed_costs(tmp_path: Path) -> None:
    """Somebody on a crosswalk, light or sign: what closes the way is a road user in the street here."""
    sim = make(stored(tmp_path / "net", 2.0, -4.0), envs=24, scenarios=("signal",))
    sim.reset(seed=1)
    passed = []
    for _ in range(12):
        rolled = Cars(sim.core).rolled()
        closed = rolled.cars.inputs[:, layout.OWN.index("way_closed_distance")]
        near = (closed > 0.1) & (closed < 0.3) & (rolled.cars.inputs[:, 0] > 0.3)
        passed.append(rolled.terms[near][:, :2, TERMS.index("passed_closed")])
        coast(sim, 1)
    found = np.concatenate(passed)
    assert len(found) > 3 and found[:, 0].mean() > 2.0 * found[:, 1].mean() + 1.0
    sim.close()
