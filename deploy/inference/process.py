"""The process that infers, as the supervisor sees it: start, introduction, reliable end."""

from __future__ import annotations

import contextlib
import os
import time
from types import TracebackType
from typing import Any

from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle import strict
from robotrl.deploy.child import end_of, start_child
from robotrl.deploy.inference.link import InferenceLink
from robotrl.deploy.inference.settings import WorkerCfg
from robotrl.deploy.robots.link import Link
from robotrl.errors import ConfigError, DataError, NumericsError, RobotrlError

START_TIMEOUT_S = 300.0
"""Beyond the time limits that the process itself sets to a bundle's graph."""
_POLL_S = 0.005
_KINDS: dict[str, type[RobotrlError]] = {
    kind.__name__: kind for kind in (ConfigError, DataError, NumericsError, RobotrlError)
}


class InferenceProcess:
    """A running process that infers. Use it as a context manager.

    Args:
        robot: the robot's link, whose cameras it reads.
        bundle: the bundle's directory.
        seed: seed of the sampler's noise.
        url: address of a policy server that infers; None infers in the process.
        token: its token.
        tls_ca: certificate to trust for it.
        runtime: what computes the graph here, see `Controller.load`.
        steer: use the bundle's steering graph, where it has one.

    Attributes:
        link: the supervisor's end.
        doorbell: file into which the servo writes a byte for each request.
    """

    def __init__(
        self,
        robot: Link,
        bundle: str,
        seed: int,
        url: str | None = None,
        token: str | None = None,
        tls_ca: str | None = None,
        runtime: Runtime = "python",
        steer: bool = True,
    ) -> None:
        self.link = InferenceLink.create()
        reader, self.doorbell = os.pipe()
        cfg = WorkerCfg(self.link.name, robot.name, bundle, seed, url, token, tls_ca, runtime, steer)
        # on standard input, since arguments can be read by every user of the machine
        os.write(self.doorbell, strict.canonical(strict.to_json(cfg)) + b"\n")
        os.set_blocking(self.doorbell, False)
        self._process = start_child("robotrl.deploy.inference", (), (self.link.handle, robot.handle), reader)
        os.close(reader)
        self._open = True

    def __enter__(self) -> InferenceProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def introduction(self) -> dict[str, Any]:
        """Wait until the bundle is loaded and proved.

        Raises:
            RobotrlError: it cannot be used; of the class that the process raised.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            # in this order: it may end right after its introduction
            ended = self.ended()
            data = self.link.introduction
            if data is not None:
                if "fault" in data:
                    raise _raised(str(data["kind"]), str(data["fault"]))
                return data
            if ended:
                raise DataError(f"the process that infers {ended} while it loaded the bundle")
            time.sleep(_POLL_S)
        raise DataError(f"the process that infers said nothing for {START_TIMEOUT_S:g} s after its start")

    def ended(self) -> str:
        """End of the process in words; "" while it runs."""
        return end_of(self._process)

    def close(self) -> None:
        """End the process, also one whose inference never returns. Safe to call twice."""
        if not self._open:
            return
        self._open = False
        os.close(self.doorbell)
        # nothing of it needs an orderly end, and SIGKILL also ends a process that is stopped
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self.link.close()


def _raised(kind: str, text: str) -> RobotrlError:
    """The error that the process told, as its class."""
    if kind == "RemoteError":
        from robotrl.deploy.remote.protocol import RemoteError

        code, _, rest = text.removeprefix("policy server: ").partition(": ")
        return RemoteError(code, rest)
    return _KINDS.get(kind, RobotrlError)(text)
