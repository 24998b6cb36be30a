"""Position of each env within the action chunk that it executes, in training and in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor


class ChunkCursor:
    """Position of each env in its action chunk."""

    def __init__(self, num_envs: int, horizon: int, action_width: int, device: torch.device) -> None:
        self.horizon = horizon
        self.chunk = torch.zeros((num_envs, horizon, action_width), device=device)
        self.position = torch.full((num_envs,), horizon, dtype=torch.int64, device=device)
        self._envs = torch.arange(num_envs, device=device)

    def due(self) -> Tensor:
        """(n,) envs that need a new chunk."""
        return torch.nonzero(self.position >= self.horizon).squeeze(1)

    def load(self, envs: Tensor, chunk: Tensor) -> None:
        """Give `envs` (n,) their new chunks (n, H, A)."""
        self.chunk[envs] = chunk
        self.position[envs] = 0

    def advance(self) -> Tensor:
        """The actions (N, A) to execute now; advances all positions."""
        actions = self.chunk[self._envs, self.position]
        self.position += 1
        return actions

    def drop(self, envs: Tensor) -> None:
        """Drop the remaining actions of the chunks of `envs`."""
        self.position[envs] = self.horizon
