"""Writes a dataset in the LeRobot v3.0 layout, atomically."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robotrl.datasets import layout
from robotrl.datasets.agreement import bounds
from robotrl.datasets.layout import ACTION, COUNTERS, OUTCOME, Feature
from robotrl.datasets.manifest import write_json, write_manifest
from robotrl.datasets.stats import Stats, describe
from robotrl.datasets.tables import read_columns, write_episodes, write_tasks
from robotrl.datasets.video import ENCODINGS, check_installed
from robotrl.datasets.video_writer import CameraFiles
from robotrl.errors import ConfigError, DataError, NumericsError, nearest, unknown
from robotrl.spec import Spec, is_picture
from robotrl.utils.atomic_directory import publish

Extra = Mapping[str, bool | int | float | str]
"""User-defined columns of the episodes table, such as `state_id` or `mode`."""

PictureStorage = Literal["numbers", "video", "video-exact"]
"""Storage of image observations: raw arrays, lossy videos, or lossless videos."""


class DatasetWriter:
    """Writes episodes into a hidden sibling of `root`, which `finish` renames to `root` when everything is on the disk.

    Leaving the `with` block without `finish`, also by an exception, removes the files. The same episodes give the same
    bytes.

    Args:
        root: the dataset's directory; absent or empty.
        fps: control rate in Hz, a whole number as the format has it.
        observation_spec: the sim's observations; "state" becomes the column "observation.state".
        action_spec: the sim's action, the column "action".
        robot_type: robot name that LeRobot tools show.
        provenance: JSON values on the data's origin (sim, expert settings, seed), for `meta/robotrl.json`.
        pictures: storage of image observations, (height, width, 3) uint8; see `robotrl.datasets.video.ENCODINGS` for
            the losses of a video. Videos need the extra `video`.
        data_file_mib: size limit of a frames file, MiB.
        video_file_mib: size limit of a video file, MiB.
        files_per_chunk: number of files in one `chunk-NNN` directory.

    Raises:
        ConfigError: `root` is not empty, an argument is out of range, or videos were asked for without
            PyAV, without pictures, or for pictures that they cannot hold.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        fps: int,
        observation_spec: Mapping[str, Spec],
        action_spec: Spec,
        robot_type: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        pictures: PictureStorage = "numbers",
        data_file_mib: float = layout.DATA_FILE_MIB,
        video_file_mib: float = layout.VIDEO_FILE_MIB,
        files_per_chunk: int = layout.FILES_PER_CHUNK,
    ) -> None:
        self.root = Path(root)
        if self.root.exists() and (not self.root.is_dir() or any(self.root.iterdir())):
            raise ConfigError(f"dataset {self.root} exists already: expected a new or empty directory")
        for name, value in (("fps", fps), ("files_per_chunk", files_per_chunk)):
            if value <= 0 or value != int(value):
                raise ConfigError(f"{name} is {value!r}: expected a positive whole number")
        for name, value in (("data_file_mib", data_file_mib), ("video_file_mib", video_file_mib)):
            if value <= 0:
                raise ConfigError(f"{name} is {value!r}: expected a positive number")
        self._observation_spec, self._action_spec = dict(observation_spec), action_spec
        self._arrays = {
            **{
                layout.observation_key(k): layout.feature_of(layout.observation_key(k), s)
                for k, s in observation_spec.items()
            },
            ACTION: layout.feature_of(ACTION, action_spec),
        }
        self._fps, self._robot_type, self._provenance = int(fps), robot_type, dict(provenance or {})
        self._limit_bytes, self._files_per_chunk = data_file_mib * 2**20, int(files_per_chunk)
        self._video_limit_bytes = video_file_mib * 2**20
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._frames = 0
        self._file = -1
        self._file_bytes = 0
        self._parquet: pq.ParquetWriter | None = None
        self._partial = self.root.parent / f".{self.root.name}.partial-{secrets.token_hex(4)}"
        self._pictures = pictures
        self._cameras = self._make_cameras(pictures)
        features = {**self._arrays, **OUTCOME, **COUNTERS}
        self._columns: dict[str, Feature] = {name: f for name, f in features.items() if name not in self._cameras}
        """Columns that are stored in the frames files."""
        self._schema = pa.schema([(name, layout.arrow_type(feature)) for name, feature in self._columns.items()])
        with self._disk():
            self._partial.mkdir(parents=True)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    @property
    def num_episodes(self) -> int:
        """Episodes added so far."""
        return len(self._episodes)

    def add_episode(
        self,
        obs: Mapping[str, np.ndarray],
        actions: np.ndarray,
        rewards: np.ndarray,
        *,
        success: bool,
        truncated: bool = False,
        task: str,
        extra: Extra | None = None,
    ) -> int:
        """Append one episode of T frames.

        Args:
            obs: (T, D) for each key of `observation_spec`: the observation before each action.
            actions: (T, A) in the units of `action_spec`.
            rewards: (T,) reward that each action led to.
            success: whether the episode's last action solved the task.
            truncated: whether a time limit cut the episode.
            task: the instruction as text.
            extra: further columns of the episodes table; the same names and kinds in every episode.

        Returns:
            The episode's index.

        Raises:
            ConfigError: an array is missing, unknown or of the wrong shape, or `extra` is not like the first episode's.
            ConfigError: an action is beyond its bounds by more than their range: it is in other units.
            NumericsError: a number is not finite.
            DataError: an image changed by more than its encoding allows, and the episode was not added; or the disk is
                full or failing, and nothing is left of the dataset.
        """
        length = len(actions)
        episode = len(self._episodes)
        given = {layout.observation_key(key): np.asarray(value) for key, value in obs.items()}
        given[ACTION], given["next.reward"] = np.asarray(actions), np.asarray(rewards)
        self._check_episode(given, length, task)
        self._check_actions(given[ACTION])
        extra = self._check_extra(dict(extra or {}))
        last = np.arange(length) == length - 1
        columns = {
            **given,
            "next.done": last,
            "next.truncated": last & bool(truncated),
            "next.success": last & bool(success),
            "timestamp": np.arange(length) / self._fps,
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
            "index": np.arange(self._frames, self._frames + length),
            "task_index": np.full(length, self._tasks.setdefault(task, len(self._tasks))),
        }
        table = pa.table([layout.to_arrow(columns[name], f) for name, f in self._columns.items()], schema=self._schema)
        frames = {name: given[name] for name in self._cameras}
        clips = {name: camera.clip(frames[name]) for name, camera in self._cameras.items()}
        videos: dict[str, Any] = {}
        with self._disk():
            self._write(table)
            for name, camera in self._cameras.items():
                videos |= camera.append(clips[name], frames[name])
        self._episodes.append(
            {
                "episode_index": episode,
                "tasks": [task],
                "length": length,
                "data/chunk_index": self._file // self._files_per_chunk,
                "data/file_index": self._file % self._files_per_chunk,
                "dataset_from_index": self._frames,
                "dataset_to_index": self._frames + length,
                "success": bool(success),
                **extra,
                **_flat_stats({name: describe(columns[name].astype(f.dtype)) for name, f in self._columns.items()}),
                **videos,
            }
        )
        self._frames += length
        return episode

    def finish(self) -> Path:
        """Write statistics, tables and hashes, sync all files to the disk, and rename the dataset to its final name.

        One warning reports numbers outside the bounds of their specs.

        Raises:
            ConfigError: no episode was added.
            DataError: the disk is full or failing; nothing is left of the dataset.
        """
        if not self._episodes:
            raise ConfigError(f"dataset {self.root} has 0 episodes: expected 1 or more before finish()")
        with self._disk():
            if self._parquet is not None:
                self._parquet.close()
            for camera in self._cameras.values():
                camera.close()
            write_tasks(self._partial, list(self._tasks))
            write_episodes(self._partial, self._episodes, self._limit_bytes, self._files_per_chunk)
            write_json(self._partial / layout.INFO, self._info())
            write_json(self._partial / layout.STATS, self._stats())
            provenance = {**self._provenance, **self._losses()}
            write_manifest(self._partial, self._observation_spec, self._action_spec, provenance)
            publish(self._partial, self.root)
        return self.root

    def abort(self) -> None:
        """Remove the unfinished dataset; no effect after `finish`."""
        if self._parquet is not None:
            # A full disk fails a second time when the file's footer is written: remove the file in any case.
            with contextlib.suppress(OSError):
                self._parquet.close()
            self._parquet = None
        for camera in self._cameras.values():
            with contextlib.suppress(OSError, DataError):
                camera.close()
        shutil.rmtree(self._partial, ignore_errors=True)

    @contextlib.contextmanager
    def _disk(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            self.abort()
            reason = " ".join(str(error).split())
            raise DataError(
                f"dataset {self.root} cannot be written: {reason}: nothing was left under that name"
            ) from error

    def _write(self, table: pa.Table) -> None:
        """Write the episode as one row group; begins a new file before the size limit, so none spans two files."""
        parquet = self._parquet
        if parquet is None or (self._file_bytes and self._file_bytes + table.nbytes > self._limit_bytes):
            if parquet is not None:
                parquet.close()
            self._file += 1
            self._file_bytes = 0
            chunk, file = divmod(self._file, self._files_per_chunk)
            path = self._partial / layout.DATA_FILE.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet = pq.ParquetWriter(path, self._schema, compression="snappy", write_page_checksum=True)
            self._parquet = parquet
        parquet.write_table(table)
        self._file_bytes += table.nbytes

    def _make_cameras(self, pictures: PictureStorage) -> dict[str, CameraFiles]:
        """Video writers by image column; empty if images are stored as raw arrays."""
        if pictures == "numbers":
            return {}
        if pictures not in ENCODINGS:
            raise unknown("pictures", pictures, ["numbers", *ENCODINGS])
        shapes = {name: feature.shape for name, feature in self._arrays.items() if feature.names == layout.PICTURE_AXES}
        if not shapes:
            raise ConfigError(
                f"pictures is {pictures!r}, and the observations hold none: expected an array (height, width, 3) of"
                f" bytes among {', '.join(self._arrays)}"
            )
        check_installed(f"pictures={pictures!r}")
        return {
            name: CameraFiles(
                self.root,
                self._partial,
                name,
                shape,
                fps=self._fps,
                encoding=ENCODINGS[pictures],
                limit_bytes=self._video_limit_bytes,
                files_per_chunk=self._files_per_chunk,
            )
            for name, shape in shapes.items()
        }

    def _losses(self) -> dict[str, Any]:
        """Encoding losses of the videos, for the manifest."""
        if not self._cameras:
            return {}
        losses = {name: camera.loss._asdict() for name, camera in self._cameras.items()}
        return {"pictures": {"stored": self._pictures, "changed_by": losses}}

    def _check_episode(self, given: Mapping[str, np.ndarray], length: int, task: str) -> None:
        if not self._partial.is_dir():
            raise ConfigError(f"dataset {self.root} is closed: expected add_episode before finish() or abort()")
        if length < 1 or not task:
            raise ConfigError(f"episode has {length} frames and task {task!r}: expected 1 frame or more and a text")
        expected = {**self._arrays, "next.reward": OUTCOME["next.reward"]}
        for name in given:
            if name not in expected:
                close = nearest(name, expected)
                raise ConfigError(
                    f"array {name!r} is unknown: " + (f"did you mean {close!r}? " if close else "") + _known(expected)
                )
        for name, feature in expected.items():
            if name not in given:
                raise ConfigError(f"array {name!r} is missing: expected {_known(expected)}")
            shape = (length, *feature.trailing)
            found = given[name]
            if feature.names == layout.PICTURE_AXES and found.dtype != np.uint8:
                raise ConfigError(f"array {name!r} is {found.dtype}: expected uint8, as pictures are bytes")
            if found.shape not in (shape, (length, *feature.shape)) or found.dtype.kind not in "fiub":
                raise ConfigError(
                    f"array {name!r} is {found.dtype} of shape {found.shape}: expected numbers of shape {shape}"
                )
            with np.errstate(over="ignore"):
                bad = np.argwhere(~np.isfinite(found.astype(feature.dtype)))
            if len(bad):
                raise NumericsError(
                    f"array {name!r} of episode {len(self._episodes)} is not finite at {bad[0].tolist()}"
                )

    def _check_actions(self, actions: np.ndarray) -> None:
        found = bounds.most_out_of_bounds(actions, self._action_spec, bounds.COMMANDED)
        if found is not None and found.by > 1:
            text = bounds.range_text(ACTION, found, len(actions), self._action_spec)
            raise ConfigError(f"episode {len(self._episodes)} of dataset {self.root}: {text}")

    def _check_extra(self, extra: dict[str, Any]) -> dict[str, Any]:
        taken = {"episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index", "success"}
        for name, value in extra.items():
            if name in taken or "/" in name:
                raise ConfigError(
                    f"extra {name!r} is taken by the format: choose a name without a slash, none of {sorted(taken)}"
                )
            if not isinstance(value, bool | int | float | str):
                raise ConfigError(f"extra {name!r} is {value!r}: expected a bool, int, float or str")
        if self._episodes:
            first = self._episodes[0]
            before = {name: type(value) for name, value in first.items() if name not in taken and "/" not in name}
            if {name: type(value) for name, value in extra.items()} != before:
                raise ConfigError(
                    f"extra has {sorted(extra)}: expected the first episode's names and kinds, {sorted(before)}"
                )
        return extra

    def _info(self) -> dict[str, Any]:
        features = {name: camera.feature() for name, camera in self._cameras.items()} | self._columns
        return {
            "codebase_version": layout.CODEBASE_VERSION,
            "robot_type": self._robot_type,
            "total_episodes": len(self._episodes),
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": self._files_per_chunk,
            "data_files_size_in_mb": max(1, round(self._limit_bytes / 2**20)),
            "video_files_size_in_mb": max(1, round(self._video_limit_bytes / 2**20)),
            "fps": self._fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": layout.DATA_FILE,
            "video_path": layout.VIDEO_FILE if self._cameras else None,
            "features": {name: feature.to_json() for name, feature in features.items()},
        }

    def _stats(self) -> dict[str, Any]:
        """Statistics over all frames, one column in memory at a time."""
        out: dict[str, Stats] = {name: camera.stats() for name, camera in self._cameras.items()}
        issues: list[str] = []
        for name, feature in self._columns.items():
            values = read_columns(self._partial, {name: feature}, self._frames)[name]
            out[name] = describe(values)
            issues += self._beyond(name, values)
        if issues:
            warnings.warn(f"dataset {self.root}: {'; '.join(issues)}", stacklevel=4)
        return {name: {key: value.tolist() for key, value in stats.items()} for name, stats in out.items()}

    def _beyond(self, name: str, values: np.ndarray) -> list[str]:
        """Out-of-bounds values of a column against its spec."""
        specs = {layout.observation_key(key): spec for key, spec in self._observation_spec.items()}
        spec = {**specs, ACTION: self._action_spec}.get(name)
        if spec is None or spec.words or is_picture(spec):
            return []
        issue, wrong = bounds.issue_of(name, values, spec, name == ACTION)
        return [wrong] if wrong else [] if issue is None else [issue.text]


def _flat_stats(stats: Mapping[str, Stats]) -> dict[str, list[float]]:
    return {f"stats/{name}/{key}": value.tolist() for name, one in stats.items() for key, value in one.items()}


def _known(names: Mapping[str, Any]) -> str:
    return "known: " + ", ".join(sorted(names))
