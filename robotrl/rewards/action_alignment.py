"""Conditional contrastive action alignment: does the action fit the scene, among all actions, in this context?

Found-RL (2025): sentences say what an action does; within the present context the softmax over them is compared with
the action that was taken. The margin is standardized, clipped and scaled. They use its running mean and deviation; here
both are found from the first margins and then fixed, so that equal steps have equal rewards.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.fn.language_reward import alignment_margin
from robotrl.fn.text.words import UnknownWordError
from robotrl.rewards.rules import ActionLimits
from robotrl.rewards.source import RewardSetup, SimTransition
from robotrl.rewards.vlm.actions import require_action_captions
from robotrl.rewards.vlm.cfg import PictureRewardCfg
from robotrl.rewards.vlm.source import LanguageReward, Valued, check_prompts, language_reward
from robotrl.rewards.vlm.window import NARROWEST
from robotrl.spec import VecSim
from robotrl.spec.captions import ActionCaptions

NAME = "action-alignment"
LIMIT, SCALE = 1.0, 0.25
"""Clip of the standardized margin, and its factor, as published."""
TEMPERATURE = 0.07
CONTEXT_FIELDS = (("contexts", "context", "edges"), ("commands", "command", "command_edges"))
"""Settings of the first and of the second number that a context depends on."""


@dataclass(frozen=True, kw_only=True)
class ActionAlignmentCfg(PictureRewardCfg):
    """Margin of the action that was taken over all other actions that a sentence names (Found-RL)."""

    sentences: tuple[str, ...] = ()
    """A sentences: what each anchor action does. None: sentences, anchors and contexts are those of the sim's captions
    of actions, which `robotrl reward train clip SIM --actions` trains on."""
    anchors: tuple[float, ...] = ()
    """The A anchor actions one after another, in the units of the sim's action."""
    contexts: tuple[str, ...] = ()
    """Sentences that are put before those of the actions, one for each range of `context`; none: no context."""
    context: str = ""
    """Observed number that says which context holds, by the name of its element, e.g. "speed", or KEY/ROW/NAME in an
    observed table, e.g. "route/4/y"."""
    edges: tuple[float, ...] = ()
    """Rising bounds between the ranges, one fewer than contexts."""
    commands: tuple[str, ...] = ()
    """Sentences between context and action, one for each range of `command`; none: no command."""
    command: str = ""
    """Observed number that says which command holds; see `context`."""
    command_edges: tuple[float, ...] = ()
    """Rising bounds between its ranges, one fewer than commands."""
    temperature: float = TEMPERATURE
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
        if not self.sentences:
            return of_captions(self, require_action_captions(sim).action_captions).build(sim, setup)
        check_prompts(NAME, "sentences", self.sentences)
        check_number(f"reward.{NAME}.temperature", self.temperature, 1e-4, 100.0)
        check_number(f"reward.{NAME}.neighbor_distance", self.neighbor_distance, 0.0, 100.0)
        check_count(f"reward.{NAME}.max_age", self.max_age, 1, 100_000, "a number of steps")
        check_count(f"reward.{NAME}.calibration", self.calibration, 2, 10_000_000, "a number of margins")
        if self.standard is not None and not (math.isfinite(sum(self.standard)) and self.standard[1] > 0):
            raise out_of_range(f"reward.{NAME}.standard", self.standard, "a mean and a deviation above 0")
        term = ActionAlignmentTerm(self, sim)
        parts = itertools.product(self.contexts or ("",), self.commands or ("",), self.sentences)
        prompts = tuple(" ".join(part for part in one if part) for one in parts)
        how = (self.temperature, self.neighbor_distance, self.calibration, self.standard)
        contexts = (self.context, self.edges, self.command, self.command_edges)
        text = repr((self.anchors, *contexts, *how))
        try:
            return language_reward(NAME, self, prompts, lambda _: term, sim, text)
        except UnknownWordError as error:
            raise ConfigError(f"{error} (`robotrl reward train clip SIM --actions` teaches a sim's actions)") from error


