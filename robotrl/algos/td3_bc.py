"""TD3+BC: offline learning that climbs the critics and stays near the data (Fujimoto & Gu 2021, 2106.06860).

The policy is deterministic: the mean of a Gaussian or tanh-Gaussian policy, which is also what is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from robotrl.engine.engine import Context, EngineMode, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError, check_at_least, out_of_range
from robotrl.fn.bc_loss import DrawShape
from robotrl.fn.loss import masked_mse
from robotrl.fn.q_targets import bootstrap, ensemble_mse
from robotrl.learners.dataset import DatasetLearner, OffPolicyLoss
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import ActionNormalizer, check_settings, critics_of, detached, no_clip
from robotrl.policies.gaussian import GaussianPolicy
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.q import QEnsemble, smallest
from robotrl.policies.squashed import SquashedPolicy
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults

Scalar = tuple[Tensor, dict[str, Tensor]]
"""A loss, and scalars to log."""

# losses


def smoothed(mean: Tensor, noise: Tensor, std: float, clip: float) -> Tensor:
    """Add clipped noise to the target policy's chunk (Fujimoto et al. 2018, eq. 14), (B, H, A)."""
    return mean + (std * noise).clamp(-clip, clip)


def critic_loss(values: Tensor, batch: dict[str, Tensor], next_values: Tensor) -> Scalar:
    """Squared error of values (E, B) to reward + discount * min Q', with Q' (E, B) given."""
    target = bootstrap(batch["reward"], batch["discount"], smallest(next_values))
    loss = ensemble_mse(values, target)
    return loss, {"critic_loss": loss, "q": values.mean(), "target": target.mean()}


def actor_loss(mean: Tensor, value: Tensor, batch: dict[str, Tensor], alpha: float) -> Scalar:
    """Climb a critic and clone the data: |pi(s) - a|^2 - alpha Q(s, pi(s)) / |Q| (eq. 3 and 5).

    Args:
        mean: (B, H, A) of the policy.
        value: (B,) of the first critic.
        batch: rows with "chunk" (B, H, A) and "valid" (B, H).
        alpha: weight of the critic; 0 is plain cloning.
    """
    cloned = masked_mse(mean, batch["chunk"], batch["valid"])
    weight = alpha / value.detach().abs().mean().clamp(min=1e-6)
    return cloned - weight * value.mean(), {"clone_loss": cloned, "q_policy": value.mean()}


class Td3BcLoss(OffPolicyLoss):
    """Losses of critics and policy in one update; the policy and its target move in every `policy_delay`-th.

    Critics read the policy's context, without gradient: image encoders learn from the policy's loss.

    Args:
        policy: policy with a mean.
        cfg: settings.
    """

    def __init__(self, policy: Any, cfg: Td3BcCfg) -> None:
        super().__init__()
        self.policy = policy
        self.critic: QEnsemble = critics_of(policy, cfg)
        self.unit = ActionNormalizer.of_policy(policy)
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; the carry counts updates."""
        cfg = self._cfg
        ctx = self.policy.encode(part(batch, "obs/"))
        detached_ctx = ctx.detach()
        values = self.critic(detached_ctx, batch["chunk"])
        mean = self.policy.mean(ctx)
        q_pi = functional_call(self.critic, detached(self.critic), (detached_ctx, self.executed(mean)))
        losses = (
            critic_loss(values, batch, self._next_values(batch, context)),
            actor_loss(mean, q_pi[0], batch, cfg.alpha),
        )
        lr = torch.full_like(batch["reward"][0], cfg.lr)
        done = context.carry["updates"]
        due = (done % cfg.policy_delay == cfg.policy_delay - 1).to(lr.dtype)
        info = {name: value for _, infos in losses for name, value in infos.items()}
        return LossOut(losses[0][0] + losses[1][0], info, (lr * due, lr), {"updates": done + 1})

    @torch.no_grad()
    def _next_values(self, batch: dict[str, Tensor], context: Context) -> Tensor:
        """Values (E, B) of the target policy's smoothed chunk in the next state, by the target critics."""
        cfg, next_obs = self._cfg, part(batch, "next_obs/")
        ctx, target = self.policy.encode(next_obs), _TargetMean(self.policy)
        mean = functional_call(
            target, {f"policy.{k}": x for k, x in part(context.average, "policy.").items()}, next_obs
        )
        chunk = self.executed(smoothed(mean, batch["noise"], cfg.policy_noise, cfg.noise_clip))
        return functional_call(self.critic, part(context.average, "critic."), (ctx, chunk))

    def executed(self, chunk: Tensor) -> Tensor:
        """The chunk as the robot executes it: clipped to the action bounds, in the policy's units."""
        return self.unit(self.policy.to_actions(chunk))

    def groups(self) -> tuple[ParameterGroup, ...]:
        """See `OffPolicyLoss`; the averages are the target networks."""
        clip, decay = no_clip(self._cfg.max_grad_norm), 1 - self._cfg.tau
        return ParameterGroup("policy.", clip, decay), ParameterGroup("critic.", clip, decay)

    def draw(self, shape: DrawShape, generator: torch.Generator) -> dict[str, Tensor]:
        """See `OffPolicyLoss`: the noise that smooths the target."""
        return {"noise": torch.randn(shape.chunks, generator=generator)}


class _TargetMean(torch.nn.Module):
    """A policy's mean as a forward pass, for `functional_call`."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        return self.policy.mean(self.policy.encode(obs))


# config


@dataclass(frozen=True)
class Td3BcCfg(LearnerCfg):
    """Settings of TD3+BC."""

    default_policy: ClassVar[str] = "squashed"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 16})
    env_steps: ClassVar[int] = 0
    """It learns from the dataset alone."""
    updates: int = 20_000
    """Number of updates of the critics."""
    updates_per_iteration: int = 500
    """Updates between two log lines."""
    policy_delay: int = 2
    """Number of updates of the critics per update of the policy."""
    batch: int = 256
    """Chunks per update."""
    alpha: float = 2.5
    """Weight of the critic beside cloning, whatever the scale of rewards; 0 is plain cloning."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, in normalized units."""
    noise_clip: float = 0.5
    """Largest such noise."""
    lr: float = 3e-4
    """Learning rate of both networks."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.005
    """Step of the target networks towards the networks per update, 0 to 1 (Polyak averaging)."""
    num_critics: int = 2
    """Number of critics; targets are their minimum, and the policy climbs the first."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics."""
    layer_norm: bool = False
    """Layer normalization in the critics."""
    max_grad_norm: float | None = None
    """Maximum gradient norm, for each network separately. None: no clipping."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    engine: EngineMode = "auto"
    """Execution mode of updates: "compiled", "eager", or "auto", which compiles if that saves time in this run."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        check_settings(self, offline=True)
        check_at_least("algo.policy_delay", self.policy_delay, 1)
        for name in ("alpha", "policy_noise", "noise_clip"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise out_of_range(f"algo.{name}", getattr(self, name), "0 or more")

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch)

    def build(self, setup: Setup) -> DatasetLearner:
        """Build the learner."""
        self.check()
        return DatasetLearner(self, setup, partial(_loss, self))


def _loss(cfg: Td3BcCfg, policy: Any) -> Td3BcLoss:
    if not isinstance(policy, GaussianPolicy | SquashedPolicy):
        raise CapabilityError(
            f"policy {type(policy).__name__} is not deployed by a mean that has gradients: TD3+BC needs a Gaussian or"
            " tanh-Gaussian policy (kind 'gaussian' or 'squashed')"
        )
    return Td3BcLoss(policy, cfg)
