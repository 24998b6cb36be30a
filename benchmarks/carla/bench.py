"""The CARLA adapter against a stub of the server: cost of a step, agreement with `bev/drive`, lost servers."""

from __future__ import annotations

import statistics
import tempfile
import warnings
from pathlib import Path

from benchmarks.carla.agreement import compare as compare_scenes
from benchmarks.carla.agreement import overlap
from benchmarks.carla.cost import ACTORS, measure
from benchmarks.carla.losses import compare as compare_runs
from benchmarks.carla.town import town
from benchmarks.kit.figures import Figure

DESCRIPTION = "CARLA's adapter against a stub of the server: cost of a step, agreement with bev/drive, lost servers"
PEERS = {"carla": 'pip install "robotrl[carla]"'}
OBSERVATIONS = ("vector", "both")
STEPS, ROUNDS = 50, 21
SCENES, SEEDS = 20, (0, 1)
FAULTS, ENV_STEPS = 20, 4096
COST_MS, AGREEMENT, LOSSES = 5.0, 0.95, 20
"""Targets."""


def run(quick: bool) -> dict[str, Figure]:
    """Measure everything."""
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the map's converter
        work = Path(folder)
        for obs in OBSERVATIONS:
            figures |= cost(obs, 10 if quick else STEPS, 3 if quick else ROUNDS, work)
        figures |= agreement(3 if quick else SCENES, SEEDS[:1] if quick else SEEDS, work)
        figures |= losses(3 if quick else FAULTS, 512 if quick else ENV_STEPS, work)
    return figures


def cost(obs: str, steps: int, rounds: int, work: Path) -> dict[str, Figure]:
    """Wall time of a step beyond that of a client that sends a control and ticks, pair by pair."""
    samples = measure(obs, steps, rounds, work)
    extra = [1e3 * (b - a) for a, b in zip(samples.samples["bare"], samples.samples["sim"], strict=True)]
    alone = 1e3 * samples.spread("bare").median
    note = (
        f"{ACTORS} actors, two ticks a step; target below {COST_MS:g} ms; control and ticks alone take {alone:.1f} ms"
    )
    figure = Figure(statistics.median(extra), "ms a step", runs=rounds, low=min(extra), high=max(extra), note=note)
    return {f"own_cost_{obs}": figure}


def agreement(scenes: int, seeds: tuple[int, ...], work: Path) -> dict[str, Figure]:
    """Intersection over union of the drawn pixels of each channel of the raster, over all scenes."""
    found = [scene for seed in seeds for scene in compare_scenes(town(), scenes, seed, work)]
    each = {name: [overlap([scene]).get(name) for scene in found] for name in overlap(found)}
    figures: dict[str, Figure] = {}
    for name, value in overlap(found).items():
        drawn = [one for one in each[name] if one is not None]
        note = f"target {AGREEMENT:g}; lowest and highest of a scene; drawn in {len(drawn)} of {len(found)}"
        figures[f"agreement_{name}"] = Figure(value, "IoU", runs=len(found), low=min(drawn), high=max(drawn), note=note)
    return figures


def losses(count: int, env_steps: int, work: Path) -> dict[str, Figure]:
    """Training beside faults, compared number by number with training without."""
    found = compare_runs(count, env_steps, 0, work)
    note = f"PPO, {env_steps:,} env steps; dies, hangs, old frames, late answers; target {LOSSES}"
    return {
        "lost_servers": Figure(found.losses, "servers", note=note),
        "different_weights": Figure(found.different_weights, "numbers", note="of the policy, against the calm run"),
        "different_scalars": Figure(found.different_scalars, "numbers", note=f"in {found.rows} rows of the log"),
        "duration": Figure(found.slower, "times the calm run", note="timeouts, new servers, repeated episodes"),
    }
