"""Writes driving logs, clip after clip; see `robotrl.sims.driving.logs.layout`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, DataError
from robotrl.sims.driving.logs import layout
from robotrl.sims.driving.logs.roads import RoadArrays, check_roads, count_lights
from robotrl.spec import Split
from robotrl.utils.files import dump_json, replace_file

HEADER_BYTES = 512
"""Space for the header of an npy file, which is written at the end."""


class GrowingNpy:
    """Npy file whose first axis grows; it is readable once it is finished.

    Args:
        path: the file, which is replaced.
        dtype: type of its elements.
        shape: shape of a row.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.dtype, self.shape, self.count = dtype, shape, 0
        self._file: BinaryIO = path.open("wb")
        self._file.write(bytes(HEADER_BYTES))

    def add(self, rows: NDArray[Any]) -> int:
        """Append rows (n, *shape) and return the number of the first."""
        first = self.count
        self._file.write(np.ascontiguousarray(rows, self.dtype).tobytes())
        self.count += len(rows)
        return first

    def finish(self) -> None:
        """Write the header and close the file."""
        text = repr(
            {
                "descr": np.lib.format.dtype_to_descr(self.dtype),
                "fortran_order": False,
                "shape": (self.count, *self.shape),
            }
        )
        body = text.encode().ljust(HEADER_BYTES - 11) + b"\n"
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body)
        self._file.close()

    def close(self) -> None:
        """Close the file, unfinished."""
        self._file.close()


