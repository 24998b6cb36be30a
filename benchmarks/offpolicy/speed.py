"""The cell of bench `offpolicy` that measures updates per second: each trainer in a process, alternating.

All use one torch thread. Stable-Baselines3 is measured with its defaults and with Adam's fused kernel; the faster
counts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kit.figures import Figure, Paired, have, paired
from benchmarks.offpolicy.methods import BATCH, HIDDEN, METHODS, SETTINGS, TASK
from benchmarks.ppo.worker import Worker
from benchmarks.runner import number
from robotrl.utils.files import dump_json, replace_file

OURS = ("sac", "rlpd")
PEERS = ("stable_baselines3", "stable_baselines3_fused")
LABELS = {
    "stable_baselines3": "Stable-Baselines3's SAC",
    "stable_baselines3_fused": "the same with Adam's fused kernel",
}
UPDATES = 64
"""Updates per run, about a second."""
ROUNDS = 15
UNIT = "updates/s"
TRAINERS = f"{__package__}.methods"
"""Module that makes a trainer in its process."""


class Measured(NamedTuple):
    """Measurements of the trainers."""

    rates: Paired
    """Updates per second by trainer: "sac float32"."""
    compile_s: dict[str, float]
    """Compile time of our trainers with an empty cache, s."""


def measure(rounds: int = ROUNDS, updates: int = UPDATES, settings: Sequence[str] = tuple(SETTINGS)) -> Measured:
    """Measure ours in every setting, and the peer if it is installed, interleaved.

    Args:
        rounds: number of samples of each trainer.
        updates: updates per sample.
        settings: keys of `benchmarks.offpolicy.methods.SETTINGS`.

    Raises:
        RobotrlError: a trainer cannot be made.
    """
    table = [(method, setting) for setting in settings for method in OURS]
    table += [(peer, "float32") for peer in PEERS if have("stable_baselines3")]
    with ExitStack() as stack:
        routes: dict[str, Any] = {}
        compile_s: dict[str, float] = {}
        for method, setting in table:
            assert method in METHODS
            cache = stack.enter_context(tempfile.TemporaryDirectory())
            worker = Worker(method, setting, 1, TASK, cache, TRAINERS, first=updates)
            stack.callback(worker.close)
            routes[f"{method} {setting}"] = _segment(worker, updates)
            if worker.compile_s is not None:
                compile_s[f"{method} {setting}"] = worker.compile_s
        return Measured(paired(routes, rounds), compile_s)


def _segment(worker: Worker, updates: int) -> Any:
    return lambda: worker.run(updates)


def figures_of(measured: Measured) -> dict[str, Figure]:
    """Ours against the faster peer variant, and the compile times."""
    rates = measured.rates
    what = f"networks {' x '.join(map(str, HIDDEN))}, batch {BATCH}, one torch thread each"
    found = [f"{peer} float32" for peer in PEERS if f"{peer} float32" in rates.samples]
    found.sort(key=lambda route: rates.spread(route).median, reverse=True)
    shown = "; ".join(f"{LABELS[route.split()[0]]}: {number(rates.spread(route).median)}" for route in found)
    note = f"{what}; the better counts of {shown}" if found else what
    figures: dict[str, Figure] = {}
    for route in rates.samples:
        if route.split()[0] not in OURS:
            continue
        name = route.replace(" ", "_")
        figures[f"updates_per_s_{name}"] = rates.figure(route, found[0] if found else PEERS[0], UNIT, "higher", note)
        if route in measured.compile_s:
            figures[f"compile_s_{name}"] = Figure(
                measured.compile_s[route],
                "s",
                note="before the first update, nothing in the compiler's cache; not in the updates per second",
            )
    return figures


def main(out: Path) -> None:
    """Run the measurement and write `result.json` in `out`."""
    figures = figures_of(measure())
    replace_file(out / "result.json", dump_json({key: figure.to_json() for key, figure in figures.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
