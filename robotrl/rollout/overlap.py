"""Joins of each env's chunk to the one before it: of chunks that overlap, and of plain chunks that are late."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.spec import COMMITTED, COMMITTED_MASK, Arrays, overlap_weights


class Join(Protocol):
    """Chooses the observations that a chunk is decided on, and which of its actions are executed."""

    executed: int
    """Actions of a chunk that are executed."""

    def begin(self, envs: Tensor) -> None:
        """Begin episodes in the envs (n,)."""
        ...

    def given(self, obs: Arrays, envs: Tensor) -> Arrays:
        """Observations of the envs (n,) that the policy is given."""
        ...

    def take(self, obs: Arrays, envs: Tensor, chunk: Tensor) -> Tensor:
        """Actions (n, executed, A) to execute of new chunks (n, H, A) of the envs (n,)."""
        ...


class Aligned:
    """Plain chunks that come late, joined as on a robot; implements `Join`.

    The chunk is asked for as many control steps ahead as it takes, while the rest of the last one is executed. When it
    takes over, the actions whose time has passed are left out, so that each action is executed at its own time.

    Args:
        horizon: H, actions of a chunk that would be executed without delay.
        delay: d, control steps from an observation to the execution of the first action decided on it, below H.
    """

    def __init__(self, horizon: int, delay: int) -> None:
        self.executed = horizon - delay
        self._delay = delay

    def begin(self, envs: Tensor) -> None:
        """See `Join`; nothing is kept of a chunk."""

    def given(self, obs: Arrays, envs: Tensor) -> Arrays:
        """See `Join`."""
        return {key: value[envs] for key, value in obs.items()}

    def take(self, obs: Arrays, envs: Tensor, chunk: Tensor) -> Tensor:
        """See `Join`."""
        return chunk[:, self._delay : self._delay + self.executed]


class Overlap:
    """The rests of the last chunks of all envs; implements `Join`.

    A chunk of H actions begins at its observation. The sim says how many actions are on their way (`COMMITTED_MASK`),
    d of them; the H - D actions after those are executed, and the last D are what the next chunk has to continue.

    Args:
        num_envs: N.
        horizon: H.
        overlap: D, below H.
        action_width: A.
        device: device of the sim.
    """

    def __init__(self, num_envs: int, horizon: int, overlap: int, action_width: int, device: torch.device) -> None:
        self.steps = overlap
        self.executed = horizon - overlap
        self._rest = torch.zeros((num_envs, overlap, action_width), device=device)
        self._planned = torch.zeros(num_envs, dtype=torch.bool, device=device)
        weights = [overlap_weights(delay, overlap, overlap) for delay in range(overlap + 1)]
        self._soft = torch.tensor(weights, device=device)
        """(D + 1, D) weights by delay."""

    def begin(self, envs: Tensor) -> None:
        """See `Join`: no chunk is continued."""
        self._planned[envs] = False

    def given(self, obs: Arrays, envs: Tensor) -> Arrays:
        """Observations of the envs (n,), in which the planned actions stand behind those on their way.

        Raises:
            ConfigError: the sim does not observe its committed actions, or not as many.
        """
        rows = {key: value[envs] for key, value in obs.items()}
        mask = rows.get(COMMITTED_MASK)
        if mask is None or mask.shape[1] != self.steps:
            found = 0 if mask is None else mask.shape[1]
            raise ConfigError(f"perturb.committed_steps is {found}: expected {self.steps}, the policy's overlap")
        rest = self._rest[envs]
        committed = rows[COMMITTED].view_as(rest)
        actions = torch.where(mask[..., None] > 0, committed, rest)
        weights = torch.where(self._planned[envs][:, None], self._soft[self._delay(mask)], mask)
        actions = torch.where(weights[..., None] > 0, actions, 0.0)
        return {**rows, COMMITTED: actions.flatten(1), COMMITTED_MASK: weights}

    def take(self, obs: Arrays, envs: Tensor, chunk: Tensor) -> Tensor:
        """Keep the rests of new chunks (n, H, A) of the envs (n,); returns the actions (n, H - D, A) to execute."""
        self._rest[envs] = chunk[:, self.executed :]
        self._planned[envs] = True
        at = self._delay(obs[COMMITTED_MASK][envs])[:, None] + torch.arange(self.executed, device=chunk.device)
        return chunk.gather(1, at[..., None].expand(-1, -1, chunk.shape[2]))

    def _delay(self, mask: Tensor) -> Tensor:
        return mask.sum(1).to(torch.int64)
