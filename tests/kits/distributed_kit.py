"""Several processes that learn together, started by torchrun.

Each imports the module of the test that wants it: importing takes most of its time, so a module imports little.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from robotrl.engine import distributed
from robotrl.registry import SIMS
from tests.kits.paths_kit import ROOT

PROCESSES = 2
LIMIT_S = 400.0
QUIET = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
from tests.kits.distributed_kit import do
do(*sys.argv[2:])
"""


def do(module: str, work: str, path: str) -> None:
    """Do some work with what a module has, `distributed`, this process's `rank` and a `path` to write to."""
    SIMS._rows["test/walk"] = "tests.kits.walk_sim:make"
    told = {"os": os, "distributed": distributed, "rank": int(os.environ["RANK"]), "path": Path(path), "write": write}
    exec(work, {**vars(importlib.import_module(module)), **told})


def write(path: Path, found: Any) -> None:
    """Write the result of this process, for the test that launched it."""
    (path / f"{os.environ['RANK']}.found").write_bytes(pickle.dumps(found))


def found_by_all(path: Path) -> list[Any]:
    """Results of the processes, in the order of their ranks."""
    return [pickle.loads((path / f"{rank}.found").read_bytes()) for rank in range(PROCESSES)]


def launch(module: str, work: str, path: Path) -> subprocess.CompletedProcess[str]:
    """`do` some work in two processes that torchrun starts, and ends once one has failed."""
    script = path / "worker.py"
    script.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    command = [*torchrun, str(script), str(ROOT), module, work, str(path)]
    env = {**os.environ, **QUIET}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            # torchrun ends its processes when it is asked to, and not when it is killed
            process.terminate()
            out, err = process.communicate()
            raise AssertionError(f"no end after {LIMIT_S:.0f} s: {err[-2000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def assert_close(a: Any, b: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Assert that two lists of numbers agree, NaN with NaN."""
    assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=rtol, atol=atol, equal_nan=True)
