"""Scores in a window found from data, then joined with the state of the vehicle or of the robot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import check_count
from robotrl.rewards.source import SimTransition
from robotrl.rewards.vlm.cfg import PictureRewardCfg
from robotrl.rewards.vlm.similarity import PromptVectors
from robotrl.rewards.vlm.source import LanguageReward, Valued, language_reward
from robotrl.rewards.vlm.synthesis import Shape, SynthesisCfg, synthesis_of
from robotrl.rewards.vlm.window import CalibratedWindow, check_quantiles
from robotrl.spec import VecSim

RawScore = Callable[[Tensor], Tensor]
"""Similarities (n, K) of pictures to the prompts, to raw scores (n,), higher is better."""


@dataclass(frozen=True, kw_only=True)
class WindowedRewardCfg(PictureRewardCfg, SynthesisCfg):
    """Window of the raw score, and its synthesis with the state."""

    calibration: int = 2048
    """Number of first scores that the window is found from; the steps before are invalid."""
    quantiles: tuple[float, float] = (0.05, 0.95)
    """Quantiles of these scores at which the window begins and ends, 0 to 1. Scores above count as 1: where most scenes
    are good, e.g. a road that is clear most of the time, let it end at a lower one."""
    window: tuple[float, float] | None = None
    """Window of the raw score, which becomes 0 to 1, instead of the one found."""

    def built(
        self,
        name: str,
        prompts: tuple[str, ...],
        raw: Callable[[PromptVectors], RawScore],
        sim: VecSim,
        text: str,
    ) -> LanguageReward:
        """The source.

        Args:
            name: name of the source in the registry.
            prompts: K sentences.
            raw: makes the function of raw scores, for the vectors of the prompts.
            sim: the sim.
            text: further settings that change the score, for the identity.

        Raises:
            CapabilityError: the sim has no picture, or lacks what the synthesis needs.
            ConfigError: a setting is out of range, or a prompt cannot be read.
            DataError: the model cannot be loaded.
        """
        check_count(f"reward.{name}.calibration", self.calibration, 2, 10_000_000, "a number of scores")
        check_quantiles(f"reward.{name}.quantiles", self.quantiles)
        window = CalibratedWindow(self.calibration, self.quantiles, self.window, name)
        shape = synthesis_of(self, sim, name)
        settings = (text, self.calibration, self.quantiles, self.window, *self.synthesis_settings)

        def term(vectors: PromptVectors) -> WindowedTerm:
            return WindowedTerm(raw(vectors), window, shape)

        return language_reward(name, self, prompts, term, sim, repr(settings))


class WindowedTerm:
    """Raw score in a window, joined with the state; a `SceneTerm`.

    Args:
        raw: see `RawScore`.
        window: the window.
        shape: the synthesis.
    """

    judges_action = False

    def __init__(self, raw: RawScore, window: CalibratedWindow, shape: Shape) -> None:
        self._raw, self._window, self._shape = raw, window, shape
        self.notes_width = shape.width
        self.obs_keys: tuple[str, ...] = ()

    def notes(self, transition: SimTransition) -> Tensor:
        """See `SceneTerm.notes`."""
        return self._shape.notes(transition)

    def see(self, outputs: Tensor, notes: Tensor) -> None:
        """See `SceneTerm.see`.

        Raises:
            ConfigError: see `CalibratedWindow.see`.
        """
        self._window.see(self._raw(outputs))

    def value(self, outputs: Tensor, notes: Tensor) -> Valued:
        """See `SceneTerm.value`; no value is valid before the window is found."""
        score = self._window(self._raw(outputs))
        if score is None:
            none = torch.zeros(len(outputs))
            return Valued(none, none.bool())
        return Valued(self._shape.reward(score, notes), torch.ones(len(outputs), dtype=torch.bool))

    def forget(self, envs: Tensor) -> None:
        """See `SceneTerm.forget`; the window stays."""
        self._shape.forget(envs)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `SceneTerm.state`."""
        return self._window.state() | self._shape.state()

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `SceneTerm.load`."""
        self._window.load(state)
        self._shape.load(state)
