"""Writes image observations of a new dataset as videos in LeRobot's layout, and verifies each frame.

Each episode is encoded as a clip, decoded and compared with the original before it is appended to a video file. A new
file is begun before one would pass its size limit, so no episode spans two files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robotrl.datasets import layout
from robotrl.datasets.layout import Feature, refuse
from robotrl.datasets.stats import Stats, count_levels, describe_levels
from robotrl.datasets.video import ClipFile, Encoding, VideoShape, check_video, decode, describe_video, encode
from robotrl.errors import ConfigError


class Loss(NamedTuple):
    """Difference between decoded and original frames, in levels of 255."""

    mean: float
    """Largest mean difference of a frame."""
    largest: int
    """Largest difference of a single value."""


class CameraFiles:
    """The video files of one image observation.

    Args:
        root: the dataset's name in errors.
        folder: directory in which it is being written.
        name: the column, e.g. "observation.image_top".
        shape: (height, width, 3).
        fps: control rate in Hz.
        encoding: video encoding.
        limit_bytes: size limit of a video file.
        files_per_chunk: number of files in one `chunk-NNN` directory.

    Raises:
        ConfigError: the encoding cannot hold pictures of this shape.
    """

    def __init__(
        self,
        root: Path,
        folder: Path,
        name: str,
        shape: Sequence[int],
        *,
        fps: int,
        encoding: Encoding,
        limit_bytes: float,
        files_per_chunk: int,
    ) -> None:
        height, width, channels = shape
        if channels != 3:
            raise ConfigError(f"{name} has {channels} channels: expected 3 for a video; store it as numbers")
        if encoding.even and (height % 2 or width % 2):
            raise ConfigError(
                f"{name} is {width} x {height} pixels: expected even numbers for pictures='video'; 'video-exact' takes"
                " any"
            )
        self.name, self.loss = name, Loss(0.0, 0)
        self._root, self._folder = root, folder
        self._size, self._fps, self._encoding = (height, width), fps, encoding
        self._limit_bytes, self._files_per_chunk = limit_bytes, files_per_chunk
        self._file: ClipFile | None = None
        self._number = -1
        self._levels = np.zeros((3, 256), np.int64)
        self._frames = 0
        self._info: Mapping[str, Any] = {}

    def clip(self, frames: np.ndarray) -> bytes:
        """Encode an episode, decode it again and compare; nothing is written yet.

        Args:
            frames: (T, height, width, 3) uint8.

        Raises:
            DataError: a frame changed by more than the encoding may.
        """
        clip = encode(frames, self._fps, self._encoding)
        loss = self.loss
        for at, found in enumerate(decode(clip, VideoShape(*self._size, self._fps, len(frames)))):
            off = np.abs(found.astype(np.int16) - frames[at])
            loss = Loss(max(loss.mean, float(off.mean())), max(loss.largest, int(off.max())))
            if off.mean() > self._encoding.tolerance:
                raise refuse(
                    self._root,
                    self.name,
                    f"frame {at} changes by {off.mean():.1f} of 255 on average when it is encoded: expected"
                    f" {self._encoding.tolerance:g} at most; pictures='video-exact' changes nothing",
                )
        self.loss = loss
        return clip

    def append(self, clip: bytes, frames: np.ndarray) -> dict[str, Any]:
        """Append the next episode to the current file.

        Args:
            clip: the encoded frames, from `clip`.
            frames: (T, height, width, 3) uint8.

        Returns:
            The episode's columns of the episodes table: file, position in the file, and statistics.

        Raises:
            OSError: the disk is full or failing.
        """
        file = self._file
        if file is None or file.bytes + len(clip) > self._limit_bytes:
            file = self._next_file()
        self._info = self._info or {**describe_video(clip), **_encoder_options(self._encoding)}
        begin = file.frames
        file.append(clip)
        levels = count_levels(frames)
        self._levels += levels
        self._frames += len(frames)
        chunk_index, file_index = divmod(self._number, self._files_per_chunk)
        place = {
            "chunk_index": chunk_index,
            "file_index": file_index,
            "from_timestamp": begin / self._fps,
            "to_timestamp": file.frames / self._fps,
        }
        stats = _lerobot(levels, len(frames))
        return {
            **{f"videos/{self.name}/{column}": value for column, value in place.items()},
            **{f"stats/{self.name}/{key}": value.tolist() for key, value in stats.items()},
        }

    def close(self) -> None:
        """Write the last file's tables, and check that it holds all frames at their times.

        Raises:
            DataError: the check fails.
            OSError: the disk is full or failing.
        """
        if self._file is None:
            return
        done, self._file = self._file, None
        done.close()
        try:
            check_video(done.path, VideoShape(*self._size, self._fps, done.frames))
        except ValueError as error:
            raise refuse(self._root, done.path.relative_to(self._folder).as_posix(), str(error)) from error

    def feature(self) -> Feature:
        """Entry of `meta/info.json`, available after the first episode."""
        return Feature("video", (*self._size, 3), layout.PICTURE_AXES, self._info)

    def stats(self) -> Stats:
        """Statistics over all original frames, in LeRobot's shape: (3, 1, 1) from 0 to 1."""
        return _lerobot(self._levels, self._frames)

    def _next_file(self) -> ClipFile:
        self.close()
        self._number += 1
        chunk, file = divmod(self._number, self._files_per_chunk)
        path = self._folder / layout.VIDEO_FILE.format(video_key=self.name, chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = ClipFile(path, self._fps)
        return self._file


def _encoder_options(encoding: Encoding) -> dict[str, Any]:
    kept = ("crf", "qp", "g")
    return {f"video.{name}": int(value) for name, value in encoding.options.items() if name in kept}


def _lerobot(levels: np.ndarray, frames: int) -> Stats:
    """Image statistics as LeRobot writes them: from 0 to 1, counted in frames."""
    stats = {key: value.reshape(3, 1, 1) / 255 for key, value in describe_levels(levels).items() if key != "count"}
    return {**stats, "count": np.array([frames], np.int64)}
