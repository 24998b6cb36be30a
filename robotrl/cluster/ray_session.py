"""A connection to Ray: one that this run starts on this machine, or one to a running cluster."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from robotrl.config import ClusterCfg
from robotrl.errors import ConfigError, RobotrlError, out_of_range, short
from robotrl.utils.hardware import usable_cores
from robotrl.utils.installation import install_line

AUTO = "auto"
"""Address of the cluster that this machine belongs to."""
PLACED = "ROBOTRL_LEARNERS_RAY"
"""Environment variable of a learner that Ray placed: the address of that Ray, which its workers use as well."""
CONNECT_S = 10.0
"""Time limit for a first connection to a cluster, s."""

END_S = 5.0
"""Time limit for the end of processes that were killed, s."""
TIMED_OUT = "timed out during startup"
"""Part of Ray's error where its helpers were not up in time."""


class RaySession:
    """Connects to Ray; closed by `close`, which ends a Ray that was started here and leaves no files.

    Args:
        cfg: settings.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address, one of another version, or one that is
            too small.
        RobotrlError: Ray does not start.
    """

    def __init__(self, cfg: ClusterCfg) -> None:
        # neither usage statistics nor hints about settings of Ray's own
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # a busy machine may need longer than Ray's default to start its helpers
        os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
        if cfg.learners > 1:
            # learners wait for each other many times in an update: at Ray's low priority, also for other processes
            os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"cluster is {cfg.name!r} and needs the module {error.name!r}: {install_line('ray')}"
            ) from error
        self._folder: Path | None = None
        if PLACED in os.environ:
            cfg = replace(cfg, address=os.environ[PLACED])
        self._ours = not ray.is_initialized()
        # for errors between the start of Ray and the end of the learner that closes it
        atexit.register(self.close)
        try:
            if self._ours:
                self._connect(ray, cfg)
            _check_capacity(ray, cfg)
        except BaseException:
            self.close()
            raise

    def _connect(self, ray: Any, cfg: ClusterCfg) -> None:
        options: dict[str, Any] = {
            "address": cfg.address,
            "log_to_driver": False,
            "logging_level": logging.CRITICAL,
            "namespace": f"robotrl-{os.getpid()}",
        }
        if cfg.address is None:
            if cfg.cpus_at_once > usable_cores():
                raise ConfigError(
                    f"{_wanted(cfg)}: expected {usable_cores()} or fewer CPUs at once, the cores of this machine, or"
                    " cluster.address"
                )
            self._folder = Path(tempfile.mkdtemp(prefix="robotrl-ray-"))
            options |= {
                "address": "local",
                "num_cpus": cfg.reserved_cpus,
                # workers act on CPUs, learners have the GPUs that Ray finds
                "num_gpus": 0 if cfg.learners == 1 else None,
                "include_dashboard": False,
                "_temp_dir": str(self._folder),
            }
        elif cfg.address != AUTO:
            _check_reachable(cfg.address)
        main = threading.current_thread() is threading.main_thread()
        # Ray takes over SIGTERM, which a run answers by saving
        before = signal.getsignal(signal.SIGTERM)
        try:
            start(ray, options, cfg)
        except (ConnectionError, ValueError, OSError) as error:
            if cfg.address is None:
                raise RobotrlError(f"Ray does not start on this machine: {short(_first_line(error))}") from error
            token = ", or RAY_AUTH_MODE=token for this one" if "AuthToken" in str(error.__cause__) else ""
            raise ConfigError(
                f"cluster.address is {cfg.address!r}: expected a running Ray cluster, HOST:PORT or auto{token}"
                f" ({short(_first_line(error))})"
            ) from error
        except RuntimeError as error:
            text = " ".join(str(error).split())
            if "mismatch" in text.lower():
                raise ConfigError(
                    f"cluster.address is {cfg.address!r}, of another version: expected the same Ray and Python there as"
                    f" here ({short(text, 300)})"
                ) from error
            raise RobotrlError(f"Ray does not answer: {short(text, 300)}") from error
        except Exception as error:
            # Ray has no class of its own for a node that does not come up
            raise RobotrlError(f"Ray does not start: {short(' '.join(str(error).split()), 300)}") from error
        finally:
            if main:
                signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    def room(self, cpus: int) -> dict[str, int]:
        """Number of workers of so many CPUs that each node has room for, by the node's ID."""
        import ray

        return _room(ray, cpus)

    def close(self) -> None:
        """End the connection, and a Ray that was started here; may be called repeatedly."""
        if self._ours:
            import ray

            with suppress(Exception):
                ray.shutdown()
            self._ours = False
        if self._folder is not None:
            end_leftovers(self._folder)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        atexit.unregister(self.close)


def start(ray: Any, options: dict[str, Any], cfg: ClusterCfg) -> None:
    """Connect, or start Ray. On a busy machine its helpers may need longer than the 30 s that it waits: try again.

    Args:
        ray: the module.
        options: arguments of `ray.init`.
        cfg: settings; of a Ray that is started here, `start_timeout_s` limits how long it is tried.
    """
    began = time.monotonic()
    while True:
        try:
            ray.init(**options)
            return
        except Exception as error:
            left = cfg.start_timeout_s - (time.monotonic() - began)
            if cfg.address is not None or left <= 0 or TIMED_OUT not in str(error):
                raise
            ray.shutdown()
            if "_temp_dir" in options:
                end_leftovers(Path(options["_temp_dir"]))


def end_leftovers(folder: Path) -> None:
    """End the processes of a Ray that did not come up, which would go on writing to its folder.

    Args:
        folder: the Ray's own temporary folder, which its processes have among their arguments.
    """
    left = [one for one in psutil.Process().children(recursive=True) if str(folder) in _arguments(one)]
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, END_S)


def _arguments(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _check_reachable(address: str) -> None:
    """Check that somebody listens at an address; Ray itself tries for minutes.

    Raises:
        ConfigError: nobody does, or it is no address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise out_of_range("cluster.address", address, f"HOST:PORT or {AUTO}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cluster.address is {address!r}: expected a running Ray cluster, HOST:PORT or {AUTO} ({error})"
        ) from error


def _room(ray: Any, cpus: int) -> dict[str, int]:
    return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) // cpus for node in ray.nodes() if node["Alive"]}


def _check_capacity(ray: Any, cfg: ClusterCfg) -> None:
    """Check that the cluster's nodes hold all workers.

    Raises:
        ConfigError: they do not; a worker does not span nodes.
    """
    cpus = sorted(_room(ray, 1).values(), reverse=True)
    held = sum(_room(ray, cfg.cpus).values())
    if held < cfg.learners * cfg.workers or sum(cpus) < cfg.reserved_cpus:
        listed = ", ".join(map(str, cpus[:8])) + (" and so on" if len(cpus) > 8 else "")
        fewer = f"{held} or fewer" if cfg.learners == 1 else f"{sum(cpus)} or fewer CPUs in all"
        raise ConfigError(
            f"{_wanted(cfg)}: expected {fewer}, other cluster.cpus, or the cluster.address of more nodes; this"
            f" cluster's have {listed} CPUs"
        )


def _wanted(cfg: ClusterCfg) -> str:
    """Text about the CPUs that a run reserves."""
    workers = f"cluster.workers is {cfg.workers} with cluster.cpus {cfg.cpus} each"
    if cfg.learners == 1:
        return workers
    return f"cluster.learners is {cfg.learners} with cluster.learner_cpus {cfg.learner_cpus} each, and {workers}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
