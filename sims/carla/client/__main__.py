"""Answers the requests of a CARLA sim: `python -m robotrl.sims.carla.client FD GROUP`.

FD is an open socket. GROUP is the process group of a server that ends with this process, 0 for none.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

from robotrl.errors import ConfigError, RobotrlError, short
from robotrl.sims.carla.channel import Arrays, ChannelClosed, receive, send
from robotrl.sims.carla.client.hooks import described
from robotrl.sims.carla.client.session import CarlaSession


def answer(session: CarlaSession, request: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """Fields and arrays that answer a request."""
    match request.pop("do"):
        case "connect":
            return session.connect(**request), {}
        case "load":
            return session.load(**request)
        case "begin":
            return session.begin(**request)
        case "step":
            return session.step(arrays["controls"])
        case unknown:
            raise ValueError(f"request {unknown!r}")


def main(descriptor: int, group: int) -> None:
    """Answer requests until the sim closes the channel; then leave the server as it was found."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sim decides when this process ends
    channel = socket.socket(fileno=descriptor)
    session = CarlaSession()
    try:
        while True:
            request, arrays = receive(channel, None)
            try:
                fields, found = answer(session, request, arrays)
            except RobotrlError as error:
                kind = "config" if isinstance(error, ConfigError) else "fault"
                fields, found = {"refused": str(error), "kind": kind}, {}
            except RuntimeError as error:  # what CARLA's client raises when a server does not answer
                fields, found = {"lost": short(" ".join(str(error).split()), 300)}, {}
            except Exception as error:  # a fault of ours, which another server would not mend
                traceback.print_exc()
                fields, found = (
                    {"refused": f"the process of CARLA's client failed: {described(error)}", "kind": "fault"},
                    {},
                )
            send(channel, fields, found)
    except ChannelClosed:
        pass
    finally:
        session.release()
        if group:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        os._exit(0)  # the library's threads may still run, and end a normal exit with a signal


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
