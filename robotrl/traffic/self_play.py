"""Self-play of traffic: all cars of a world learn one network by PPO, each from its own decisions.

After self-play driving at scale (Gigaflow, Cusumano-Towner et al. 2025): no demonstrations, one network for everybody,
and drivers who differ: the desired speed and the headway of a driver are inputs of the network and parts of its reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robotrl.errors import check_at_least, check_number, check_positive
from robotrl.fn.loss import ppo_clip
from robotrl.fn.planner.candidates import masked_log_softmax
from robotrl.sims.bev.traffic.learned import layout
from robotrl.traffic.model import TrafficNet, usable

Floats = NDArray[np.float32]
ACCELS_MPS2 = (-5.0, -3.0, -1.5, -0.6, 0.0, 0.6, 1.4, 2.4)
"""Acceleration of each mode, constant over its profile; what a mode is does not change."""
STOPS_MPS2 = 5.0
"""Deceleration beyond which a car cannot be expected to stop any more."""
CREEP_MPS = 0.5
"""Speed up to which a car stands where its way is closed."""
RETURN = 10.0
"""Scale of returns, which the critic's last layer is multiplied with."""


@dataclass(frozen=True)
class SelfPlayCfg:
    """Settings of self-play."""

    iterations: int = 200
    """Iterations of driving and learning."""
    steps: int = 60
    """Steps of each env in an iteration."""
    num_envs: int = 64
    """Envs that are driven at once."""
    epochs: int = 3
    """Passes over the decisions of an iteration."""
    minibatch: int = 2048
    """Decisions in a minibatch."""
    lr: float = 1e-3
    """Learning rate of Adam at the beginning; it falls to 0 linearly."""
    gamma: float = 0.95
    """Discount of a decision, 0.5 s."""
    gae_lambda: float = 0.9
    """Lambda of the advantages."""
    clip: float = 0.2
    """Clip range of the ratio."""
    entropy: float = 0.01
    """Weight of the entropy at the beginning; it falls to 0 linearly."""
    collision: float = 10.0
    """Cost of a collision, after which a car earns nothing more; a second at the desired speed is worth 1."""
    passed_closed: float = 5.0
    """Cost of a decision at which a car cannot stop any more where its way is closed: lights, signs, right of way."""
    near: float = 1.0
    """Cost of a second without any of the driver's headway."""
    discomfort: float = 0.1
    """Cost of a second at 1 m/s^2 beyond 2 m/s^2, braking or accelerating."""
    temperature: float = 1.0
    """Temperature at which the trained cars draw candidates; they learn at 1. 0 to 2."""
    save_every: int = 20
    """Iterations between two checkpoints."""
    seed: int = 0
    """Seed of starts, the ego's driver, initial parameters and minibatches."""

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: a value out of range.
        """
        for name in ("iterations", "num_envs", "epochs", "minibatch", "save_every"):
            check_at_least(name, getattr(self, name), 1)
        # a car decides every 5 steps, and needs two decisions
        check_at_least("steps", self.steps, 11)
        check_positive("lr", self.lr)
        for name in ("gamma", "gae_lambda"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        check_number("clip", self.clip, 0.01, 0.99)
        for name in ("entropy", "collision", "passed_closed", "near", "discomfort"):
            check_number(name, getattr(self, name), 0.0, 1e3)
        check_number("temperature", self.temperature, 0.0, 2.0)


# reward


def step_reward(
    v: Floats, wanted: Floats, a: Floats, gap: Floats, headway: Floats, dt_s: float, cfg: SelfPlayCfg
) -> Floats:
    """Reward (C,) of a step of cars, without collisions and closed ways.

    Args:
        v: speed, m/s.
        wanted: desired speed, m/s; a car that is faster loses what it gained.
        a: acceleration, m/s^2.
        gap: gap to the leader, m; large without.
        headway: the driver's time headway, s.
        dt_s: duration of the step.
        cfg: weights.
    """
    pace = v / np.maximum(wanted, 1.0)
    progress = np.maximum(np.minimum(pace, 2.0 - pace), -1.0)
    lacking = np.clip(1.0 - gap / np.maximum(headway * v, 1.0), 0.0, 1.0) * (v > CREEP_MPS)
    harsh = np.maximum(np.abs(a) - 2.0, 0.0)
    return (dt_s * (progress - cfg.near * lacking - cfg.discomfort * harsh)).astype(np.float32)


def cannot_stop(closed: Floats, v: Floats) -> NDArray[np.bool_]:
    """(C,) true for cars that cannot stop any more where their way is closed.

    Args:
        closed: distance from the front to that place, m; large if the way is open.
        v: speed, m/s.
    """
    return (v > CREEP_MPS) & (v * v > 2.0 * STOPS_MPS2 * np.maximum(closed, 0.1))


# advantages


class Estimate(NamedTuple):
    """Result of `advantages`, (D,) each."""

    advantage: Floats
    target: Floats
    """Value targets."""


def advantages(
    reward: Floats,
    value: Floats,
    after: NDArray[np.int64],
    crashed: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
) -> Estimate:
    """Generalized advantage estimation over decisions that are linked car by car.

    A decision with neither a next one nor a collision has no result: its advantage is 0, and only its value is used.

    Args:
        reward: (D,) reward until the next decision, in the order of time.
        value: (D,) critic.
        after: (D,) row of the car's next decision, larger than its own; -1 without.
        crashed: (D,) the car collided after this decision.
        gamma: discount of a decision.
        gae_lambda: lambda.
    """
    advantage = np.zeros_like(reward)
    for i in range(len(reward) - 1, -1, -1):
        if crashed[i]:
            advantage[i] = reward[i] - value[i]
        elif after[i] >= 0:
            later = after[i]
            advantage[i] = reward[i] + gamma * (value[later] + gae_lambda * advantage[later]) - value[i]
    return Estimate(advantage, advantage + value)


# networks and loss


def fresh_network(seed: int) -> TrafficNet:
    """Network whose modes are `ACCELS_MPS2`, with random scores, drawn from at temperature 1."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        net = TrafficNet()
    net.anchors.copy_(torch.tensor(ACCELS_MPS2)[:, None].expand(-1, layout.PIECES))
    with torch.no_grad():
        net.head.out.mul_(0.1)
    net.profile.requires_grad_(False)
    return net


