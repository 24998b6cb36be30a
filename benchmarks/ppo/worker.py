"""Worker process with one trainer, which trains on request and reports the time.

Separate processes isolate the trainers' threads, allocators and imports. They alternate: one works while the others
block in a read.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import IO, Any

from benchmarks.kit.served import Served

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Worker:
    """A trainer in a separate process; the constructor returns after warm-up and compilation.

    Args:
        method: a key of the module's `METHODS`.
        setting: a key of its `SETTINGS`.
        threads: number of torch threads; None is torch's default.
        task: name of the sim.
        cache: compiler cache; with an empty one the compile time is that of a first run.
        methods: module whose `make(method, setting, task)` makes the trainer, and which names its unit of work.
        first: number of warm-up iterations.

    Raises:
        RobotrlError: the trainer cannot be made, with the last line that its process wrote.
    """

    def __init__(
        self,
        method: str,
        setting: str,
        threads: int | None,
        task: str,
        cache: str | None = None,
        methods: str = "benchmarks.ppo.methods",
        first: int = 1,
    ) -> None:
        env = {key: value for key, value in os.environ.items() if key not in THREAD_VARIABLES}
        if cache is not None:
            env["TORCHINDUCTOR_CACHE_DIR"] = cache
        argv = [sys.executable, "-m", "benchmarks.ppo.worker", method, setting, str(threads or 0), task]
        self._served = Served([*argv, methods, str(first)], env, f"the trainer {method} {setting}")
        self.threads: int = self._served.ready["threads"]
        """Number of torch threads in use."""
        self.compile_s: float | None = self._served.ready["compile_s"]
        """Compile time, s; None if nothing is compiled."""

    def run(self, iterations: int) -> float:
        """Train for a number of iterations; returns work per second: env steps, or the unit of the methods."""
        answer = self._served.ask(str(iterations))
        return answer["work"] / answer["seconds"]

    def close(self) -> None:
        """End the process."""
        self._served.close()


def main(method: str, setting: str, threads: int, task: str, methods: str, first: int) -> None:
    """Serve until the input ends: read a line with a number of iterations, answer with a line of results."""
    # libraries print: answers use the real standard output, everything else goes to the log
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    if threads:
        torch.set_num_threads(threads)
    trainer = importlib.import_module(methods).make(method, setting, task)
    trainer.run(first)
    _say(answers, {"threads": torch.get_num_threads(), "compile_s": trainer.compile_s})
    for line in sys.stdin:
        begun = time.perf_counter()
        work = trainer.run(int(line))
        _say(answers, {"work": work, "seconds": time.perf_counter() - begun})


def _say(answers: IO[str], message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]))
