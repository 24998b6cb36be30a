"""Discriminator of a planner's candidates: scores each trajectory in the scene that the planner observes (RAD-2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError, check_at_least
from robotrl.policies.base import NetworkPolicy
from robotrl.policies.networks.mlp import Mlp
from robotrl.policies.networks.scene import HEADS, CrossAttention


class Discriminator(nn.Module):
    """Scores the candidates of a scene.

    An MLP makes a token of each point of a candidate. A learned query attends to the candidate's points, then to the
    scene: the planner's context as one token, and the rows of all lists, such as road users, lanes and the route, if
    the planner has a scene encoder. The encoders begin as copies of the planner's, and are trained on their own.

    Args:
        planner: the planner.
        width: width of tokens and query, a multiple of 4.
        rounds: rounds of attention to the scene, 1 or more.
        point_width: consecutive elements of an action that are one point.

    Raises:
        ConfigError: a size out of range, or actions that are no whole number of points.
    """

    def __init__(self, planner: NetworkPolicy, width: int, rounds: int, point_width: int) -> None:
        super().__init__()
        check_at_least("policy.rounds", rounds, 1)
        check_at_least("policy.point_width", point_width, 1)
        if width < HEADS or width % HEADS:
            raise ConfigError(f"policy.width is {width}: expected a multiple of {HEADS}, one part for each head")
        if planner.action_width % point_width:
            raise ConfigError(
                f"policy.point_width is {point_width}, and an action has {planner.action_width} elements: expected a"
                f" divisor, e.g. {planner.action_width}, which makes an action one point"
            )
        self._point_width = point_width
        self.encoder = planner.copy_encoder()
        self.context = nn.Linear(planner.context_width, width)
        scene_width = self.encoder.scene_width
        self.rows = None if scene_width is None else nn.Linear(scene_width, width)
        self.points = Mlp(point_width, (width,), width)
        count = planner.horizon * planner.action_width // point_width
        self.places = nn.Parameter(0.02 * torch.randn(count, width))
        self.query = nn.Parameter(0.02 * torch.randn(1, width))
        self.read_points = CrossAttention(width)
        self.read_scene = nn.ModuleList(CrossAttention(width) for _ in range(rounds))
        self.score = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))

    def forward(self, obs: dict[str, Tensor], chunks: Tensor) -> Tensor:
        """Scores (B, M), logits of the choice, of normalized candidates (B, M, H, A) on observations (B, ...)."""
        batch, count = chunks.shape[:2]
        points = self.points(chunks.reshape(batch * count, -1, self._point_width)) + self.places
        there = torch.zeros_like(points[..., 0], dtype=torch.bool)
        query = self.read_points(self.query.expand(batch * count, -1), points, there)
        tokens, absent = self._scene(obs)
        x = query.view(batch, count, -1)
        for block in self.read_scene:
            # a ModuleList knows its members as modules alone
            assert isinstance(block, CrossAttention)
            x = block.attend(x, tokens, absent)
        return self.score(x)[..., 0].to(chunks.dtype)

    def _scene(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Tokens (B, T, width) of the scene, and (B, T) bool which of them are absent."""
        context = self.context(self.encoder(obs))[:, None]
        present = torch.zeros_like(context[..., 0], dtype=torch.bool)
        listed = self.encoder.scene_tokens(obs)
        if self.rows is None or listed is None:
            return context, present
        tokens, absent = listed
        return torch.cat([context, self.rows(tokens)], dim=1), torch.cat([present, absent], dim=1)
