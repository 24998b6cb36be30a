"""Driving sim: env steps and rasters per second, a loaded machine, scaling, other simulators, start-up time.

Every route replays the same recorded control steps of the rule-based driver, with episodes at all stages and restarts,
and must end in the recorded state, bit for bit, with any observations and any number of threads. Sims share their maps,
so that building maps is measured in the first call only.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks.bev import peers as bev_peers
from benchmarks.bev import warps as bev_warps
from benchmarks.bev.start import Start, start
from benchmarks.bev.tape import Tape, make, record, route
from benchmarks.kit.figures import Figure, Paired, paired, spread
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.kit.spinner import beside_busy_core
from benchmarks.runner import number
from benchmarks.stepping.tape import Route
from robotrl.utils.installation import install_line

DESCRIPTION = "driving world: env steps and rasters per second, loaded machine, scaling, other simulators, first call"
PEERS = {"highway_env": install_line("peers")}
if bev_peers.python_of("metadrive") is None:
    PEERS["metadrive"] = f"metadrive-simulator in an environment whose Python {bev_peers.METADRIVE_PYTHON} names"
AGENTS = 32
STEPS_UNIT, FRAMES_UNIT, COST_UNIT = "env steps/s", "frames/s of 10x96x96", "us/env step"
TARGETS = {
    "env_steps_per_s_vector_1_thread": "target 400,000",
    "env_steps_per_s_vector_2_threads": "aim 1,000,000",
    "raster_frames_per_s": "target 40,000",
    "raster_frames_per_s_packed": "aim 100,000",
    "warped_frames_per_s_2_threads": "target 50,000",
}


class Scale(NamedTuple):
    """Sizes of the measurements."""

    envs: int
    """Number of envs of the speed measurements."""
    sweep_envs: tuple[int, ...]
    sweep_agents: tuple[int, ...]
    before: int
    """Control steps before the recorded ones."""
    env_steps: int
    """Env steps of one run, summed over envs."""
    frames: int
    rounds: int
    batch: int
    """Frames that are warped together."""
    warped: int
    """Warped frames of one run."""
    drives: int
    """Recorded drives that are replayed."""


FULL = Scale(256, (64, 256, 1024, 2048), (8, 16, 32, 64), 400, 102_400, 25_600, 9, 64, 12_800, 16)
QUICK = Scale(16, (8, 16), (8, 16, 32), 20, 320, 64, 2, 8, 64, 2)


class Line(NamedTuple):
    """Least-squares line through points."""

    slope: float
    at_zero: float
    worst: float
    """Largest relative distance of a point from the line."""


def run(quick: bool) -> dict[str, Figure]:
    """Run all measurements; the routes of each group alternate."""
    scale = QUICK if quick else FULL
    bank: Any = None
    figures: dict[str, Figure] = {}
    for part in (speed, rasters, loaded, over_envs, over_agents):
        found, bank = part(scale, bank)
        figures |= found
    figures |= peers(scale, bank, quick)
    figures |= bev_warps.figures(scale.batch, scale.warped, scale.env_steps, scale.drives, scale.rounds)
    return figures | starting(scale, quick)


class Sims:
    """Sims with recorded tapes, made on demand and closed together; all share the map pool."""

    def __init__(self, stack: ExitStack, bank: Any) -> None:
        self.bank = bank
        self._stack = stack
        self._tapes: dict[tuple[int, int, str], Tape] = {}

    def route(
        self,
        steps: int,
        scale: Scale,
        num_envs: int,
        threads: int = 1,
        obs: str = "vector",
        agents: int = AGENTS,
        kind: str = "expert",
        packed: bool = False,
    ) -> Route:
        """Route of a new sim over `steps` env steps."""
        sim = make(num_envs, agents, threads, obs, self.bank, packed)
        self._stack.callback(sim.close)
        self.bank = sim.core.bank
        key = (num_envs, agents, kind)
        if key not in self._tapes:
            self._tapes[key] = record(sim, kind, scale.before, max(1, steps // num_envs))
        return route(sim, self._tapes[key])

    def tape(self, num_envs: int, agents: int = AGENTS, kind: str = "expert") -> Tape:
        """Tape recorded for such sims."""
        return self._tapes[num_envs, agents, kind]


def speed(scale: Scale, bank: Any) -> tuple[dict[str, Figure], Any]:
    """Env steps per second, with and without observations, on one and two threads; and number of road users."""
    with ExitStack() as stack:
        sims = Sims(stack, bank)
        routes: dict[str, Route] = {}
        for obs in ("vector", "none"):
            for threads in (1, 2):
                name = f"env_steps_per_s_{obs}_{_threads(threads)}"
                routes[name] = sims.route(scale.env_steps, scale, scale.envs, threads, obs)
        wild = "env_steps_per_s_vector_2_threads_random"
        routes[wild] = sims.route(scale.env_steps, scale, scale.envs, 2, kind="random")
        measured = paired(routes, scale.rounds)
        calm, short = sims.tape(scale.envs), sims.tape(scale.envs, kind="random")
    figures: dict[str, Figure] = {}
    for name in routes:
        tape, whose = (short, "random actions") if name == wild else (calm, "actions of the rule-based driver")
        note = f"{_scene(scale.envs, tape)}; {whose}, {_lengths(tape)}"
        figures[name] = measured.figure(name, None, STEPS_UNIT, "higher", _with_target(name, note))
    note = f"mean in an env with {AGENTS} slots, the ego among them; the other slots are empty or wait to enter the map"
    figures["road_users_present"] = Figure(calm.users, "road users", note=note)
    return figures, sims.bank


def rasters(scale: Scale, bank: Any) -> tuple[dict[str, Figure], Any]:
    """Rasters per second with physics, one per env step, on two threads: as uint8 and as packed bits."""
    with ExitStack() as stack:
        sims = Sims(stack, bank)
        routes = {
            "raster_frames_per_s": sims.route(scale.frames, scale, scale.envs, 2, "raster"),
            "raster_frames_per_s_packed": sims.route(scale.frames, scale, scale.envs, 2, "raster", packed=True),
        }
        measured = paired(routes, scale.rounds)
        tape = sims.tape(scale.envs)
    notes = {name: f"{_scene(scale.envs, tape)}, 2 threads: as many env steps/s" for name in routes}
    notes["raster_frames_per_s_packed"] += "; two bytes of bits a pixel, not expanded to ten channels"
    return {
        name: measured.figure(name, None, FRAMES_UNIT, "higher", _with_target(name, notes[name])) for name in routes
    }, sims.bank


def loaded(scale: Scale, bank: Any) -> tuple[dict[str, Figure], Any]:
    """Remaining speed while another process keeps one core busy."""
    with ExitStack() as stack:
        sims = Sims(stack, bank)
        routes: dict[str, Route] = {}
        for threads in (1, 2):
            one = sims.route(scale.env_steps, scale, scale.envs, threads)
            routes[_quiet(threads)], routes[_busy(threads)] = one, beside_busy_core(one)
        measured = paired(routes, scale.rounds)
        tape = sims.tape(scale.envs)
    scene = f"{_scene(scale.envs, tape)}; another process spins on one core"
    figures = {
        f"env_steps_per_s_loaded_{_threads(threads)}": measured.figure(
            _busy(threads), _quiet(threads), STEPS_UNIT, "higher", scene
        )
        for threads in (1, 2)
    }
    note = f"{scene}: no collapse means that two threads are never slower than one"
    figures["loaded_2_threads_vs_1_thread"] = measured.figure(_busy(2), _busy(1), STEPS_UNIT, "higher", note)
    return figures, sims.bank


def over_envs(scale: Scale, bank: Any) -> tuple[dict[str, Figure], Any]:
    """Cost of an env step by number of envs, and the ratio of the largest to the smallest cost."""
    with ExitStack() as stack:
        sims = Sims(stack, bank)
        # small batches get more steps, so that all runs take about equally long
        routes = {_envs(n): _cost(sims.route(scale.env_steps, scale, n)) for n in scale.sweep_envs}
        measured = paired(routes, scale.rounds)
    note = f"one thread, vector observations, {AGENTS} slots for road users"
    figures = {f"us_per_env_step_{name}": measured.figure(name, None, COST_UNIT, "lower", note) for name in routes}
    shown = f"{note}; 1 is flat in the number of envs"
    figures["cost_over_envs_highest_to_lowest"] = highest_to_lowest(measured, list(routes), shown)
    return figures, sims.bank


def highest_to_lowest(measured: Paired, routes: Sequence[str], note: str) -> Figure:
    """Ratio of the most to the least expensive route, by their medians, round by round."""
    ranked = sorted(routes, key=lambda name: measured.spread(name).median)
    ratio = measured.ratio(ranked[0], ranked[-1], "lower")
    runs = len(measured.samples[ranked[0]])
    return Figure(ratio.median, "times", runs=runs, low=ratio.low, high=ratio.high, note=note)


def over_agents(scale: Scale, bank: Any) -> tuple[dict[str, Figure], Any]:
    """Cost of an env step by number of slots for road users, with least-squares lines."""
    with ExitStack() as stack:
        sims = Sims(stack, bank)
        routes = {
            _slots(n): _cost(sims.route(scale.env_steps, scale, scale.envs, agents=n)) for n in scale.sweep_agents
        }
        measured = paired(routes, scale.rounds)
        users = [sims.tape(scale.envs, n).users for n in scale.sweep_agents]
    figures: dict[str, Figure] = {}
    for name, present in zip(routes, users, strict=True):
        note = f"{scale.envs} envs, one thread, vector observations; {present:.1f} road users present on average"
        figures[f"us_per_env_step_{name}"] = measured.figure(name, None, COST_UNIT, "lower", note)
    slots = [float(n) for n in scale.sweep_agents]
    figures |= line_figures(measured, list(routes), slots, "agent_slot")
    return figures | line_figures(measured, list(routes), users, "road_user_present"), sims.bank


def line_figures(measured: Paired, routes: Sequence[str], xs: Sequence[float], what: str) -> dict[str, Figure]:
    """Slope of the cost, and its largest distance from the line.

    Args:
        measured: costs of the routes.
        routes: names of the routes along the line.
        xs: position of each route.
        what: unit of `xs`.
    """
    rounds = zip(*(measured.samples[name] for name in routes), strict=True)
    slopes = spread([line(xs, costs).slope for costs in rounds])
    middle = line(xs, [measured.spread(name).median for name in routes])
    at = ", ".join(f"{x:.3g}" for x in xs)
    note = f"line through the median costs at {at}: {middle.at_zero:.2f} us + {middle.slope:.3f} us each"
    runs = len(measured.samples[routes[0]])
    return {
        f"us_per_added_{what}": Figure(slopes.median, "us", runs=runs, low=slopes.low, high=slopes.high, note=note),
        f"worst_off_the_line_per_{what}": Figure(100.0 * middle.worst, "% of the cost", runs=runs, note=note),
    }


def line(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line of least squares through (xs, ys), of 2 or more points."""
    fit = statistics.linear_regression(xs, ys)
    on = [fit.intercept + fit.slope * x for x in xs]
    worst = max(abs(y - there) / abs(there) for y, there in zip(ys, on, strict=True))
    return Line(fit.slope, fit.intercept, worst)


