"""Synthesis of a score of the scene with the state of the vehicle or of the robot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_count, check_number, unknown
from robotrl.fn.language_reward import driving_synthesis, robot_synthesis
from robotrl.rewards.rules import ActionLimits
from robotrl.rewards.source import SimTransition
from robotrl.spec import VecSim
from robotrl.spec.vehicle import HasVehicleObs

Synthesis = Literal["none", "driving", "robot"]
SYNTHESES = ("none", "driving", "robot")
MAX_OFFSET_M, MAX_HEADING_RAD = 3.0, math.pi / 2
"""Offset and heading error at which VLM-RL's synthesis gives nothing."""


@dataclass(frozen=True, kw_only=True)
class SynthesisCfg:
    """Synthesis of a score with the state."""

    synthesis: Synthesis = "none"
    """Reward: "none", the score itself; "driving", how well speed and lane suit it, where the score is the desired
    speed; "robot", the score times how little effort the action takes."""
    max_speed_mps: float = 10.0
    """Desired speed at a score of 1, with synthesis "driving", m/s."""
    weave_m: float | None = None
    """Standard deviation of the lateral offset over the last `weave_steps` steps at which the reward is 0, with
    synthesis "driving", m; published 0.4. None: weaving costs nothing beside the offset itself."""
    weave_steps: int = 20
    """Control steps of the episode over which weaving is measured, with `weave_m`."""
    keep_negative: bool = False
    """Where the sim's own reward is negative, it is the reward of the step, with synthesis "driving" (VLM-RL: -10 at an
    end). False: the sim's own reward counts nowhere."""

    def check_synthesis(self, name: str) -> None:
        """Check the settings of source `name`.

        Raises:
            ConfigError: an unknown synthesis, a number out of range, or a setting that it does not read.
        """
        where = f"reward.{name}"
        if self.synthesis not in SYNTHESES:
            raise unknown(f"{where}.synthesis", str(self.synthesis), SYNTHESES)
        check_number(f"{where}.max_speed_mps", self.max_speed_mps, 0.1, 100.0, "m/s")
        if self.synthesis != "driving":
            for key, value in (("weave_m", self.weave_m), ("keep_negative", self.keep_negative or None)):
                if value is not None:
                    raise ConfigError(
                        f"{where}.{key} is {value}, and {where}.synthesis is {self.synthesis!r}: expected 'driving'"
                    )
        if self.weave_m is not None:
            check_number(f"{where}.weave_m", self.weave_m, 0.01, 10.0, "m")
            check_count(f"{where}.weave_steps", self.weave_steps, 2, 10_000, "a number of steps")

    @property
    def synthesis_settings(self) -> tuple[object, ...]:
        """Settings that identify the synthesis, without those that count nowhere."""
        weaving = () if self.weave_m is None else (self.weave_m, self.weave_steps)
        return self.synthesis, self.max_speed_mps, *weaving, *(("keep_negative",) if self.keep_negative else ())


