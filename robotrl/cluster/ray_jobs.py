"""Jobs on the nodes of a Ray cluster, each with cores and GPUs of its own.

A job is a process beside a Ray actor that started it, and ends with that actor: asked to save if the sweep's process is
gone. Its files are in a folder that all nodes share.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.cluster.ray_session import RaySession
from robotrl.config import ClusterCfg
from robotrl.errors import ConfigError, out_of_range, short
from robotrl.jobs.job import LOST, Job
from robotrl.jobs.local import LocalHandle, LocalPlace

POLL_S = 0.2
"""Time between two looks at a job's process, s."""
LOOK_S = 5.0
"""Time for which a number of slots is taken to be right, s."""
KILL_S = 5.0
"""Time limit for an actor's answer while its job is killed, s."""
STOPPED = 143
"""Exit code of a job that was stopped before it began, as after SIGTERM."""
OF_RAY = "OMP_NUM_THREADS"
"""Environment variable that Ray sets in its actors; a job has the value of the sweep's process."""


class JobResources(NamedTuple):
    """Resources of each job, reserved in Ray."""

    cpus: int
    gpus: float


class JobOrder(NamedTuple):
    """A job as it is sent to a node."""

    job: Job
    python: str
    """The interpreter here, for which a node's own is taken."""
    folder: str
    """Working directory."""
    threads: str | None
    """Value of `OF_RAY`."""
    versions: tuple[str, str]
    """See `versions`."""
    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables that the job has beside those of its node."""


def versions() -> tuple[str, str]:
    """Version of robotrl, and major and minor version of Python, in this process."""
    return version("robotrl"), ".".join(map(str, sys.version_info[:2]))


class JobRunner:
    """Ray actor that runs one job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handle: LocalHandle | None = None
        self._stopped = False

    def ready(self) -> int:
        """Return the process ID, once the actor has its resources."""
        return os.getpid()

    def run(self, order: JobOrder) -> int:
        """Run a job to its end; returns its exit code. What keeps it from starting is written to its log."""
        folder = Path(order.folder)
        if not folder.is_dir():
            raise FileNotFoundError(f"{platform.node()} has no folder {folder}: expected one that all nodes share")
        log = folder / order.job.log
        for name, ours, theirs in zip(("robotrl", "Python"), versions(), order.versions, strict=True):
            if ours != theirs:
                with log.open("a") as file:
                    file.write(f"{platform.node()} has {name} {ours}: expected {theirs}, as the sweep has\n")
                return 2
        first, *rest = order.job.command
        command = (sys.executable if first == order.python else first, *rest)
        environment = {name: value for name, value in os.environ.items() if name != OF_RAY}
        environment |= dict(order.environment)
        if order.threads is not None:
            environment[OF_RAY] = order.threads
        with self._lock:
            if self._stopped:
                return STOPPED
            job = Job(order.job.key, command, order.job.log)
            self._handle = LocalPlace(1, folder, environment).start(job)
        while True:
            code = self._handle.poll()
            if code is not None:
                return code
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ask the job to save and end; one that has not begun does not begin."""
        with self._lock:
            self._stopped = True
            if self._handle is not None:
                self._handle.stop()

    def kill(self) -> None:
        """End the job at once."""
        with self._lock:
            self._stopped = True
            if self._handle is not None:
                self._handle.kill()


class RayHandle:
    """A job on a node; implements `Handle`.

    Args:
        ray: the module.
        actor: a `JobRunner`.
        order: its order.
    """

    def __init__(self, ray: Any, actor: Any, order: JobOrder) -> None:
        self._ray, self._actor, self._order = ray, actor, order
        self._ready, self._result = actor.ready.remote(), actor.run.remote(order)
        self._code: int | None = None

    def poll(self) -> int | None:
        """See `Handle.poll`; `LOST` if the actor is gone."""
        if self._code is None and self._ray.wait([self._result], timeout=0)[0]:
            self._end(self._answer())
        return self._code

    def _answer(self) -> int:
        try:
            return int(self._ray.get(self._result))
        except self._ray.exceptions.RayTaskError as error:
            self._write(short(" ".join(str(error.cause or error).split()), 300))
            return 1
        except self._ray.exceptions.RayError as error:
            self._write(f"its node or actor is gone ({type(error).__name__})")
            return LOST

    def _write(self, text: str) -> None:
        with suppress(OSError), (Path(self._order.folder) / self._order.job.log).open("a") as log:
            log.write(f"{text}\n")

    def _end(self, code: int) -> None:
        self._code = code
        with suppress(Exception):
            # frees its resources
            self._ray.kill(self._actor, no_restart=True)

    def stop(self) -> None:
        """See `Handle.stop`; a job that waits for resources does not begin."""
        if self._code is not None:
            return
        if self._ray.wait([self._ready], timeout=0)[0]:
            self._actor.stop.remote()
        else:
            self._end(STOPPED)

    def kill(self) -> None:
        """See `Handle.kill`."""
        if self._code is None:
            with suppress(Exception):
                self._ray.get(self._actor.kill.remote(), timeout=KILL_S)
            self._end(-9)


class RayPlace:
    """The nodes of a Ray cluster; implements `JobPlace`. Nodes that join or leave change the number of slots.

    Args:
        address: HOST:PORT or "auto"; None starts Ray on this machine.
        each: resources of each job.
        most: largest number of jobs at the same time; None: as many as there are resources for.

    Raises:
        ConfigError: no cluster at the address, or no node that has the resources.
        RobotrlError: Ray does not start.
    """

    def __init__(self, address: str | None, each: JobResources, most: int | None = None) -> None:
        if each.cpus < 1:
            raise out_of_range("cluster.cpus", each.cpus, "1 or more")
        if not each.gpus >= 0 or (each.gpus > 1 and each.gpus != int(each.gpus)):
            raise out_of_range("cluster.gpus", each.gpus, "0 or more; above 1 a whole number")
        self._each, self._most = each, most
        self._session = RaySession(ClusterCfg("ray", address=address, cpus=each.cpus))
        import ray

        self._ray: Any = ray
        self._runner: Any = ray.remote(JobRunner)
        self._looked_s, self._slots = -LOOK_S, 0
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """See `JobPlace.slots`."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            with suppress(ConfigError):
                # the nodes may come back
                self._look()
        return self._slots if self._most is None else max(1, min(self._slots, self._most))

    def _look(self) -> None:
        """Count the jobs that the nodes have room for.

        Raises:
            ConfigError: no node has room for one.
        """
        self._looked_s = time.monotonic()
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._slots = max(1, sum(_room(node, self._each) for node in nodes))
        if not any(_room(node, self._each) for node in nodes):
            listed = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes[:8])
            raise ConfigError(
                f"cluster.cpus is {self._each.cpus} and cluster.gpus {self._each.gpus:g}: expected what one node has"
                f" ({listed or 'there is none'})"
            )

    def start(self, job: Job) -> RayHandle:
        """See `JobPlace.start`; it begins once a node has its resources free."""
        options = {"num_cpus": self._each.cpus, "num_gpus": self._each.gpus, "max_restarts": 0, "max_concurrency": 3}
        order = JobOrder(job, sys.executable, os.getcwd(), os.environ.get(OF_RAY), versions())
        return RayHandle(self._ray, self._runner.options(**options).remote(), order)

    def close(self) -> None:
        """End the connection, and a Ray that was started here."""
        self._session.close()


def _room(node: Mapping[str, float], each: JobResources) -> int:
    """Number of jobs that a node has resources for."""
    found = int(node.get("CPU", 0) // each.cpus)
    return min(found, int(node.get("GPU", 0) / each.gpus + 1e-9)) if each.gpus else found
