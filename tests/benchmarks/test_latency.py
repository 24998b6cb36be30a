"""The latency bench: its peer computes the same network, and its figures say what they mean. No timing is asserted."""

from __future__ import annotations

import itertools
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.latency import bench
from robotrl.errors import RobotrlError


def test_the_plain_loops_compute_the_same_network(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.fail("this test needs g++")
    policy = bench.make_policy()
    torch.nn.init.normal_(policy.net.layers[-1].bias)  # zero at the start, which would hide a forgotten bias
    infer = bench.build_cpp(policy, tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(20):
        obs = rng.normal(size=policy.context_width).astype(np.float32)
        noise = rng.normal(size=(policy.horizon, policy.action_width)).astype(np.float32)
        with torch.inference_mode():
            batch = {"state": torch.from_numpy(obs)[None]}
            wanted = policy.deploy(batch, torch.from_numpy(noise)[None]).actions[0].numpy()
        found, spent = infer(obs, noise)
        assert np.abs(found - wanted).max() < 1e-5
        assert spent > 0


def test_a_weights_file_cut_short_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = bench.make_policy()
    whole = bench.flat_weights(policy)
    monkeypatch.setattr(bench, "flat_weights", lambda _: whole[:-4])
    with pytest.raises(RobotrlError, match="cannot read the weights"):
        bench.build_cpp(policy, tmp_path)


def test_figures_of_routes_whose_times_are_known() -> None:
    """Ticks that report a time without taking it: 100 us for ours, 250 for torch, 80 for C++."""

    def way(spent_ns: int) -> bench.Way:
        return bench.Way(lambda _: spent_ns, lambda: None)

    routes = bench._with_cold({bench.OURS: way(100_000), bench.TORCH: way(250_000), bench.CPP: way(80_000)})
    figures = bench._at_rate(routes, 500, 0.02, 2)
    assert figures["tick_us_500hz_vs_torch"].value == 100.0
    assert figures["tick_us_500hz_vs_torch"].ratio == 2.5
    assert figures["tick_us_500hz_vs_cpp"].ratio == 0.8
    assert figures["tick_p99_us_500hz_vs_cpp"].peer_value == 80.0
    assert figures["tick_cold_us_500hz_vs_torch"].ratio == 2.5
    without = {name: route for name, route in routes.items() if bench.CPP not in name}
    missing = bench._at_rate(without, 500, 0.02, 2)["tick_us_500hz_vs_cpp"]
    assert (missing.value, missing.peer_value, missing.ratio) == (100.0, None, None)


def test_ticks_keep_the_pace() -> None:
    calls: list[int] = []

    def tick(due_ns: int) -> int:
        calls.append(time.monotonic_ns())
        assert due_ns == 0, "a cold route is not told when the next tick comes"
        return 1000

    samples = bench.pace(bench.Route(bench.Way(tick, lambda: None), ()), 200, 10)
    assert samples == [1.0] * 10
    assert len(calls) == 20
    # Never early: each call comes at or after its deadline, which are 5 ms apart on a grid.
    assert calls[-1] - calls[0] >= 18 * 5_000_000


def test_a_warmed_route_knows_when_the_next_tick_is_due() -> None:
    due: list[int] = []
    route = bench.Route(bench.Way(lambda due_ns: due.append(due_ns) or 1000, lambda: None), (1_000_000,))
    begun = time.monotonic_ns()
    bench.pace(route, 200, 3)
    assert [after - before for before, after in itertools.pairwise(due)] == [5_000_000] * (len(due) - 1)
    assert due[0] - begun >= 10_000_000


def test_the_process_is_asked_and_answers(tmp_path: Path) -> None:
    with ExitStack() as ending:
        ways = bench._ways(tmp_path, ending)
        assert ways[bench.PROGRAM].tick(0) > 0
        assert ways[bench.PROGRAM].tick(time.monotonic_ns() + 3_000_000) > 0
