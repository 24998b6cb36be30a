"""Compressed images of a dataset: PNG files in the frames, or videos, decoded on first use.

A column is decoded as a whole into the user's cache folder and memory-mapped from there (see `image_cache.py`), so
memory holds only the pages that are read. Videos are checked first (see `video.py` and `video_table.py`).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robotrl.datasets.image_cache import PictureRow, cached
from robotrl.datasets.layout import Feature, refuse
from robotrl.datasets.tables import one_line, parquet_files
from robotrl.datasets.video import VideoShape, check_installed, check_video, decode
from robotrl.datasets.video_table import VideoRows, video_rows
from robotrl.errors import nearest
from robotrl.utils.atomic_directory import sha256_file
from robotrl.utils.progress import ProgressBar, track

VERSION = 1
"""Version of the decoded files; raise it to invalidate caches."""
ROWS_AT_ONCE = 64
"""Number of encoded images read from the frame files at a time."""


@dataclass(frozen=True, eq=False)
class PictureColumn:
    """A column of compressed images.

    Args:
        root: the dataset's directory.
        name: name of the column.
        feature: its height, width and storage.
        fps: control rate in Hz.
        total: number of frames F of the dataset.
        videos: its videos; empty for PNG files in the frames.
    """

    root: Path
    name: str
    feature: Feature
    fps: float
    total: int
    videos: tuple[VideoRows, ...]

    @cached_property
    def frames(self) -> np.ndarray:
        """All images, (F, height, width, 3) uint8, memory-mapped; decoded first if they are not in the cache.

        Raises:
            ConfigError: the column is a video, and PyAV is not installed.
            DataError: a file is missing, truncated, altered or contradicts the dataset's tables; or there is no space
                for the decoded images.
        """
        if self.videos:
            check_installed(f"column {self.name!r} of dataset {self.root}")
        return cached(self._key(), (self.total, *self.feature.shape), self._decode, f"dataset {self.root}: {self.name}")

    @property
    def _files(self) -> list[str]:
        return [video.file for video in self.videos] or parquet_files(self.root, "data")

    def _key(self) -> str:
        rows = [hashlib.sha256(video.rows.tobytes()).hexdigest() for video in self.videos]
        what: dict[str, Any] = {
            "version": VERSION,
            "shape": [self.total, *self.feature.shape],
            "column": None if self.videos else self.name,
            "fps": self.fps,
            "files": [sha256_file(self.root / file) for file in self._files],
            "rows": rows,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def _decode(self) -> Generator[PictureRow]:
        with track(self.total, f"decoding {self.name}", "frames") as bar:
            yield from self._video_rows(bar) if self.videos else self._png_rows(bar)

    def _video_rows(self, bar: ProgressBar) -> Generator[PictureRow]:
        height, width, _ = self.feature.shape
        for video in self.videos:
            path, shape = self.root / video.file, VideoShape(height, width, self.fps, len(video.rows))
            try:
                check_video(path, shape)
                for row, picture in zip(video.rows.tolist(), decode(path, shape), strict=True):
                    yield PictureRow(row, picture)
                    bar.advance()
            except ValueError as error:
                raise refuse(self.root, video.file, str(error)) from error

    def _png_rows(self, bar: ProgressBar) -> Generator[PictureRow]:
        row = 0
        for name in self._files:
            try:
                with pq.ParquetFile(self.root / name, page_checksum_verification=True) as file:
                    names = file.schema_arrow.names
                    if self.name not in names:
                        raise ValueError(f"there is no such column: found {nearest(self.name, names)!r}")
                    for batch in file.iter_batches(ROWS_AT_ONCE, columns=[self.name]):
                        for value in batch.column(0).to_pylist():
                            yield PictureRow(row, decode_png(value, self.feature.shape))
                            bar.advance()
                            row += 1
            except (OSError, ValueError, pa.ArrowException) as error:
                raise refuse(self.root, name, f"column {self.name!r}, frame {row}: {one_line(error)}") from error
        if row != self.total:
            raise refuse(self.root, "data", f"column {self.name!r} holds {row} pictures: expected {self.total}")


def picture_columns(
    root: Path, features: Mapping[str, Feature], fps: float, episodes: Mapping[str, np.ndarray], offsets: np.ndarray
) -> dict[str, PictureColumn]:
    """Columns of compressed images; checks that their files exist and that the episodes table locates each episode.

    Args:
        root: the dataset's directory.
        features: all columns.
        fps: control rate in Hz.
        episodes: the episodes table, (E,) each.
        offsets: (E + 1,) first row of each episode, and the number of rows.

    Raises:
        DataError: a video is missing, or the table does not say where an episode lies in it.
    """
    found: dict[str, PictureColumn] = {}
    for name, feature in features.items():
        if feature.is_picture:
            videos = video_rows(root, name, fps, episodes, offsets) if feature.dtype == "video" else ()
            found[name] = PictureColumn(root, name, feature, fps, int(offsets[-1]), videos)
    return found


def decode_png(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Decode one image of the frames, (height, width, 3) uint8.

    Args:
        value: the bytes of a PNG or JPEG file, or {"bytes": ...} as LeRobot writes it.
        shape: (height, width, 3).

    Raises:
        ValueError: it is not an image, or has another size or color mode.
    """
    from PIL import Image

    data = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(data, bytes):
        where = value.get("path") if isinstance(value, Mapping) else value
        raise ValueError(f"holds no picture but {where!r}: expected the bytes of a PNG file")
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            found = (image.height, image.width, image.mode)
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"cannot be read as a picture, truncated or altered: {one_line(error)}") from error
    if found != (*shape[:2], "RGB"):
        wanted = f"{shape[1]} x {shape[0]}, RGB, as meta/info.json has it"
        raise ValueError(f"is {found[1]} x {found[0]} pixels, {found[2]}: expected {wanted}")
    return pixels
