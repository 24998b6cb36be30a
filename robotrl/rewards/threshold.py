"""Similarity above a threshold: VLM-SR (Baumli et al. 2023, arXiv 2312.09187), with a threshold found from data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import check_count, check_number
from robotrl.fn.language_reward import thresholded
from robotrl.rewards.source import RewardSetup, SimTransition
from robotrl.rewards.vlm.cfg import PictureRewardCfg
from robotrl.rewards.vlm.source import LanguageReward, Valued, check_prompts, language_reward
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.spec import VecSim

NAME = "threshold"


@dataclass(frozen=True, kw_only=True)
class ThresholdCfg(PictureRewardCfg):
    """1 where the scene resembles a sentence more than most scenes do, else -1 (VLM-SR)."""

    goal: str
    """Sentence of the goal."""
    quantile: float = 0.8
    """Share of the first scores that are below the threshold, 0.51 to 0.999."""
    calibration: int = 2048
    """Number of first scores that the threshold is found from; the steps before are invalid."""
    threshold: float | None = None
    """Threshold of the similarity, instead of the one found."""

    def build(self, sim: VecSim, setup: RewardSetup) -> LanguageReward:
        """Build the source.

        Raises:
            CapabilityError: the sim has no picture.
            ConfigError: a setting is out of range, or the sentence cannot be read.
            DataError: the model cannot be loaded.
        """
        check_prompts(NAME, "goal", (self.goal,))
        check_number(f"reward.{NAME}.quantile", self.quantile, 0.51, 0.999)
        check_count(f"reward.{NAME}.calibration", self.calibration, 2, 10_000_000, "a number of scores")
        if self.threshold is not None:
            check_number(f"reward.{NAME}.threshold", self.threshold, -1.0, 1.0)
        given = None if self.threshold is None else (-2.0, self.threshold)  # of the window only the upper end counts
        window = CalibratedWindow(self.calibration, (1.0 - self.quantile, self.quantile), given, NAME)
        settings = repr((self.quantile, self.calibration, self.threshold))
        return language_reward(NAME, self, (self.goal,), lambda _: ThresholdTerm(window), sim, settings)


class ThresholdTerm:
    """1 or -1; a `SceneTerm`. No value is valid before the threshold is found.

    Args:
        window: its upper end is the threshold.
    """

    notes_width = 0
    judges_action = False
    obs_keys: tuple[str, ...] = ()

    def __init__(self, window: CalibratedWindow) -> None:
        self._window = window

    def notes(self, transition: SimTransition) -> Tensor:
        """See `SceneTerm.notes`: none."""
        return torch.zeros(len(transition.step.reward), 0)

    def see(self, outputs: Tensor, notes: Tensor) -> None:
        """See `SceneTerm.see`.

        Raises:
            ConfigError: see `CalibratedWindow.see`.
        """
        self._window.see(outputs[:, 0])

    def value(self, outputs: Tensor, notes: Tensor) -> Valued:
        """See `SceneTerm.value`."""
        found = self._window.window
        if found is None:
            none = torch.zeros(len(outputs))
            return Valued(none, none.bool())
        return Valued(thresholded(outputs[:, 0], found[1]), torch.ones(len(outputs), dtype=torch.bool))

    def forget(self, envs: Tensor) -> None:
        """See `SceneTerm.forget`: nothing is remembered of an episode."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `SceneTerm.state`."""
        return self._window.state()

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `SceneTerm.load`."""
        self._window.load(state)
