"""Progress labels of a dataset's frames, from milestones (see `robotrl.fn.progress.milestones`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.datasets.agreement.flags import flags
from robotrl.datasets.layout import observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, DataError, check_number, unknown
from robotrl.fn.progress.milestones import Milestones, MilestoneThresholds, milestones, progress
from robotrl.registry import SIMS, make_sim
from robotrl.rewards.columns import Sources, signals
from robotrl.spec import Arrays, HasPrivileged, HasScenarios, VecSim

TYPICAL = 0.95
"""Quantile of the hand's speed over all frames that defines its typical speed."""
MOVING = 3.0
"""Factor from the speed of a hand at rest to that of a moving hand."""


@dataclass(frozen=True)
class GradingCfg:
    """Thresholds of milestones for the progress labels."""

    change: float = 0.3
    """Change of the gripper that counts as opening or closing, as a fraction of its range in the dataset."""
    still_mps: float | None = None
    """Speed in m/s below which the hand is at rest, after it was three times as fast. None: from `still_share`."""
    still_share: float = 0.1
    """Speed below which the hand is at rest, as a fraction of its typical speed (the 95 % quantile over all frames)."""
    gap_s: float = 0.25
    """Minimum time in seconds between milestones, and from the start and from a success."""
    failure_s: float = 1.0
    """Last seconds of a failed episode, which are labelled with progress 0; its earlier frames get no label."""


class Origin(NamedTuple):
    """Tasks and start states of a dataset's episodes, and privileged arrays of its sim."""

    family: tuple[str, ...]
    """(E,) task of each episode: the sim's scenario, or the dataset's task."""
    start: NDArray[np.int64]
    """(E,) equal numbers for equal start states; all different for a robot's episodes."""
    privileged: tuple[str, ...]


class ProgressLabels(NamedTuple):
    """Progress labels of E episodes with F frames."""

    milestones: tuple[Milestones, ...]
    """(E,)."""
    progress: NDArray[np.float32]
    """(F,) in [0, 1]; 0 in an episode that failed."""
    known: NDArray[np.bool_]
    """(F,) frames with a label: all of a success, the last ones of a failure."""
    success: NDArray[np.bool_]
    """(E,)."""
    family: tuple[str, ...]
    """(E,)."""
    still_mps: float
    """Speed in m/s below which the hand counted as at rest."""


class FamilyRow(NamedTuple):
    """Statistics of a task's episodes."""

    family: str
    episodes: int
    successes: int
    counts: dict[int, int]
    """Number of milestones of a success, its end included, to number of successes."""
    gripper: float
    """Mean number of gripper milestones in a success."""
    still: float
    """Mean number of hand milestones in a success."""


class Graded(NamedTuple):
    """Training frames of a process reward: those of an episode in time order, the episodes one after the other."""

    obs: dict[str, NDArray[np.generic]]
    """(F, ...) each."""
    progress: NDArray[np.float32]
    """(F,)."""
    episode: NDArray[np.int64]
    """(F,) index of the episode in the following arrays."""
    success: NDArray[np.bool_]
    """(E,)."""
    start: NDArray[np.int64]
    """(E,) number of the start state; a split keeps episodes with equal numbers together."""
    family: tuple[str, ...]
    """(E,)."""

    def tensors(self) -> Arrays:
        """The observations as tensors."""
        return {key: torch.from_numpy(value) for key, value in self.obs.items()}


def origin(dataset: Dataset) -> Origin:
    """Find the tasks and start states of a dataset, from its sim if it has one.

    Raises:
        DataError: a start state is not a number of the sim's kind.
    """
    tasks = dataset.frames("task_index").astype(np.int64)[dataset.offsets[:-1]]
    family = tuple(dataset.tasks[task] for task in tasks)
    apart = np.arange(dataset.num_episodes)
    name = dataset.provenance.get("sim")
    if name not in SIMS.names() or "state_id" not in dataset.episodes:
        return Origin(family, apart, ())
    starts = dataset.episodes["state_id"].astype(np.int64)
    sim: VecSim = make_sim(str(name), num_envs=1, seed=0, **_options(dataset))
    try:
        if isinstance(sim, HasScenarios):
            family = tuple(sim.scenario_of(int(start)) for start in starts)
        return Origin(family, starts, tuple(sim.privileged) if isinstance(sim, HasPrivileged) else ())
    finally:
        sim.close()


def _options(dataset: Dataset) -> dict[str, Any]:
    given = dataset.provenance.get("sim_options", {})
    if not isinstance(given, dict):
        raise DataError(f"dataset {dataset.root}: sim_options is {given!r}: expected an object")
    return {str(key): value for key, value in given.items()}


