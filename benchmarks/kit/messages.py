"""Malformed, oversized, truncated and unauthenticated messages for a policy server, over plain sockets."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgpack
import numpy as np

Rng = np.random.Generator
BINARY, TEXT, CONTINUATION, CLOSE, PING = 0x2, 0x1, 0x0, 0x8, 0x9
LEAKS = (b"Traceback", b"site-packages", b".py", b"robotrl/", b"/home", b"/tmp", b"0x7f")
"""What no answer may hold: parts of tracebacks, of paths and of addresses in memory."""
TYPED = ("malformed", "bad_observation", "busy", "deadline", "inference_failed", "chunk")
_TIMEOUT_S = 60.0


class Frame(NamedTuple):
    """A websocket frame from the server."""

    kind: int
    data: bytes


class Disarmed:
    """An object whose unpickling leaves a file behind."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.canary),)


class RawSocket:
    """A websocket client that sends whatever it is given.

    Args:
        url: address of the server.
        headers: headers beside those of the upgrade.
        upgrade: the request's first line and headers are those of a websocket.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = {
            "Host": parts.netloc,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            **headers,
        }
        text = "GET / HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        self._file = self._socket.makefile("rb")
        self.raw(text.encode("latin-1", "replace"))
        self.head = b""
        while (line := self._file.readline()) not in (b"\r\n", b""):
            self.head += line

    @property
    def status(self) -> bytes:
        """HTTP status of the answer to the upgrade; empty if there was none."""
        return self.head.split(b" ")[1] if self.head else b""

    def rest(self) -> bytes:
        """All that still comes."""
        try:
            return self._file.read()
        except ConnectionError:
            return b""

    def raw(self, data: bytes) -> None:
        """Send bytes; a server that has closed the connection meanwhile is no error."""
        try:
            self._socket.sendall(data)
        except ConnectionError:
            return

    def send(self, data: bytes, kind: int = BINARY, final: bool = True) -> None:
        """Send one masked frame."""
        self.raw(frame(data, kind, final))

    def read(self) -> Frame | None:
        """The next frame; None where the connection has ended."""
        try:
            head = self._file.read(2)
            if len(head) < 2:
                return None
            length = head[1] & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self._file.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self._file.read(8))
            return Frame(head[0] & 0x0F, self._file.read(length))
        except ConnectionError:
            return None

    def close(self) -> None:
        """Close the connection without a word."""
        self._file.close()
        self._socket.close()


def frame(data: bytes, kind: int = BINARY, final: bool = True, length: int | None = None) -> bytes:
    """A masked frame; `length` is what it says of itself, where that is not the truth."""
    size = len(data) if length is None else length
    head = bytes([(0x80 if final else 0) | kind])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += bytes([0xFE]) + struct.pack("!H", size)
    else:
        head += bytes([0xFF]) + struct.pack("!Q", size)
    return head + bytes(4) + data  # a mask of zeros leaves the data as it is


class Messages:
    """Sends faulty messages to a server, each followed by a look at its answer.

    Args:
        url: address of the server, which asks for the token.
        token: its token.
        sound: a message that it answers with a chunk.
        canary: folder that a message would make if it were executed.
        max_bytes: size of the largest message that it accepts.
    """

    def __init__(
        self, url: str, token: str, sound: bytes, canary: Path | None = None, max_bytes: int = 104_858
    ) -> None:
        self.url = url
        self.sound = sound
        self.canary = Path("canary").absolute() if canary is None else canary
        self.max_bytes = max_bytes
        self._token = token
        self._fields: dict[str, Any] = msgpack.unpackb(sound)
        self._socket: RawSocket | None = None
        self.answered = False
        """Whether the last message was answered with a chunk: its fault was none (a changed number, say)."""

    @property
    def ways(self) -> dict[str, Callable[[Rng], str]]:
        """Kinds of messages by name; each sends one and returns what is wrong with the answer, "" for nothing."""
        return {
            "malformed": self.malformed,
            "of another schema": self.other_schema,
            "truncated": self.truncated,
            "oversized": self.oversized,
            "unauthenticated": self.unauthenticated,
            "broken frames": self.broken_frame,
            "for openpi": self.for_openpi,
        }

    def attempt(self, rng: Rng, number: int) -> str:
        """One message of a kind that its number chooses; returns what is wrong with the answer, "" for nothing."""
        ways = list(self.ways.values())
        return ways[number % len(ways)](rng)

    def malformed(self, rng: Rng) -> str:
        """A sound message with changed bytes, or bytes that are no message."""
        way = int(rng.integers(4))
        if way == 0:
            data = rng.bytes(int(rng.integers(0, 600)))
        elif way == 1:
            data = pickle.dumps(Disarmed(self.canary))
        else:
            changed = bytearray(self.sound)
            for _ in range(int(rng.integers(1, 6))):
                changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
            data = bytes(changed)
        return self._asked(data, TEXT if way == 3 and data.isascii() else BINARY)

    def other_schema(self, rng: Rng) -> str:
        """A message of msgpack whose fields are not those of the protocol."""
        fields = dict(self._fields)
        name = str(rng.choice(list(fields)))
        odd = odd_values(rng, self.canary)
        way = int(rng.integers(4))
        if way == 0:
            fields[name] = odd
        elif way == 1:
            del fields[name]
        elif way == 2:
            fields[name + "x"] = odd
        else:
            obs = dict(fields["obs"])
            key = str(rng.choice(list(obs)))
            array = dict(obs[key])
            array[str(rng.choice(["dtype", "shape", "data", "more"]))] = odd
            fields["obs"] = {**obs, key: array if rng.integers(2) else odd}
        return self._asked(_packed(fields))

    def truncated(self, rng: Rng) -> str:
        """The beginning of a sound message, or of its frame, after which the client is gone."""
        cut = int(rng.integers(1, len(self.sound)))
        if rng.integers(2):
            return self._asked(self.sound[:cut])
        found = self._opened()
        found.raw(frame(self.sound)[:cut])
        self._drop()
        return ""

    def oversized(self, rng: Rng) -> str:
        """A message larger than the server accepts: in one frame, in parts, or announced."""
        found = self._opened()
        more = int(rng.integers(1, 2000))
        way = int(rng.integers(3))
        if way == 0:
            found.send(bytes(self.max_bytes + more))
        elif way == 1:
            part = bytes(self.max_bytes // 4 + more)
            found.send(part, final=False)
            for _ in range(5):
                found.send(part, CONTINUATION, final=False)
        else:
            size = self.max_bytes + int(rng.integers(1, 2**62))
            found.raw(frame(b"", length=size))
        return self._closed_with((1009,))

    def unauthenticated(self, rng: Rng) -> str:
        """No token, another one, or a header that is none."""
        self._drop()
        header = {
            0: {},
            1: {"Authorization": "Bearer " + self._token[:-1]},
            2: {"Authorization": "Bearer " + self._token + "x"},
            3: {"Authorization": "Basic " + base64.b64encode(self._token.encode()).decode()},
            4: {"Authorization": self._token},
            5: {"Authorization": "Bearer " + "".join(chr(33 + int(i)) for i in rng.integers(0, 90, 40))},
            6: {"Authorization": "Bearer \xff\xfe"},
            7: {"authorization2": "Bearer " + self._token, "Cookie": "token=" + self._token},
        }[int(rng.integers(8))]
        found = RawSocket(self.url, header)
        found.send(self.sound)
        said = found.head + found.rest()
        found.close()
        if found.status != b"401" or self._token.encode() in said:
            return f"a client without the token got {said[:80]!r}"
        return _leak(said)

    def broken_frame(self, rng: Rng) -> str:
        """Frames that are none of the websocket protocol."""
        found = self._opened()
        way = int(rng.integers(5))
        if way == 0:
            found.raw(bytes([0x80 | int(rng.integers(3, 8)), 0x80]) + bytes(4))  # a reserved kind
        elif way == 1:
            found.raw(bytes([0x82, 5]) + b"hello")  # not masked
        elif way == 2:
            found.raw(bytes([0xF2, 0x80]) + bytes(4))  # reserved bits
        elif way == 3:
            found.raw(frame(bytes(126), PING))  # a control frame that is too long
        else:
            found.send(b"x", CONTINUATION)  # of nothing
        return self._closed_with((1002,))

    def for_openpi(self, rng: Rng) -> str:
        """A message of openpi's kind that is none, or fits no port."""
        self._drop()
        found = RawSocket(self.url, {"Authorization": f"Api-Key {self._token}"})
        first = found.read()
        if found.status != b"101" or first is None:
            return f"openpi's client got {found.head[:80]!r}"
        array = {b"__ndarray__": True, b"data": b"\0" * 16, b"dtype": "<f4", b"shape": [4]}
        odd = odd_values(rng, self.canary)
        way = int(rng.integers(4))
        if way == 0:
            array[list(array)[int(rng.integers(4))]] = odd
        obs: Any = {"observation/state": array, "prompt": odd} if way < 3 else odd
        found.send(_packed(obs) if way != 2 else rng.bytes(50))
        answer = found.read()
        found.close()
        if answer is None or answer.kind != TEXT:
            return f"openpi's client got {answer!r}, no error"
        if answer.data.split(b":")[0].decode() not in TYPED:
            return f"openpi's client got {answer.data[:80]!r}, no typed error"
        return _leak(answer.data)

    def _opened(self) -> RawSocket:
        if self._socket is None:
            headers = {"Authorization": f"Bearer {self._token}", "Sec-WebSocket-Protocol": "robotrl.1"}
            self._socket = RawSocket(self.url, headers)
            if self._socket.status != b"101" or self._socket.read() is None:
                raise RuntimeError(f"the server does not let its client in: {self._socket.head!r}")
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _asked(self, data: bytes, kind: int = BINARY) -> str:
        """Send a message: the answer is typed, and the connection is closed after one that is malformed."""
        self._opened().send(data, kind)
        answer = self._opened().read()
        self.answered = False
        if answer is None or answer.kind != BINARY:
            self._drop()
            return f"no answer to {data[:80]!r}: {answer!r}"
        said: dict[str, Any] = msgpack.unpackb(answer.data)
        code = said.get("code", said["type"])
        if code == "malformed":
            return _leak(answer.data) or self._closed_with((1008,))
        self.answered = code == "chunk"
        return _leak(answer.data) if code in TYPED else f"{code} as the answer to {data[:80]!r}"

    def _closed_with(self, codes: tuple[int, ...]) -> str:
        """Read on until the server closes the connection: with one of these codes."""
        found = self._opened()
        while (answer := found.read()) is not None and answer.kind != CLOSE:
            pass
        # a server that closes while data still comes resets the connection, and its last frame may be lost
        code = None if answer is None else int.from_bytes(answer.data[:2], "big")
        self._drop()
        return "" if code in (*codes, None) else f"the server closed the connection with {code}: expected {codes}"


def _packed(message: Any) -> bytes:
    return cast("bytes", msgpack.packb(message))


def odd_values(rng: Rng, canary: Path) -> Any:
    """A value that is not expected anywhere."""
    values: tuple[Any, ...] = (
        None,
        True,
        -1,
        2**63,
        float("nan"),
        1e308,
        "",
        "x" * int(rng.integers(1, 6000)),
        "object",
        "../../etc/passwd",
        "{0.__class__}",
        rng.bytes(40),
        pickle.dumps(Disarmed(canary)),
        [],
        [-1],
        [2**31 - 1] * 4,
        [[[[[[[[[[1]]]]]]]]]],
        [[]] * 60,
        {},
        {"a": {"b": {}}},
        {str(i): i for i in range(70)},
        msgpack.ExtType(int(rng.integers(0, 127)), b"abc"),
        msgpack.Timestamp(1),
    )
    return values[int(rng.integers(len(values)))]


def _leak(said: bytes) -> str:
    return next((f"an answer holds {leak!r}: {said[:300]!r}" for leak in LEAKS if leak in said), "")
