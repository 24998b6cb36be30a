"""Learners of one run on the nodes of a Ray cluster: the processes that torchrun would start, placed by Ray.

Each is a process beside a Ray actor of one placement group, with that actor's cores and GPU. It finds RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its environment, as torchrun sets them, so `robotrl.engine.distributed` joins
them and the same code learns. The first one writes the run, in a folder that all nodes share.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from robotrl.cluster.ray_jobs import OF_RAY, JobOrder, JobRunner, RayHandle, versions
from robotrl.cluster.ray_session import PLACED, RaySession
from robotrl.config import TrainCfg
from robotrl.errors import ConfigError, RobotrlError, short
from robotrl.jobs.job import LOST, Job, last_line
from robotrl.run.locking import StopSignals

POLL_S = 0.2
"""Time between two looks at the learners, s."""
GRACE_S = 60.0
"""Time that learners get to end once one of them has failed, s, before they are killed."""
STOPPED = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a learner that came to its end, or saved because it was asked to."""
PASSED_ON = ("GLOO_", "NCCL_")
"""Beginnings of environment variables that the learners have from this process: settings of the exchange of tensors."""


class LearnerRunner(JobRunner):
    """Ray actor that runs one learner."""

    def meeting(self) -> tuple[str, int]:
        """Return the address of this node, and a port that is free now, where the learners meet."""
        import ray

        with socket.socket() as found:
            found.bind(("", 0))
            return ray.util.get_node_ip_address(), found.getsockname()[1]


