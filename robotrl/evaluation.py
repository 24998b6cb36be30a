"""Success of whatever lies at a path: a run, a checkpoint, or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError
from robotrl.inspection import kind_of
from robotrl.load import load_policy
from robotrl.loop import Actor, EvalResult, evaluate
from robotrl.registry import make_sim
from robotrl.run import Run
from robotrl.spec import Policy, Split

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
        sim: name of the sim; None takes the one that the run was trained on.
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
    name = sim if sim is not None else _trained_on(path)
    vec = make_sim(name, num_envs=min(num_envs, episodes), seed=seed)
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


def _trained_on(path: Path) -> str:
    """The sim of the run that `path` is, or lies in."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / "run.json").exists():
            name = Run.open(folder).config.get("sim")
            if isinstance(name, str):
                return name
    raise ConfigError(f"--sim is missing: {path} does not say which sim it was trained on")
