"""A sim in which a cue of the first step must be remembered: no policy without memory succeeds in more than half of it.

The first observation shows the cue, -1 or 1; the others show 0, and how many steps have passed. In the last step, the
reward is 1 minus the distance of the action from the cue, and the sign of the action decides success; every other step
has no reward. Cues follow from start ids: those of even ids are -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from robotrl.fn.random.counter_rng import uniform
from robotrl.spec import Spec, Split, Step

SPLITS: dict[Split, range] = {"train": range(0, 1000), "val": range(1000, 1100), "test": range(1100, 1200)}


class Cue:
    """The cue.

    Args:
        num_envs: N.
        seed: of the draw of training starts.
        steps: steps of an episode; those after the first do not show the cue.
    """

    control_dt_s = 0.1
    device = torch.device("cpu")
    buffers_are_reused = False
    has_final_obs: Literal[True] = True

    def __init__(self, num_envs: int, seed: int = 0, steps: int = 5) -> None:
        self.num_envs, self.steps = num_envs, steps
        bounds = (-1.0, 0.0), (1.0, float(steps))
        self.observation_spec = {"seen": Spec((2,), ("cue", "passed"), ("1", "step"), *bounds)}
        self.action_spec = Spec((1,), ("answer",), ("1",), (-1.0,), (1.0,))
        self._seed, self._draws, self._queue = seed, 0, list[int]()
        self._ids, self._passed = torch.zeros(num_envs, dtype=torch.int64), torch.zeros(num_envs)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        if seed is not None:
            self._seed, self._draws, self._queue = seed, 0, []
        self._start(list(range(self.num_envs)))
        return self._observe()

    def step(self, actions: Tensor) -> Step:
        self._passed += 1
        ended, answer, cue = self._passed >= self.steps, actions[:, 0], self._cue()
        reward = torch.where(ended, 1 - (answer - cue).abs(), torch.zeros(self.num_envs))
        info = {"success": ended & (answer * cue > 0), "state_id": self._ids.clone()}
        rows = torch.nonzero(ended).squeeze(1)
        final = {key: value[rows] for key, value in self._observe().items()}
        self._start(rows.tolist())
        return Step(self._observe(), reward, ended, torch.zeros_like(ended), final, rows, info)

    def _cue(self) -> Tensor:
        return 2.0 * (self._ids % 2) - 1

    def _start(self, envs: Sequence[int]) -> None:
        for env in envs:
            self._ids[env] = self._queue.pop(0) if self._queue else self._drawn()
            self._passed[env] = 0

    def _drawn(self) -> int:
        self._draws += 1
        return int(uniform(self._seed, np.array([self._draws]), 1)[0, 0] * len(SPLITS["train"]))

    def _observe(self) -> dict[str, Tensor]:
        cue = torch.where(self._passed == 0, self._cue(), torch.zeros(self.num_envs))
        return {"seen": torch.stack([cue, self._passed], 1)}

    def close(self) -> None: ...

    def as_gymnasium(self) -> Any:
        raise NotImplementedError("the tests need none")

    def state_ids(self, split: Split) -> range:
        return SPLITS[split]

    def queue_states(self, ids: Sequence[int] | np.ndarray) -> None:
        self._queue = [int(i) for i in ids]

    def get_state(self) -> dict[str, Any]:
        queue = np.array(self._queue, np.int64)
        draws = np.array([self._seed, self._draws])
        return {"ids": self._ids.numpy().copy(), "passed": self._passed.numpy().copy(), "queue": queue, "draws": draws}

    def set_state(self, state: dict[str, Any]) -> dict[str, Tensor]:
        self._ids[:], self._passed[:] = torch.from_numpy(state["ids"]), torch.from_numpy(state["passed"])
        self._queue = [int(i) for i in state["queue"]]
        self._seed, self._draws = (int(i) for i in state["draws"])
        return self._observe()


def make(num_envs: int, seed: int, *, steps: int = 5) -> Cue:
    """The cue, as the registry makes it."""
    return Cue(num_envs, seed, steps)
