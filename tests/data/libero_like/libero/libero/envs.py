"""A simulated task: actions move a hand, and it is done where the hand has gone far enough up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np


class OffScreenRenderEnv:
    """Steps as robosuite does: four values, and a dict of arrays whose pictures are upside down."""

    def __init__(self, bddl_file_name: str, camera_heights: int = 128, camera_widths: int = 128) -> None:
        assert bddl_file_name.endswith(".bddl")
        self.size = camera_heights, camera_widths
        self.env = SimpleNamespace(control_freq=20)

    def seed(self, seed: int) -> None:
        """Seed numpy's global generator."""
        np.random.seed(seed)

    def reset(self) -> dict[str, Any]:
        """Place furniture by chance."""
        self.furniture, self.bowl, self.hand = np.random.uniform(), np.zeros(2), np.zeros(3)
        return self._observations()

    def set_init_state(self, state: np.ndarray) -> dict[str, Any]:
        """Place things; furniture stays where it is."""
        self.bowl = state.copy()
        return self._observations()

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        """Move the hand."""
        self.hand = self.hand + 0.1 * np.asarray(action)[:3]
        self.gripper = float(action[6])  # 1 closes, -1 opens
        done = bool(self.hand[2] > 0.25)
        return self._observations(), float(done), done, {}

    def close(self) -> None:
        """Nothing to free."""

    def _observations(self) -> dict[str, Any]:
        picture = np.zeros((*self.size, 3), np.uint8)
        picture[-1] = 255  # the top
        picture[-1, 0] = 128
        return {
            "agentview_image": picture,
            "robot0_eef_pos": self.hand,
            "robot0_eef_quat": np.array([np.sin(self.furniture / 2), 0.0, 0.0, np.cos(self.furniture / 2)]),
            "robot0_gripper_qpos": self.bowl,
        }
