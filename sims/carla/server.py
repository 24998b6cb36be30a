"""A CARLA server that we start: free ports, its output, its end."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress

from robotrl.errors import ConfigError, short
from robotrl.sims.carla.faults import CarlaFault

PORTS = 3
"""Neighboring ports that a server takes: calls, streams, the second client of a cluster."""
ASK_EVERY_S = 0.05
LAST_LINES = 600
"""Characters of a server's output that are shown when it ends."""


class ServerProcess:
    """A running server, in a process group of its own.

    Args:
        command: command line with the place `{port}`.
        timeout_s: time until it must listen.

    Raises:
        ConfigError: the command has no `{port}`, or cannot be run.
        CarlaFault: it ended, or did not listen in time; the last lines of its output.
    """

    def __init__(self, command: str, timeout_s: float) -> None:
        if "{port}" not in command:
            raise ConfigError(f"server is {command!r}: expected a command with {{port}}, the port that it listens on")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"server is {command!r}: expected a command line ({error})") from None
        self.host, self.port = "127.0.0.1", free_port()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        parts = [word.replace("{port}", str(self.port)) for word in words]
        try:
            self._process = subprocess.Popen(
                parts,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"server is {command!r}: {parts[0]} cannot be run ({error.strerror})") from None
        self.group = self._process.pid
        """Id of its process group."""
        try:
            self._wait(timeout_s)
        except BaseException:
            self.kill()
            raise

    def _wait(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not listens(self.host, self.port):
            if self._process.poll() is not None:
                raise CarlaFault(f"the CARLA server ended with code {self._process.returncode}: {self._last_words()}")
            if time.monotonic() > end:
                raise CarlaFault(f"the CARLA server did not listen on port {self.port} in {timeout_s:g} s")
            time.sleep(ASK_EVERY_S)

    def _last_words(self) -> str:
        self._output.seek(0)
        text = self._output.read()[-LAST_LINES:].decode(errors="replace")
        return short(" ".join(text.split()), LAST_LINES) or "no output"

    @property
    def ended(self) -> str | None:
        """Manner of its end; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        """End it and its children at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self._output.close()


def listens(host: str, port: int) -> bool:
    """True if something accepts connections there."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def free_port(neighbors: int = PORTS) -> int:
    """First of some neighboring ports that are free."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
        if port + neighbors < 65_536 and all(_free(port + k) for k in range(neighbors)):
            return port


def _free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
