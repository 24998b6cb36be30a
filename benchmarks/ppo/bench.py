"""PPO end to end, collecting and learning: ours, Stable-Baselines3 on its own vector env, rsl_rl on our sim.

Each trainer is a separate process, and they alternate every few iterations. Settings are equal (see `ppo_methods`).
Peers are measured with their default number of torch threads and with one; the faster counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks.kit.figures import Figure, Paired, have, paired
from benchmarks.kit.markdown import table_head, table_row
from benchmarks.ppo.methods import SETTINGS, TASK
from benchmarks.ppo.worker import Worker
from benchmarks.runner import number
from robotrl.utils.installation import install_line

DESCRIPTION = "env steps per second of PPO on mujoco/halfcheetah against Stable-Baselines3 and rsl_rl"
PEERS = {"stable_baselines3": install_line("sb3"), "rsl_rl": install_line("peers")}
OURS = "robotrl"
LABELS = {"stable_baselines3": "Stable-Baselines3", "rsl_rl": "rsl_rl"}
THREADS: Mapping[str, Sequence[int | None]] = {
    OURS: (1,),
    "stable_baselines3": (None, 1),
    "rsl_rl": (None, 1),
}
"""Torch threads of each measurement; None is torch's default, ours is the default of a training run."""
ITERATIONS = {OURS: 10, "stable_baselines3": 2, "rsl_rl": 2}
"""Iterations per run, about a second."""
UNIT = "env steps/s"


class Measured(NamedTuple):
    """Measurements with one setting."""

    rates: Paired
    """Env steps per second by method and threads: "rsl_rl, 1 thread"."""
    compile_s: float | None
    """Compile time of ours with an empty compiler cache, s."""
    compile_again_s: float | None
    """The same in a second process, with a filled cache."""


def run(quick: bool) -> dict[str, Figure]:
    """Measure every setting."""
    figures: dict[str, Figure] = {}
    names = list(SETTINGS)[:1] if quick else list(SETTINGS)
    for name in names:
        figures |= figures_of(name, measure(name, quick))
    return figures


def measure(name: str, quick: bool, task: str = TASK) -> Measured:
    """Measure ours and the installed peers, interleaved.

    Args:
        name: a key of `ppo_methods.SETTINGS`.
        quick: one run of one iteration, with the user's own compiler cache, so that compile times are not reported.
        task: name of the sim.

    Raises:
        RobotrlError: a trainer cannot be made.
    """
    methods = [OURS, *(peer for peer in PEERS if have(peer))]
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        ours: Worker | None = None
        routes: dict[str, Any] = {}
        for method in methods:
            for threads in THREADS[method][-1:] if quick else THREADS[method]:
                worker = Worker(method, name, threads, task, cache if method == OURS and not quick else None)
                stack.callback(worker.close)
                ours = worker if method == OURS else ours
                routes[label(method, worker.threads)] = _segment(worker, 1 if quick else ITERATIONS[method])
        assert ours is not None
        if quick:
            return Measured(paired(routes, 1), None, None)
        again = None
        if ours.compile_s is not None:
            second = Worker(OURS, name, THREADS[OURS][0], task, cache)
            again = second.compile_s
            second.close()
        return Measured(paired(routes, 9), ours.compile_s, again)


def _segment(worker: Worker, iterations: int) -> Any:
    return lambda: worker.run(iterations)


def label(method: str, threads: int) -> str:
    """Name of a route: "rsl_rl, 1 thread"."""
    return f"{method}, {threads} thread{'' if threads == 1 else 's'}"


def figures_of(name: str, measured: Measured) -> dict[str, Figure]:
    """Ours against each peer at its faster number of threads, and the compile times."""
    setting = SETTINGS[name]
    what = f"{setting.num_envs} envs x {setting.num_steps} steps, minibatch {setting.minibatch}"
    what += f", {setting.epochs} epochs"
    rates = measured.rates
    (ours,) = (route for route in rates.samples if route.startswith(f"{OURS},"))
    figures: dict[str, Figure] = {}
    for peer, shown in LABELS.items():
        found = sorted(
            (route for route in rates.samples if route.startswith(f"{peer},")),
            key=lambda route: rates.spread(route).median,
            reverse=True,
        )
        tried = "; ".join(f"{shown}{route.removeprefix(peer)}: {number(rates.spread(route).median)}" for route in found)
        note = f"{what}; the better counts of {tried}" if len(found) > 1 else what
        figure = rates.figure(ours, found[0] if found else shown, UNIT, "higher", note)
        figures[f"env_steps_per_s_{name}_vs_{peer}"] = figure
    for key, seconds, note in (
        ("compile", measured.compile_s, "before the first update, nothing in the compiler's cache"),
        ("compile_again", measured.compile_again_s, "in a second process, which finds the first one's cache"),
    ):
        if seconds is not None:
            figures[f"{key}_s_{name}"] = Figure(seconds, "s", note=f"{what}; {note}; not in the steps per second")
    return figures


def table(document: Mapping[str, Any]) -> str:
    """Markdown table: one row per setting, with both peers and the compile time."""
    figures = {key: Figure.from_json(value) for key, value in document["figures"].items()}
    head = ("envs x steps", "minibatch", "ours", "Stable-Baselines3", "times", "rsl_rl on our sim", "times", "compile")
    lines = table_head(head)
    for name, setting in SETTINGS.items():
        found = [figures.get(f"env_steps_per_s_{name}_vs_{peer}") for peer in PEERS]
        if found[0] is None:
            continue
        cells = [
            f"{setting.num_envs} x {setting.num_steps}, {setting.epochs} epochs",
            str(setting.minibatch),
            f"**{number(found[0].value)} {UNIT}**",
        ]
        for figure in found:
            cells += ["", ""] if figure is None or figure.ratio is None else [number(figure.peer_value), _times(figure)]
        seconds = figures.get(f"compile_s_{name}")
        cells.append("" if seconds is None or seconds.value is None else f"{seconds.value:.0f} s")
        lines.append(table_row(cells))
    return "\n".join(lines)


def _times(figure: Figure) -> str:
    return f"{number(figure.ratio)} ({number(figure.ratio_low)} to {number(figure.ratio_high)})"
