"""Location of episodes within a dataset's videos: the columns `videos/KEY/...` of the episodes table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robotrl.datasets import layout
from robotrl.datasets.layout import refuse
from robotrl.datasets.video import TOLERANCE_S
from robotrl.errors import nearest

TABLE = "meta/episodes"
_TIMES = ("from_timestamp", "to_timestamp")


class VideoRows(NamedTuple):
    """A video file and the dataset rows of its frames."""

    file: str
    rows: np.ndarray
    """(T,) int64: dataset row of each frame."""


def video_rows(
    root: Path, name: str, fps: float, episodes: Mapping[str, np.ndarray], offsets: np.ndarray
) -> tuple[VideoRows, ...]:
    """Dataset rows of the frames of each video of a column.

    Args:
        root: the dataset's directory.
        name: name of the column.
        fps: control rate in Hz.
        episodes: the episodes table, (E,) each.
        offsets: (E + 1,) first row of each episode, and the number of rows.

    Raises:
        DataError: a video is missing, or the table does not locate an episode in it, or its times are not whole frames,
            or its episodes are not consecutive.
    """
    columns = {column: f"videos/{name}/{column}" for column in ("chunk_index", "file_index", *_TIMES)}
    for column in columns.values():
        if column not in episodes:
            close = nearest(column, episodes)
            raise refuse(root, TABLE, f"has no column {column!r}" + (f": found {close!r}" if close else ""))
        if not np.issubdtype(episodes[column].dtype, np.number) or not np.isfinite(episodes[column]).all():
            raise refuse(root, TABLE, f"column {column!r} has gaps or is not numbers: expected one for each episode")
    chunk, file = (episodes[columns[column]].astype(np.int64) for column in ("chunk_index", "file_index"))
    first, last = (_whole_frames(root, columns[column], episodes[columns[column]], fps) for column in _TIMES)
    lengths = np.diff(offsets)
    out: list[VideoRows] = []
    for place in sorted(set(zip(chunk.tolist(), file.tolist(), strict=True))):
        path = layout.VIDEO_FILE.format(video_key=name, chunk_index=place[0], file_index=place[1])
        if not (root / path).is_file():
            close = nearest(path, [p.relative_to(root).as_posix() for p in (root / "videos").rglob("*.mp4")])
            raise refuse(root, path, "is missing" + (f": found {close} instead" if close else ""))
        inside = np.flatnonzero((chunk == place[0]) & (file == place[1]))
        inside = inside[np.argsort(first[inside], kind="stable")]
        _check_places(root, name, inside, first, last, lengths, fps)
        rows = [np.arange(int(offsets[e]), int(offsets[e + 1]), dtype=np.int64) for e in inside]
        out.append(VideoRows(path, np.concatenate(rows)))
    return tuple(out)


def _whole_frames(root: Path, column: str, times: np.ndarray, fps: float) -> np.ndarray:
    """Times (E,) in seconds as frame counts; they must be whole."""
    frames = np.round(times * fps)
    off = np.abs(times - frames / fps) > TOLERANCE_S
    if off.any():
        episode = int(np.argmax(off))
        raise refuse(
            root,
            TABLE,
            f"{column} of episode {episode} is {times[episode]:g} s: expected a whole number of frames,"
            f" {frames[episode] / fps:g} s is the nearest at {fps:g} Hz",
        )
    return frames.astype(np.int64)


def _check_places(
    root: Path,
    name: str,
    inside: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    lengths: np.ndarray,
    fps: float,
) -> None:
    """Check that the episodes of a video are consecutive and as long as their lengths say."""
    begin = 0
    for episode in inside:
        end = begin + int(lengths[episode])
        if first[episode] != begin or last[episode] != end:
            raise refuse(
                root,
                TABLE,
                f"episode {episode} of {lengths[episode]} frames lies at {first[episode] / fps:g} to"
                f" {last[episode] / fps:g} s in the video of {name}: expected {begin / fps:g} to {end / fps:g} s",
            )
        begin = end
