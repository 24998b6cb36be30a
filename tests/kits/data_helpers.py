"""Small datasets for the tests of `robotrl.datasets`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robotrl.datasets.lerobot import Dataset, DatasetWriter
from robotrl.spec import Spec

INF = float("inf")
OBSERVATION_SPEC = {
    "state": Spec((3,), ("pos_x_w", "pos_y_w", "yaw_w"), ("m", "m", "rad"), (-INF, -INF, -3.2), (INF, INF, 3.2)),
    "force": Spec((1,), ("grip_force",), ("N",), (0.0,), (40.0,)),
}
ACTION_SPEC = Spec((2,), ("dx", "dy"), ("1", "1"), (-1.0, -1.0), (1.0, 1.0))


def make_writer(root: Path, **options) -> DatasetWriter:
    settings = {"fps": 20, "robot_type": "test arm", "provenance": {"sim": "made/up", "seed": 7}, **options}
    return DatasetWriter(root, observation_spec=OBSERVATION_SPEC, action_spec=ACTION_SPEC, **settings)


def make_episode(seed: int, length: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs = {
        "state": rng.normal(size=(length, 3)).astype(np.float32),
        "force": rng.uniform(0, 40, (length, 1)).astype(np.float32),
    }
    return obs, rng.uniform(-1, 1, (length, 2)).astype(np.float32), rng.normal(size=length).astype(np.float32)


def write_dataset(root: Path, lengths=(3, 1, 6, 4), **options) -> Path:
    """Episode e has `lengths[e]` frames drawn from seed e, succeeds when e is even, and has "task 0" or "task 1"."""
    with make_writer(root, **options) as writer:
        for e, length in enumerate(lengths):
            extra = {"state_id": 100 + e, "mode": ("left", "right")[e % 2]}
            won = e % 2 == 0
            writer.add_episode(
                *make_episode(e, length), success=won, truncated=not won, task=f"task {e % 2}", extra=extra
            )
        return writer.finish()


def write_foreign(root: Path, ours: Dataset, columns: dict[str, str], says=str, **options) -> Path:
    """A dataset of ours as another program would have recorded it: no instruction, nothing hashed, names of its own.

    Args:
        root: of the new one.
        ours: with pictures as numbers.
        columns: the new one's observations to ours.
        says: what becomes of a task's text.
    """
    assert ours.observation_spec and ours.action_spec
    specs = {theirs: ours.observation_spec[key] for theirs, key in columns.items()}
    with DatasetWriter(root, fps=int(ours.fps), observation_spec=specs, action_spec=ours.action_spec, **options) as out:
        for e in range(ours.num_episodes):
            found = ours.episode(e)
            out.add_episode(
                {theirs: found[f"observation.{key}"] for theirs, key in columns.items()},
                found["action"],
                found["next.reward"],
                success=bool(found["next.success"][-1]),
                task=says(ours.tasks[found["task_index"][0]]),
            )
        out.finish()
    (root / "meta/robotrl.json").unlink()
    return root


def tree(root: Path) -> dict[str, bytes]:
    """Every file under `root` with its content."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
