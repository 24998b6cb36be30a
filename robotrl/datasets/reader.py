"""Reads and checks a dataset in the LeRobot v3.0 layout; every fault is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from robotrl.datasets import layout
from robotrl.datasets.agreement.flags import flag_issues
from robotrl.datasets.agreement.issues import DataIssue
from robotrl.datasets.agreement.stated_stats import read_stats
from robotrl.datasets.agreement.timing import check_times
from robotrl.datasets.images import PictureColumn, picture_columns
from robotrl.datasets.layout import ACTION, COUNTERS, Feature, refuse
from robotrl.datasets.manifest import check_fetched, read_json, read_manifest
from robotrl.datasets.stats import Stats
from robotrl.datasets.tables import parquet_files, read_columns, read_episodes, read_tasks
from robotrl.errors import ConfigError, DataError, nearest, unknown
from robotrl.spec import Spec

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A checked dataset; numeric columns are in memory, compressed images are decoded on first use.

    The F frames of all episodes are concatenated; episode e is the rows `offsets[e]:offsets[e + 1]`.
    """

    root: Path
    fps: float
    """Control rate in Hz."""
    robot_type: str | None
    features: dict[str, Feature]
    """All frame columns, including those that are not loaded."""
    tasks: tuple[str, ...]
    """Task texts; `frames("task_index")` holds indices into them."""
    offsets: np.ndarray
    """(E + 1,) int64: first frame of each episode, and the number of frames."""
    episodes: dict[str, np.ndarray]
    """Episodes table, (E,) each: `length`, `success`, `state_id`, `mode` and any columns that the writer added."""
    stats: dict[str, Stats]
    """For each column min, max, mean, std, q01, q10, q50, q90, q99 as float64 (D,) and count (1,), from the frames.

    For compressed images these are the stored statistics, in levels from 0 to 255, of the frames before video encoding
    (LeRobot uses some of the frames only); absent if the writer stored none.
    """
    verified: bool
    """True if all files match the hashes in `meta/robotrl.json`; False if another writer made the dataset without that
    file."""
    provenance: dict[str, Any]
    """Provenance stated by the writer; empty if not verified."""
    observation_spec: dict[str, Spec] | None
    """Observation specs with units and bounds, by the sim's keys; None if not verified."""
    action_spec: Spec | None
    """Action spec with units and bounds; None if not verified."""
    issues: tuple[DataIssue, ...]
    """Doubts about the dataset itself, reported when it is used (`robotrl.datasets.agreement.agree`)."""
    _frames: dict[str, np.ndarray]
    _pictures: dict[str, PictureColumn]

    def __repr__(self) -> str:
        state = "verified" if self.verified else "unverified"
        return f"Dataset({str(self.root)!r}, {self.num_episodes} episodes, {self.num_frames} frames, {state})"

    @property
    def num_episodes(self) -> int:
        """E."""
        return len(self.offsets) - 1

    @property
    def num_frames(self) -> int:
        """F."""
        return int(self.offsets[-1])

    def frames(self, column: str) -> np.ndarray:
        """A column over all frames, contiguous: (F, D), or (F,) for a feature of shape (1,). Floats are float32.

        Compressed images are (F, height, width, 3) uint8, memory-mapped, and decoded on the first call.

        Raises:
            ConfigError: no such column, or it holds text or depth maps, which are not read; or it is a video, and PyAV
                is not installed.
            DataError: an image file is truncated, altered, or contradicts the tables.
        """
        if column in self._frames:
            return self._frames[column]
        if column in self._pictures:
            return self._pictures[column].frames
        known = (*self._frames, *self._pictures)
        if column in self.features:
            feature = self.features[column]
            raise ConfigError(
                f"column {column!r} is {feature.dtype} of shape {feature.shape}: expected numbers or colour pictures:"
                f" {', '.join(known)}"
            )
        raise unknown("column", column, known)

    def episode(self, index: int) -> dict[str, np.ndarray]:
        """Numeric columns of one episode, (T, ...) views; for compressed images, index `frames`.

        Raises:
            ConfigError: there is no such episode.
        """
        if not 0 <= index < self.num_episodes:
            raise ConfigError(f"episode is {index!r}: expected 0 to {self.num_episodes - 1}")
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return {name: values[rows] for name, values in self._frames.items()}

    def also_named(self, columns: Mapping[str, str]) -> Dataset:
        """The same dataset with aliases for columns, new name to old; an existing column of a new name is hidden."""

        def named(table: Mapping[str, T]) -> dict[str, T]:
            kept = {name: x for name, x in table.items() if name not in columns}
            return kept | {new: table[old] for new, old in columns.items() if old in table}

        specs = None if self.observation_spec is None else named(self.specs)
        return replace(
            self._with_specs(specs),
            features=named(self.features),
            stats=named(self.stats),
            _frames=named(self._frames),
            _pictures=named(self._pictures),
        )

    def with_column(
        self, name: str, feature: Feature, values: np.ndarray, stats: Stats | None = None, spec: Spec | None = None
    ) -> Dataset:
        """The same dataset with a numeric column (F, ...) added or replaced."""
        specs = None
        if self.observation_spec is not None:
            specs = {**{key: x for key, x in self.specs.items() if key != name}, **({name: spec} if spec else {})}
        return replace(
            self._with_specs(specs),
            features={**self.features, name: feature},
            stats={**{key: x for key, x in self.stats.items() if key != name}, **({name: stats} if stats else {})},
            _frames={**self._frames, name: values},
            _pictures={key: x for key, x in self._pictures.items() if key != name},
        )

    @property
    def specs(self) -> dict[str, Spec]:
        """Array specs of the columns; empty if another writer left no `meta/robotrl.json`."""
        observed = {layout.observation_key(key): spec for key, spec in (self.observation_spec or {}).items()}
        return observed if self.action_spec is None else {**observed, ACTION: self.action_spec}

    def _with_specs(self, specs: Mapping[str, Spec] | None) -> Dataset:
        if specs is None:
            return self
        prefix = layout.observation_key("")
        observed = {name.removeprefix(prefix): spec for name, spec in specs.items() if name.startswith(prefix)}
        return replace(self, observation_spec=observed, action_spec=specs.get(ACTION))


