"""Watches a server and the process of its client from outside, and begins both anew when one is lost.

CARLA's client blocks the interpreter in some calls, goes on with an old frame when its server has died, and never
recovers if it was made before its server. So it lives in a process of its own, each request has a deadline, and a loss
of any kind ends both: a new server (or a new connection to one that somebody else runs) gets a new client.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, NamedTuple

from numpy.typing import NDArray

from robotrl.errors import ConfigError, short
from robotrl.sims.carla.channel import Arrays, ChannelClosed, DeadlineMissed, receive, send
from robotrl.sims.carla.faults import CarlaFault, ServerLost
from robotrl.sims.carla.server import ServerProcess, free_port, listens
from robotrl.utils.safe_path import safe_environment

FIRST_S = 3.0
"""Time in which a server that should run must answer."""
GRACE_S = 2.0
"""Time beyond the client's own time limit before it counts as hung."""
CLOSE_S = 5.0
RETRY_S = 0.5
Answer = tuple[dict[str, Any], Arrays]
_taken: set[tuple[str, int]] = set()
"""Host and port of the servers that somebody else runs and sims of this process use."""


class LinkCfg(NamedTuple):
    """Settings of the connection to one server."""

    server: str | None
    """Command that starts a server; None connects to one that runs."""
    host: str
    port: int
    timeout_s: float
    """Time of a call of the client's, s."""
    start_timeout_s: float
    """Time for a server to start, and to load a map, s."""
    tick_s: float
    fresh: bool
    render: bool


