"""Pictures that carry step and env of a walk, for tests of which picture an answer belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.rewards.source import SimTransition
from tests.kits.scoring_kit import SHAPE, answers_of, pictures_of


class NumberedScenes:
    """The picture of env n at the t-th step of a walk, counted from 0, has the number t * N + n; a `PictureFeed`.

    Args:
        sim: a walk with a tape.
    """

    name = "numbered"
    shape = SHAPE

    def __init__(self, sim: Any) -> None:
        self._sim = sim

    def visible(self, transition: SimTransition) -> Tensor:
        return torch.ones(self._sim.num_envs, dtype=torch.bool)

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        return pictures_of(((len(self._sim.tape) - 1) * self._sim.num_envs + envs).numpy())


def number_of(picture: NDArray[np.uint8]) -> int:
    """Number of a picture."""
    return int(answers_of(picture[None])[0, 0])


def clip_numbers(step: int, env: int, began: int, num_envs: int, frames: int, gap: int) -> list[int]:
    """Numbers of the frames of a clip that ends at a step, of an episode with its first picture at step `began`."""
    return [max(step - gap * k, began) * num_envs + env for k in range(frames - 1, -1, -1)]
