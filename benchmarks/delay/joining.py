"""Plain ways to join a chunk to the one before it, for comparison with real-time chunking."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from robotrl.spec import COMMITTED, COMMITTED_MASK, ActOut, Mode, committed_specs

Join = Literal["aligned", "averaged"]


class JoinedPolicy(nn.Module):
    """A policy whose chunks overlap; implements `Policy` and `HasOverlap`.

    Args:
        base: the policy.
        overlap: D, actions that two chunks have in common, below the policy's horizon.
        join: "aligned" executes each action at its own time, whatever the last chunk planned; "averaged" mixes both
            chunks where they overlap, by the weights of guidance.
    """

    keyed_noise = True
    deploy_mode: Mode = "sample"

    def __init__(self, base: Any, overlap: int, join: Join) -> None:
        super().__init__()
        self.base = base
        self.overlap = overlap
        self.join = join
        self.observation_spec = base.observation_spec | committed_specs(base.action_spec, overlap)
        self.action_spec = base.action_spec
        self.horizon: int = base.horizon
        self.control_dt_s: float | None = base.control_dt_s

    def act(self, obs: dict[str, Tensor], state: Any = None, generator: Any = None, mode: Mode = "sample") -> ActOut:
        """Chunks (B, H, A) that begin at their observations."""
        given = {key: obs[key] for key in self.base.observation_spec}
        chunk = self.base.act(given, None, generator, mode).chunk
        if self.join == "averaged":
            planned = obs[COMMITTED].unflatten(1, (self.overlap, -1))
            weight = obs[COMMITTED_MASK][..., None]
            mixed = weight * planned + (1 - weight) * chunk[:, : self.overlap]
            chunk = torch.cat([mixed, chunk[:, self.overlap :]], dim=1)
        return ActOut(chunk, state)