def read_dataset(root: Path | str) -> Dataset:
    """Read and check a dataset, written by robotrl or by LeRobot.

    With `meta/robotrl.json` every file must have the hash it had when written. Without it (`Dataset.verified` False)
    the checks are those that the format allows: version, files, columns, counts, indices, finite numbers, and
    statistics that match the frames.

    Raises:
        DataError: the dataset is missing, incomplete, truncated, altered or inconsistent; file and reason are named.
    """
    root = Path(root)
    _check_root(root)
    check_fetched(root)
    manifest = read_manifest(root)
    info, features = _read_info(root)
    tasks = read_tasks(root)
    _check_count(root, "total_tasks", info, len(tasks), layout.TASKS)
    episodes = read_episodes(root)
    offsets = _offsets(root, info, episodes)
    pictures = picture_columns(root, features, float(info["fps"]), episodes, offsets)
    frames = read_columns(root, {k: f for k, f in features.items() if f.is_array}, int(info["total_frames"]))
    _check_counters(root, frames, offsets, len(tasks))
    times = check_times(frames["timestamp"], offsets, float(info["fps"]))
    if times.wrong:
        raise refuse(root, "data", times.wrong)
    statistics = read_stats(root, frames, pictures)
    specs = manifest or {}
    return Dataset(
        root=root,
        fps=float(info["fps"]),
        robot_type=info.get("robot_type"),
        features=features,
        tasks=tasks,
        offsets=offsets,
        episodes=episodes,
        stats=statistics.stats,
        verified=manifest is not None,
        provenance=specs.get("provenance", {}),
        observation_spec=(
            {key: Spec.from_json(spec) for key, spec in manifest["observation_spec"].items()} if manifest else None
        ),
        action_spec=Spec.from_json(manifest["action_spec"]) if manifest else None,
        issues=times.issues + statistics.issues + flag_issues(features, frames, offsets),
        _frames=frames,
        _pictures=pictures,
    )


