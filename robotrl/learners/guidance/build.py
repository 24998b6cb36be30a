"""Builds who suggests actions, from the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.prompted import PromptedSuggester
from robotrl.learners.guidance.recorder import COLUMN
from robotrl.learners.guidance.suggester import Suggester
from robotrl.learners.guidance.teacher import Teacher
from robotrl.learners.learner import Setup
from robotrl.learners.replay_collector import Guide, ReplayBuffers
from robotrl.spec import VecSim


def build_suggester(cfg: GuidanceCfg, sim: VecSim, seed: int, answers: str | None = None) -> Suggester | None:
    """Build the suggester; None without guidance.

    Args:
        cfg: settings.
        sim: the training sim.
        seed: seed of the suggester.
        answers: directory of an endpoint's answers where the settings name none; None keeps them in memory only.

    Raises:
        ConfigError: a setting is out of range, or does not fit the sim.
        CapabilityError: the sim has no expert or picture.
        DataError: a policy or a directory cannot be read.
    """
    cfg.check()
    if not cfg.on:
        return None
    if cfg.by == "endpoint":
        return PromptedSuggester(replace(cfg, endpoint=cfg.endpoint.kept_in(answers)), sim)
    return Teacher(cfg, sim, seed)


def guide_of(cfg: GuidanceCfg, setup: Setup, sim: VecSim) -> Guide | None:
    """Build the guide of an off-policy learner; None without guidance.

    Raises:
        RobotrlError: see `build_suggester`.
    """
    suggester = build_suggester(cfg, sim, setup.seed, setup.answers)
    return None if suggester is None else Guide(suggester, cfg.wait_s)


def suggestion_column(cfg: GuidanceCfg, sim: VecSim) -> dict[str, tuple[int, ...]]:
    """Extras of a replay for suggestions; none without guidance."""
    return {COLUMN: sim.action_spec.shape} if cfg.on else {}


def guided_buffers(cfg: Any, setup: Setup, sim: VecSim) -> ReplayBuffers:
    """Replay buffers of a learner from its config, with the column of suggestions where it is guided."""
    return ReplayBuffers(sim, cfg.capacity, cfg.replay, setup.run, suggestion_column(cfg.guidance, sim))
