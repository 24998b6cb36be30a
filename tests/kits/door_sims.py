"""Walks (see `walk_sim`) with what the adapters to other libraries read: pictures, privileged arrays, restarts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robotrl.spec import Spec, Step
from tests.kits.walk_sim import Walk

STARTS = {0: -1.0, 1: -0.5, 2: 0.0, 3: 0.5, 4: 1.0}
"""Start id to the place where its episode begins."""


class RestartWalk(Walk):
    """A walk whose envs can be restarted alone, and which knows its time limit."""

    @property
    def limit_steps(self) -> int:
        return self.limit

    def elapsed_steps(self) -> Tensor:
        return self._obs[:, 1].long()

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        self._start(envs)
        return {"walk": self._obs}


class SeenWalk(Walk):
    """A walk with a picture (4, 6, 3), all of whose bytes are 51 times the step, and a privileged array."""

    privileged = ("hidden",)

    def __init__(self, num_envs: int, seed: int = 0, limit: int = 6) -> None:
        super().__init__(num_envs, seed, limit)
        self.observation_spec = {
            "walk": Spec((2,), ("pos_x_w", "time"), ("m", "step"), (-3.0, 0.0), (3.0, limit)),
            "image": Spec((4, 6, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"),
            "hidden": Spec((1,), ("double_x_w",), ("m",), (-10.0,), (10.0,)),
        }

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        return _seen(super().reset(seed, options)["walk"])

    def step(self, actions: Tensor) -> Step:
        out = super().step(actions)
        return out._replace(obs=_seen(out.obs["walk"]), final_obs=_seen(out.final_obs["walk"]))


def _seen(walk: Tensor) -> dict[str, Tensor]:
    image = (51 * walk[:, 1]).to(torch.uint8)[:, None, None, None].expand(-1, 4, 6, 3)
    return {"walk": walk, "image": image, "hidden": 2 * walk[:, :1]}
