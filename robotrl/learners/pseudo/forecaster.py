"""World model of other road users: a GRU for each of them that reads what the ego does and predicts its next steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from robotrl.spec.vehicle import OBSTACLE

DT_S = 0.1
"""Length of a step."""
ACCEL_MPS2, CURVATURE_PER_M = 8.0, 0.3
"""Largest acceleration and curvature that are predicted."""
FAR_M = 40.0
"""Distance that means nobody is ahead."""
BESIDE_M = 0.3
"""Room to both sides of a road user that counts as in its way."""


class AgentScenes(NamedTuple):
    """Road users of B scenes; K steps, the last one of the past being `now`."""

    ego: Tensor
    """(B, K, 4) x, y, yaw and speed of the ego."""
    ego_size: Tensor
    """(B, 2) length and width."""
    agents: Tensor
    """(B, K, M, 4) likewise of the others."""
    there: Tensor
    """(B, K, M) bool."""
    kind: Tensor
    """(B, M), 0 for an empty slot."""
    size: Tensor
    """(B, M, 2)."""


class Past(NamedTuple):
    """What the forecaster remembers of B scenes."""

    hidden: Tensor
    """(B, M, D)."""
    logits: Tensor
    """(B, M, J) scores of the modes of each road user."""


def relative(origin: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Place of `other` in the frame of `origin`, ahead and to the left, for poses (..., 3 or more)."""
    dx, dy = other[..., 0] - origin[..., 0], other[..., 1] - origin[..., 1]
    cos, sin = origin[..., 2].cos(), origin[..., 2].sin()
    return dx * cos + dy * sin, dy * cos - dx * sin


def leader_ahead(agents: Tensor, size: Tensor, there: Tensor, ego: Tensor, ego_size: Tensor) -> tuple[Tensor, Tensor]:
    """Gap to the nearest one straight ahead of each road user, the ego included, and that one's speed along.

    Args:
        agents: (B, M, 4) poses and speeds.
        size: (B, M, 2) length and width.
        there: (B, M) bool.
        ego: (B, 4).
        ego_size: (B, 2).

    Returns:
        (B, M) gap bumper to bumper, m, `FAR_M` without anybody; (B, M) speed, m/s, 0 without anybody.
    """
    everyone = torch.cat([ego[:, None], agents], dim=1)
    sizes = torch.cat([ego_size[:, None], size], dim=1)
    present = torch.cat([torch.ones_like(there[:, :1]), there], dim=1)
    ahead, left = relative(agents[:, :, None], everyone[:, None])
    gap = ahead - 0.5 * (size[:, :, None, 0] + sizes[:, None, :, 0])
    room = 0.5 * (size[:, :, None, 1] + sizes[:, None, :, 1]) + BESIDE_M
    others = ~torch.eye(agents.shape[1], dtype=torch.bool, device=agents.device)
    others = torch.cat([torch.ones_like(others[:, :1]), others], dim=1)
    counts = (ahead > 0) & (left.abs() < room) & present[:, None] & others
    gap, at = torch.where(counts, gap.clamp(min=0.0), torch.full_like(gap, FAR_M)).min(dim=2)
    turn = everyone[:, None, :, 2] - agents[:, :, None, 2]
    speed = (everyone[:, None, :, 3] * turn.cos()).gather(2, at[..., None])[..., 0]
    return gap.clamp(max=FAR_M), torch.where(gap < FAR_M, speed, torch.zeros_like(speed))


