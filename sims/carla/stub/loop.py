"""Sockets and timers of one thread."""

from __future__ import annotations

import heapq
import itertools
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from robotrl.errors import ConfigError

_CHUNK = 1 << 18
_MOST_WAITING = 64 << 20
"""Bytes that may wait for a peer that does not read; what comes then is dropped."""


class Peer:
    """A connection.

    Args:
        loop: that serves it.
        sock: its socket.
        received: gets what arrives.
        closed: is called when it has ended.
    """

    def __init__(
        self, loop: Loop, sock: socket.socket, received: Callable[[Peer, bytes], None], closed: Callable[[Peer], None]
    ) -> None:
        self._loop, self._sock, self._received, self._closed = loop, sock, received, closed
        self._waiting = bytearray()
        self._open = True
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.selector.register(sock, selectors.EVENT_READ, self.serve)

    def send(self, data: bytes) -> None:
        """Send data, now or as soon as the peer reads."""
        if not self._open or len(self._waiting) > _MOST_WAITING:
            return
        self._waiting += data
        self._flush()

    def serve(self, events: int) -> None:
        """Read and write what is possible."""
        if events & selectors.EVENT_READ:
            try:
                data = self._sock.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._received(self, data)
        if events & selectors.EVENT_WRITE and self._open:
            self._flush()

    def close(self) -> None:
        """End the connection; safe to call twice."""
        if self._open:
            self._open = False
            self._loop.selector.unregister(self._sock)
            self._sock.close()
            self._closed(self)

    def _flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: self._sock.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._waiting else 0)
        self._loop.want(self._sock, wanted)


class Loop:
    """Waits for sockets and timers, and calls what belongs to them."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.running = True

    def listen(self, sock: socket.socket, connected: Callable[[socket.socket], object]) -> None:
        """Accept connections of a listening socket."""

        def accept(_: int) -> None:
            with suppress(OSError):
                connected(sock.accept()[0])

        sock.setblocking(False)
        self.selector.register(sock, selectors.EVENT_READ, accept)

    def until_closed(self, sock: socket.socket) -> None:
        """Stop as soon as the other end of a connection closes it."""

        def ended(_: int) -> None:
            self.running = bool(sock.recv(1))

        self.selector.register(sock, selectors.EVENT_READ, ended)

    def want(self, sock: socket.socket, events: int) -> None:
        """Choose the events of a socket that are waited for."""
        key = self.selector.get_key(sock)
        if key.events != events:
            self.selector.modify(sock, events, key.data)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something after some time."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), call))

    def run(self) -> None:
        """Serve until `running` is False."""
        while self.running:
            wait = max(self._timers[0][0] - time.monotonic(), 0.0) if self._timers else None
            for key, events in self.selector.select(wait):
                if key.fileobj in self.selector.get_map():  # not closed by what came before it
                    key.data(events)
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2]()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the port is taken.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(f"port is {port}: {error.strerror}: expected a free port, or 0 for any") from error
    sock.listen(64)
    return sock


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Two listening sockets on a port and the next one; 0 finds free ones.

    Raises:
        ConfigError: a port is taken.
    """
    for attempt in itertools.count():
        first = bind(host, port)
        number = first.getsockname()[1]
        try:
            return first, bind(host, number + 1)
        except (ConfigError, OverflowError):
            first.close()
            if port or attempt > 100:
                raise
    raise AssertionError
