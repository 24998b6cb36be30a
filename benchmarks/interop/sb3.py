"""Training speed of Stable-Baselines3's PPO through our door, turn by turn with its own `SubprocVecEnv`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.interop.sb3_methods import DOOR, SETTINGS, SUBPROC, TASK
from benchmarks.kit.figures import Figure, Paired, have, paired
from benchmarks.ppo.worker import Worker
from benchmarks.runner import number

METHODS = "benchmarks.interop.sb3_methods"
THREADS = (None, 1)
"""Torch threads of each measurement, None for torch's default; the faster counts, for both."""
ROUNDS = 9
UNIT = "env steps/s"


def figures(quick: bool) -> dict[str, Figure]:
    """Env steps per second of each setting; nothing without Stable-Baselines3."""
    if not have("stable_baselines3"):
        return {}
    return {key: value for name in SETTINGS for key, value in figures_of(name, measure(name, quick)).items()}


def measure(name: str, quick: bool, task: str = TASK) -> Paired:
    """Measure both ways, interleaved, each in a process of its own.

    Args:
        name: a key of `SETTINGS`.
        quick: one run, with one torch thread.
        task: name of the sim.
    """
    with ExitStack() as stack:
        routes: dict[str, Callable[[], float]] = {}
        for method in (DOOR, SUBPROC):
            for threads in THREADS[-1:] if quick else THREADS:
                worker = Worker(method, name, threads, task, methods=METHODS)
                stack.callback(worker.close)
                routes[f"{method}, {worker.threads} torch threads"] = _segment(worker)
        return paired(routes, 1 if quick else ROUNDS)


def _segment(worker: Worker) -> Callable[[], float]:
    return lambda: worker.run(1)


def figures_of(name: str, rates: Paired) -> dict[str, Figure]:
    """The door at its faster number of torch threads against `SubprocVecEnv` at its own."""
    setting = SETTINGS[name]
    best = {
        method: max(
            (route for route in rates.samples if route.startswith(f"{method},")),
            key=lambda route: rates.spread(route).median,
        )
        for method in (DOOR, SUBPROC)
    }
    tried = "; ".join(f"{route}: {number(rates.spread(route).median)}" for route in rates.samples)
    note = (
        f"{setting.num_envs} envs x {setting.num_steps} steps, minibatch {setting.minibatch}, {setting.epochs} epochs"
    )
    figure = rates.figure(best[DOOR], best[SUBPROC], UNIT, "higher", f"{note}; the better counts of {tried}")
    return {f"sb3_ppo_{name}_env_steps_per_s": figure}