def grade(dataset: Dataset, sources: Sources, cfg: GradingCfg, family: tuple[str, ...]) -> ProgressLabels:
    """Find the milestones of all episodes, and label their frames.

    Args:
        dataset: with the column `next.success`.
        sources: from `find_sources`.
        cfg: settings.
        family: (E,) task of each episode.

    Raises:
        ConfigError: a setting out of range, or a hand that never moves.
    """
    check_number("change", cfg.change, 0.01, 1.0)
    check_number("still_share", cfg.still_share, 0.001, 0.3)
    check_number("gap_s", cfg.gap_s, 0.0, 60.0)
    check_number("failure_s", cfg.failure_s, 0.0, 3600.0)
    if cfg.still_mps is not None:
        check_number("still_mps", cfg.still_mps, 1e-6, 10.0)
    said = signals(dataset, sources)
    pace = float(np.quantile(said.speed_mps, TYPICAL))
    if not pace > 0:
        raise ConfigError(f"dataset {dataset.root}: the hand does not move: expected another velocity or position")
    still = cfg.still_share * pace if cfg.still_mps is None else cfg.still_mps
    limits = MilestoneThresholds(cfg.change, still, MOVING * still, max(1, math.ceil(cfg.gap_s * dataset.fps)))
    led_to = flags(dataset, "next.success")
    spans = [slice(int(a), int(b)) for a, b in zip(dataset.offsets[:-1], dataset.offsets[1:], strict=True)]
    success = np.array([bool(led_to[span].any()) for span in spans])
    found = tuple(
        milestones(said.opening[span], said.speed_mps[span], limits, bool(won))
        for span, won in zip(spans, success, strict=True)
    )
    label = np.zeros(dataset.num_frames, np.float32)
    known = np.ones(dataset.num_frames, bool)
    last = max(1, round(cfg.failure_s * dataset.fps))
    for span, won, of in zip(spans, success, found, strict=True):
        if won:
            label[span] = progress(of.frames, span.stop - span.start)
        else:
            known[span.start : max(span.start, span.stop - last)] = False
    return ProgressLabels(found, label, known, success, family, still)


def summary(labels: ProgressLabels) -> list[FamilyRow]:
    """Return the statistics of each task, sorted by name."""
    rows: list[FamilyRow] = []
    for family in sorted(set(labels.family)):
        of = [e for e, name in enumerate(labels.family) if name == family]
        won = [labels.milestones[e] for e in of if labels.success[e]]
        kinds = Counter(kind for one in won for kind in one.kinds)
        count = max(len(won), 1)
        counts = dict(sorted(Counter(len(one.frames) for one in won).items()))
        rows.append(FamilyRow(family, len(of), len(won), counts, kinds["gripper"] / count, kinds["still"] / count))
    return rows


def graded(dataset: Dataset, labels: ProgressLabels, keys: Sequence[str], start: NDArray[np.int64]) -> Graded:
    """Return the labelled frames of a dataset.

    Args:
        dataset: the labelled dataset.
        labels: from `grade`.
        keys: observation arrays to keep.
        start: (E,) of `Origin`.

    Raises:
        ConfigError: an array is unknown.
    """
    known = [name.removeprefix("observation.") for name in dataset.features if name.startswith("observation.")]
    for key in keys:
        if key not in known:
            raise unknown("observation", key, known)
    obs = {key: dataset.frames(observation_key(key))[labels.known] for key in keys}
    episode = np.repeat(np.arange(dataset.num_episodes), np.diff(dataset.offsets))[labels.known]
    return Graded(obs, labels.progress[labels.known], episode, labels.success, start, labels.family)


def join_graded(parts: Sequence[Graded], same_starts: bool) -> Graded:
    """Concatenate several sets; episodes stay separate.

    Args:
        parts: of one dataset each, with the same arrays.
        same_starts: whether equal start numbers mean equal start states across all of them.

    Raises:
        ConfigError: an array has another shape in another part.
    """
    shapes = [{key: value.shape[1:] for key, value in part.obs.items()} for part in parts]
    if any(found != shapes[0] for found in shapes):
        raise ConfigError(f"datasets show {', '.join(map(str, shapes))}: expected the same arrays in each")
    offsets = np.cumsum([0, *(len(part.success) for part in parts)])
    base = 0 if same_starts else 1 + max(int(part.start.max()) for part in parts)
    return Graded(
        {key: np.concatenate([part.obs[key] for part in parts]) for key in parts[0].obs},
        np.concatenate([part.progress for part in parts]),
        np.concatenate([part.episode + first for part, first in zip(parts, offsets, strict=False)]),
        np.concatenate([part.success for part in parts]),
        np.concatenate([part.start + number * base for number, part in enumerate(parts)]),
        tuple(name for part in parts for name in part.family),
    )


def only(found: Graded, episodes: NDArray[np.int64]) -> Graded:
    """Select some episodes (n,) of a set, in their order there."""
    kept = np.sort(episodes)
    rows = np.isin(found.episode, kept)
    return Graded(
        {key: value[rows] for key, value in found.obs.items()},
        found.progress[rows],
        np.searchsorted(kept, found.episode[rows]),
        found.success[kept],
        found.start[kept],
        tuple(found.family[e] for e in kept),
    )
