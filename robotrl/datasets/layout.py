"""The LeRobot v3.0 layout on disk: file names, columns, and how an array feature is stored.

Frames lie in `data/chunk-000/file-000.parquet`, one row a frame and one row group an episode; `meta/episodes/...` holds
one row an episode, `meta/tasks.parquet` the task texts, `meta/info.json` the features and counts, `meta/stats.json` the
statistics for normalization. `meta/robotrl.json` is ours: units, provenance and hashes (see `manifest.py`).

Images are stored as raw arrays in the frames (the default of `DatasetWriter`), as PNG files in the frames (dtype
"image"), or in videos, `videos/KEY/chunk-000/file-000.mp4`, one episode after the other (dtype "video").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from robotrl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from robotrl.spec import Spec

CODEBASE_VERSION = "v3.0"
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
MANIFEST = "meta/robotrl.json"
DATA_FILE = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_FILE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_FILE = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FILES_PER_CHUNK = 1000
DATA_FILE_MIB = 100
VIDEO_FILE_MIB = 200

ACTION = "action"
ARRAY_DTYPES = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
"""Numeric feature dtypes."""
PICTURE_DTYPES = ("image", "video")
"""Feature dtypes of compressed images, decoded on first use; "string" features are listed but not read."""


@dataclass(frozen=True)
class Feature:
    """One frame column, as declared in `meta/info.json`."""

    dtype: str
    """A numpy dtype name, or "image", "video", "string"."""
    shape: tuple[int, ...]
    """Trailing shape; (1,) is stored as a scalar, not as a list of one."""
    names: Any = None
    """Names of the last axis, or of an image's axes; other writers put a dict or None here."""
    info: Mapping[str, Any] | None = None
    """Video encoding, under LeRobot's names ("video.codec", ...); None for all other features."""

    @property
    def is_array(self) -> bool:
        """True if the column holds numbers that `read_dataset` loads."""
        return self.dtype in ARRAY_DTYPES

    @property
    def is_picture(self) -> bool:
        """True if the column holds compressed color images; depth maps are listed but not read."""
        depth = self.info is not None and bool(self.info.get("video.is_depth_map"))
        return self.dtype in PICTURE_DTYPES and self.shape[-1] == 3 and not depth

    @property
    def trailing(self) -> tuple[int, ...]:
        """Shape of one frame's value in memory: () for the shape (1,)."""
        return () if self.shape == (1,) else self.shape

    def to_json(self) -> dict[str, Any]:
        """The entry of `meta/info.json`."""
        names = list(self.names) if isinstance(self.names, tuple) else self.names
        entry = {"dtype": self.dtype, "shape": list(self.shape), "names": names}
        return entry if self.info is None else {**entry, "info": dict(self.info)}


OUTCOME: dict[str, Feature] = {
    "next.reward": Feature("float32", (1,)),
    "next.done": Feature("bool", (1,)),
    "next.truncated": Feature("bool", (1,)),
    "next.success": Feature("bool", (1,)),
}
"""Outcome columns of a frame's action: reward, end of the episode for any reason, end by a time limit, success."""

COUNTERS: dict[str, Feature] = {
    "timestamp": Feature("float32", (1,)),
    "frame_index": Feature("int64", (1,)),
    "episode_index": Feature("int64", (1,)),
    "index": Feature("int64", (1,)),
    "task_index": Feature("int64", (1,)),
}
"""Columns that every dataset has: seconds since the episode's start, and the frame's indices."""


PICTURE_AXES = ("height", "width", "channels")


def channels_last(feature: Feature) -> Feature:
    """Move the channel axis of a compressed image feature to the end: some writers declare it first.

    Raises:
        ValueError: it does not have three axes.
    """
    if len(feature.shape) != 3:
        raise ValueError(f"has shape {list(feature.shape)}: expected a picture's, (height, width, channels)")
    names: Any = feature.names
    first_letters = [str(name)[:1].lower() for name in names] if isinstance(names, list | tuple) else []
    if first_letters[:1] != ["c"] and (first_letters[2:] == ["c"] or feature.shape[2] == 3):
        return Feature(feature.dtype, feature.shape, list(PICTURE_AXES), feature.info)
    channels, height, width = feature.shape
    return Feature(feature.dtype, (height, width, channels), list(PICTURE_AXES), feature.info)


def observation_key(key: str) -> str:
    """The column of an observation: "state" is "observation.state"."""
    return f"observation.{key}"


def feature_of(field: str, spec: Spec) -> Feature:
    """Feature that stores arrays of this spec.

    Raises:
        ConfigError: the spec is neither a vector of numbers, a list of such, nor a picture of bytes, or its key holds a
            slash.
    """
    if "/" in field:
        raise ConfigError(f"{field!r} holds a slash: expected a key without one, the format uses it as a separator")
    if len(spec.shape) == 3 and spec.dtype == "uint8":
        return Feature(spec.dtype, spec.shape, PICTURE_AXES)
    if len(spec.shape) not in (1, 2) or spec.dtype not in ARRAY_DTYPES:
        raise ConfigError(
            f"{field} is {spec.dtype} of shape {spec.shape}: expected a vector of numbers, shape (D,), a list of"
            " vectors, shape (K, D), or a picture, uint8 of shape (h, w, channels)"
        )
    return Feature(spec.dtype, spec.shape, spec.names)


def arrow_type(feature: Feature) -> pa.DataType:
    """The parquet column type of a feature: lists in lists for a picture."""
    value = pa.from_numpy_dtype(np.dtype(feature.dtype))
    for size in reversed(feature.trailing):
        value = pa.list_(value, size)
    return value


def to_arrow(values: np.ndarray, feature: Feature) -> pa.Array:
    """A column from an array (T,), (T, D) or (T, h, w, channels)."""
    column = pa.array(np.ascontiguousarray(values, feature.dtype).reshape(-1))
    for size in reversed(feature.trailing):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def to_numpy(column: pa.ChunkedArray, feature: Feature) -> np.ndarray:
    """Column as an array (T, *trailing), for any kind of list that a writer used; floats become float32.

    Raises:
        ValueError: nulls, ragged lists, another length or another kind of number than the feature declares.
    """
    values: Any = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks)
    rows = len(values)
    while True:
        if values.null_count:
            raise ValueError(f"holds {values.null_count} missing values")
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                raise ValueError(f"holds lists of lengths {lengths.tolist()}: expected shape {feature.shape}")
            values = values.flatten()
        elif pa.types.is_fixed_size_list(values.type):
            values = values.flatten()
        else:
            break
    if not (
        pa.types.is_primitive(values.type) and np.can_cast(values.type.to_pandas_dtype(), feature.dtype, "same_kind")
    ):
        raise ValueError(f"is stored as {values.type}: expected {feature.dtype}")
    if len(values) != rows * int(np.prod(feature.shape)):
        raise ValueError(f"holds {len(values)} numbers in {rows} frames: expected shape {feature.shape}")
    floating = np.dtype(feature.dtype).kind == "f"
    array = values.to_numpy(zero_copy_only=False).astype(np.float32 if floating else feature.dtype, copy=False)
    return array.reshape(rows, *feature.trailing)


def refuse(root: Path, file: str, what: str) -> DataError:
    """Error for a dataset that cannot be trusted: the dataset, the file, and the fault."""
    return DataError(f"dataset {root}: {file}: {what}")
