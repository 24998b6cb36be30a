"""Bytes of the protocol: answers, stream tokens, frame headers, and the record of an actor in a snapshot.

Numbers are little-endian and packed. The layout is that of CARLA 0.9.16; a client that meets records of another size
ends its process.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, cast

import msgpack
import numpy as np

VERSION = "0.9.16"

COLLISION, DEPTH, IMU, LANE_INVASION, RGB, SEMANTIC, INSTANCE, WORLD = 0, 1, 5, 6, 13, 14, 15, 17
"""Kinds of frame: places in the client's registry of sensors."""

_OWN = 65
"""Offset of the part of a record that depends on the kind of actor: vehicle, walker, traffic light or sign."""
_RECORD: dict[str, tuple[Any, int]] = {
    "id": ("<u4", 0),
    "activity": ("u1", 4),
    "location": (("<f4", 3), 5),
    "rotation": (("<f4", 3), 17),
    "velocity": (("<f4", 3), 29),
    "angular_velocity": (("<f4", 3), 41),
    "acceleration": (("<f4", 3), 53),
    "throttle": ("<f4", _OWN),
    "steer": ("<f4", _OWN + 4),
    "brake": ("<f4", _OWN + 8),
    "hand_brake": ("?", _OWN + 12),
    "reverse": ("?", _OWN + 13),
    "manual_gear_shift": ("?", _OWN + 14),
    "gear": ("<i4", _OWN + 15),
    "speed_limit": ("<f4", _OWN + 19),
    "light_state": ("u1", _OWN + 23),
    "has_light": ("?", _OWN + 24),
    "light_id": ("<u4", _OWN + 25),
    "walk_direction": (("<f4", 3), _OWN),
    "walk_speed": ("<f4", _OWN + 12),
    "jump": ("?", _OWN + 16),
    "sign_id": ("S32", _OWN),
    "green_time": ("<f4", _OWN + 32),
    "yellow_time": ("<f4", _OWN + 36),
    "red_time": ("<f4", _OWN + 40),
    "elapsed_time": ("<f4", _OWN + 44),
    "pole_index": ("<u4", _OWN + 48),
    "frozen": ("?", _OWN + 52),
    "state": ("u1", _OWN + 53),
}
ACTOR = np.dtype(
    {
        "names": list(_RECORD),
        "formats": [form for form, _ in _RECORD.values()],
        "offsets": [offset for _, offset in _RECORD.values()],
        "itemsize": 119,
    }
)
"""An actor in a snapshot: meters, degrees, seconds; speed limits in km/h."""
ACTIVE = 1
"""Value of `activity` of an actor that takes part."""
MAP_CHANGED = 1
"""Flag of the first snapshot of an episode."""

_FRAME = struct.Struct("<QQd6f")
_SNAPSHOT = struct.Struct("<Qdf3iI")
_IMAGE = struct.Struct("<IIf")
_LENGTH = struct.Struct("<I")
_TOKEN = struct.Struct("<IHBB4s12x")
_TCP, _IPV4 = 1, 1


def frame(kind: int, number: int, seconds: float, pose: tuple[float, ...], payload: bytes) -> bytes:
    """A message of a stream.

    Args:
        kind: of `COLLISION` to `WORLD`.
        number: of the frame.
        seconds: simulated time.
        pose: of the sensor: x, y, z (m), pitch, yaw, roll (degrees).
        payload: data of the sensor.
    """
    return _LENGTH.pack(_FRAME.size + len(payload)) + _FRAME.pack(kind, number, seconds, *pose) + payload


def snapshot(episode: int, wall_s: float, dt_s: float, changed: bool, records: bytes) -> bytes:
    """Payload of a frame of kind `WORLD`.

    Args:
        episode: its id.
        wall_s: the server's clock.
        dt_s: simulated time since the frame before.
        changed: True in the first frame of an episode.
        records: an `ACTOR` for each actor.
    """
    return _SNAPSHOT.pack(episode, wall_s, dt_s, 0, 0, 0, MAP_CHANGED if changed else 0) + records


def image(width: int, height: int, fov_deg: float, pixels: bytes) -> bytes:
    """Payload of a camera frame: 4 bytes a pixel (blue, green, red, alpha), by rows from the top."""
    return _IMAGE.pack(width, height, fov_deg) + pixels


def token(stream: int, port: int, host: str) -> bytes:
    """Address of a stream: 24 bytes that name its number, port and IPv4 host."""
    return _TOKEN.pack(stream, port, _TCP, _IPV4, socket.inet_aton(host))


def packed(value: object) -> bytes:
    """A value in msgpack."""
    return cast("bytes", msgpack.packb(value))


def answer(number: int, result: object) -> bytes:
    """Answer to the call of that number."""
    return packed([1, number, None, result])


def no_answer(number: int, why: str) -> bytes:
    """Answer to a call that the stub does not know, or whose arguments it does not understand."""
    return packed([1, number, why, None])


def value(result: object) -> list[Any]:
    """Result of a call that returns something."""
    return [[1, result]]


def failure(message: str) -> list[Any]:
    """Result of a failed call that would have returned something."""
    return [[0, [message]]]


NOTHING: list[Any] = [[False]]
"""Result of a call that returns nothing."""


def void_failure(message: str) -> list[Any]:
    """Result of a failed call that returns nothing."""
    return [[True, [message]]]