class LogWriter:
    """Writes a driving log; the index is written when the `with` block ends without an error.

    Args:
        path: folder of the log; must not exist, or be empty.
        source: where the log comes from, for people.
        slots: M, slots for other road users in a clip.
        frames: contents of the frames; None for a log without frames.

    Raises:
        ConfigError: the folder has contents.
    """

    def __init__(self, path: Path, source: str, slots: int, frames: layout.FrameCfg | None = None) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"driving log {str(path)!r} exists: expected a new folder, or an empty one")
        (path / layout.MAPS).mkdir(parents=True, exist_ok=True)
        self.path, self.source, self.slots, self.frames = path, source, slots, frames
        self.clips: list[layout.ClipCfg] = []
        self._lights_of: dict[str, int] = {}
        """Number of lights of each map that was added."""
        self._steps = GrowingNpy(path / layout.STEPS, layout.STEP, ())
        self._agents = GrowingNpy(path / layout.AGENTS, layout.AGENT, (slots,))
        self._routes = GrowingNpy(path / layout.ROUTES, np.dtype("<f8"), (2,))
        self._lights: list[NDArray[np.int8]] = []
        self._frames: GrowingNpy | None = None

    def add_map(self, name: str, arrays: RoadArrays) -> None:
        """Add a map, which clips name; see `robotrl.sims.driving.logs.roads`.

        Raises:
            DataError: arrays that do not fit together.
        """
        check_roads(f"map {name!r}", arrays)
        np.savez(self.path / layout.MAPS / f"{name}.npz", allow_pickle=False, **arrays)
        self._lights_of[name] = count_lights(arrays)

    def has_map(self, name: str) -> bool:
        """True if a map of that name was added."""
        return name in self._lights_of

    def add_clip(
        self,
        name: str,
        split: Split,
        steps: NDArray[Any],
        agents: NDArray[Any],
        route: NDArray[np.float64],
        map_name: str | None = None,
        scenario: str = "log",
        size_m: tuple[float, float] = (4.7, 1.9),
        lights: NDArray[np.int8] | None = None,
        frames: Sequence[NDArray[Any]] | NDArray[Any] | None = None,
    ) -> None:
        """Add a clip of T steps.

        Args:
            name: name of its own.
            split: "train", "val" or "test".
            steps: (T,) `layout.STEP` records.
            agents: (T, m) `layout.AGENT` records, m up to M.
            route: (P, 2) points of the route, m.
            map_name: a map that was added; None: the clip's own way is its only lane.
            scenario: name of the scenario.
            size_m: length and width of the ego.
            lights: (T, G) states of the map's lights; see the layout. None: nobody knows them.
            frames: T frames.

        Raises:
            DataError: the clip is none of the layout: frames and poses that differ in number, times that go back,
                frames that change size, numbers that are not finite, an unknown map, states of fewer lights than the
                map has.
        """
        where = f"clip {name!r}"
        if any(clip.name == name for clip in self.clips):
            raise DataError(f"{where} was added before: expected a name of its own")
        if map_name is not None and map_name not in self._lights_of:
            raise DataError(f"{where} names the map {map_name!r}, which was not added")
        if len(agents) != len(steps):
            raise DataError(f"{where} has {len(agents)} rows of road users and {len(steps)} poses: expected as many")
        if agents.shape[1] > self.slots:
            raise DataError(f"{where} has {agents.shape[1]} slots for road users: expected {self.slots} or fewer")
        if (frames is None) != (self.frames is None):
            raise DataError(f"{where} has {'no ' if frames is None else ''}frames, unlike the other clips of this log")
        padded = np.zeros((len(steps), self.slots), layout.AGENT)
        padded[:, : agents.shape[1]] = agents
        route = np.asarray(route, np.float64).reshape(-1, 2)
        clip = layout.ClipCfg(name, split, 0, len(steps), 0, len(route), map_name, scenario, *size_m)
        index = layout.LogIndex(layout.SCHEMA_VERSION, self.source, (clip,), self.frames)
        none = np.zeros((len(steps), 0), np.int8)
        layout.check_clip(where, layout.DriveLog(self.path, index, steps, padded, route, none, None), clip)
        wanted = 0 if map_name is None else self._lights_of[map_name]
        if lights is None:
            lights = np.full((len(steps), wanted), -1, np.int8)
        if len(lights) != len(steps):
            raise DataError(f"{where} has {len(lights)} states of lights and {len(steps)} poses: expected as many")
        layout.check_lights(f"map {map_name!r}", wanted, lights.shape[1], where)
        if frames is not None:
            self._add_frames(where, frames, len(steps))
        first, route_first = self._steps.add(steps), self._routes.add(route)
        self._agents.add(padded)
        self._lights.append(lights.astype(np.int8))
        self.clips.append(layout.ClipCfg(name, split, first, len(steps), route_first, len(route), *_rest(clip)))

    def _add_frames(self, where: str, frames: Sequence[NDArray[Any]] | NDArray[Any], poses: int) -> None:
        if len(frames) != poses:
            raise DataError(f"{where} has {len(frames)} frames and {poses} poses: expected one frame for each pose")
        assert self.frames is not None
        dtype = layout.DTYPES[self.frames.kind]
        if self._frames is None:
            first = np.asarray(frames[0])
            axes = 2 if self.frames.kind == "raster" else 3
            if first.ndim != axes:
                raise DataError(f"{where} has frames of shape {first.shape}: expected {axes} axes")
            self._frames = GrowingNpy(self.path / layout.FRAMES, dtype, first.shape)
        for k, frame in enumerate(frames):
            if frame.shape != self._frames.shape or frame.dtype != dtype:
                raise DataError(
                    f"{where}, step {k}: the frame is {frame.dtype} {frame.shape}: expected {dtype}"
                    f" {self._frames.shape}, as the frames before; the frames of a log have one size"
                )
        for frame in frames:
            self._frames.add(frame[None])

    def finish(self) -> layout.LogIndex:
        """Write the rest, with the index last.

        Raises:
            DataError: there is no clip.
        """
        if not self.clips:
            raise DataError(f"driving log {self.path} has no clips: expected one or more")
        for file in (self._steps, self._agents, self._routes, self._frames):
            if file is not None:
                file.finish()
        groups = max(lights.shape[1] for lights in self._lights)
        if groups:
            rows = GrowingNpy(self.path / layout.LIGHTS, np.dtype("i1"), (groups,))
            for lights in self._lights:
                padded = np.full((len(lights), groups), -1, np.int8)
                padded[:, : lights.shape[1]] = lights
                rows.add(padded)
            rows.finish()
        index = layout.LogIndex(layout.SCHEMA_VERSION, self.source, tuple(self.clips), self.frames)
        replace_file(self.path / layout.INDEX, dump_json(layout.index_json(index)))
        return index

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
            return
        for file in (self._steps, self._agents, self._routes, self._frames):
            if file is not None:
                file.close()


def _rest(clip: layout.ClipCfg) -> tuple[str | None, str, float, float]:
    return clip.map, clip.scenario, clip.ego_length_m, clip.ego_width_m
