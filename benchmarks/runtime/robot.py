"""A robot that costs next to nothing, for measurements of the servo: noise for sensors, an action that is forgotten."""

from __future__ import annotations

from typing import Literal

import numpy as np

from robotrl.spec import Spec

WIDTH, ACTIONS = 19, 4
CONTROL_DT_S = 0.05


class NoiseRobot:
    """Sensors that read noise; each start is the same."""

    control_dt_s = CONTROL_DT_S
    inner_dt_s = 0.01
    limit_s = 3600.0
    action_spec = Spec(
        (ACTIONS,), tuple(f"a{i}" for i in range(ACTIONS)), ("1",) * ACTIONS, (-1.0,) * ACTIONS, (1.0,) * ACTIONS
    )

    def __init__(self, seed: int) -> None:
        names = tuple(f"s{i}" for i in range(WIDTH))
        self.observation_spec = {"state": Spec((WIDTH,), names, ("1",) * WIDTH, (-5.0,) * WIDTH, (5.0,) * WIDTH)}
        self.rng = np.random.default_rng(seed)

    def reset(self, state_id: int) -> dict[str, np.ndarray]:
        """Return the first reading."""
        return self.observe()

    def command(self, action: np.ndarray) -> None:
        """Forget the action."""

    def advance(self, inner_steps: int) -> None:
        """Let time pass."""

    def observe(self) -> dict[str, np.ndarray]:
        """Return a reading."""
        return {"state": self.rng.uniform(-1, 1, WIDTH).astype(np.float32)}

    def success(self) -> bool:
        """Return False: an episode lasts as long as it may."""
        return False

    def state_ids(self, split: Literal["train", "val", "test"]) -> range:
        """Return the start of a split."""
        return {"train": range(0, 1), "val": range(1, 2), "test": range(2, 3)}[split]


def make(seed: int) -> NoiseRobot:
    """Make the robot."""
    return NoiseRobot(seed)