class AgentForecaster(nn.Module):
    """Steps of the other road users, each from its own past, who is ahead of it, and the ego.

    A road user drives a curvature with an acceleration; the ego's place and its displacement in the last step are
    inputs, so that a forecast reacts to what the ego does. Each has `modes` futures with probabilities, learned by
    winner-takes-all; the most probable one is the forecast. Several modes tend to tell apart what the ego will do,
    in place of reading it.

    Args:
        hidden: D, width of the GRU.
        modes: J, futures of each road user.
    """

    inputs = 18

    def __init__(self, hidden: int = 64, modes: int = 1) -> None:
        super().__init__()
        self.modes, self.width = modes, hidden
        self.embed = nn.Linear(self.inputs, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.mode = nn.Embedding(modes, hidden)
        self.score = nn.Linear(hidden, modes)
        last = nn.Linear(hidden, 2)
        with torch.no_grad():
            # whoever drives goes on at first
            last.weight *= 0.1
            last.bias.zero_()
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), last)

    def remember(self, scenes: AgentScenes, now: int) -> Past:
        """Read the steps up to `now`."""
        b, _, m, _ = scenes.agents.shape
        hidden = scenes.agents.new_zeros(b * m, self.width)
        for k in range(1, now + 1):
            hidden = self._read(scenes, k, scenes.agents[:, k - 1], scenes.agents[:, k], hidden)
        hidden = hidden.view(b, m, -1)
        return Past(hidden, self.score(hidden))

    def forecast(self, scenes: AgentScenes, past: Past, mode: Tensor, now: int, steps: int) -> Tensor:
        """Poses (B, steps + 1, M, 4) of the road users from `now` on, in a mode (B, M) each.

        The ego's poses of `scenes` from `now` to `now + steps` are what it does; the others' are read at `now` alone.
        """
        b, _, m, _ = scenes.agents.shape
        hidden = past.hidden.reshape(b * m, -1)
        plan = self.mode(mode.reshape(-1))
        before, here = scenes.agents[:, now - 1], scenes.agents[:, now]
        still = (scenes.kind == OBSTACLE)[..., None]
        poses = [here]
        for k in range(now, now + steps):
            if k > now:
                hidden = self._read(scenes, k, before, here, hidden)
            accel, curvature = torch.tanh(self.out(hidden + plan)).view(b, m, 2).unbind(-1)
            before, here = here, torch.where(still, here, _step(here, ACCEL_MPS2 * accel, CURVATURE_PER_M * curvature))
            poses.append(here)
        return torch.stack(poses, dim=1)

    def likely(self, scenes: AgentScenes, past: Past, now: int, steps: int) -> Tensor:
        """The most probable forecast (B, steps + 1, M, 4) of each road user."""
        return self.forecast(scenes, past, past.logits.argmax(dim=-1), now, steps)

    def _read(self, scenes: AgentScenes, k: int, before: Tensor, here: Tensor, hidden: Tensor) -> Tensor:
        """Memory (B M, D) after step `k`, at which the road users are at `here` (B, M, 4)."""
        ego, ego_before = scenes.ego[:, k, None], scenes.ego[:, k - 1, None]
        there = scenes.there[:, min(k, scenes.there.shape[1] - 1)] & (scenes.kind > 0)
        ahead, left = relative(here, ego)
        turn = ego[..., 2] - here[..., 2]
        moved = (ego - ego_before)[..., :2] / DT_S
        cos, sin = here[..., 2].cos(), here[..., 2].sin()
        along, across = moved[..., 0] * cos + moved[..., 1] * sin, moved[..., 1] * cos - moved[..., 0] * sin
        gap, leader_v = leader_ahead(here, scenes.size, there, scenes.ego[:, k], scenes.ego_size)
        spin = here[..., 2] - before[..., 2]
        columns = [
            here[..., 3] / 10,
            (here[..., 3] - before[..., 3]) / DT_S / 5,
            torch.atan2(spin.sin(), spin.cos()) / DT_S,
            scenes.size[..., 0] / 5,
            (scenes.kind == 1).float(),
            (scenes.kind == 2).float(),
            (scenes.kind == 3).float(),
            (ahead / 20).clamp(-2, 2),
            (left / 10).clamp(-2, 2),
            turn.cos(),
            turn.sin(),
            along / 10,
            across / 10,
            gap / 20,
            leader_v / 10,
            (here[..., 3] - leader_v) / 5 * (gap < FAR_M),
            # the time to meet who is ahead is what braking depends on
            (gap / here[..., 3].clamp(min=0.5) / 2).clamp(max=2),
            (gap < FAR_M).float(),
        ]
        inputs = torch.stack(columns, dim=-1).flatten(0, 1)
        after = self.cell(self.embed(inputs).relu(), hidden)
        return torch.where(there.flatten()[:, None], after, hidden)


def _step(car: Tensor, accel: Tensor, curvature: Tensor) -> Tensor:
    """Poses (B, M, 4) after a step with an acceleration and a curvature."""
    x, y, yaw, v = car.unbind(-1)
    after = (v + accel * DT_S).clamp(min=0.0)
    way = 0.5 * (v + after) * DT_S
    course = yaw + 0.5 * way * curvature
    return torch.stack([x + way * course.cos(), y + way * course.sin(), yaw + way * curvature, after], dim=-1)


class ForecastLoss(NamedTuple):
    """Losses of a forecaster."""

    regression: Tensor
    """Scalar: mean distance of the winning futures from the logged ones, m."""
    classification: Tensor
    """Scalar: mean cross-entropy of the modes against the winners, nats."""
    likely: Tensor
    """Scalar: mean distance of the most probable futures, m."""


def forecast_loss(model: AgentForecaster, scenes: AgentScenes, now: int) -> ForecastLoss:
    """Winner-takes-all loss over the futures of road users that can move, where they were logged."""
    b, k, m, _ = scenes.agents.shape
    steps = k - 1 - now
    past = model.remember(scenes, now)
    counts = scenes.there[:, now + 1 :] & ((scenes.kind > 0) & (scenes.kind != OBSTACLE))[:, None]
    share = counts.float()
    wide = AgentScenes(*(x.repeat_interleave(model.modes, dim=0) for x in scenes))
    again = Past(*(x.repeat_interleave(model.modes, dim=0) for x in past))
    mode = torch.arange(model.modes, device=scenes.agents.device).repeat(b)[:, None].expand(-1, m)
    future = model.forecast(wide, again, mode, now, steps)[:, 1:].view(b, model.modes, steps, m, 4)
    apart = (future[..., :2] - scenes.agents[:, None, now + 1 :, :, :2]).square().sum(-1).add(1e-6).sqrt()
    distance = (apart * share[:, None]).sum(2) / share.sum(1).clamp(min=1.0)[:, None]
    winner = distance.detach().argmin(dim=1)
    known = counts.any(dim=1).float()
    count = known.sum().clamp(min=1.0)
    surprise = -past.logits.log_softmax(-1).gather(2, winner[..., None])[..., 0]

    def mean(x: Tensor) -> Tensor:
        return (x * known).sum() / count

    chosen = past.logits.argmax(-1)
    return ForecastLoss(
        mean(distance.gather(1, winner[:, None])[:, 0]),
        mean(surprise),
        mean(distance.gather(1, chosen[:, None])[:, 0].detach()),
    )