def peers(scale: Scale, bank: Any, quick: bool) -> dict[str, Figure]:
    """Comparison with other simulators."""
    from robotrl.sims.bev.sim import DT_S

    with ExitStack() as stack:
        sims = Sims(stack, bank)
        ours = sims.route(scale.env_steps, scale, scale.envs)
        note = f"{scale.envs} envs, vector observations, {DT_S:g} s an env step"
        return bev_peers.figures(bev_peers.Ours(ours, sims.tape(scale.envs).cars, DT_S, note), quick)


def starting(scale: Scale, quick: bool) -> dict[str, Figure]:
    """Seconds to the first step: with an empty compile cache (not if quick), and with a filled one."""
    if quick:
        return start_figures([], [start(scale.envs, None)], scale.envs)
    cold: list[Start] = []
    warm: list[Start] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(start(scale.envs, cache))
            warm.append(start(scale.envs, cache))
    return start_figures(cold, warm, scale.envs)


def start_figures(cold: Sequence[Start], warm: Sequence[Start], num_envs: int) -> dict[str, Figure]:
    """Figures of starts with an empty cache, possibly none, and with a filled one."""
    figures: dict[str, Figure] = {}
    scene = f"{num_envs} envs, vectors and rasters, one thread"
    for key, starts, how in (("empty", cold, "compiling"), ("warm", warm, "loading")):
        if not starts:
            continue
        found = spread([one.imports + one.first for one in starts])
        kernels = statistics.median(one.kernels for one in starts)
        maps = statistics.median(one.again for one in starts)
        note = f"{scene}: torch imported, sim made, episodes started, one step; {how} kernels {number(kernels)} s,"
        note += f" {starts[0].maps} maps {number(maps)} s"
        figures[f"first_step_s_{key}_cache"] = Figure(
            found.median, "s", runs=len(starts), low=found.low, high=found.high, note=note
        )
    each = spread([1000.0 * one.again / one.maps for one in (*cold, *warm)])
    figures["map_ms"] = Figure(
        each.median,
        "ms",
        runs=len(cold) + len(warm),
        low=each.low,
        high=each.high,
        note="to build one procedural map, when the first episode asks for it; training has 64 of each family",
    )
    return figures


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per figure, with targets."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    head = ("", "ours", "lowest to highest", "target", "beside it", "its", "ratio")
    lines = table_head(head)
    for key, figure in figures.items():
        row = [label(key), f"**{number(figure.value)} {figure.unit}**"]
        row.append("" if figure.low is None else f"{number(figure.low)} to {number(figure.high)}")
        row.append(f"{bev_peers.TARGET:,} times" if key == "vehicle_s_per_s_vs_highway_env" else TARGETS.get(key, ""))
        if figure.peer is None:
            row += ["", "", ""]
        elif figure.ratio is None:
            row += [figure.peer, "not installed", ""]
        else:
            ratio = f"{number(figure.ratio)} ({number(figure.ratio_low)} to {number(figure.ratio_high)})"
            row += [figure.peer, number(figure.peer_value), ratio]
        lines.append(table_row(row))
    return "\n".join(lines)