def _check_root(root: Path) -> None:
    if (root / layout.INFO).is_file():
        return
    if not root.is_dir():
        siblings = [path.name for path in root.parent.iterdir()] if root.parent.is_dir() else []
        close = nearest(root.name, siblings)
        raise DataError(f"dataset {root} does not exist" + (f": did you mean {root.parent / close}?" if close else ""))
    if (root / "meta" / "episodes.jsonl").exists() or (root / "meta" / "tasks.jsonl").exists():
        raise refuse(root, layout.INFO, f"is missing, and the layout is older than {layout.CODEBASE_VERSION}")
    inside = next(iter(sorted(root.glob(f"*/{layout.INFO}"))), None)
    hint = (
        f": did you mean {inside.parent.parent}?"
        if inside
        else f": expected a dataset of layout {layout.CODEBASE_VERSION}"
    )
    raise refuse(root, layout.INFO, f"is missing{hint}")


def _read_info(root: Path) -> tuple[dict[str, Any], dict[str, Feature]]:
    info = read_json(root, layout.INFO)
    wrong = partial(refuse, root, layout.INFO)
    version = info.get("codebase_version")
    if version != layout.CODEBASE_VERSION:
        older = "; LeRobot converts v2.1 with its script convert_dataset_v21_to_v30" if str(version) < "v3" else ""
        raise wrong(f"codebase_version is {version!r}: expected {layout.CODEBASE_VERSION!r}{older}")
    for key in ("total_episodes", "total_frames", "total_tasks"):
        if type(info.get(key)) is not int or info[key] < 1:
            raise wrong(f"{key} is {info.get(key)!r}: expected a whole number, 1 or more{_instead(key, info)}")
    if type(info.get("fps")) not in (int, float) or info["fps"] <= 0:
        raise wrong(f"fps is {info.get('fps')!r}: expected a rate in Hz above 0{_instead('fps', info)}")
    if info.get("data_path") != layout.DATA_FILE:
        raise wrong(f"data_path is {info.get('data_path')!r}: expected {layout.DATA_FILE!r}")
    declared = info.get("features")
    if not isinstance(declared, dict):
        raise wrong(f"features is {declared!r}: expected an object{_instead('features', info)}")
    features: dict[str, Feature] = {}
    for name, entry in declared.items():
        try:
            shape = tuple(int(size) for size in entry["shape"])
            video_info = entry.get("info") or entry.get("video_info")
            features[name] = Feature(
                str(entry["dtype"]), shape, entry.get("names"), dict(video_info) if video_info else None
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise wrong(f"feature {name!r} is {entry!r}: expected dtype, shape and names") from error
        if (
            not shape
            or min(shape) < 1
            or features[name].dtype not in (*layout.ARRAY_DTYPES, *layout.PICTURE_DTYPES, "string")
        ):
            raise wrong(
                f"feature {name!r} is {entry['dtype']} of shape {list(shape)}: expected numbers, image, video or string"
            )
        if features[name].dtype in layout.PICTURE_DTYPES:
            features[name] = _picture_feature(root, name, features[name], info)
    for name, feature in COUNTERS.items():
        if name not in features:
            raise wrong(f"feature {name!r} is missing{_instead(name, features)}")
        if features[name].shape != feature.shape or not features[name].is_array:
            raise wrong(
                f"feature {name!r} is {features[name].dtype} of shape {features[name].shape}: expected {feature}"
            )
    return info, features


def _picture_feature(root: Path, name: str, feature: Feature, info: dict[str, Any]) -> Feature:
    """Check the declaration of a compressed image column; the channels become the last axis."""
    if "/" in name:
        raise refuse(root, layout.INFO, f"feature {name!r} holds a slash: expected none, it names a folder of videos")
    try:
        feature = layout.channels_last(feature)
    except ValueError as error:
        raise refuse(root, layout.INFO, f"feature {name!r} {error}") from error
    if feature.dtype == "video" and info.get("video_path") != layout.VIDEO_FILE:
        raise refuse(root, layout.INFO, f"video_path is {info.get('video_path')!r}: expected {layout.VIDEO_FILE!r}")
    rate_hz = (feature.info or {}).get("video.fps")
    # LeRobot writes only the integer part of a rate
    if isinstance(rate_hz, int | float) and abs(rate_hz - info["fps"]) >= 1:
        raise refuse(
            root, layout.INFO, f"video.fps of {name!r} is {rate_hz:g}: expected {info['fps']:g}, the dataset's"
        )
    return feature


def _instead(key: str, found: dict[str, Any]) -> str:
    close = nearest(key, found) if key not in found else None
    return f": found {close!r}" if close else ""


def _check_count(root: Path, key: str, info: dict[str, Any], found: int, where: str) -> None:
    if info[key] != found:
        raise refuse(root, layout.INFO, f"{key} is {info[key]}: {where} holds {found}")


def _offsets(root: Path, info: dict[str, Any], episodes: dict[str, np.ndarray]) -> np.ndarray:
    """Check the episodes table against the counts and the files; returns the (E + 1,) offsets."""
    table = "meta/episodes"
    index, length = episodes["episode_index"], episodes["length"]
    _check_count(root, "total_episodes", info, len(index), table)
    if not np.array_equal(index, np.arange(len(index))):
        wrong = int(np.argmax(index != np.arange(len(index))))
        raise refuse(root, table, f"episode_index in row {wrong} is {index[wrong]}: expected {wrong}")
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    good = (
        (length > 0) & (episodes["dataset_from_index"] == offsets[:-1]) & (episodes["dataset_to_index"] == offsets[1:])
    )
    if not good.all():
        e = int(np.argmin(good))
        span = f"{episodes['dataset_from_index'][e]} to {episodes['dataset_to_index'][e]}"
        raise refuse(
            root,
            table,
            f"episode {e} has length {length[e]} and frames {span}: expected {offsets[e]} to {offsets[e + 1]}",
        )
    _check_count(root, "total_frames", info, int(offsets[-1]), table)
    present = set(parquet_files(root, "data"))
    for chunk, file in sorted(
        set(zip(episodes["data/chunk_index"].tolist(), episodes["data/file_index"].tolist(), strict=True))
    ):
        name = layout.DATA_FILE.format(chunk_index=chunk, file_index=file)
        if name not in present:
            raise refuse(root, name, f"is missing: found {nearest(name, present)} instead")
    return offsets


def _check_counters(root: Path, frames: dict[str, np.ndarray], offsets: np.ndarray, tasks: int) -> None:
    total, lengths = int(offsets[-1]), np.diff(offsets)
    expected = {
        "index": np.arange(total),
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "frame_index": np.arange(total) - np.repeat(offsets[:-1], lengths),
    }
    for name, values in expected.items():
        same = frames[name] == values
        if not same.all():
            row = int(np.argmin(same))
            raise refuse(root, "data", f"{name} of frame {row} is {frames[name][row]}: expected {values[row]}")
    task = frames["task_index"]
    if ((task < 0) | (task >= tasks)).any():
        row = int(np.argmax((task < 0) | (task >= tasks)))
        raise refuse(
            root,
            "data",
            f"task_index of frame {row} is {task[row]}: expected 0 to {tasks - 1}, as {layout.TASKS} holds",
        )
