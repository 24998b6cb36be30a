"""Start-up time of the driving sim from a fresh interpreter, with compiled kernels in the cache or without.

Each start is a separate process, because a kernel is compiled or loaded once per process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.bev.tape import TASK
from robotrl.errors import RobotrlError

CACHE = "ROBOTRL_CACHE"


class Start(NamedTuple):
    """Times of one process, seconds."""

    imports: float
    """Import of torch and robotrl."""
    first: float
    """Making a sim, starting its episodes, and one step."""
    again: float
    """The same a second time in the same process, which only builds maps again."""
    maps: int
    """Number of these maps."""

    @property
    def kernels(self) -> float:
        """Seconds for compiling or loading the kernels."""
        return self.first - self.again


def start(num_envs: int, cache: str | None) -> Start:
    """Measure a start in a separate process.

    Args:
        num_envs: N.
        cache: folder for compiled kernels, None for the user's.

    Raises:
        RobotrlError: the process failed, with the last line that it wrote.
    """
    env = {**os.environ, **({CACHE: cache} if cache is not None else {})}
    argv = [sys.executable, "-m", "benchmarks.bev.start", str(num_envs)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["(no output)"]
        raise RobotrlError(f"bench bev: the start ended with code {done.returncode}: {said[0]}")
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def main(num_envs: int) -> None:
    """Start twice and report the time of each part."""
    begun = time.perf_counter()
    import torch

    from robotrl.registry import make_sim

    imported = time.perf_counter()

    def once() -> int:
        # one thread, so that the order of compilation does not matter
        sim = make_sim(TASK, num_envs=num_envs, seed=0, obs="both", threads=1)
        sim.reset(seed=0)
        sim.step(torch.zeros(num_envs, 2))
        return len(sim.core.bank.names)

    maps = once()
    first = time.perf_counter()
    once()
    again = time.perf_counter()
    print(json.dumps(Start(imported - begun, first - imported, again - first, maps)._asdict()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
