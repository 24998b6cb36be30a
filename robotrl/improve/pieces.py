"""Labels of logged episodes: an episode ends in a failure where a person had to take over."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import robotrl
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.improve.dataset_logs import ORIGIN
from robotrl.improve.logged import OwnEpisode
from robotrl.improve.target import Target
from robotrl.labels.corrections import CORRECTIONS, PERSON, spans_text
from robotrl.rollout.demos import integer_rate_hz, plain_name


class LabeledPiece(NamedTuple):
    """A part of an episode from one takeover to the next, with the outcome that the policy is to learn."""

    episode: OwnEpisode
    first: int
    end: int
    """Frames `first` to `end` - 1 of the episode."""
    success: bool
    truncated: bool
    person: int
    """Number of its first frames that a person acted in."""


def label(episode: OwnEpisode) -> list[LabeledPiece]:
    """Cut an episode at each beginning of a correction.

    What the policy did before a person took over counts as a failure, whatever came of the episode: else a critic would
    learn that states from which a person has to save it are good. The last piece has the episode's outcome.
    """
    person = episode.person
    starts = np.flatnonzero(person & ~np.concatenate([[False], person[:-1]])).tolist()
    edges = sorted({0, *starts, len(person)})
    out: list[LabeledPiece] = []
    for first, end in itertools.pairwise(edges):
        last = end == len(person)
        by_person = int(np.argmin(np.append(person[first:end], False)))
        out.append(LabeledPiece(episode, first, end, last and episode.success, last and episode.truncated, by_person))
    return out


def write_episodes(out: Path, episodes: Sequence[OwnEpisode], target: Target) -> Path:
    """Write whole episodes as a dataset that `read_dataset_log` reads again; returns its path."""
    with _writer(out, target) as writer:
        for episode in episodes:
            writer.add_episode(
                episode.obs,
                episode.actions,
                success_rewards(len(episode.actions), episode.success),
                success=episode.success,
                truncated=episode.truncated,
                task=episode.task or plain_name(target.sim),
                extra={"state_id": episode.start, ORIGIN: episode.origin, CORRECTIONS: spans_text(episode.person)},
            )
        return writer.finish()


def write_pieces(out: Path, episodes: Sequence[OwnEpisode], target: Target) -> Path:
    """Write labeled pieces of episodes as a dataset: reward 1 where the task was solved, 0 elsewhere."""
    with _writer(out, target) as writer:
        for piece in (piece for episode in episodes for piece in label(episode)):
            rows, episode = slice(piece.first, piece.end), piece.episode
            writer.add_episode(
                {key: values[rows] for key, values in episode.obs.items()},
                episode.actions[rows],
                success_rewards(piece.end - piece.first, piece.success),
                success=piece.success,
                truncated=piece.truncated,
                task=episode.task or plain_name(target.sim),
                extra={"state_id": episode.start, ORIGIN: episode.origin, PERSON: piece.person},
            )
        return writer.finish()


def write_good(out: Path, pieces: Path) -> Path:
    """Write the pieces that a clone is to repeat as a dataset: successes, and a person's frames of all others.

    Args:
        out: directory of the new dataset.
        pieces: dataset of `write_pieces`.
    """
    dataset = read_dataset(pieces)
    specs, action = dataset.observation_spec, dataset.action_spec
    assert specs is not None and action is not None
    with DatasetWriter(
        out,
        fps=round(dataset.fps),
        observation_spec=specs,
        action_spec=action,
        robot_type=dataset.robot_type,
        provenance=dataset.provenance,
    ) as writer:
        for index, count in good_frames(dataset):
            rows = slice(int(dataset.offsets[index]), int(dataset.offsets[index]) + count)
            writer.add_episode(
                {key: dataset.frames(observation_key(key))[rows] for key in specs},
                dataset.frames(ACTION)[rows],
                success_rewards(count, True),
                success=True,
                task=dataset.tasks[int(dataset.frames("task_index")[rows][0])],
                extra={"state_id": int(dataset.episodes["state_id"][index])},
            )
        return writer.finish()


def good_frames(dataset: Dataset) -> list[tuple[int, int]]:
    """Index of each piece that a clone is to repeat, and the number of its first frames that are."""
    lengths, successes, person = (dataset.episodes[name].tolist() for name in ("length", "success", PERSON))
    counts = [length if success else by for length, success, by in zip(lengths, successes, person, strict=True)]
    return [(index, count) for index, count in enumerate(counts) if count]


def success_rewards(length: int, success: bool) -> NDArray[np.float32]:
    """(length,) rewards: 1 at the last step of a success, else 0, whatever a sim or a dataset pays."""
    out = np.zeros(length, np.float32)
    out[-1] = success
    return out


def _writer(out: Path, target: Target) -> DatasetWriter:
    return DatasetWriter(
        out,
        fps=integer_rate_hz(target.control_dt_s),
        observation_spec=target.observation_spec,
        action_spec=target.action_spec,
        robot_type=target.sim,
        provenance={"sim": target.sim, "robotrl": robotrl.__version__},
    )
