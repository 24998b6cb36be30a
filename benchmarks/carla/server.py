"""Stub server whose faults depend on how many were started before: `python -m benchmarks.carla.server PLAN PORT`.

PLAN is a JSON file: `maps` of the server, and `faults`, a list for the first server, one for the second, and so on;
those after the last list have none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from robotrl.sims.carla.stub.__main__ import main


def command(folder: Path, maps: Sequence[str], faults: Sequence[Sequence[str]]) -> str:
    """Command of such servers, for the option `server` of `carla/...`; the plan lies in a folder."""
    plan = folder / f"plan{len(list(folder.glob('plan*.json')))}.json"
    plan.write_text(json.dumps({"maps": list(maps), "faults": [list(one) for one in faults]}))
    return f"{sys.executable} -m benchmarks.carla.server {plan} {{port}}"


def started(plan: Path) -> int:
    """Number of this server among those of a plan, from 0; it is taken by this call."""
    number = 0
    while True:
        try:
            os.close(os.open(f"{plan}.{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            number += 1
        else:
            return number


def serve(plan: Path, port: int) -> int:
    """Run the server; its exit code."""
    given = json.loads(plan.read_text())
    number = started(plan)
    faults = given["faults"][number] if number < len(given["faults"]) else []
    arguments = [part for name in given["maps"] for part in ("--map", name)]
    arguments += [part for fault in faults for part in ("--fault", fault)]
    return main([*arguments, "--port", str(port)])


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), int(sys.argv[2])))
