"""Time of an inference tick where the steering is a graph of its own, against one graph of both.

A flow policy of the quickstart's size is steered by a noise actor of the default size, with fresh weights: training
does not affect speed. It is exported twice, as one graph (the default) and with `--steer-graph`, and both bundles give
the same chunks. The controller's ticks are paced and warmed as in bench `latency`; the ways alternate in one run, on
one thread. The base policy alone (`--no-steer`) stands beside them.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit.figures import Figure, paired
from benchmarks.kit.markdown import table_row
from benchmarks.latency.bench import Route, Way, controlled, make_policy, pace
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.control.realtime import steady, warm_leads_ns
from robotrl.deploy.runtime import Controller
from robotrl.errors import RobotrlError
from robotrl.utils.installation import install_line

DESCRIPTION = "microseconds for one inference tick of a steered policy: two graphs (--steer-graph) against one"
PEERS = {"torch": install_line("train"), "g++": "apt install g++"}
RATES_HZ = (20, 50)
TWO, ONE, BASE = "two graphs", "one graph", "base policy alone"
DIFFERENCE = 1e-5
"""Largest difference of the chunks of both bundles, of an action range of 2."""


def run(quick: bool = False) -> dict[str, Figure]:
    """Measure all ways at all rates, in Python and with the C++ engine."""
    seconds, rounds = (0.5, 2) if quick else (6.0, 7)
    engines: tuple[Runtime, ...] = ("python",) if shutil.which("g++") is None else ("python", "native")
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder, steady():
        bundles = exported(Path(folder))
        for runtime in engines:
            routes = {name: _route(way) for name, way in ways(bundles, runtime).items()}
            for rate_hz in RATES_HZ:
                figures |= _at_rate(routes, runtime, rate_hz, max(10, round(seconds * rate_hz)), rounds)
    return figures


def exported(folder: Path) -> dict[str, Path]:
    """Export a steered policy as one graph and as two; returns the bundles by way."""
    import torch

    from robotrl.deploy.export import export
    from robotrl.policies.steered import SteeredCfg

    torch.set_num_threads(1)
    policy = SteeredCfg().build(make_policy()).eval()
    recorded = np.random.default_rng(0).normal(size=(1000, 19)).astype(np.float32)
    bundles = {ONE: folder / "one", TWO: folder / "two"}
    for name, path in bundles.items():
        export(
            policy,
            path,
            observations={"state": recorded},
            samples=1000,
            control_dt_s=0.05,
            steer_graph=name == TWO,
        )
    return bundles


def ways(bundles: Mapping[str, Path], runtime: Runtime, tolerance: float = DIFFERENCE) -> dict[str, Way]:
    """Controllers of both bundles and of the base policy, which are asked with the same observation.

    Args:
        bundles: result of `exported`.
        runtime: language of the engine.
        tolerance: largest difference of the chunks of both bundles.

    Raises:
        RobotrlError: the bundles do not give the same chunk.
    """
    controllers = {name: Controller.load(path, runtime=runtime) for name, path in bundles.items()}
    obs = {"state": np.random.default_rng(0).normal(size=19).astype(np.float32)}
    difference = max(
        float(np.abs(controllers[ONE].infer(obs, decision) - controllers[TWO].infer(obs, decision)).max())
        for decision in range(20)
    )
    if not difference <= tolerance:
        raise RobotrlError(f"one graph differs from two by {difference:.3g}: expected the same policy")
    controllers[BASE] = Controller.load(bundles[TWO], runtime=runtime, steer=False)
    return {name: controlled(controller, obs) for name, controller in controllers.items()}


def _route(way: Way) -> Route:
    """A way that is warmed before each deadline as in the control loop."""
    return Route(way, warm_leads_ns(statistics.median(way.tick(0) for _ in range(100)) * 1e-9))


def _at_rate(routes: Mapping[str, Route], runtime: Runtime, rate_hz: int, ticks: int, rounds: int) -> dict[str, Figure]:
    def measured(route: Route) -> Callable[[], float]:
        return lambda: statistics.median(pace(route, rate_hz, ticks))

    found = paired({name: measured(route) for name, route in routes.items()}, rounds)
    note = f"median of {ticks} ticks a run, each warmed shortly before its deadline; one thread"
    key = f"{runtime}_tick_us_{rate_hz}hz"
    return {
        f"{key}_vs_one_graph": found.figure(TWO, ONE, "us", "lower", note),
        f"{key}_vs_base": found.figure(TWO, BASE, "us", "lower", note),
    }


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per engine and rate."""
    figures = document["figures"]
    lines = ["| engine | rate | two graphs | one graph | base alone | two / one |", "| --- " * 6 + "|"]
    for runtime, engine in (("python", "onnxruntime"), ("native", "C++")):
        for rate_hz in RATES_HZ:
            one = figures.get(f"{runtime}_tick_us_{rate_hz}hz_vs_one_graph")
            base = figures.get(f"{runtime}_tick_us_{rate_hz}hz_vs_base")
            if one is None or base is None:
                continue
            cells = [
                engine,
                f"{rate_hz} Hz",
                f"**{one['value']:.0f} us** ({one['low']:.0f} to {one['high']:.0f})",
                f"{one['peer_value']:.0f} us",
                f"{base['peer_value']:.0f} us",
                f"**{1 / one['ratio']:.2f} x** ({1 / one['ratio_high']:.2f} to {1 / one['ratio_low']:.2f})",
            ]
            lines.append(table_row(cells))
    return "\n".join(lines)
