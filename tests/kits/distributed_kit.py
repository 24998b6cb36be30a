"""Several processes that learn together, started by torchrun, or forked from one that has imported what they need.

Importing takes most of the time of such processes, and torchrun imports torch as well. So only tests of torchrun's
part in it start it; the others share one process, the nursery, that imports each module once and is forked.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
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
NURSERY = """
import sys
sys.path.append(sys.argv[1])
from tests.kits.distributed_kit import serve
serve()
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


@functools.cache
def nursery() -> subprocess.Popen[str]:
    """Start the process that `serve`s, in a group with those that it forks; it ends with this one."""
    command = [sys.executable, "-c", NURSERY, str(ROOT)]
    env = {**os.environ, **QUIET}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, env=env, start_new_session=True)
    atexit.register(process.communicate)
    return process


def fork(module: str, work: str, path: Path) -> subprocess.CompletedProcess[str]:
    """`do` some work as `launch` does, in two processes that are forked from the nursery."""
    process = nursery()
    assert process.stdin is not None and process.stdout is not None
    try:
        print(json.dumps([module, work, str(path)]), file=process.stdin, flush=True)
        codes, said = json.loads(process.stdout.readline())
    except BaseException:
        # a test that ran out of time leaves it at work: the next test needs another one
        os.killpg(process.pid, signal.SIGKILL)
        nursery.cache_clear()
        raise
    return subprocess.CompletedProcess(work, max(map(abs, codes)), "", said)


def serve() -> None:
    """Fork two processes for each line of the input, and answer with their exit codes and what they said.

    A forked process returns, and so ends as one does that was started.
    """
    for line in sys.stdin:
        module, work, path = json.loads(line)
        importlib.import_module(module)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        children: list[int] = []
        with tempfile.TemporaryFile("w+") as said:
            for rank in map(str, range(PROCESSES)):
                children.append(os.fork())
                if children[-1] == 0:
                    for number in (1, 2):
                        os.dup2(said.fileno(), number)
                    os.environ.update(
                        RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(PROCESSES), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
                    )
                    do(module, work, path)
                    return
            codes = exit_codes(children)
            said.seek(0)
            print(json.dumps([codes, said.read()]), flush=True)


def exit_codes(children: list[int]) -> list[int]:
    """Wait for processes, and end the others once one has failed, as torchrun does; none lives past the limit."""
    codes: dict[int, int] = {}
    asked, until = False, time.monotonic() + LIMIT_S
    while running := [child for child in children if child not in codes]:
        for child in running:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
        if any(codes.values()) and not asked:
            asked = True
            for child in children:
                if child not in codes:
                    os.kill(child, signal.SIGTERM)
        time.sleep(0.02)
    return [codes[child] for child in children]


def assert_close(a: Any, b: Any, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """Assert that two lists of numbers agree, NaN with NaN."""
    assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=rtol, atol=atol, equal_nan=True)
