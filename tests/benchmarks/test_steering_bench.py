"""The bench of steering graphs: both bundles are the same policy, and its figures say what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.latency.bench import Route, Way
from benchmarks.steering import bench
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.errors import RobotrlError


def test_both_bundles_are_the_same_policy(tmp_path: Path) -> None:
    bundles = bench.exported(tmp_path)
    steered = {name: open_bundle(path).manifest.graphs.steer for name, path in bundles.items()}
    assert steered == {bench.ONE: None, bench.TWO: "steer.onnx"}
    found = bench.ways(bundles, "python")
    assert set(found) == {bench.ONE, bench.TWO, bench.BASE} and all(way.tick(0) > 0 for way in found.values())
    with pytest.raises(RobotrlError, match=r"one graph differs from two by .*: expected the same policy"):
        bench.ways(bundles, "python", tolerance=-1.0)


def test_figures_of_ways_whose_times_are_known() -> None:
    """Ticks that report a time without taking it: 120 us for two graphs, 100 for one, 80 for the base."""
    times = {bench.TWO: 120_000, bench.ONE: 100_000, bench.BASE: 80_000}

    def route(spent_ns: int) -> Route:
        return Route(Way(lambda _: spent_ns, lambda: None), ())

    routes = {name: route(spent_ns) for name, spent_ns in times.items()}
    figures = bench._at_rate(routes, "native", 50, 10, 2)
    one = figures["native_tick_us_50hz_vs_one_graph"]
    assert (one.value, one.peer_value, one.runs) == (120.0, 100.0, 2) and one.ratio == pytest.approx(1 / 1.2)
    assert figures["native_tick_us_50hz_vs_base"].peer_value == 80.0
    text = bench.table({"figures": {key: figure.to_json() for key, figure in figures.items()}})
    assert (
        text.splitlines()[-1]
        == "| C++ | 50 Hz | **120 us** (120 to 120) | 100 us | 80 us | **1.20 x** (1.20 to 1.20) |"
    )
