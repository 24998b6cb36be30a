"""A worker process on the trainer's side: start, handshake, requests with a deadline, and a sure end."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims.remote import worker as protocol
from robotrl.sims.remote.faults import RemoteFault, WorkerLost, fault_of
from robotrl.sims.remote.memory import Layout
from robotrl.utils.safe_path import safe_environment

WORKER_FILE = Path(protocol.__file__)
GRACE_S = 5.0
"""Seconds that a worker gets to close its environment."""
DEATH_S = 2.0
"""Seconds within which a killed process must be gone."""
OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "__PYVENV_LAUNCHER__")
"""Environment variables that another Python must not inherit."""


class Launch(NamedTuple):
    """Settings with which workers are started; see `RemoteCfg`."""

    name: str
    """Name of the sim, for messages."""
    factory: str
    kwargs: dict[str, Any]
    python: str | None
    path: tuple[str, ...]
    worker_file: str | None
    environment: Mapping[str, str]
    start_timeout_s: float
    step_timeout_s: float

    @property
    def file(self) -> Path:
        """Worker file to run."""
        return WORKER_FILE if self.worker_file is None else Path(self.worker_file)


class SimWorker:
    """A worker and the trainer's end of its connection.

    Args:
        launch: how to start it.
        number: index of the worker.
        rows: its first env, and the end of its envs.
        memory: descriptor of the shared memory.

    Raises:
        ConfigError: the interpreter or the worker file cannot be run.
    """

    def __init__(self, launch: Launch, number: int, rows: tuple[int, int], memory: int) -> None:
        self._launch, self.number, self.rows = launch, number, rows
        self.who = f"{launch.name}: worker {number} (envs {rows[0]} to {rows[1] - 1})"
        self.pid = 0
        """Id of the served process, after the handshake; its group has the same."""
        self._owes = False
        """True while a request is unanswered, for example because the wait for it was interrupted."""
        if not launch.file.is_file():
            raise ConfigError(f"worker_file is {str(launch.file)!r}: expected a copy of {WORKER_FILE}")
        protocol.use_numpy()
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        inherited = (theirs.fileno(), lifeline, memory)
        command = [launch.python or sys.executable, str(launch.file.resolve()), *map(str, inherited), str(GRACE_S)]
        try:
            self._process = subprocess.Popen(
                command,
                env=_environment(launch),
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the trainer, which then ends its workers in order
            )
        except OSError as error:
            ours.close()
            os.close(self._lifeline)
            raise ConfigError(
                f"python is {launch.python!r}: {error.strerror}: expected the path of a Python interpreter"
            ) from error
        finally:
            theirs.close()
            os.close(lifeline)
        ours.settimeout(None)  # whatever the default of this process is
        self._channel = protocol.FrameChannel(ours)
        self._limit(launch.start_timeout_s)

    def _limit(self, seconds: float) -> None:
        """Limit the wait for each answer, in the kernel: a limit of Python's socket costs a second call each time."""
        self._limit_s = seconds
        pair = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._channel.sock.setsockopt(socket.SOL_SOCKET, option, pair)

    # handshake

    def greet(self) -> None:
        """Wait for the worker's greeting, and tell it what to serve.

        Raises:
            ConfigError: a worker of another protocol, or no numpy there.
            WorkerLost: it ended, or said nothing in time.
        """
        hello = self._hello()
        if hello.get("magic") != protocol.MAGIC or hello.get("protocol") != protocol.PROTOCOL:
            raise ConfigError(
                f"{self.who}: {self._launch.file} speaks protocol {hello.get('protocol')}: expected"
                f" {protocol.PROTOCOL}: take the file of this robotrl, {WORKER_FILE}"
            )
        if "fault" in hello:
            raise ConfigError(f"{self.who}: {hello['fault']}: install numpy for {self._launch.python}")
        self.pid = int(hello["pid"])
        order = {
            "factory": self._launch.factory,
            "kwargs": self._launch.kwargs,
            "path": [os.path.abspath(folder) for folder in self._launch.path],
            "rows": self.rows,
            "worker": self.number,
        }
        self._send_hello(order)

    def description(self) -> dict[str, Any]:
        """Wait for the description of the environment.

        Raises:
            RobotrlError: the environment could not be made.
            WorkerLost: the worker ended, or said nothing in time.
        """
        return self._hello()

    def share(self, layout: Layout) -> None:
        """Tell the layout of the shared memory, and wait until the worker is ready."""
        self._send_hello({"bytes": layout.bytes, "arrays": layout.arrays})
        self._hello()
        self._limit(self._launch.step_timeout_s)

    def _hello(self) -> dict[str, Any]:
        kind = self._kind()
        if kind == protocol.ERROR:
            raise fault_of(self.who, self._body()[0])
        if kind != protocol.HELLO:
            raise RemoteFault(f"{self.who} said {kind!r}: expected the handshake of protocol {protocol.PROTOCOL}")
        return self._body()[0]

    def _send_hello(self, data: dict[str, Any]) -> None:
        try:
            self._channel.send(protocol.HELLO, data)
        except OSError:
            raise self.loss() from None

    # requests

    def ask(self, kind: bytes) -> bool:
        """Send a request without a body; False if the worker is gone."""
        try:
            self._settle()
            self._channel.signal(kind)
        except (OSError, WorkerLost):
            return False
        self._owes = True
        return True

    def done(self) -> None:
        """Wait for the end of the request.

        Raises:
            RobotrlError: the environment raised.
            WorkerLost: the worker ended, or gave no answer in time.
        """
        kind = self._kind()
        self._owes = False
        if kind != protocol.DONE:
            self._refuse(kind)

    def call(self, name: str, named: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], expert: int | None) -> Any:
        """Call a method of the environment, or of one of its experts.

        Args:
            name: the method.
            named: JSON arguments.
            arrays: arguments that are arrays.
            expert: number of the expert; None for the environment.

        Raises:
            RobotrlError: the environment raised.
            WorkerLost: the worker ended, or gave no answer in time.
        """
        asked: dict[str, Any] = {"call": name, "with": dict(named)} | ({} if expert is None else {"expert": expert})
        try:
            self._settle()
            self._channel.send(protocol.CALL, asked, dict(arrays))
        except OSError:
            raise self.loss() from None
        self._owes = True
        kind = self._kind()
        if kind != protocol.RESULT:
            self._owes = False
            self._refuse(kind)
        data, found = self._body()
        self._owes = False
        if "array" in data:
            return found["value"]
        return found if "arrays" in data else data.get("value")

    def _refuse(self, kind: bytes) -> None:
        if kind == protocol.ERROR:
            raise fault_of(self.who, self._body()[0])
        raise RemoteFault(f"{self.who} said {kind!r}: expected an answer of protocol {protocol.PROTOCOL}")

    def _settle(self) -> None:
        """Drop the answer to a request that was interrupted."""
        if not self._owes:
            return
        if self._kind() != protocol.DONE:
            self._body()
        self._owes = False

    def _kind(self) -> bytes:
        try:
            return self._channel.kind()
        except BlockingIOError:
            raise WorkerLost(f"gave no answer within {self._limit_s:g} s", may_pass=True) from None
        except (EOFError, OSError):
            raise self.loss() from None

    def _body(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        try:
            return self._channel.body()
        except (EOFError, OSError):
            raise self.loss() from None

    # end

    def loss(self) -> WorkerLost:
        """Error that says how the process ended."""
        try:
            code = self._process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            return WorkerLost("closed its connection")
        code = 128 - code if code < 0 else code
        if code > 128:
            with suppress(ValueError):
                return WorkerLost(f"was ended by {signal.Signals(code - 128).name}", may_pass=True)
        return WorkerLost(f"ended with exit code {code}")

    def kill(self) -> None:
        """End the process and its descendants at once; safe to call twice."""
        if self._lifeline < 0:
            return
        with suppress(OSError):
            os.write(self._lifeline, protocol.KILL)
        try:
            self._process.wait(DEATH_S)
        except subprocess.TimeoutExpired:  # the guard itself hangs or is stopped
            if self.pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        os.close(self._lifeline)
        self._lifeline = -1
        self._channel.sock.close()

    def leave(self) -> None:
        """Ask the worker to end by itself; `kill` follows."""
        if self._lifeline >= 0 and not self._owes:
            with suppress(OSError):
                self._channel.signal(protocol.QUIT)

    def wait(self, deadline: float) -> None:
        """Give the worker until `deadline`, of the monotonic clock, to end by itself, then kill it."""
        if self._lifeline >= 0 and not self._owes:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()


def _environment(launch: Launch) -> dict[str, str]:
    """Environment variables of a worker; another Python gets none that are meant for this one."""
    found = safe_environment()
    if launch.python is not None:
        found = {name: value for name, value in found.items() if name not in OF_THIS_PYTHON}
    return found | dict(launch.environment)
