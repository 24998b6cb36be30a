"""Sound inputs from which faulty ones are made, each built once per process."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from robotrl.cli.commands.train import config_of
from robotrl.config import EvalCfg, SimCfg, TrainCfg

SIM = "mujoco/reach"
OF_BEFORE = ("inputs.json",)
"""Files of a run that earlier versions did not write."""


@cache
def place() -> Path:
    """A temporary folder that lasts as long as the process."""
    path = Path(tempfile.mkdtemp(prefix="sound-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@contextlib.contextmanager
def quiet() -> Any:
    """Suppress output."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


@cache
def dataset() -> Path:
    """Three demonstrations."""
    from robotrl.rollout.demos import collect_demos

    path = place() / "demos"
    with quiet():
        collect_demos(SIM, path, episodes=3, num_envs=3, sim_options={"limit_s": 1.0}, keep="all")
    return path


@cache
def foreign_dataset() -> Path:
    """The same dataset as another program would write it, without our manifest."""
    path = shutil.copytree(dataset(), place() / "foreign")
    (path / "meta" / "robotrl.json").unlink()
    return path


def cloning(data: Path) -> TrainCfg[Any, Any]:
    """Config of a clone that trains in a second."""
    cfg = config_of("--sim mujoco/reach --algo bc")
    return replace(
        cfg,
        sim=SimCfg(SIM, 2, ("limit_s=1.0",)),
        dataset=str(data),
        algo=replace(cfg.algo, updates=3, updates_per_iteration=1, batch=8),
        policy=replace(cfg.policy, hidden=(16,)),
        evaluation=EvalCfg(every=0, episodes=2, num_envs=2, animation=0),
        checkpoint_every=1,
    )


@cache
def run() -> Path:
    """A run with three checkpoints."""
    from robotrl.training import train

    path = place() / "run"
    with quiet():
        train(cloning(dataset()), path)
    return path


@cache
def run_of_before() -> Path:
    """The same run as an earlier version wrote it, without digests of its inputs."""
    path = shutil.copytree(run(), place() / "run-of-before")
    for name in OF_BEFORE:
        (path / name).unlink()
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({k: v for k, v in record.items() if k not in ("inputs", "digest")}))
    return path
