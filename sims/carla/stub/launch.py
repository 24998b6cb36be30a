"""A stub as a child process, for tests, benches, and to try things without a server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from robotrl.errors import ConfigError

HOST = "127.0.0.1"
_END_S = 5.0


class StubServer:
    """A stub server in a process of its own, which ends with this one.

    The client library holds the interpreter lock in some calls, so that the server must be another process.

    Args:
        maps: OpenDRIVE files, or `NAME=FILE`; the server begins with the first one.
        faults: as `--fault` takes them; see docs/sims/carla.md.
        port: of calls, streams have the next one; 0 for any two free ports.
        timeout_s: time to start.

    Raises:
        ConfigError: the stub does not start; its own message.
    """

    def __init__(
        self, maps: Sequence[str | Path], faults: Sequence[str] = (), port: int = 0, timeout_s: float = 30.0
    ) -> None:
        self._lifeline, theirs = socket.socketpair()
        options = [part for path in maps for part in ("--map", str(path))]
        options += [part for fault in faults for part in ("--fault", fault)]
        command = [sys.executable, "-m", "robotrl.sims.carla.stub", *options, "--port", str(port)]
        command += ["--lifeline", str(theirs.fileno())]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read if the stub does not start
        self.process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        theirs.close()
        ready = self._wait_until_ready(timeout_s)
        self.host = HOST
        self.port = int(ready["port"])
        """Port for `carla.Client`."""
        self.control_port = int(ready["control_port"])
        self._control: socket.socket | None = None

    def _wait_until_ready(self, timeout_s: float) -> dict[str, Any]:
        self._lifeline.settimeout(timeout_s)
        try:
            line = self._lifeline.makefile().readline()
        except TimeoutError:
            line = ""
        if line:
            return json.loads(line)
        self.kill()
        said = self.errors().splitlines()
        raise ConfigError(said[-1] if said else f"the stub did not start within {timeout_s:g} s")

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self.process.poll() is None

    def control(self, do: str, timeout_s: float = 10.0, **arguments: Any) -> Any:
        """Ask the control socket.

        Args:
            do: name of the request.
            timeout_s: time for the answer.
            arguments: of the request.

        Raises:
            ConfigError: the server's answer is an error.
            OSError: the server is gone or gives no answer.
        """
        if self._control is None:
            self._control = socket.create_connection((HOST, self.control_port), timeout_s)
        self._control.settimeout(timeout_s)
        self._control.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        answer = bytearray()
        while not answer.endswith(b"\n"):
            data = self._control.recv(1 << 20)
            if not data:
                raise ConnectionError(f"the stub on port {self.port} closed its control socket")
            answer += data
        found = json.loads(answer)
        if "error" in found:
            raise ConfigError(found["error"])
        return found["ok"]

    def errors(self) -> str:
        """Standard error of the process so far."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def wait(self, timeout_s: float = _END_S) -> int:
        """Wait for the end of the process, and return its exit code.

        Raises:
            TimeoutError: it runs on.
        """
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the stub on port {self.port} runs on after {timeout_s:g} s") from None

    def kill(self) -> None:
        """End the process at once; safe to call twice."""
        self.process.kill()
        self.process.wait()
        self._lifeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._errors.close()
        if self._control is not None:
            self._control.close()
