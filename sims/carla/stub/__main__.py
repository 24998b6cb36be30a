"""`python -m robotrl.sims.carla.stub`: serve the protocol of a CARLA server until the process is ended."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from robotrl.errors import RobotrlError
from robotrl.sims.carla.stub import calls, faults
from robotrl.sims.carla.stub.control import ControlSocket
from robotrl.sims.carla.stub.server import RpcServer
from robotrl.sims.carla.stub.simulation.town import read_town


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; the exit code is 2 after a wrong option.

    The first line on the standard output is a JSON object with the ports.
    """
    parser = argparse.ArgumentParser(prog="python -m robotrl.sims.carla.stub", description=__doc__)
    parser.add_argument(
        "--map", action="append", required=True, metavar="[NAME=]FILE", help="OpenDRIVE file; repeatable"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=2000, help="port of calls; streams have the next; 0: any")
    parser.add_argument("--control-port", type=int, default=0, help="port of the control socket; 0: any")
    parser.add_argument("--fault", action="append", default=[], metavar="KIND[=VALUE][:TARGET[:AFTER[:TIMES]]]")
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)  # a socket of the process that wants the stub
    given = parser.parse_args(arguments)
    try:
        found = [faults.parse(text, calls.NAMES) for text in given.fault]
        server = RpcServer([read_town(text) for text in given.map], given.host, given.port, given.control_port)
    except RobotrlError as error:
        print(error, file=sys.stderr)
        return 2
    server.faults.list += found
    ControlSocket(server)
    ready = json.dumps({"port": server.port, "control_port": server.control_port, "pid": os.getpid()})
    if given.lifeline is None:
        print(ready, flush=True)
    else:
        lifeline = socket.socket(fileno=given.lifeline)
        lifeline.sendall(ready.encode() + b"\n")
        server.loop.until_closed(lifeline)
    with suppress(KeyboardInterrupt):
        server.loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