def of_captions(cfg: ActionAlignmentCfg, captions: ActionCaptions) -> ActionAlignmentCfg:
    """The settings with sentences, anchors and contexts of a sim's captions, in their first wordings.

    Raises:
        ConfigError: the settings have some of these, but no sentences; or there are more contexts than two.
    """
    for field in ("anchors", "contexts", "edges", "commands", "command_edges"):
        if vars(cfg)[field]:
            raise ConfigError(
                f"reward.{NAME}.{field} is {vars(cfg)[field]}, without sentences: expected both, or neither"
            )
    if len(captions.contexts) > 2:
        raise ConfigError(
            f"reward.{NAME}: the sim's actions have {len(captions.contexts)} contexts: expected 2 at most"
        )
    found: dict[str, Any] = {}
    for (one, observed, edges), context in zip(CONTEXT_FIELDS, captions.contexts, strict=False):
        found |= {one: tuple(x.train[0] for x in context.classes), observed: context.observed, edges: context.edges}
    return replace(
        cfg,
        sentences=tuple(action.train[0] for action in captions.actions),
        anchors=tuple(x for anchor in captions.anchors for x in anchor),
        **found,
    )


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
    judges_action = True

    def __init__(self, cfg: ActionAlignmentCfg, sim: VecSim) -> None:
        self._limits = ActionLimits(sim, NAME)
        width, count = sim.action_spec.shape[0], len(cfg.sentences)
        if len(cfg.anchors) != count * width:
            raise ConfigError(
                f"reward.{NAME}.anchors has {len(cfg.anchors)} numbers: expected {count * width}, {count} sentences"
                f" times {width} of the action"
            )
        self._contexts = [
            ContextRange(*_observed(sim, observed, vars(cfg)[observed]), torch.tensor(cfg_edges), len(sentences))
            for sentences, observed, cfg_edges in (
                (cfg.contexts, "context", _checked("edges", cfg.edges, "contexts", len(cfg.contexts))),
                (cfg.commands, "command", _checked("command_edges", cfg.command_edges, "commands", len(cfg.commands))),
            )
            if sentences
        ]
        anchors = torch.tensor(cfg.anchors).view(count, width) / self._limits.half_range.cpu()
        self._anchors = anchors
        self._neighbors = torch.cdist(anchors, anchors) < cfg.neighbor_distance
        self._neighbors |= torch.eye(count, dtype=torch.bool)
        self._temperature = cfg.temperature
        self.obs_keys = tuple(one.key for one in self._contexts)
        self._seen = torch.zeros(0)
        self._calibration, self._standard = cfg.calibration, cfg.standard

    def notes(self, transition: SimTransition) -> Tensor:
        """See `SceneTerm.notes`."""
        action = (self._limits.clipped(transition.action) / self._limits.half_range).cpu()
        taken = torch.cdist(action, self._anchors).argmin(dim=1)
        context = torch.zeros_like(taken)
        for one in self._contexts:
            number = transition.obs[one.key].flatten(1)[:, one.column].cpu().contiguous()
            context = context * one.ranges + torch.bucketize(number, one.edges)
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

    def forget(self, envs: Tensor) -> None:
        """See `SceneTerm.forget`: nothing is remembered of an episode."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `SceneTerm.state`."""
        standard = np.array([] if self._standard is None else self._standard, np.float64)
        return {"seen": self._seen.numpy().copy(), "standard": standard}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `SceneTerm.load`."""
        self._seen = torch.from_numpy(state["seen"].copy())
        standard = [float(value) for value in state["standard"]]
        self._standard = (standard[0], standard[1]) if standard else None


class ContextRange(NamedTuple):
    """An observed number, and its ranges."""

    key: str
    column: int
    """Of the observation, flattened."""
    edges: Tensor
    ranges: int
    """Number of ranges."""


def _checked(field: str, edges: tuple[float, ...], of: str, count: int) -> tuple[float, ...]:
    if len(edges) != max(count - 1, 0) or list(edges) != sorted(set(edges)):
        raise ConfigError(
            f"reward.{NAME}.{field} are {edges}: expected {max(count - 1, 0)} rising numbers, one fewer than {of}"
        )
    return edges


def _observed(sim: VecSim, field: str, name: str) -> tuple[str, int]:
    """Key of an observed number, and its column in the flattened observation."""
    names: dict[str, tuple[str, int]] = {}
    for key, spec in sim.observation_spec.items():
        if len(spec.shape) == 1:
            names |= {one: (key, i) for i, one in enumerate(spec.names)}
        if len(spec.shape) == 2:
            rows, columns = range(spec.shape[0]), list(enumerate(spec.names))
            names |= {f"{key}/{row}/{one}": (key, row * len(columns) + i) for row in rows for i, one in columns}
    if not names:
        raise CapabilityError(
            f"reward.{NAME}.{field} is {name!r}, and sim {type(sim).__name__} names no observed number"
        )
    if name not in names:
        raise unknown(f"reward.{NAME}.{field}", name, names)
    return names[name]