class CarlaLink:
    """A server and its client.

    Args:
        cfg: the connection.
    """

    def __init__(self, cfg: LinkCfg) -> None:
        self._cfg = cfg
        self._server: ServerProcess | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._finalizer: Any = None
        self._output: IO[bytes] | None = None
        self._loaded: dict[str, Any] = {}
        self._address: tuple[str, int] | None = None
        """Server in `_taken` that is ours."""
        self._closed = False
        self._awaited = False
        """A request was sent whose answer has not been heard."""
        self._settings: dict[str, Any] | None = None
        """Settings that a server had before we came, if somebody else runs it."""
        self.version = ""

    # life

    def open(self) -> None:
        """Start or find the server, and connect a new client.

        Raises:
            ConfigError: another version, a command that cannot be run, or a server that another sim uses.
            CarlaFault: there is no server.
            ServerLost: it was lost at once.
        """
        cfg = self._cfg
        address = None
        if cfg.server is None:
            self._wait_for_server()
            host, port, group = cfg.host, cfg.port, 0
            address = host, port
            if address in _taken:
                raise ConfigError(
                    f"another sim of this process drives the server at {host}:{port}: expected a port of its own; a"
                    " training run evaluates in a second sim: give server, or evaluation.episodes 0"
                )
            _taken.add(address)
            self._address = address
        else:
            self._server = ServerProcess(cfg.server, cfg.start_timeout_s)
            host, port, group = self._server.host, self._server.port, self._server.group
        ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        command = [sys.executable, "-m", "robotrl.sims.carla.client", str(theirs.fileno()), str(group)]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=safe_environment(),
            start_new_session=True,
        )
        theirs.close()
        self._channel = ours
        self._finalizer = weakref.finalize(self, _end, ours, self._process, self._server, address)
        request = {
            "host": host,
            "port": port,
            "manager_port": free_port(1),
            "timeout_s": cfg.timeout_s,
            "tick_s": cfg.tick_s,
            "fresh": cfg.fresh,
            "render": cfg.render,
            "found": self._settings,
        }
        fields, _ = self.ask("connect", request, timeout_s=cfg.start_timeout_s)
        self.version = str(fields["version"])
        if cfg.server is None:
            self._settings = fields["settings"]

    def _wait_for_server(self) -> None:
        cfg = self._cfg
        # a server that was there may take long to be started again; one that never was is missing
        limit_s = cfg.start_timeout_s if self.version else min(FIRST_S, cfg.start_timeout_s)
        end = time.monotonic() + limit_s
        while not listens(cfg.host, cfg.port):
            if time.monotonic() > end:
                raise CarlaFault(
                    f"no CARLA server answers at {cfg.host}:{cfg.port} in {limit_s:g} s: expected one; start it, give"
                    " host and ports, or give server, a command that starts one"
                )
            time.sleep(RETRY_S)

    def reopen(self) -> None:
        """Begin anew after a loss, with the same map.

        Raises:
            ServerLost: it was lost again, or did not start.
            CarlaFault: nobody has started another.
        """
        self.kill()
        try:
            self.open()
        except CarlaFault as fault:
            if self._cfg.server is None:
                raise
            raise ServerLost(str(fault)) from None
        if self._loaded:
            self.ask("load", self._loaded, timeout_s=self._cfg.start_timeout_s)

    def kill(self) -> None:
        """End client and server at once."""
        if self._finalizer is not None:
            self._finalizer.detach()
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._server is not None:
            self._server.kill()
        if self._address is not None:
            _taken.discard(self._address)
            self._address = None
        if self._output is not None:
            self._output.close()
        self._server = self._process = self._channel = self._output = None
        self._awaited = False

    def close(self) -> None:
        """Give the server its own clock back, and end the client, and the server if we started it."""
        # the client releases the server when its channel is closed, also where an answer was not heard
        if self._finalizer is not None:
            self._finalizer()
        self.kill()
        self._closed = True

    # requests

    def load(self, **wanted: Any) -> Answer:
        """Load a map; see `CarlaSession.load`.

        Raises:
            ServerLost: the server was lost.
        """
        found = self.ask("load", wanted, timeout_s=self._cfg.start_timeout_s)
        self._loaded = wanted
        return found

    def tell(self, do: str, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Send a request; `hear` gets the answer.

        Raises:
            ServerLost: the client is gone, or the wait for its last answer was interrupted.
            CarlaFault: the sim is closed.
        """
        if self._closed:
            raise CarlaFault("the sim is closed: expected reset and step before that")
        if self._channel is None:
            raise ServerLost("there is no client")
        if self._awaited:
            raise ServerLost("the wait for its last answer was interrupted")
        self._awaited = True
        try:
            send(self._channel, {"do": do, **fields}, arrays)
        except ChannelClosed:
            raise ServerLost(f"the client's process ended{self._state()}") from None

    def hear(self, timeout_s: float | None = None) -> Answer:
        """Answer to the last request.

        Raises:
            ServerLost: the server or the client was lost, or gave no answer in time.
            ConfigError: the client refuses the request.
        """
        limit = self._cfg.timeout_s + GRACE_S if timeout_s is None else timeout_s
        assert self._channel is not None
        try:
            fields, arrays = receive(self._channel, limit)
        except DeadlineMissed:
            raise ServerLost(f"no answer in {limit:g} s{self._state()}") from None
        except ChannelClosed:
            raise ServerLost(f"the client's process ended{self._state()}") from None
        self._awaited = False
        if "lost" in fields:
            raise ServerLost(f"{fields['lost']}{self._state()}")
        if "refused" in fields:
            kind = ConfigError if fields["kind"] == "config" else CarlaFault
            raise kind(fields["refused"])
        return fields, arrays

    def hear_of(self, do: str) -> Answer:
        """Answer to a request of a kind: to begin an episode may take as long as a start; see `hear`."""
        return self.hear(self._cfg.start_timeout_s if do == "begin" else None)

    def ask_begin(self, order: Mapping[str, Any]) -> Answer:
        """Begin an episode; see `EpisodeOrder` for the order, and `hear` for the errors."""
        return self.ask("begin", order, self._cfg.start_timeout_s)

    def ask(self, do: str, fields: Mapping[str, Any], timeout_s: float | None = None) -> Answer:
        """Send a request and wait for its answer; see `hear`."""
        self.tell(do, fields, {})
        return self.hear(timeout_s)

    def _state(self) -> str:
        """Ends of either process, for messages."""
        found = ""
        if self._server is not None and self._server.ended is not None:
            found += f"; the server ended ({self._server.ended})"
        if self._process is not None and self._output is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(0.2)
                how = f"{'signal' if code < 0 else 'exit code'} {abs(code)}"
                found += f"; the client ended ({how}): {_last_words(self._output)}"
        return found


def _last_words(output: IO[bytes]) -> str:
    """Last line that the client's library has printed."""
    output.seek(0)
    lines = output.read().decode(errors="replace").strip().splitlines()
    return short(lines[-1], 200) if lines else "no output"


def _end(
    channel: socket.socket,
    process: subprocess.Popen[bytes],
    server: ServerProcess | None,
    address: tuple[str, int] | None,
) -> None:
    """Let a client release its server, which the closed channel tells it to do; a server that we started ends."""
    with suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)
    channel.close()
    try:
        process.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
    if server is not None:
        server.kill()
    if address is not None:
        _taken.discard(address)
