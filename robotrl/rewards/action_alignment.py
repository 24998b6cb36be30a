"""Conditional contrastive action alignment: does the action fit the scene, among all actions, in this context?

Found-RL (2025): sentences say what an action does; within the present context the softmax over them is compared with
the action that was taken. The margin is standardized, clipped and scaled. They use its running mean and deviation; here
both are found from the first margins and then fixed, so that equal steps have equal rewards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.fn.language_reward import alignment_margin
from robotrl.rewards.rules import ActionLimits
from robotrl.rewards.source import RewardSetup, SimTransition
from robotrl.rewards.vlm.cfg import PictureRewardCfg
from robotrl.rewards.vlm.source import LanguageReward, Valued, check_prompts, language_reward
from robotrl.rewards.vlm.window import NARROWEST
from robotrl.spec import VecSim

NAME = "action-alignment"
LIMIT, SCALE = 1.0, 0.25
"""Clip of the standardized margin, and its factor, as published."""


@dataclass(frozen=True, kw_only=True)
class ActionAlignmentCfg(PictureRewardCfg):
    """Margin of the action that was taken over all other actions that a sentence names (Found-RL)."""

    sentences: tuple[str, ...]
    """A sentences: what each anchor action does."""
    anchors: tuple[float, ...]
    """The A anchor actions one after another, in the units of the sim's action."""
    contexts: tuple[str, ...] = ()
    """Sentences that are put before those of the actions, one for each range of `context`; none: no context."""
    context: str = ""
    """Observed number that says which context holds, by the name of its element, e.g. "speed"."""
    edges: tuple[float, ...] = ()
    """Rising bounds between the ranges, one fewer than contexts."""
    temperature: float = 0.07
    """Of the softmax over the actions."""
    neighbor_distance: float = 0.3
    """Actions closer than this, in halves of their range, are no alternatives to each other."""
    calibration: int = 2048
    """Number of first margins that their mean and deviation are found from; the steps before are invalid."""
    standard: tuple[float, float] | None = None
    """Mean and deviation of the margins, instead of those found."""

    def build(self, sim: VecSim, setup: RewardSetup) -> LanguageReward:
        """Build the source.

        Raises:
            CapabilityError: the sim has no picture, or its actions are choices.
            ConfigError: a setting is out of range, or a sentence cannot be read.
            DataError: the model cannot be loaded.
        """
        check_prompts(NAME, "sentences", self.sentences)
        check_number(f"reward.{NAME}.temperature", self.temperature, 1e-4, 100.0)
        check_number(f"reward.{NAME}.neighbor_distance", self.neighbor_distance, 0.0, 100.0)
        check_count(f"reward.{NAME}.calibration", self.calibration, 2, 10_000_000, "a number of margins")
        if self.standard is not None and not (math.isfinite(sum(self.standard)) and self.standard[1] > 0):
            raise out_of_range(f"reward.{NAME}.standard", self.standard, "a mean and a deviation above 0")
        term = ActionAlignmentTerm(self, sim)
        contexts = self.contexts or ("",)
        prompts = tuple(f"{context} {one}".strip() for context in contexts for one in self.sentences)
        how = (self.temperature, self.neighbor_distance, self.calibration, self.standard)
        text = repr((self.anchors, self.context, self.edges, *how))
        return language_reward(NAME, self, prompts, lambda _: term, sim, text)


