"""The bench of the driving world: the whole of it in short, the same work on every route, arithmetic by hand."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks import runner
from benchmarks.bev import bench, peers
from benchmarks.bev import tape as bev_tape
from benchmarks.bev.start import Start, start
from benchmarks.kit.figures import Figure, Paired, have
from benchmarks.kit.spinner import beside_busy_core, busy_core
from robotrl.errors import RobotrlError
from robotrl.sims.driving import tables
from tests.kits.paths_kit import ROOT

EXPECTED = {
    *(f"env_steps_per_s_{obs}_{threads}" for obs in ("vector", "none") for threads in ("1_thread", "2_threads")),
    "env_steps_per_s_vector_2_threads_random",
    "road_users_present",
    "raster_frames_per_s",
    "raster_frames_per_s_packed",
    "env_steps_per_s_loaded_1_thread",
    "env_steps_per_s_loaded_2_threads",
    "loaded_2_threads_vs_1_thread",
    *(f"us_per_env_step_{n}_envs" for n in bench.QUICK.sweep_envs),
    "cost_over_envs_highest_to_lowest",
    *(f"us_per_env_step_{n}_agents" for n in bench.QUICK.sweep_agents),
    *(
        f"{what}_{x}"
        for x in ("agent_slot", "road_user_present")
        for what in ("us_per_added", "worst_off_the_line_per")
    ),
    "vehicle_s_per_s_vs_highway_env",
    "vehicle_s_per_s_vs_highway_env_default",
    "vehicle_s_per_s_vs_metadrive",
    "env_steps_per_s_vs_highway_env",
    "first_step_s_warm_cache",
    "map_ms",
    *(f"warped_frames_per_s{kind}_{threads}" for kind in ("", "_packed") for threads in ("1_thread", "2_threads")),
    "log_env_steps_per_s_vector_1_thread",
    "log_env_steps_per_s_vector_2_threads",
    "log_env_steps_per_s_raster_2_threads",
}


@pytest.mark.timeout(600)  # compiles every kernel where nothing is in the cache
def test_the_whole_bench_in_short(tmp_path: Path) -> None:
    path = tmp_path / "bev.json"
    assert runner.main("bev", path, quick=True) == 0
    document = json.loads(path.read_text())
    assert document["bench"] == "bev" and document["quick"] is True
    assert document["command"] == "robotrl bench bev --quick --json bev.json"
    assert document["versions"]["numba"]
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    assert set(figures) == EXPECTED
    for key, figure in figures.items():
        assert figure.value is not None and math.isfinite(figure.value), key
        assert figure.unit and figure.note and figure.runs >= 1, key
        # a slope through three noisy points may have either sign, and its worst point may lie on it
        assert figure.value > 0 or "added" in key or "off_the_line" in key, key
        if figure.low is not None and figure.high is not None:
            assert figure.low <= figure.value <= figure.high, key
        if figure.ratio is not None:
            assert figure.ratio > 0 and figure.peer_value is not None and figure.peer_value > 0, key
    assert figures["env_steps_per_s_vector_1_thread"].note.endswith("target 400,000")
    assert 1.0 < figures["road_users_present"].value < bench.AGENTS
    assert (figures["vehicle_s_per_s_vs_highway_env"].ratio is not None) == have("highway_env")
    if peers.python_of("metadrive") is None:
        assert figures["vehicle_s_per_s_vs_metadrive"].note.endswith("MetaDrive: not installed")
    lines = bench.table(document).splitlines()
    assert len(lines) == 2 + len(figures) and len({line.count("|") for line in lines}) == 1


def test_other_work_is_noticed_whatever_is_observed() -> None:
    sim = bev_tape.make(2, 8, 1, "none")
    tape = bev_tape.record(sim, "random", 3, 5)
    assert tape.actions.shape == (5, 2, 2)
    seeing = bev_tape.make(2, 8, 2, "vector", sim.core.bank)
    assert seeing.core.bank is sim.core.bank
    assert bev_tape.route(sim, tape)() > 0 and bev_tape.route(seeing, tape)() > 0
    for changed in (tape._replace(actions=0.5 * tape.actions), tape._replace(actions=tape.actions[:-1])):
        with pytest.raises(RobotrlError, match="bench bev: the sim left the recorded states"):
            bev_tape.route(seeing, changed)()
    sim.close()
    seeing.close()


def test_who_is_present_and_who_only_has_a_slot() -> None:
    agents = np.zeros((2, 5), tables.AGENT)
    agents["kind"] = [
        [tables.CAR, tables.CAR, tables.CYCLIST, tables.PEDESTRIAN, tables.OBSTACLE],
        [tables.CAR, tables.CAR, tables.CYCLIST, 0, 0],
    ]
    # the ego of the first env is off its lanes, a car of the second waits to enter the map, people have no lane
    agents["lane"] = [[-1, 0, 3, -1, 2], [1, -1, 0, 0, 0]]
    users, cars = bev_tape.present(agents)
    assert (users, cars) == ((4 + 2) / 2, (2 + 1) / 2)


def test_the_line_through_costs() -> None:
    assert bench.line([1, 2, 3], [3, 5, 7]) == pytest.approx((2.0, 1.0, 0.0))
    # 0.5 + 1.5 x: 0.5, 2, 3.5 where 1, 1, 4 were found
    assert bench.line([0, 1, 2], [1, 1, 4]) == pytest.approx((1.5, 0.5, 1.0))
    measured = Paired({"8": (3.0, 5.0, 3.0), "16": (5.0, 9.0, 5.0), "32": (9.0, 17.0, 9.0)})
    found = bench.line_figures(measured, list(measured.samples), [8, 16, 32], "agent_slot")
    added, worst = found["us_per_added_agent_slot"], found["worst_off_the_line_per_agent_slot"]
    assert (added.value, added.low, added.high, added.runs) == pytest.approx((0.25, 0.25, 0.5, 3))
    assert worst.value == pytest.approx(0.0, abs=1e-9)
    assert added.note == "line through the median costs at 8, 16, 32: 1.00 us + 0.250 us each"


def test_flat_is_the_costliest_by_the_cheapest() -> None:
    measured = Paired({"64": (2.0, 4.0, 2.0), "256": (1.0, 4.0, 1.6), "1024": (4.0, 8.0, 3.2)})
    figure = bench.highest_to_lowest(measured, list(measured.samples), "")
    # by their medians 1024 is the costliest and 256 the cheapest
    assert (figure.value, figure.low, figure.high, figure.runs) == (2.0, 2.0, 4.0, 3)


def test_starts_say_what_was_compiled_and_what_was_built() -> None:
    cold = [Start(imports=2.0, first=70.0, again=10.0, maps=200), Start(3.0, 71.0, 11.0, 200)]
    warm = [Start(2.0, 12.0, 10.0, 200)]
    figures = bench.start_figures(cold, warm, 256)
    empty = figures["first_step_s_empty_cache"]
    assert (empty.value, empty.low, empty.high, empty.runs) == (73.0, 72.0, 74.0, 2)
    assert empty.note.endswith("compiling kernels 60 s, 200 maps 10.5 s")
    assert figures["first_step_s_warm_cache"].value == 14.0
    assert figures["first_step_s_warm_cache"].note.endswith("loading kernels 2 s, 200 maps 10 s")
    assert (figures["map_ms"].value, figures["map_ms"].high) == (50.0, 55.0)
    assert set(bench.start_figures([], warm, 256)) == {"first_step_s_warm_cache", "map_ms"}


def test_a_start_that_fails_is_reported_with_its_last_words() -> None:
    with pytest.raises(RobotrlError, match=r"the start ended with code 1: .*num_envs is 0: expected 1 or more"):
        start(0, None)


def test_a_core_is_busy_inside_and_free_after() -> None:
    with busy_core() as process:
        found = psutil.Process(process.pid)
        if hasattr(os, "sched_getaffinity"):
            assert os.sched_getaffinity(process.pid) == {max(os.sched_getaffinity(0))}
        used = found.cpu_times().user
        while found.cpu_times().user <= used:
            assert process.poll() is None
    assert process.poll() is not None
    children = psutil.Process().children
    before, inside = len(children()), beside_busy_core(lambda: float(len(children())))()
    assert (inside, len(children())) == (before + 1, before)


def ours(cars: float = 20.0) -> peers.Ours:
    return peers.Ours(lambda: 1.0, cars, 0.1, "256 envs")


def test_vehicle_seconds_beside_the_peers() -> None:
    # 20 cars for 0.1 s are 2 vehicle-seconds a step, 32 cars are 3.2
    samples = {peers.OURS: (2000.0, 4000.0), peers.HIGHWAY_10HZ: (3.2, 3.2)}
    figures = peers.figures_of(Paired(samples), ours(), {peers.HIGHWAY_10HZ: peers.Met(32.0, 0.1, "1.12.1")})
    found, steps = figures["vehicle_s_per_s_vs_highway_env"], figures["env_steps_per_s_vs_highway_env"]
    assert (found.value, found.peer_value, found.ratio) == pytest.approx((3000.0, 3.2, 937.5))
    assert (steps.value, steps.peer_value, steps.ratio) == pytest.approx((1500.0, 1.0, 1500.0))
    assert "highway-env, 32 cars at 10 Hz 1.12.1: 32.0 vehicles, 0.1 s an env step; target 1,000 times" in found.note
    assert "MOBIL" in found.note and "20.0 cars in an env" in found.note
    absent = figures["vehicle_s_per_s_vs_metadrive"]
    assert (absent.value, absent.peer, absent.ratio) == (3000.0, "MetaDrive", None)
    assert absent.note.endswith("MetaDrive: not installed")


def test_a_peer_may_live_in_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(peers.METADRIVE_PYTHON, raising=False)
    assert (peers.python_of("metadrive") is not None) == have("metadrive")
    monkeypatch.setenv(peers.METADRIVE_PYTHON, "elsewhere/bin/python")
    assert peers.python_of("metadrive") == "elsewhere/bin/python"
    assert peers.python_of("no_such_module") is None


def test_a_peer_that_cannot_be_made_is_reported_with_its_last_words() -> None:
    with pytest.raises(RobotrlError, match="no_such_peer ended with code 1: KeyError: 'no_such_peer'"):
        peers.Worker("no_such_peer", "default")


def test_the_table_names_targets_and_gaps() -> None:
    figures = {
        "env_steps_per_s_vector_1_thread": Figure(150_000.0, "env steps/s", runs=9, low=1e5, high=2e5),
        "vehicle_s_per_s_vs_metadrive": Figure(2000.0, "vehicle-seconds/s", peer="MetaDrive"),
        "vehicle_s_per_s_vs_highway_env": Figure(
            2e5, "vehicle-seconds/s", "highway-env", 200.0, 1000.0, 9, 1e5, 3e5, 900.0, 1100.0
        ),
    }
    table = bench.table({"figures": {key: figure.to_json() for key, figure in figures.items()}})
    assert table.splitlines()[2:] == [
        "| vector observations, 1 thread | **150,000 env steps/s** | 100,000 to 200,000 | target 400,000 |  |  |  |",
        "| cars, 1 thread | **2,000 vehicle-seconds/s** |  |  | MetaDrive | not installed |  |",
        "| cars, 1 thread | **200,000 vehicle-seconds/s** | 100,000 to 300,000 | 1,000 times |"
        " highway-env | 200 | 1,000 (900 to 1,100) |",
    ]


def test_every_figure_of_the_results_has_a_name_for_readers() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "bev.json").read_text())
    for key in results["figures"]:
        assert key in bench.LABELS or key.startswith("us_per_env_step_"), key
    assert bench.label("us_per_env_step_64_envs") == "64 envs"
