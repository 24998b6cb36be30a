"""A small town as OpenDRIVE, and CARLA's client library in a process of its own: what it does not expect ends it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import robotrl
import tests.kits.xodr_kit as xodr
from robotrl.sims.carla.stub.launch import StubServer
from tests.kits.paths_kit import ROOT

MARK = xodr.tag("roadMark", sOffset=0, type="broken", color="white", width=0.12, laneChange="both")


def needs_carla() -> None:
    reason = "could not import 'carla': CARLA's client library exists for Python to 3.12 on x86-64 Linux"
    pytest.importorskip("carla", reason=reason)


def town() -> str:
    """Crossroads with lights L0 and L2 in one phase, L1 in the next, a stop sign and a speed limit; lanes have marks.

    CARLA's client computes crossed marks for lane invasion, and ends without them.
    """
    lanes = {0: (1, 50, "+", -1), 1: (2, 10, "-", 1), 2: (3, 50, "+", -1)}
    inside = {
        road: xodr.signals(xodr.signal(f"L{road}", s, way, inside=xodr.valid(lane, lane)))
        for road, (_, s, way, lane) in lanes.items()
    }
    limit = dict(id="V0", s=50, t=-5, orientation="+", type="274", value=50, dynamic="no")
    inside[0] = inside[0].replace("</signals>", xodr.tag("signal", xodr.valid(-1, -1), **limit) + "</signals>")
    inside[3] = xodr.signals(xodr.signal("S3", 10, "-", "206", inside=xodr.valid(1, 1)))
    order = "".join(xodr.tag("controller", id=phase, sequence=k) for k, phase in enumerate(("A", "B")))
    phases = "".join(
        xodr.tag("controller", *(xodr.tag("control", signalId=light) for light in lights), id=phase)
        for phase, lights in {"A": ("L0", "L2"), "B": ("L1",)}.items()
    )
    text = xodr.crossroads(inside, more=order).replace("</OpenDRIVE>", f"{phases}</OpenDRIVE>")
    middle = '<lane id="0" type="none"/>'
    assert middle in text
    marked = text.replace(middle, '<lane id="0" type="none"></lane>')
    return marked.replace("</lane>", f"{MARK}</lane>")


def ask(server: StubServer, scenario: str, timeout_s: float = 30.0) -> Any:
    """Result of a function of `tests/kits/carla_client.py`, run with a client of the server."""
    command = [sys.executable, str(ROOT / "tests/kits/carla_client.py"), str(server.port), scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=Path(ROOT))
    assert done.returncode == 0, f"{scenario}: exit code {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def command(folder: Path, *faults: str) -> str:
    """Command of a sim that starts a stub with the town for itself."""
    path = folder / "town.xodr"
    if not path.exists():
        path.write_text(town())
    given = " ".join(f"--fault {fault}" for fault in faults)
    return f"{sys.executable} -m robotrl.sims.carla.stub --port {{port}} --map {path} {given}"


def make(
    folder: Path, num_envs: int = 1, seed: int = 0, world: str = "town", faults: Sequence[str] = (), **options: Any
):
    """Sim with stub servers; short routes, some traffic."""
    given = {"routes": 8, "route_length_m": 60.0, "vehicles": 4, "walkers": 0, "agents": 8, "settle_ticks": 3}
    given |= {"server": command(folder, *faults), "timeout_s": 3.0, "start_timeout_s": 20.0} | options
    return robotrl.make_sim(f"carla/{world}", num_envs=num_envs, seed=seed, **given)