class CarCritic(nn.Module):
    """Value (B,) of a car with the input (B, INPUT)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed + 1)
            self.layers = nn.Sequential(
                nn.Linear(layout.INPUT, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """Values."""
        return RETURN * self.layers(inputs)[:, 0]


class Batch(NamedTuple):
    """Decisions that teach, (B,) each but the inputs."""

    inputs: Tensor
    """(B, INPUT)."""
    candidate: Tensor
    """Candidate that the car took."""
    old_log_prob: Tensor
    advantage: Tensor
    target: Tensor


class SelfPlayLoss(NamedTuple):
    """Result of `self_play_loss`."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    """Mean squared error in units of `RETURN`."""
    entropy: Tensor
    """Nats."""
    approx_kl: Tensor
    ratio_error: Tensor
    """Largest |ratio - 1|; 0 before the first update."""


def self_play_loss(
    net: TrafficNet, critic: CarCritic, batch: Batch, clip: float, entropy_weight: float
) -> SelfPlayLoss:
    """PPO's loss of a minibatch.

    Args:
        net: the network.
        critic: the critic.
        batch: decisions; their advantages are used as they are.
        clip: clip range of the ratio.
        entropy_weight: weight of the entropy.
    """
    log_probs = log_probs_of(net, batch.inputs)
    policy = ppo_clip(_taken(log_probs, batch.candidate), batch.old_log_prob, batch.advantage, clip)
    # padded candidates have probability 0 and the entry 0
    entropy = -(log_probs.exp() * log_probs).masked_fill(~usable(batch.inputs), 0.0).sum(dim=1).mean()
    value_loss = ((critic(batch.inputs) - batch.target) / RETURN).square().mean()
    loss = policy.loss - entropy_weight * entropy + value_loss
    return SelfPlayLoss(
        loss, policy.loss.detach(), value_loss.detach(), entropy.detach(), policy.approx_kl, policy.ratio_error
    )


def log_probs_of(net: TrafficNet, inputs: Tensor) -> Tensor:
    """Log-probabilities (B, G) of the candidates; 0 for those on lines that a car cannot take."""
    return masked_log_softmax(net.head(*net.encode(inputs)), usable(inputs))


@torch.no_grad()
def taken_log_prob(net: TrafficNet, inputs: Tensor, candidate: Tensor) -> Tensor:
    """Log-probability (B,) of the candidates that the cars took."""
    return _taken(log_probs_of(net, inputs), candidate)


def _taken(log_probs: Tensor, candidate: Tensor) -> Tensor:
    return log_probs.gather(1, candidate[:, None])[:, 0]