class RecentOffsets:
    """Lateral offsets of the last steps of each env's episode.

    Args:
        steps: number of steps that are kept.
        num_envs: N.
    """

    def __init__(self, steps: int, num_envs: int) -> None:
        self._offset_m = torch.zeros(steps, num_envs)
        self._seen = torch.zeros(num_envs, dtype=torch.int64)

    def spread(self, offset_m: Tensor) -> Tensor:
        """Standard deviation (N,) of the offsets of the last steps, with the present ones (N,); 0 at the first step."""
        steps, envs = self._offset_m.shape
        self._offset_m[self._seen % steps, torch.arange(envs)] = offset_m
        self._seen += 1
        known = torch.arange(steps)[:, None] < self._seen
        count = known.sum(dim=0)
        mean = (self._offset_m * known).sum(dim=0) / count
        return (((self._offset_m - mean).square() * known).sum(dim=0) / count).sqrt()

    def forget(self, envs: Tensor) -> None:
        """Forget the offsets of the envs (N,) bool whose episodes are over."""
        self._seen[envs] = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State for an exact resume."""
        return {"offset_m": self._offset_m.numpy().copy(), "seen": self._seen.numpy().copy()}

    def load(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        self._offset_m[:] = torch.from_numpy(state["offset_m"])
        self._seen[:] = torch.from_numpy(state["seen"])


class Shape(NamedTuple):
    """Makes rewards of scores and of what else a step shows."""

    width: int
    """S."""
    notes: Callable[[SimTransition], Tensor]
    """(N, S) float32: what the reward depends on besides the score."""
    reward: Callable[[Tensor, Tensor], Tensor]
    """Scores (n,) in 0 to 1 and notes (n, S), to rewards (n,)."""
    offsets: RecentOffsets | None = None
    """Memory that `notes` writes and reads; None: a step's notes depend on that step alone."""

    def forget(self, envs: Tensor) -> None:
        """Forget the envs (N,) bool whose episodes are over."""
        if self.offsets is not None:
            self.offsets.forget(envs)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State for an exact resume."""
        return {} if self.offsets is None else self.offsets.state()

    def load(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        if self.offsets is not None:
            self.offsets.load(state)


def synthesis_of(cfg: SynthesisCfg, sim: VecSim, name: str) -> Shape:
    """The synthesis of a source: "none", `driving_synthesis` or `robot_synthesis`.

    Args:
        cfg: settings.
        sim: the sim.
        name: name of the source in the registry, for errors.

    Raises:
        CapabilityError: the sim observes no speed, lateral offset and heading error, or its actions are choices.
        ConfigError: see `SynthesisCfg.check_synthesis`.
    """
    cfg.check_synthesis(name)
    if cfg.synthesis == "driving":
        return _driving(cfg, sim, name)
    if cfg.synthesis == "robot":
        return _robot(sim, name)
    return Shape(0, lambda transition: torch.zeros(len(transition.step.reward), 0), lambda score, notes: score)


def _driving(cfg: SynthesisCfg, sim: VecSim, name: str) -> Shape:
    where = sim.vehicle_obs if isinstance(sim, HasVehicleObs) else None
    if where is None:
        raise CapabilityError(
            f"reward.{name}.synthesis is 'driving', and sim {type(sim).__name__} observes no speed, offset and heading"
            " of the ego: expected a driving sim with vector observations (--sim.obs both)"
        )
    names = sim.observation_spec[where.key].names
    columns = [names.index(one) for one in (where.speed, where.offset, where.heading_sin, where.heading_cos)]
    units = torch.tensor([where.speed_mps, where.offset_m, 1.0, 1.0])
    offsets = None if cfg.weave_m is None else RecentOffsets(cfg.weave_steps, sim.num_envs)

    def notes(transition: SimTransition) -> Tensor:
        found = transition.reached[where.key][:, columns].float().cpu() * units
        parts = [found]
        if offsets is not None:
            parts.append(offsets.spread(found[:, 1])[:, None])
        if cfg.keep_negative:
            parts.append(transition.step.reward.float().cpu()[:, None])
        return torch.cat(parts, dim=1)

    def reward(score: Tensor, notes: Tensor) -> Tensor:
        speed, offset, sin, cos = notes[:, : len(columns)].T
        value = driving_synthesis(
            score,
            speed,
            offset,
            torch.atan2(sin, cos),
            max_speed_mps=cfg.max_speed_mps,
            max_offset_m=MAX_OFFSET_M,
            max_heading_rad=MAX_HEADING_RAD,
        )
        if cfg.weave_m is not None:
            value = value * (1.0 - notes[:, len(columns)] / cfg.weave_m).clamp(min=0.0)
        own = notes[:, -1]
        return torch.where(own < 0, own, value) if cfg.keep_negative else value

    width = len(columns) + (cfg.weave_m is not None) + cfg.keep_negative
    return Shape(width, notes, reward, offsets)


def _robot(sim: VecSim, name: str) -> Shape:
    bounds = ActionLimits(sim, f"{name} with synthesis 'robot'")

    def notes(transition: SimTransition) -> Tensor:
        return (bounds.clipped(transition.action) / bounds.largest).square().mean(dim=1, keepdim=True)

    return Shape(1, notes, lambda score, notes: robot_synthesis(score, notes[:, 0]))