class ActionAlignmentTerm:
    """Standardized margin of the action that was taken; a `SceneTerm`. Its notes: number of context, number of action.

    Args:
        cfg: settings.
        sim: the sim.

    Raises:
        CapabilityError: the sim's actions are choices, or it does not observe the context.
        ConfigError: the numbers of sentences, anchors, contexts and edges do not fit.
    """

    notes_width = 2

    def __init__(self, cfg: ActionAlignmentCfg, sim: VecSim) -> None:
        self._limits = ActionLimits(sim, NAME)
        width, count = sim.action_spec.shape[0], len(cfg.sentences)
        if len(cfg.anchors) != count * width:
            raise ConfigError(
                f"reward.{NAME}.anchors has {len(cfg.anchors)} numbers: expected {count * width}, {count} sentences"
                f" times {width} of the action"
            )
        if len(cfg.edges) != max(len(cfg.contexts) - 1, 0) or list(cfg.edges) != sorted(set(cfg.edges)):
            raise ConfigError(
                f"reward.{NAME}.edges are {cfg.edges}: expected {max(len(cfg.contexts) - 1, 0)} rising numbers, one"
                " fewer than contexts"
            )
        anchors = torch.tensor(cfg.anchors).view(count, width) / self._limits.half_range.cpu()
        self._anchors = anchors
        self._neighbors = torch.cdist(anchors, anchors) < cfg.neighbor_distance
        self._neighbors |= torch.eye(count, dtype=torch.bool)
        self._temperature, self._edges = cfg.temperature, torch.tensor(cfg.edges)
        self._context = _observed(sim, cfg.context) if cfg.contexts else None
        self.obs_keys = () if self._context is None else (self._context[0],)
        self._seen = torch.zeros(0)
        self._calibration, self._standard = cfg.calibration, cfg.standard

    def notes(self, transition: SimTransition) -> Tensor:
        """See `SceneTerm.notes`."""
        action = (self._limits.clipped(transition.action) / self._limits.half_range).cpu()
        taken = torch.cdist(action, self._anchors).argmin(dim=1)
        context = torch.zeros_like(taken)
        if self._context is not None:
            key, column = self._context
            context = torch.bucketize(transition.obs[key][:, column].cpu().contiguous(), self._edges)
        return torch.stack([context, taken], dim=1).float()

    def _margin(self, outputs: Tensor, notes: Tensor) -> Tensor:
        context, taken = notes.long().T
        count = len(self._anchors)
        rows = torch.arange(len(outputs))
        similarity = outputs.view(len(outputs), outputs.shape[1] // count, count)[rows, context]
        return alignment_margin(similarity, taken, self._neighbors, self._temperature)

    def see(self, outputs: Tensor, notes: Tensor) -> None:
        """See `SceneTerm.see`.

        Raises:
            ConfigError: the first margins are all alike.
        """
        if self._standard is not None:
            return
        self._seen = torch.cat([self._seen, self._margin(outputs, notes)])[: self._calibration]
        if len(self._seen) == self._calibration:
            mean, deviation = float(self._seen.mean()), float(self._seen.std())
            if deviation < NARROWEST:
                raise ConfigError(
                    f"reward.{NAME}: the first {self._calibration} margins are all {mean:.4g}: expected pictures and"
                    f" sentences that the model tells apart, or reward.{NAME}.standard"
                )
            self._standard = (mean, deviation)

    def value(self, outputs: Tensor, notes: Tensor) -> Valued:
        """See `SceneTerm.value`; no value is valid before mean and deviation are found."""
        if self._standard is None:
            none = torch.zeros(len(outputs))
            return Valued(none, none.bool())
        mean, deviation = self._standard
        standardized = (self._margin(outputs, notes) - mean) / deviation
        return Valued(SCALE * standardized.clamp(-LIMIT, LIMIT), torch.ones(len(outputs), dtype=torch.bool))

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `SceneTerm.state`."""
        standard = np.array([] if self._standard is None else self._standard, np.float64)
        return {"seen": self._seen.numpy().copy(), "standard": standard}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `SceneTerm.load`."""
        self._seen = torch.from_numpy(state["seen"].copy())
        standard = [float(value) for value in state["standard"]]
        self._standard = (standard[0], standard[1]) if standard else None


def _observed(sim: VecSim, name: str) -> tuple[str, int]:
    """Key and column of an observed number."""
    vectors = {key: spec for key, spec in sim.observation_spec.items() if len(spec.shape) == 1}
    names = {one: (key, i) for key, spec in vectors.items() for i, one in enumerate(spec.names)}
    if not names:
        raise CapabilityError(
            f"reward.{NAME}.context is {name!r}, and sim {type(sim).__name__} names no observed number"
        )
    if name not in names:
        raise unknown(f"reward.{NAME}.context", name, names)
    return names[name]
