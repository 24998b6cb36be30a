"""Weights & Biases as a callback: the scalars, config and rollouts of a run, beside its TensorBoard files.

Needs `robotrl[wandb]`. Nothing is sent unless this callback is used; WANDB_MODE=offline keeps everything in the run's
directory, for `wandb sync`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from robotrl.errors import ConfigError
from robotrl.run.callbacks import Callback
from robotrl.run.directory import Run
from robotrl.run.logs import tag
from robotrl.utils.files import read_json
from robotrl.utils.installation import install_line

PROJECT = "robotrl"
"""W&B project where the environment does not name one (WANDB_PROJECT)."""


class WandbLogger(Callback):
    """Logs to one W&B run per training run; a resumed run continues it.

    Raises:
        ConfigError: wandb is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(f"--logger is 'wandb', which needs the module 'wandb': {install_line('wandb')}")
        self._run: Run | None = None
        self._wandb: Any = None
        self._session: Any = None

    def on_start(self, run: Run) -> None:
        """Open the W&B run."""
        # wandb reports its own errors to its makers unless told not to
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._run, self._wandb = run, importlib.import_module("wandb")
        self._session = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.path.name,
            id=run_id(run),
            resume="allow",
            dir=str(run.path),
            config={**run.config, "seed": run.seed},
        )

    def on_iteration(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log the scalars, by the names of TensorBoard, and the rollouts of an evaluation."""
        values: dict[str, Any] = {tag(name): value for name, value in scalars.items()}
        if self._run is not None:
            picture = self._run.path / "rollouts" / f"step_{step:06d}.gif"
            if picture.exists():
                values["rollouts"] = self._wandb.Video(str(picture), format="gif")
        self._session.log(values, step=step)

    def on_end(self, run: Run) -> None:
        """Close the W&B run."""
        self._session.finish()


def run_id(run: Run) -> str:
    """Identifier of a run that stays the same when it is resumed, and differs for a new run at the same path."""
    began = read_json(run.path / "run.json", "run record", 1)["sessions"][0]["started"]
    digest = hashlib.sha256((run.path / "config.json").read_bytes() + str(began).encode()).hexdigest()
    return f"{run.path.resolve().name[:40]}-{digest[:12]}"
