"""A sim that fits on a page: a walk on a line whose every number can be worked out by hand.

Each env stands at x and moves by its action. Reaching `GOAL` ends the episode (success), `PIT` ends it too (failure),
and the time limit cuts it. The reward of a step is the new x. A start is a function of its id. Every step is written to
`tape`, which is what the tests compare with. Buffers are overwritten, so that whoever keeps one is found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.fn.random.counter_rng import uniform
from robotrl.spec import Spec, Split, Step

GOAL, PIT = 2.0, -2.0
SPLITS: dict[Split, range] = {"train": range(0, 1000), "val": range(1000, 1100), "test": range(1100, 1200)}


class Record(NamedTuple):
    """One step of all envs, copied."""

    obs: Tensor
    """(N, 2) before the step."""
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    next_obs: Tensor
    """(N, 2) after it, before any reset."""
    state_id: Tensor


class BareWalk:
    """The walk without capabilities.

    Args:
        num_envs: N.
        seed: of the draw of training starts.
        limit: steps of an episode.
    """

    control_dt_s = 0.1
    device = torch.device("cpu")
    buffers_are_reused = True

    def __init__(self, num_envs: int, seed: int = 0, limit: int = 6) -> None:
        self.num_envs, self.limit = num_envs, limit
        self.observation_spec = {"walk": Spec((2,), ("pos_x_w", "time"), ("m", "step"), (PIT, 0.0), (GOAL, limit))}
        self.action_spec = Spec((1,), ("step_x_w",), ("m",), (-1.0,), (1.0,))
        self.tape: list[Record] = []
        self.poison: dict[tuple[int, int], str] = {}
        """(step, env) to the field that is NaN there: "reward", "obs" or "final_obs"."""
        self._seed, self._draws = seed, 0
        self._queue: list[int] = []
        self._obs = torch.zeros(num_envs, 2)
        self._reward = torch.zeros(num_envs)
        self._ids = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        if seed is not None:
            self._seed, self._draws, self._queue = seed, 0, []
        self._start(torch.arange(self.num_envs))
        if (options or {}).get("stagger"):
            self._obs[:, 1] = (torch.arange(self.num_envs) * self.limit // self.num_envs).float()
        return {"walk": self._obs}

    def _start(self, envs: Tensor) -> None:
        for env in envs.tolist():
            if self._queue:
                start = self._queue.pop(0)
            else:
                start = int(uniform(self._seed, np.array([self._draws]), 1)[0, 0] * len(SPLITS["train"]))
                self._draws += 1
            self._ids[env] = start
            self._obs[env] = torch.tensor([(start % 5 - 2) / 2, 0.0])

    def step(self, actions: Tensor) -> Step:
        assert actions.shape == (self.num_envs, 1)
        before, ids = self._obs.clone(), self._ids.clone()
        self._obs[:, 0] += actions[:, 0].clamp(-1, 1)
        self._obs[:, 1] += 1
        self._reward[:] = self._obs[:, 0]
        success = self._obs[:, 0] >= GOAL
        terminated = success | (self._obs[:, 0] <= PIT)
        truncated = (self._obs[:, 1] >= self.limit) & ~terminated
        self.tape.append(
            Record(before, actions.clone(), self._reward.clone(), terminated, truncated, self._obs.clone(), ids)
        )
        ended = torch.nonzero(terminated | truncated).squeeze(1)
        final = {"walk": self._obs[ended].clone()}
        self._start(ended)
        for (step, env), field in self.poison.items():
            if step == len(self.tape) - 1:
                if field == "final_obs":
                    final["walk"][ended.tolist().index(env)] = float("nan")
                else:
                    (self._reward if field == "reward" else self._obs)[env] = float("nan")
        info = {"success": success, "state_id": ids}
        return Step({"walk": self._obs}, self._reward, terminated, truncated, self._final(final), ended, info)

    def _final(self, final: dict[str, Tensor]) -> dict[str, Tensor]:
        return {}

    def close(self) -> None: ...

    def as_gymnasium(self) -> Any:
        raise NotImplementedError("the tests need none")


class Walk(BareWalk):
    """The walk with every capability that learning uses."""

    has_final_obs: Literal[True] = True

    def _final(self, final: dict[str, Tensor]) -> dict[str, Tensor]:
        return final

    def state_ids(self, split: Split) -> range:
        return SPLITS[split]

    def queue_states(self, ids: Sequence[int] | np.ndarray) -> None:
        np.random.random()  # sims of others may draw from the global stream; training must not notice
        self._queue = [int(i) for i in ids]

    def get_state(self) -> dict[str, np.ndarray]:
        return {
            "obs": self._obs.numpy().copy(),
            "ids": self._ids.numpy().copy(),
            "queue": np.array(self._queue, np.int64),
            "draws": np.array([self._seed, self._draws]),
        }

    def set_state(self, state: dict[str, np.ndarray]) -> dict[str, Tensor]:
        self._obs[:] = torch.from_numpy(state["obs"])
        self._ids[:] = torch.from_numpy(state["ids"])
        self._queue = [int(i) for i in state["queue"]]
        self._seed, self._draws = (int(i) for i in state["draws"])
        return {"walk": self._obs}


def make(num_envs: int, seed: int, *, limit: int = 6, nan_step: int = -1) -> Walk:
    """The walk, as the registry makes it; at step `nan_step`, the reward of env 0 is NaN."""
    sim = Walk(num_envs, seed, limit)
    sim.poison[nan_step, 0] = "reward"
    return sim
