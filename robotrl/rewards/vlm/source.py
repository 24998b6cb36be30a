"""Shared part of rewards from pictures and language: scores every few steps, in a window found from data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_count, check_number
from robotrl.fn.language_reward import driving_synthesis
from robotrl.rewards.source import Score, SimTransition
from robotrl.rewards.vlm.encoder import load_encoder
from robotrl.rewards.vlm.pictures import picture_feed
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.spec import VecSim

RawScore = Callable[[Tensor], Tensor]
"""Similarities (n, K) of pictures to the prompts, to raw scores (n,), higher is better."""
Synthesis = Literal["none", "driving"]


class LanguageReward:
    """Reward of the similarity of each picture to sentences; a `RewardSource`.

    Every `every` steps the scene is scored, on the device of the model, while the sim waits; other steps are invalid.

    Args:
        name: name of the source in the registry, for errors.
        model: name of the model, see `robotrl.rewards.vlm.encoder`.
        prompts: K sentences.
        raw: makes raw scores of similarities.
        sim: the sim.
        view: see `picture_feed`.
        pixels: see `picture_feed`.
        every: steps from one score to the next, 1 or more.
        window: maps raw scores to 0 to 1; None leaves them as they are.
        shape: makes rewards of scores and the step, see `vehicle_state`; None takes the scores.
        text: further settings that change the score, for the identity.

    Raises:
        CapabilityError: the sim has no picture.
        ConfigError: a setting is out of range, or a prompt cannot be read.
        DataError: the model cannot be loaded.
    """

    fallback = 0.0
    end_at: float | None = None

    def __init__(
        self,
        name: str,
        model: str,
        prompts: Sequence[str],
        raw: RawScore,
        sim: VecSim,
        *,
        view: str | None,
        pixels: int,
        every: int,
        window: CalibratedWindow | None,
        shape: Callable[[Tensor, SimTransition], Tensor] | None,
        text: str,
    ) -> None:
        check_count(f"reward.{name}.every", every, 1, 100_000, "a number of steps")
        self._feed = picture_feed(sim, view, pixels, f"reward.{name}.view")
        self._encoder = load_encoder(model)
        self._texts = self._encoder.texts(prompts)
        self._raw, self._window, self._shape = raw, window, shape
        self._every, self._step = every, 0
        settings = f"{name}:{self._encoder.identity}:{self._feed.name}:{every}:{list(prompts)!r}:{text}"
        self.identity = hashlib.sha256(settings.encode()).hexdigest()

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        self._step += 1
        reward = transition.step.reward
        if self._step % self._every:
            return Score.of_now(torch.zeros_like(reward), torch.zeros_like(reward, dtype=torch.bool))
        pixels, valid = self._feed(transition)
        similarity = (self._encoder.images(pixels) @ self._texts.T).to(reward.device)
        value = self._raw(similarity)
        valid = valid & torch.isfinite(value)
        if self._window is not None:
            value, valid = self._window(value, valid)
        if self._shape is not None:
            value = self._shape(value, transition)
        return Score.of_now(torch.where(valid, value, 0.0), valid)

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`; a window that was found stays."""
        if envs.all():
            self._step = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        own = {} if self._window is None else self._window.state()
        return {"step": np.array(self._step), **own}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        self._step = int(state["step"])
        if self._window is not None:
            self._window.load(state)


def vehicle_state(sim: VecSim, max_speed_mps: float, name: str) -> Callable[[Tensor, SimTransition], Tensor]:
    """Hierarchical synthesis with the state of the ego vehicle, see `driving_synthesis`.

    Raises:
        CapabilityError: the sim observes no speed, lateral offset and heading error.
        ConfigError: the speed is out of range.
    """
    check_number(f"reward.{name}.max_speed_mps", max_speed_mps, 0.1, 100.0, "m/s")
    wanted = ("speed", "route_offset", "heading_error_sin", "heading_error_cos")
    key = next((key for key, spec in sim.observation_spec.items() if set(wanted) <= set(spec.names)), None)
    if key is None:
        raise CapabilityError(
            f"reward.{name}.synthesis is 'driving', and sim {type(sim).__name__} observes no {', '.join(wanted)}:"
            " expected a driving sim with vector observations (--sim.obs both)"
        )
    columns = [sim.observation_spec[key].names.index(one) for one in wanted]

    def shaped(semantic: Tensor, transition: SimTransition) -> Tensor:
        speed, offset, sin, cos = transition.reached[key][:, columns].T
        return driving_synthesis(
            semantic,
            speed,
            offset,
            torch.atan2(sin, cos),
            max_speed_mps=max_speed_mps,
            max_offset_m=MAX_OFFSET_M,
            max_heading_rad=MAX_HEADING_RAD,
        )

    return shaped


MAX_OFFSET_M, MAX_HEADING_RAD = 3.0, float(np.pi / 2)
"""Offset and heading error at which VLM-RL's synthesis gives nothing."""


def check_prompts(name: str, field: str, prompts: Sequence[str]) -> None:
    """Check that there is a prompt, and that each is a text.

    Raises:
        ConfigError: there is none, or one is empty.
    """
    if not prompts or not all(prompt.strip() for prompt in prompts):
        raise ConfigError(f"reward.{name}.{field} is {tuple(prompts)!r}: expected one sentence or more")
