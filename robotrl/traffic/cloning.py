"""Cloning of a sim's own traffic: a network with several candidates for each car, RIFT's planner (PLUTO) in small.

The profile nearest to what the car did takes the regression loss, and with the line that the car took it is the label
of the scores, so that modes stay apart instead of being averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from robotrl.errors import ConfigError, check_at_least, check_number, check_positive
from robotrl.fn.planner.candidates import masked_log_softmax
from robotrl.sims.bev.traffic.learned import layout
from robotrl.traffic.decisions import Decisions
from robotrl.traffic.model import TrafficNet, usable

NEARER = 0.7 ** torch.arange(layout.PIECES)
"""Weight of each piece of a profile where profiles are compared: a car follows the first, and then decides again."""


@dataclass(frozen=True)
class CloneCfg:
    """Settings of cloning."""

    updates: int = 6000
    """Gradient steps."""
    batch: int = 512
    """Decisions in a minibatch."""
    lr: float = 2e-3
    """Learning rate of AdamW at the beginning; it falls to 0 along a cosine."""
    weight_decay: float = 1e-4
    """Weight decay of AdamW."""
    profile_weight: float = 1.0
    """Weight of the profiles' loss beside that of the scores."""
    held_out: float = 0.1
    """Fraction of the decisions that are held out: the last ones."""
    temperature: float = 1.0
    """Temperature at which cars draw candidates; 0: they take the best. 0 to 2."""
    seed: int = 0
    """Seed of initial parameters, anchors and minibatches."""

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value out of range.
        """
        check_at_least("updates", self.updates, 1)
        check_at_least("batch", self.batch, 1)
        check_positive("lr", self.lr)
        check_number("weight_decay", self.weight_decay, 0.0, 1.0)
        check_number("profile_weight", self.profile_weight, 0.0, 100.0)
        check_number("held_out", self.held_out, 0.01, 0.5)
        check_number("temperature", self.temperature, 0.0, 2.0)


class CloneLosses(NamedTuple):
    """Result of `clone_losses`."""

    loss: Tensor
    score_loss: Tensor
    """Cross-entropy of the candidate that the car took, nats."""
    profile_error: Tensor
    """Mean absolute error of the nearest profile, m/s^2."""
    accuracy: Tensor
    """Fraction of decisions whose candidate has the best score."""


class Cloned(NamedTuple):
    """Result of `clone`."""

    net: TrafficNet
    metrics: dict[str, float]
    """Of the held-out decisions."""


def nearest_mode(profiles: Tensor, profile: Tensor) -> Tensor:
    """Mode (B,) whose profile is nearest.

    Args:
        profiles: (B, MODES, PIECES) m/s^2.
        profile: (B, PIECES).
    """
    return ((profiles - profile[:, None]) * NEARER).square().sum(dim=-1).argmin(dim=1)


def clone_losses(net: TrafficNet, inputs: Tensor, line: Tensor, profile: Tensor, profile_weight: float) -> CloneLosses:
    """Losses of a batch of decisions; see the module.

    Args:
        net: the network.
        inputs: (B, layout.INPUT).
        line: (B,) int64, the line taken.
        profile: (B, PIECES) acceleration, m/s^2.
        profile_weight: weight of the profiles' loss.
    """
    scores, profiles = net(inputs)
    mode = nearest_mode(profiles.detach(), profile)
    candidate = line * layout.MODES + mode
    score_loss = -masked_log_softmax(scores, usable(inputs)).gather(1, candidate[:, None]).mean()
    taken = profiles[torch.arange(len(mode)), mode]
    profile_loss = F.smooth_l1_loss(taken, profile)
    return CloneLosses(
        score_loss + profile_weight * profile_loss,
        score_loss.detach(),
        (taken - profile).abs().mean().detach(),
        (scores.argmax(dim=1) == candidate).float().mean(),
    )


def anchors_of(profiles: Tensor, generator: torch.Generator, rounds: int = 30) -> Tensor:
    """Anchors (MODES, PIECES) of profiles (D, PIECES) by k-means, the hardest braking first.

    The first anchors are drawn far from each other (k-means++, Arthur and Vassilvitskii 2007), so that rare hard
    braking has its own.
    """
    profiles = profiles * NEARER
    centers = profiles[torch.randint(len(profiles), (1,), generator=generator)]
    while len(centers) < layout.MODES:
        square = torch.cdist(profiles, centers).min(dim=1).values.square()
        if float(square.sum()) == 0.0:
            raise ConfigError(f"decisions have {len(centers)} different profiles: expected {layout.MODES} or more")
        centers = torch.cat([centers, profiles[torch.multinomial(square, 1, generator=generator)]])
    for _ in range(rounds):
        nearest = torch.cdist(profiles, centers).argmin(dim=1)
        for k in range(layout.MODES):
            if (nearest == k).any():
                centers[k] = profiles[nearest == k].mean(dim=0)
    return (centers / NEARER)[centers.mean(dim=1).argsort()]


def clone(decisions: Decisions, cfg: CloneCfg, progress: Callable[[float], None] = lambda loss: None) -> Cloned:
    """Train a network on decisions.

    Args:
        decisions: from `record_decisions`.
        cfg: settings.
        progress: called after each update with its loss.

    Raises:
        ConfigError: a value out of range, or too few decisions.
    """
    cfg.check()
    inputs, line, profile = (torch.from_numpy(column) for column in decisions)
    test = max(round(cfg.held_out * len(line)), 1)
    if len(line) - test < layout.MODES:
        raise ConfigError(f"decisions are {len(line)}: expected more, to clone from")
    generator = torch.Generator().manual_seed(cfg.seed)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(cfg.seed)
        net = TrafficNet()
    net.anchors.copy_(anchors_of(profile[:-test][:20_000], generator))
    net.temperature.fill_(cfg.temperature)
    optimizer = torch.optim.AdamW(net.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg.updates)
    for _ in range(cfg.updates):
        rows = torch.randint(len(line) - test, (cfg.batch,), generator=generator)
        out = clone_losses(net, inputs[rows], line[rows], profile[rows], cfg.profile_weight)
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress(float(out.loss.detach()))
    with torch.no_grad():
        out = clone_losses(net, inputs[-test:], line[-test:], profile[-test:], cfg.profile_weight)
    metrics = {name: float(value) for name, value in out._asdict().items()}
    return Cloned(net, metrics | {"decisions": float(len(line) - test), "held_out": float(test)})
