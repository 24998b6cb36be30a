"""Success of whatever lies at a path: a run, a checkpoint, or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robotrl.config import sim_options
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError
from robotrl.inspection import kind_of
from robotrl.load import load_policy
from robotrl.loop import Actor, EvalResult, evaluate
from robotrl.registry import make_sim
from robotrl.run import Run
from robotrl.spec import Policy, Split, VecSim

if TYPE_CHECKING:
    from torch import Tensor


class BundleActor:
    """A bundle as an actor for a batch of envs: each env plays its own chunk, inferred one at a time as on the robot.

    Decisions count up over all envs, so the noise of each is that of (seed, decision), whatever the batch size.
    """

    def __init__(self, controller: Controller, num_envs: int) -> None:
        self._controller = controller
        self._execute = controller.manifest.timing.execute
        width = len(controller.manifest.action.names)
        self._chunk = np.zeros((num_envs, self._execute, width), np.float32)
        self._cursor = np.full(num_envs, self._execute)
        self._decision = 0

    def act(self, obs: dict[str, Tensor], started: Tensor) -> Tensor:
        """Actions (N, A)."""
        arrays = {key: value.numpy() for key, value in obs.items()}
        self._cursor[started.numpy()] = self._execute
        for env in np.flatnonzero(self._cursor >= self._execute):
            row = {key: array[env] for key, array in arrays.items()}
            self._chunk[env] = self._controller.infer(row, self._decision)[: self._execute]
            self._decision += 1
            self._cursor[env] = 0
        actions = self._chunk[np.arange(len(self._cursor)), self._cursor]
        self._cursor += 1
        return torch.from_numpy(actions)


def evaluate_path(
    path: Path, *, sim: str | None = None, episodes: int = 256, split: Split = "test", seed: int = 0, num_envs: int = 64
) -> EvalResult:
    """Run each of the first starts of a split exactly once.

    Args:
        path: a run (its best checkpoint is taken), a checkpoint, or a bundle.
        sim: name of the sim; None takes the one that the run was trained on, with the options it had.
        episodes: how many starts.
        split: "test" for the verdict, "val" for choosing.
        seed: of the policy's noise.
        num_envs: envs that step at once.

    Raises:
        ConfigError: the sim is unknown, or cannot be told from the path, or there are fewer starts.
        DataError: nothing readable is at the path.
    """
    kind = kind_of(path)
    if kind == "dataset":
        raise ConfigError(f"{path} is a dataset: expected a run, a checkpoint or a bundle")
    vec = make_sim_of(path, sim, num_envs=min(num_envs, episodes), seed=seed)
    try:
        policy: Policy | Actor
        policy = BundleActor(Controller.load(path, seed=seed), vec.num_envs) if kind == "bundle" else load_policy(path)
        return evaluate(policy, vec, episodes=episodes, split=split, seed=seed)
    finally:
        vec.close()


def to_json(result: EvalResult) -> dict[str, Any]:
    """The result with every episode, as JSON values."""
    return {
        "success": result.rate._asdict(),
        "mean_length": float(result.length.mean()),
        "mean_return": float(result.returns.mean()),
        "episodes": [
            {"id": int(i), "success": bool(s), "length": int(n), "return": float(r)}
            for i, s, n, r in zip(result.ids, result.success, result.length, result.returns, strict=True)
        ],
    }


def run_of(path: Path) -> Run | None:
    """The run that `path` is, or that a checkpoint at `path` lies in; None where there is none."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / "run.json").exists():
            return Run.open(folder)
    return None


def make_sim_of(path: Path, sim: str | None, *, num_envs: int, seed: int) -> VecSim:
    """The sim that a run was trained on, with the options that it had, or another one by name.

    Raises:
        ConfigError: no name was given, and `path` lies in no run that has one.
    """
    run = run_of(path)
    trained_on: dict[str, Any] = {} if run is None else run.config.get("sim", {})
    name = sim if sim is not None else trained_on.get("name")
    if name is None:
        raise ConfigError(f"sim is missing: {path} does not say which one it was trained on")
    options = sim_options(trained_on.get("options", ())) if name == trained_on.get("name") else {}
    return make_sim(name, num_envs=num_envs, seed=seed, **options)