LABELS = {
    "env_steps_per_s_vector_1_thread": "vector observations, 1 thread",
    "env_steps_per_s_vector_2_threads": "vector observations, 2 threads",
    "env_steps_per_s_none_1_thread": "no observations, 1 thread",
    "env_steps_per_s_none_2_threads": "no observations, 2 threads",
    "env_steps_per_s_vector_2_threads_random": "vector observations, 2 threads, random actions",
    "road_users_present": "road users in an env",
    "raster_frames_per_s": "rasters, 2 threads",
    "raster_frames_per_s_packed": "rasters as bits, 2 threads",
    "env_steps_per_s_loaded_1_thread": "1 thread, a core busy",
    "env_steps_per_s_loaded_2_threads": "2 threads, a core busy",
    "loaded_2_threads_vs_1_thread": "2 threads against 1, a core busy",
    "cost_over_envs_highest_to_lowest": "highest to lowest of these",
    "us_per_added_agent_slot": "each slot more",
    "worst_off_the_line_per_agent_slot": "furthest off a line over slots",
    "us_per_added_road_user_present": "each road user more",
    "worst_off_the_line_per_road_user_present": "furthest off a line over road users",
    "vehicle_s_per_s_vs_highway_env": "cars, 1 thread",
    "vehicle_s_per_s_vs_highway_env_default": "cars, 1 thread",
    "vehicle_s_per_s_vs_metadrive": "cars, 1 thread",
    "env_steps_per_s_vs_highway_env": "whatever the number of cars",
    "first_step_s_empty_cache": "first step, nothing compiled",
    "first_step_s_warm_cache": "first step, from then on",
    "map_ms": "a map",
    "warped_frames_per_s_1_thread": "warped frames, 1 thread",
    "warped_frames_per_s_2_threads": "warped frames, 2 threads",
    "warped_frames_per_s_packed_1_thread": "warped frames of bit masks, 1 thread",
    "warped_frames_per_s_packed_2_threads": "warped frames of bit masks, 2 threads",
    "log_env_steps_per_s_vector_1_thread": "a log in vectors, 1 thread",
    "log_env_steps_per_s_vector_2_threads": "a log in vectors, 2 threads",
    "log_env_steps_per_s_raster_2_threads": "a log in warped rasters, 2 threads",
}
"""Display names of figures; those of sweeps ("us_per_env_step_64_envs") are generated."""


def label(key: str) -> str:
    """Display name of a figure; the unit is shown beside the number."""
    return LABELS.get(key, key.removeprefix("us_per_env_step_").replace("_", " "))


def _with_target(name: str, note: str) -> str:
    return f"{note}; {TARGETS[name]}" if name in TARGETS else note


def _scene(num_envs: int, tape: Tape) -> str:
    return f"{num_envs} envs of {AGENTS} slots, {tape.users:.1f} road users present on average"


def _lengths(tape: Tape) -> str:
    return f"an episode ends every {1.0 / tape.ended:,.0f} env steps" if tape.ended else "no episode ends"


def _cost(one: Route) -> Route:
    """Microseconds per env step, from a route that measures env steps per second."""
    return lambda: 1e6 / one()


def _threads(count: int) -> str:
    return f"{count}_thread{'' if count == 1 else 's'}"


def _quiet(threads: int) -> str:
    return f"quiet, {_threads(threads).replace('_', ' ')}"


def _busy(threads: int) -> str:
    return f"loaded, {_threads(threads).replace('_', ' ')}"


def _envs(count: int) -> str:
    return f"{count}_envs"


def _slots(count: int) -> str:
    return f"{count}_agents"