class RayLearners:
    """Starts the learners of a run, and waits for their end.

    Args:
        cfg: the run's config; `cluster.learners` is 2 or more.
        command: arguments of `robotrl train` for each learner.
        run_path: the run's directory; the learners' outputs are files beside it.

    Raises:
        ConfigError: see `RaySession`; or no node has what a learner needs.
        RobotrlError: Ray does not start, or there is no room for the learners in time.
    """

    def __init__(self, cfg: TrainCfg[Any, Any], command: Sequence[str], run_path: Path) -> None:
        self._cfg, self._command, self._run_path = cfg.cluster, tuple(command), run_path
        self._gpus = int(cfg.device.startswith("cuda"))
        self._session = RaySession(cfg.cluster)
        import ray

        self._ray: Any = ray
        self._group: Any = None
        self._shown = 0
        """Bytes of the first learner's output that were shown."""
        try:
            self._check_capacity()
            self._actors = self._start_learners()
        except BaseException:
            self.close()
            raise

    def log(self, rank: int) -> Path:
        """File with the output of a learner."""
        return self._run_path.with_name(f"{self._run_path.name}.learner-{rank}.log")

    def _check_capacity(self) -> None:
        """Check that the nodes have the resources of all learners.

        Raises:
            ConfigError: they do not.
        """
        cfg = self._cfg
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpus = sum(int(node.get("GPU", 0)) for node in nodes)
        if self._gpus * cfg.learners > gpus:
            raise ConfigError(
                f"cluster.learners is {cfg.learners} and device is cuda, a GPU each: expected {gpus} or fewer learners,"
                f" device cpu, or the cluster.address of nodes with GPUs; this cluster has {gpus}"
            )
        held = sum(
            min(int(node.get("CPU", 0)) // cfg.learner_cpus, int(node.get("GPU", 0)) if self._gpus else cfg.learners)
            for node in nodes
        )
        if held < cfg.learners:
            listed = ", ".join(f"{node.get('CPU', 0):g}" for node in nodes[:8])
            raise ConfigError(
                f"cluster.learners is {cfg.learners} with cluster.learner_cpus {cfg.learner_cpus} each: expected {held}"
                f" or fewer learners, or other cluster.learner_cpus; this cluster's nodes have {listed} CPUs"
            )

    def _start_learners(self) -> list[Any]:
        """Return an actor of each learner, which has its resources.

        Raises:
            RobotrlError: they are not free in time.
        """
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        cfg = self._cfg
        each = {"CPU": float(cfg.learner_cpus)} | ({"GPU": float(self._gpus)} if self._gpus else {})
        self._group = placement_group([each] * cfg.learners)
        if not self._group.wait(cfg.start_timeout_s):
            free = self._ray.available_resources()
            raise RobotrlError(
                f"no room for {cfg.learners} learners (cluster.learners) after {cfg.start_timeout_s:g} s"
                f" (cluster.start_timeout_s): {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free"
            )
        runner: Any = self._ray.remote(LearnerRunner)
        return [
            runner.options(
                num_cpus=cfg.learner_cpus,
                num_gpus=self._gpus,
                max_restarts=0,
                max_concurrency=3,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank),
            ).remote()
            for rank in range(cfg.learners)
        ]

    def run(self, signals: StopSignals) -> int:
        """Let the learners train until all have ended; returns the run's exit code.

        A signal asks all of them to save and end. Once one has failed, the others are asked to end, and killed if they
        do not.

        Args:
            signals: installed handlers.

        Raises:
            RobotrlError: a learner failed or was lost; the message says which one, and why.
        """
        self._run_path.parent.mkdir(parents=True, exist_ok=True)
        self._shown = self.log(0).stat().st_size if self.log(0).exists() else 0
        handles = self._started()
        stopped_s: float | None = None
        first, killed = list[int](), set[int]()
        """Those that had failed before any was asked to end, and those that did not end."""
        try:
            while True:
                codes = [one.poll() for one in handles]
                self._show()
                failed = [rank for rank, code in enumerate(codes) if code is not None and code not in STOPPED]
                if all(code is not None for code in codes):
                    break
                if stopped_s is None and (failed or signals.received is not None):
                    stopped_s, first = time.monotonic(), failed
                    for one in handles:
                        one.stop()
                if failed and stopped_s is not None and time.monotonic() - stopped_s > GRACE_S:
                    killed |= {rank for rank, code in enumerate(codes) if code is None}
                    for one in handles:
                        one.kill()
                time.sleep(POLL_S)
        finally:
            for one in handles:
                one.kill()
        # one that was asked to end while it loaded has nothing to save
        own = [rank for rank in failed if rank not in killed and codes[rank] != -signal.SIGTERM]
        # one that lost the others says so and ends with 2: the cause is one that ended otherwise
        cause = min(first or own, key=lambda rank: codes[rank] == 2, default=None)
        if cause is not None:
            raise RobotrlError(self._failure(cause, codes[cause]))
        return 128 + signals.received if signals.received is not None else codes[0] or 0

    def _started(self) -> list[RayHandle]:
        """Start the learners.

        Raises:
            RobotrlError: the first one's node does not answer.
        """
        try:
            address, port = self._ray.get(self._actors[0].meeting.remote(), timeout=self._cfg.start_timeout_s)
        except self._ray.exceptions.RayError as error:
            raise RobotrlError(f"the node of learner 0 does not answer: {short(str(error))}") from error
        common = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)} | {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(self._cfg.learners),
            # Ray shows each actor its own GPU alone
            "LOCAL_RANK": "0",
            PLACED: self._ray.get_runtime_context().gcs_address,
        }
        handles: list[RayHandle] = []
        for rank, actor in enumerate(self._actors):
            job = Job(f"learner {rank}", (sys.executable, "-m", "robotrl.cli", "train", *self._command), self.log(rank))
            environment = tuple((common | {"RANK": str(rank)}).items())
            order = JobOrder(
                job, sys.executable, os.getcwd(), os.environ.get(OF_RAY), versions(), environment=environment
            )
            handles.append(RayHandle(self._ray, actor, order))
        return handles

    def _show(self) -> None:
        """Show what is new in the first learner's output."""
        if not self.log(0).exists():
            return
        with self.log(0).open("rb") as log:
            log.seek(self._shown)
            text = log.read()
        self._shown += len(text)
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()

    def _failure(self, rank: int, code: int | None) -> str:
        how = f"ended with code {code}"
        if code == LOST:
            how = "was lost with its node or Ray actor"
        elif code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        saved = self._run_path / "checkpoints"
        after = f"; go on with: robotrl train --resume {self._run_path}" if saved.is_dir() else ""
        return (
            f"learner {rank} of {self._cfg.learners} {how}, and the run with it (last line of {self.log(rank)}:"
            f" {last_line(self.log(rank))}){after}"
        )

    def close(self) -> None:
        """End the actors and the connection, and a Ray that was started here."""
        if self._group is not None:
            from ray.util.placement_group import remove_placement_group

            with suppress(Exception):
                # ends its actors
                remove_placement_group(self._group)
            self._group = None
        self._session.close()
