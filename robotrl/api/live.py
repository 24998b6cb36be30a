"""Endless episodes of a sim, one step at a time, for a live viewer: no browser and no clock in here."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import CapabilityError, out_of_range, unknown
from robotrl.rollout.evaluate import Actor, Turn, at_rest
from robotrl.spec import HasInstructions, HasStateIds, Spec, Split, VecSim
from robotrl.spec.geometry import HasGeometry

BareActions = Literal["random", "zero"]
"""Actions of a sim without a policy."""
BARE_ACTIONS: tuple[BareActions, ...] = ("random", "zero")


class BareActor:
    """Random actions within the bounds (within one where there are none), or none at all.

    Args:
        spec: the sim's action spec.
        num_envs: N.
        actions: which of both.
        seed: seed of random ones.
    """

    def __init__(self, spec: Spec, num_envs: int, actions: BareActions, seed: int) -> None:
        if actions not in BARE_ACTIONS:
            raise unknown("--actions", actions, BARE_ACTIONS)
        self._rest = np.tile(at_rest(spec), (num_envs, 1))
        self._low = np.maximum(np.broadcast_to(np.asarray(spec.low, np.float32), self._rest.shape), -1e3)
        self._high = np.minimum(np.broadcast_to(np.asarray(spec.high, np.float32), self._rest.shape), 1e3)
        self._whole = spec.choices is not None
        self._random = np.random.default_rng(seed) if actions == "random" else None

    def act(self, obs: dict[str, Tensor], turn: Turn) -> Tensor:
        """Actions (N, A)."""
        if self._random is None:
            return torch.from_numpy(self._rest)
        if self._whole:
            return torch.from_numpy(self._random.integers(self._low, self._high, endpoint=True).astype(np.float32))
        return torch.from_numpy(self._random.uniform(self._low, self._high).astype(np.float32))


class EndedEpisode(NamedTuple):
    """Outcome of the last episode of an env."""

    success: bool
    ret: float
    steps: int


class LiveSession:
    """Steps a sim under an actor; episodes begin at the starts of a split, one after another, again and again.

    Args:
        sim: a sim with numbered starts that gives its geometry.
        actor: the actor, made for this sim.
        name: name of the sim, for errors.
        split: split of the starts.

    Raises:
        CapabilityError: the sim lacks `HasGeometry` or `HasStateIds`.
    """

    def __init__(self, sim: VecSim, actor: Actor, name: str, split: Split = "val") -> None:
        if not isinstance(sim, HasGeometry):
            raise CapabilityError(
                f"sim {name!r} lacks HasGeometry: nothing can be drawn live of it; robotrl view without --live shows"
                " sims with a camera"
            )
        if not isinstance(sim, HasStateIds):
            raise CapabilityError(f"sim {name!r} lacks HasStateIds: it has no numbered starts")
        self.sim, self.geometry, self.name = sim, sim, name
        self._actor, self._ids, self._starts = actor, sim.state_ids(split), sim
        self._next = 0
        self._queue: deque[int] = deque()
        n = sim.num_envs
        self.start_ids = np.full(n, -1, np.int64)
        """(N,) start id of each env's episode."""
        self.steps = np.zeros(n, np.int64)
        """(N,) steps of each env's episode so far."""
        self.returns = np.zeros(n)
        """(N,) return of each env's episode so far."""
        self.ended: list[EndedEpisode | None] = [None] * n
        """Last episode of each env that ended."""
        # random streams begin alike each time; what was queued before would be lost
        sim.reset(seed=0)
        self.reset()

    def reset(self) -> None:
        """Begin new episodes in all envs, at the next starts."""
        n = self.sim.num_envs
        self._fill()
        self._obs = self.sim.reset()
        self.start_ids[:] = [self._queue.popleft() for _ in range(n)]
        self.steps[:] = 0
        self.returns[:] = 0.0
        self._started = torch.ones(n, dtype=torch.bool, device=self.sim.device)

    def _fill(self) -> None:
        """Queue as many starts as envs could need at once."""
        missing = self.sim.num_envs - len(self._queue)
        fresh = [self._ids[(self._next + k) % len(self._ids)] for k in range(missing)]
        self._next += missing
        self._queue.extend(fresh)
        if fresh:
            self._starts.queue_states(fresh)

    def step(self) -> None:
        """Advance all envs by one control step; ended episodes are followed by new ones."""
        self._fill()
        start = torch.from_numpy(self.start_ids.copy()).to(self.sim.device)
        step = self.sim.step(self._actor.act(self._obs, Turn(self._started, start)))
        self.steps += 1
        self.returns += step.reward.cpu().numpy()
        for env in sorted(step.final_ids.tolist()):
            won = bool(step.info["success"][env])
            self.ended[env] = EndedEpisode(won, float(self.returns[env]), int(self.steps[env]))
            self.start_ids[env] = self._queue.popleft()
            self.steps[env], self.returns[env] = 0, 0.0
        self._obs, self._started = step.obs, step.terminated | step.truncated

    def instruction(self, env: int) -> str:
        """Instruction of an env's episode; "" for a sim without language."""
        return self.sim.instructions()[env] if isinstance(self.sim, HasInstructions) else ""

    def check_env(self, env: int) -> None:
        """Check the number of an env.

        Raises:
            ConfigError: there is no such env.
        """
        if not 0 <= env < self.sim.num_envs:
            raise out_of_range("env", env, f"0 to {self.sim.num_envs - 1}")
