"""Messages between the sim and the process that holds CARLA's client: a JSON header and raw arrays over a socket.

A message is two lengths (little-endian, 4 bytes each), the header, and the bytes of the arrays one after another. The
header lists their names, types and shapes. Nothing is pickled.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTHS = struct.Struct("<II")
LARGEST_BYTES = 1 << 29
Arrays = dict[str, NDArray[Any]]


class ChannelClosed(Exception):
    """The other side has closed the connection, or its process has ended."""


class DeadlineMissed(Exception):
    """No answer came in time."""


def send(channel: socket.socket, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
    """Send fields and arrays.

    Raises:
        ChannelClosed: the other side is gone.
    """
    given = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    listed = [(name, _described(array.dtype), array.shape) for name, array in given.items()]
    header = json.dumps({**fields, "arrays": listed}).encode()
    parts = [array.tobytes() for array in given.values()]
    try:
        channel.sendall(b"".join([LENGTHS.pack(len(header), sum(map(len, parts))), header, *parts]))
    except OSError as error:
        raise ChannelClosed(str(error)) from error


def _described(dtype: np.dtype[Any]) -> Any:
    return dtype.descr if dtype.names else dtype.str


def receive(channel: socket.socket, timeout_s: float | None) -> tuple[dict[str, Any], Arrays]:
    """Receive fields and arrays; the arrays are read-only.

    Raises:
        ChannelClosed: the other side is gone.
        DeadlineMissed: the message was not complete after `timeout_s`; the channel is of no further use.
    """
    end = None if timeout_s is None else time.monotonic() + timeout_s
    header_bytes, data_bytes = LENGTHS.unpack(_exactly(channel, LENGTHS.size, end))
    if max(header_bytes, data_bytes) > LARGEST_BYTES:
        raise ChannelClosed(f"a message of {header_bytes + data_bytes} bytes")
    fields: dict[str, Any] = json.loads(_exactly(channel, header_bytes, end))
    data = _exactly(channel, data_bytes, end)
    arrays: Arrays = {}
    at = 0
    for name, kind, shape in fields.pop("arrays"):
        dtype = np.dtype([tuple(field) for field in kind] if isinstance(kind, list) else kind)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        arrays[name] = np.frombuffer(data, dtype, count=int(np.prod(shape, dtype=np.int64)), offset=at).reshape(shape)
        at += size
    return fields, arrays


def _exactly(channel: socket.socket, size: int, end: float | None) -> bytearray:
    out = bytearray(size)
    view, got = memoryview(out), 0
    while got < size:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise DeadlineMissed
        channel.settimeout(left)
        try:
            count = channel.recv_into(view[got:])
        except TimeoutError:
            raise DeadlineMissed from None
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if count == 0:
            raise ChannelClosed("the connection was closed")
        got += count
    return out
