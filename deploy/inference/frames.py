"""Images for inference: frames of the robot's cameras, read from its link."""

from __future__ import annotations

import numpy as np

from robotrl.deploy.buffers import InferenceError
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.robots.link import Link, RobotFault


class FrameReader:
    """Reads the frames that requests name.

    Args:
        link: name of the robot's link.
        manifest: the bundle's manifest.
    """

    def __init__(self, link: str, manifest: Manifest) -> None:
        self._link = Link.attach(link)
        self._manifest = manifest
        self._orders: dict[str, np.ndarray] | None = None

    def read(self, numbers: list[int]) -> dict[str, np.ndarray]:
        """Images by key, in the bundle's order of channels.

        Args:
            numbers: number of the frame of each camera, in the order of the wiring.

        Raises:
            InferenceError: a frame is gone: so many have come since that it was overwritten.
        """
        if not numbers:
            return {}
        if self._orders is None:
            self._connect()
        found: dict[str, np.ndarray] = {}
        for (key, order), number in zip((self._orders or {}).items(), numbers, strict=True):
            pixels = self._cameras[key].read(number)
            if pixels is None:
                raise InferenceError(f"frame {number} of camera {key!r} was overwritten before it was read")
            found[key] = pixels[..., order]
        return found

    def _connect(self) -> None:
        """Lay out the cameras; the robot introduces itself after this process has started."""
        data = self._link.introduction("robot")
        if data is None:
            raise RobotFault("a request names frames before the robot has introduced itself")
        info = RobotInfo.from_json(data)
        self._cameras = self._link.cameras(info.observation_spec)
        self._orders = wire(self._manifest, info).cameras
