"""Pictures of the segments of a dataset: its own, or rendered while its actions are replayed on the sim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import CapabilityError, DataError, unknown
from robotrl.registry import make_sim
from robotrl.rewards.labels import REPLAY_TOLERANCE
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.preferences.segments import Ints
from robotrl.spec import HasCamera, HasStateIds, Spec, is_picture
from robotrl.utils.progress import track

COLORS = 3
MOST_ENVS = 32


def shown_offsets(length: int, frames: int) -> Ints:
    """Steps (F,) of a segment that are shown, evenly spaced; one alone is the last, where the outcome shows."""
    if frames == 1:
        return np.array([length - 1], np.int64)
    return np.round(np.linspace(0, length - 1, frames)).astype(np.int64)


def dataset_clips(dataset: Dataset, starts: Ints, cfg: LabelingCfg) -> NDArray[np.uint8]:
    """Pictures (n, F, h, w, 3) of segments that begin at the frames `starts` (n,).

    Args:
        dataset: the dataset.
        starts: frames.
        cfg: length and view; a view that is no picture of the dataset is a camera of the sim that recorded it.

    Raises:
        CapabilityError: there are neither pictures nor a sim with a camera and numbered starts.
        ConfigError: an unknown view.
        DataError: the replay shows other observations than the dataset.
    """
    ends = dataset.offsets[np.searchsorted(dataset.offsets, starts, side="right")]
    rows = np.minimum(starts[:, None] + shown_offsets(cfg.length, cfg.frames), ends[:, None] - 1)
    pictures = [key for key, spec in (dataset.observation_spec or {}).items() if _colored(spec)]
    if cfg.view in pictures or (cfg.view is None and pictures):
        frames = dataset.frames(observation_key(cfg.view or pictures[0]))
        return np.ascontiguousarray(frames[rows])
    return _replayed(dataset, rows, cfg, pictures)


def _colored(spec: Spec) -> bool:
    return is_picture(spec) and spec.shape[-1] == COLORS


class _Play(NamedTuple):
    """An episode to be replayed, and the frames of the dataset that are shown."""

    state_id: int
    first: int
    actions: NDArray[np.float32]
    shown: set[int]


def _replayed(dataset: Dataset, rows: Ints, cfg: LabelingCfg, pictures: list[str]) -> NDArray[np.uint8]:
    provenance = dataset.provenance
    if "sim" not in provenance or "state_id" not in dataset.episodes:
        raise CapabilityError(
            f"dataset {dataset.root} has no pictures, and does not say which sim recorded it from which starts:"
            " expected one of them, to show segments"
        )
    options: Mapping[str, Any] = provenance.get("sim_options", {})
    wanted = np.unique(rows)
    episodes = np.searchsorted(dataset.offsets, wanted, side="right") - 1
    plays: list[_Play] = []
    actions = dataset.frames(ACTION).reshape(dataset.num_frames, -1)
    for episode in np.unique(episodes):
        shown = wanted[episodes == episode]
        first = int(dataset.offsets[episode])
        plays.append(
            _Play(int(dataset.episodes["state_id"][episode]), first, actions[first : shown.max()], set(shown.tolist()))
        )
    plays.sort(key=lambda play: len(play.actions))  # those of a batch end at about the same time
    found = dict[int, NDArray[np.uint8]]()
    with track(len(plays), "pictures of segments", "episodes") as bar:
        for begin in range(0, len(plays), MOST_ENVS):
            some = plays[begin : begin + MOST_ENVS]
            sim = make_sim(str(provenance["sim"]), num_envs=len(some), seed=0, **dict(options))
            try:
                found |= _play(sim, some, dataset, cfg, pictures)
            finally:
                sim.close()
            bar.advance(len(some))
    return np.stack([np.stack([found[row] for row in clip]) for clip in rows.tolist()])


def _play(
    sim: Any, plays: list[_Play], dataset: Dataset, cfg: LabelingCfg, pictures: list[str]
) -> dict[int, NDArray[np.uint8]]:
    if not isinstance(sim, HasCamera) or not isinstance(sim, HasStateIds):
        raise CapabilityError(
            f"sim {type(sim).__name__} lacks a camera or numbered starts: expected a dataset with pictures"
        )
    camera = cfg.view or sim.cameras[0]
    if camera not in sim.cameras:
        raise unknown("labeler.view", camera, [*pictures, *sim.cameras])
    whole: Any = sim
    whole.reset(seed=0)  # a seed empties the queue
    sim.queue_states([play.state_id for play in plays])
    obs = whole.reset()
    _check_starts(dataset, plays, obs)
    found = dict[int, NDArray[np.uint8]]()
    for step in range(max(len(play.actions) for play in plays) + 1):
        shown = [env for env, play in enumerate(plays) if play.first + step in play.shown]
        if shown:
            for env, picture in zip(shown, sim.render(shown, camera, cfg.pixels, cfg.pixels), strict=True):
                found[plays[env].first + step] = picture.copy()
        given = [play.actions[min(step, len(play.actions) - 1)] if len(play.actions) else None for play in plays]
        rest = np.zeros(dataset.frames(ACTION).reshape(dataset.num_frames, -1).shape[1], np.float32)
        whole.step(torch.from_numpy(np.stack([rest if one is None else one for one in given])).to(whole.device))
    return found


def _check_starts(dataset: Dataset, plays: list[_Play], obs: Mapping[str, torch.Tensor]) -> None:
    for key, x in obs.items():
        name = observation_key(key)
        if name not in dataset.features or not dataset.features[name].is_array:
            continue
        recorded = dataset.frames(name)[[play.first for play in plays]].reshape(len(plays), -1)
        error = np.abs(recorded.astype(np.float64) - x.cpu().numpy().reshape(len(plays), -1)).max()
        if error > REPLAY_TOLERANCE:
            raise DataError(
                f"dataset {dataset.root}: observation {key!r} of a start differs by {error:.2g} when it is replayed:"
                " the sim or its options are not those that it was recorded with"
            )
