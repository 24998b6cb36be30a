"""RIFT: group-relative fine-tuning of cloned traffic in closed loop (Chen et al. 2025).

Cars drive by the network in the sim. At their decisions every candidate is driven forward for 4 s, and its return
relative to those of the same decision is its advantage; so a decision teaches by all its candidates, not only by the
one taken. Only the scoring head learns: what the candidates are stays as it was cloned, and with it the realism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import check_at_least, check_number, check_positive, unknown
from robotrl.fn.advantage import group_relative, spread_groups
from robotrl.fn.planner.candidates import CandidateLoss, dual_clip, masked_log_softmax
from robotrl.registry import make_sim
from robotrl.sims.bev.sim import DriveSim
from robotrl.sims.bev.traffic.learned.cars import Cars
from robotrl.sims.bev.traffic.learned.forward import TERMS
from robotrl.sims.bev.traffic.learned.stored import LearnedTraffic
from robotrl.traffic.model import TrafficNet, usable

Style = Literal["published", "assertive", "cautious"]
PUBLISHED = {
    "collision": -20.0,
    "collision_speed": -1.0,
    "off_road": -5.0,
    "comfort": -0.8,
    "alignment": 0.5,
    "centering": -0.6,
    "speed": 0.1,
    "time": -0.1,
}
"""Weights of the published reward, by term; see `forward.TERMS`."""
RULES = {"passed_closed": -5.0}
"""Our own term: the published reward knows no lights and no right of way."""
STYLES: dict[Style, dict[str, float]] = {
    "published": PUBLISHED | RULES,
    "assertive": PUBLISHED | RULES | {"speed": 0.3},
    "cautious": PUBLISHED | RULES | {"speed": 0.02, "near": -3.0},
}
"""Reward weights of each style: `assertive` is to raise the pace, `cautious` the headway."""


@dataclass(frozen=True)
class RiftCfg:
    """Settings of RIFT; clip range, optimizer, epochs and buffer are the paper's."""

    style: Style = "published"
    """Weights of the reward, see `STYLES`."""
    epochs: int = 16
    """Number of epochs; each fills the buffer anew with the present network, and learns from it."""
    warmup_epochs: int = 3
    """Epochs in which the learning rate rises; after them it falls to 0 along a cosine."""
    buffer: int = 4096
    """Decisions of an epoch."""
    passes: int = 4
    """Passes over the buffer in an epoch."""
    minibatch: int = 256
    """Decisions in a minibatch."""
    lr: float = 1e-4
    """Largest learning rate of AdamW."""
    clip_low: float = 0.2
    """Lower clip range of the ratio."""
    clip_high: float = 0.2
    """Upper clip range of the ratio."""
    dual_clip: float = 3.0
    """Bound of the objective at negative advantages, in advantages; above 1."""
    least_std: float = 0.05
    """Least standard deviation of the returns of a decision's candidates; other decisions teach nothing."""
    num_envs: int = 64
    """Envs that are driven at once."""
    seed: int = 0
    """Seed of starts, the ego's driver and minibatches."""

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value out of range, or an unknown style.
        """
        if self.style not in STYLES:
            raise unknown("style", str(self.style), STYLES)
        for name in ("epochs", "buffer", "passes", "minibatch", "num_envs"):
            check_at_least(name, getattr(self, name), 1)
        check_number("warmup_epochs", self.warmup_epochs, 0, self.epochs)
        check_positive("lr", self.lr)
        for name in ("clip_low", "clip_high"):
            check_number(name, getattr(self, name), 0.01, 0.99)
        check_number("dual_clip", self.dual_clip, 1.0, 100.0)
        check_number("least_std", self.least_std, 0.0, 1e6)


# loss


def weights_of(style: Mapping[str, float]) -> Tensor:
    """Weight (len(TERMS),) of each term of the forward simulation; 0 where the style has none."""
    return torch.tensor([style.get(name, 0.0) for name in TERMS])


def rift_loss(net: TrafficNet, batch: Mapping[str, Tensor], cfg: RiftCfg) -> CandidateLoss:
    """Loss of a minibatch of decisions.

    Args:
        net: the network.
        batch: "inputs" (B, INPUT), "old_log_prob" (B, G) and "advantage" (B, G).
        cfg: settings.
    """
    valid = usable(batch["inputs"])
    with torch.no_grad():
        trunk, lines = net.encode(batch["inputs"])
    log_prob = masked_log_softmax(net.head(trunk, lines), valid)
    return dual_clip(
        log_prob, batch["old_log_prob"], batch["advantage"], valid, cfg.clip_low, cfg.clip_high, cfg.dual_clip
    )


def lr_at(epoch: int, cfg: RiftCfg) -> float:
    """Learning rate of an epoch, counted from 0: a linear rise, then a cosine."""
    if epoch < cfg.warmup_epochs:
        return cfg.lr * (epoch + 1) / cfg.warmup_epochs
    rest = (epoch - cfg.warmup_epochs) / max(cfg.epochs - cfg.warmup_epochs, 1)
    return cfg.lr * 0.5 * (1.0 + math.cos(math.pi * rest))


# training


def fine_tune(
    base: LearnedTraffic, path: str, cfg: RiftCfg, progress: Callable[[dict[str, float]], None] = lambda scalars: None
) -> TrafficNet:
    """Fine-tune a stored population.

    Args:
        base: the population.
        path: its folder, from which the sim reads it.
        cfg: settings.
        progress: called after each epoch with its scalars.

    Raises:
        ConfigError: a value out of range.
    """
    cfg.check()
    net = TrafficNet()
    net.load_flat(base.weights)
    optimizer = torch.optim.AdamW(net.head.parameters(), lr=cfg.lr)
    generator = torch.Generator().manual_seed(cfg.seed)
    drive = Drive(path, cfg)
    for epoch in range(cfg.epochs):
        drive.sim.core.set_network(0, net.to_flat())
        buffer, scalars = decisions(net, drive, cfg)
        for group in optimizer.param_groups:
            group["lr"] = lr_at(epoch, cfg)
        count, first = len(buffer["inputs"]), None
        for _ in range(cfg.passes):
            # no decision is kept if no candidate differs from another
            for rows in torch.randperm(count, generator=generator).split(cfg.minibatch) if count else ():
                out = rift_loss(net, {name: x[rows] for name, x in buffer.items()}, cfg)
                optimizer.zero_grad()
                out.loss.backward()
                torch.nn.utils.clip_grad_norm_(net.head.parameters(), 1.0)
                optimizer.step()
                first = float(out.ratio_error) if first is None else first
                scalars["clip_fraction"] = float(out.clip_fraction)
        progress(scalars | {"epoch": float(epoch), "ratio_error": first or 0.0})
    drive.sim.close()
    return net


class Drive:
    """Closed loop: the sim with the cars that learn, and the rule-based driver as its ego."""

    def __init__(self, path: str, cfg: RiftCfg) -> None:
        self.sim: DriveSim = make_sim("bev/drive", cfg.num_envs, cfg.seed, traffic=(path,), obs="none")
        self.sim.reset(seed=cfg.seed)
        self.cars, self._expert = Cars(self.sim.core), self.sim.make_expert(seed=cfg.seed)
        self._started = torch.ones(cfg.num_envs, dtype=torch.bool)

    def step(self) -> None:
        """Advance all envs by one step."""
        step = self.sim.step(self._expert.act(self._started))
        self._started = step.terminated | step.truncated


def decisions(net: TrafficNet, drive: Drive, cfg: RiftCfg) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Fill a buffer with decisions of the present network, as rows of `rift_loss`; with scalars to log."""
    inputs, returns, count = list[np.ndarray](), list[Tensor](), 0
    weights = weights_of(STYLES[cfg.style])
    collisions = list[float]()
    while count < cfg.buffer:
        rolled = drive.cars.rolled()
        drive.step()
        inputs.append(rolled.cars.inputs)
        returns.append(torch.from_numpy(rolled.terms) @ weights)
        collisions.append(float(rolled.terms[..., 0].mean()) if rolled.terms.size else 0.0)
        count += len(rolled.cars.env)
    rows = torch.from_numpy(np.concatenate(inputs)[: cfg.buffer])
    returned, valid = torch.cat(returns)[: cfg.buffer], usable(rows)
    kept = spread_groups(returned, cfg.least_std, valid)
    advantage = group_relative(returned, valid)
    with torch.no_grad():
        scores, _ = net(rows)
        log_prob = masked_log_softmax(scores, valid)
    chosen = (log_prob.exp() * returned).masked_fill(~valid, 0.0).sum(dim=1)
    scalars = {
        "return": float(chosen.mean()),
        "best_return": float(returned.masked_fill(~valid, -1e9).max(dim=1).values.mean()),
        "kept": len(kept) / max(len(rows), 1),
        "collision": float(np.mean(collisions)),
    }
    buffer = {"inputs": rows, "old_log_prob": log_prob, "advantage": advantage}
    return {name: x[kept] for name, x in buffer.items()}, scalars
