"""Observations of a control tick: the robot's numbers, and the newest frame of each camera."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robotrl.deploy.bundle.match import RobotInfo, Wiring
from robotrl.deploy.robots.cameras import CameraFrame
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import EpisodeState, Link
from robotrl.deploy.servo.clock import MONOTONIC, Clock

NO_OBSERVATION = -1
"""Place of the robot's numbers among the parts that an episode needs; cameras count from 0."""


@dataclass
class OpenTick:
    """A control tick whose command is not decided yet."""

    tick: int
    woke: int
    """Time of the servo's wake-up."""
    age_ns: int
    """Age of the oldest part of the observation when it was read."""
    read_ns: int
    """From the wake-up until the observation was read."""
    stamp_ns: int
    observation: np.ndarray
    """The robot's flat observation; empty if it has another length than its specs say."""
    frames: tuple[CameraFrame, ...]
    complete: bool
    """It has the robot's numbers, and a frame of this episode from each camera."""
    asked: int = -1
    """Index of the inference that was asked for with it; -1 for none."""
    committed: int = 0
    """Number of actions that were given to that inference as committed."""


class Observer:
    """Reads the robot's link.

    Args:
        robot: the link.
        info: the robot's description.
        wiring: index maps of bundle and robot.
        clock: the servo's time.

    Attributes:
        last: the latest message of the episode; None before the first.
    """

    def __init__(self, robot: Link, info: RobotInfo, wiring: Wiring, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        cameras = robot.cameras(info.observation_spec)
        self._cameras = {key: cameras[key] for key in wiring.cameras}
        self._robot = robot
        self._wiring = wiring
        self.last: Message | None = None

    @property
    def cameras(self) -> int:
        """Number of cameras that the policy sees."""
        return len(self._cameras)

    @property
    def done(self) -> bool:
        """The robot reported the end of the episode."""
        return self.last is not None and self.last.mode != EpisodeState.RUNNING

    @property
    def solved(self) -> bool:
        """The robot reported success."""
        return self.last is not None and self.last.mode == EpisodeState.SOLVED

    @property
    def torn(self) -> int:
        """Messages that were being written while they were read."""
        return self._robot.observations.torn

    def update(self, episode: int) -> bool:
        """Read the latest message; True if one of the episode has come so far."""
        latest = self._robot.observations.read()
        if latest is not None and latest.episode == episode:
            self.last = latest
        return self.last is not None and self.last.episode == episode

    def missing(self, episode: int) -> int | None:
        """Part that an episode lacks before its first tick: `NO_OBSERVATION`, a camera's index; None if all came."""
        if not self.update(episode):
            return NO_OBSERVATION
        for i, camera in enumerate(self._cameras.values()):
            frame = camera.newest()
            if frame is None or frame.episode != episode:
                return i
        return None

    def open_tick(self, tick: int, woke: int, episode: int) -> OpenTick:
        """The tick with the latest observation."""
        latest = self.last
        flat = latest.values if latest is not None else np.zeros(0, np.float32)
        stamp = latest.stamp_ns if latest is not None else woke
        whole = len(flat) == self._wiring.observation_size
        found = [camera.newest() for camera in self._cameras.values()]
        frames = tuple(frame for frame in found if frame is not None and frame.episode == episode)
        # the oldest of what the policy sees counts
        stamp = min([stamp, *(frame.stamp_ns for frame in frames)])
        now = self._clock.now_ns()
        return OpenTick(
            tick=tick,
            woke=woke,
            age_ns=now - stamp,
            read_ns=now - woke,
            stamp_ns=stamp,
            observation=flat if whole else np.zeros(0, np.float32),
            frames=frames,
            complete=whole and len(frames) == len(found),
        )

    def newest(self) -> tuple[np.ndarray, int]:
        """The robot's flat observation as last read, and its age in nanoseconds; empty before the first."""
        latest = self.last
        if latest is None:
            return np.zeros(0, np.float32), 0
        return latest.values, self._clock.now_ns() - latest.stamp_ns

    def numbers(self, opened: OpenTick) -> dict[str, np.ndarray]:
        """The bundle's observations of numbers."""
        return {key: opened.observation[order] for key, order in self._wiring.observations.items()}

    def watched(self, opened: OpenTick, numbers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The numbers, and the checksum of each camera's frame, by which a camera that stands still shows."""
        pairs = zip(self._cameras, opened.frames, strict=True)
        return {**numbers, **{key: np.asarray([frame.checksum], np.float64) for key, frame in pairs}}
