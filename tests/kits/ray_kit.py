"""A Ray on this machine that the tests of a session share."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from robotrl.config import ClusterCfg
from tests.kits.paths_kit import ROOT


def connect() -> None:
    """Start a Ray with two CPUs, which clusters and places find instead of starting one; or that of RAY_ADDRESS."""
    from robotrl.cluster.ray_session import start

    ray: Any = pytest.importorskip("ray")
    if ray.is_initialized():
        return
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
    before = signal.getsignal(signal.SIGTERM)
    here = {"address": "local", "num_cpus": 2, "num_gpus": 0, "_node_ip_address": "127.0.0.1"}
    # a busy machine needs longer than Ray waits for its own start
    start(ray, (here if "RAY_ADDRESS" not in os.environ else {}) | options, ClusterCfg("ray"))
    signal.signal(signal.SIGTERM, before)


def ray_of_two() -> Iterator[None]:
    """Fixture of a module that needs Ray; it stays for the next one, and ends with the process."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_agent_register_timeout_ms"] = "120000"  # noqa: SIM112
    # workers import the tests' sims
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    connect()
    yield
