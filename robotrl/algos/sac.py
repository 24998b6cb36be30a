"""SAC: off-policy maximum-entropy actor-critic with a learned temperature (Haarnoja et al. 2018b), over chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import means, part, run_updates
from robotrl.errors import CapabilityError
from robotrl.fn.q_targets import bootstrap, ensemble_mse, soft_actor, soft_value, temperature_loss
from robotrl.learners.actor.remote import experience_of
from robotrl.learners.guidance.build import guide_of, guided_buffers
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.losses import (
    ACTION_COEF,
    MARGIN_COEF,
    actor_guidance,
    carry_of,
    critic_guidance,
    set_coefficients,
    suggested_rows,
)
from robotrl.learners.guidance.recorder import SUGGESTED
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import (
    ActionNormalizer,
    PolicyBuilder,
    UpdateToDataRatio,
    batch_rows,
    check_settings,
    critics_of,
    detached,
    no_clip,
    updates_per_call,
)
from robotrl.learners.parts import Part
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.q import QEnsemble, smallest
from robotrl.policies.squashed import SquashedPolicy
from robotrl.replay.buffer import Uniform
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults


@dataclass(frozen=True)
class SacCfg(LearnerCfg):
    """Settings of SAC."""

    default_policy: ClassVar[str] = "squashed"
    # an update follows each env step
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 4})
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 1_000_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 8
    """Env steps per env in an iteration; the updates due for them follow."""
    warmup: int = 5_000
    """Env steps before the first update; a new policy acts at random in them."""
    utd_ratio: float = 1.0
    """Update-to-data ratio: updates per env step after the warmup."""
    batch: int = 256
    """Chunks per update."""
    capacity: int = 1_000_000
    """Capacity of the replay, env steps."""
    replay: str | None = None
    """New directory of a replay on disk, which may be larger than RAM. None: in RAM and in the checkpoints."""
    lr: float = 3e-4
    """Learning rate of the policy."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    alpha_lr: float = 3e-4
    """Learning rate of the temperature."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.005
    """Step of the target critics towards the critics per update, 0 to 1 (Polyak averaging)."""
    initial_alpha: float = 1.0
    """Initial temperature: the reward equivalent of one nat of entropy."""
    target_entropy: float = -1.0
    """Target entropy, nats per element of a chunk normalized to [-1, 1]."""
    num_critics: int = 2
    """Number of critics; targets and the policy use their minimum."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics."""
    layer_norm: bool = False
    """Layer normalization in the critics."""
    max_grad_norm: float | None = None
    """Maximum gradient norm, for each network separately. None: no clipping."""
    normalize_obs: bool = True
    """Running normalization of observations, part of a new policy; a policy to start from keeps its own."""
    bf16: bool = False
    """Networks compute in bfloat16; losses and parameters stay in float32; faster only on hardware with bfloat16
    units."""
    guidance: GuidanceCfg = field(default_factory=GuidanceCfg)
    """Guidance by suggested actions, off by default; see docs/guidance.md."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for 10 to 60 s; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        check_settings(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, bf16=self.bf16)

    def build(self, setup: Setup) -> SacLearner:
        """Build the learner."""
        return SacLearner(self, setup)


# losses


class SacLoss(LossModule):
    """Losses of critics, policy and temperature, in one update.

    The policy loss uses the critics as they were before the update. Images are encoded by the policy's encoders, which
    learn from the critic loss only (Yarats et al. 2021).

    Args:
        policy: tanh-Gaussian policy.
        critic: its critics.
        cfg: settings.
    """

    def __init__(self, policy: SquashedPolicy, critic: QEnsemble, cfg: SacCfg) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.log_alpha = nn.Parameter(torch.tensor(math.log(cfg.initial_alpha)))
        self._cfg = cfg
        self._target_entropy = cfg.target_entropy * policy.horizon * policy.action_width

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg = self._cfg
        with in_bf16(cfg.bf16, batch["chunk"].device):
            target, next_log_prob = self._target(batch, context)
            ctx = self.policy.encode(part(batch, "obs/"))
            values = self.critic(ctx, batch["chunk"])
            sample = self.policy.draw_with(ctx.detach(), batch["noise"])
            q_pi = functional_call(self.critic, detached(self.critic), (ctx.detach(), sample.normalized_action))
        log_prob = sample.log_prob.flatten(1).sum(1)
        alpha = self.log_alpha.exp()
        critic_loss = ensemble_mse(values, target)
        terms = soft_actor(smallest(q_pi), log_prob, alpha)
        alpha_loss = temperature_loss(self.log_alpha, log_prob, self._target_entropy)
        info = {
            "critic_loss": critic_loss,
            "actor_loss": terms.loss,
            "q": values.mean(),
            "target": target.mean(),
            "entropy": terms.entropy,
            "alpha": alpha,
            "next_log_prob": next_log_prob.mean(),
        }
        loss = critic_loss + terms.loss + alpha_loss
        if cfg.guidance.on:
            guided, more = self._guidance(batch, context, ctx, values, q_pi)
            loss, info = loss + guided, info | more
        one = torch.ones_like(target[0])
        rates = [one * cfg.lr, one * cfg.critic_lr, one * cfg.alpha_lr]
        if len(self.policy.encoders):
            rates.append(one * cfg.critic_lr)
        return LossOut(loss, info, tuple(rates))

    def _guidance(
        self, batch: dict[str, Tensor], context: Context, ctx: Tensor, values: Tensor, q_pi: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses of suggested actions, for the critics and for the policy."""
        cfg, carry = self._cfg.guidance, context.carry
        with in_bf16(self._cfg.bf16, ctx.device):
            critic = critic_guidance(cfg, self.critic, ctx, batch, values, carry[MARGIN_COEF])
            own = ctx.detach()
            density = partial(self.policy.log_prob_of, own)
            actor = actor_guidance(cfg, density, self.critic, own, batch, q_pi, carry[ACTION_COEF])
        return critic.loss + actor.loss, critic.info | actor.info

    @torch.no_grad()
    def _target(self, batch: dict[str, Tensor], context: Context) -> tuple[Tensor, Tensor]:
        """Bootstrap targets of the critics (B,), and the log-density of the next actions."""
        ctx = self.policy.encode(part(batch, "next_obs/"))
        sample = self.policy.draw_with(ctx, batch["next_noise"])
        log_prob = sample.log_prob.flatten(1).sum(1)
        values = functional_call(self.critic, part(context.average, "critic."), (ctx, sample.normalized_action))
        value = soft_value(smallest(values), log_prob, self.log_alpha.exp())
        return bootstrap(batch["reward"], batch["discount"], value), log_prob


# update


class SacLearner(Learner):
    """Trains a tanh-Gaussian policy; see `SacCfg`.

    Raises:
        ConfigError: settings out of range.
        CapabilityError: the policy is not tanh-Gaussian.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: SacCfg, setup: Setup) -> None:
        check_settings(cfg)
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        self._made = PolicyBuilder(setup, sim, cfg.normalize_obs)
        self.policy: Any = squashed(self._made.policy, "SAC")
        critic = critics_of(self.policy, cfg)
        self._loss = SacLoss(self.policy, critic, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            groups(self.policy, cfg.max_grad_norm, cfg.tau),
            minibatch=cfg.batch,
            carry=carry_of(cfg.guidance),
            mode=cfg.engine,
            updates=setup.expected(cfg.env_steps * cfg.utd_ratio),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        guide, memory = guide_of(cfg.guidance, setup, sim), guided_buffers(cfg, setup, sim)
        self._stepper = self.experience = experience_of(
            cfg, setup, sim, self._made, self._generator, memory=memory, guide=guide
        )
        self._unit = ActionNormalizer.of_policy(self.policy)
        self._debt = UpdateToDataRatio(cfg.utd_ratio)
        self._steps = cfg.num_steps * sim.num_envs
        self.iterations = math.ceil(cfg.env_steps / self._steps)

    def iterate(self) -> dict[str, float]:
        """Run some env steps and the updates due for them."""
        self.iteration += 1
        warm = self.experience.warm
        scalars = self.experience.collect(self.cfg.num_steps)
        if warm and self.experience.memory.replay.has_chunk(self.policy.horizon):
            scalars |= self.learn(self._debt.take(self._steps))
        scalars["updates"] = float(self.updates)
        return scalars

    def learn(self, updates: int) -> dict[str, float]:
        """Run this many updates on the replay."""
        set_coefficients(self._engine.carry, self.cfg.guidance, self.env_steps)
        most = math.ceil(self._steps * self.cfg.utd_ratio) + 1
        most = UPDATES_PER_CALL * math.ceil(most / UPDATES_PER_CALL)
        most = updates_per_call(most, self.cfg.batch, self.policy.observation_spec)
        info = run_updates(self._engine, self._draw, updates, most, f"iteration {self.iteration}")
        self.updates += updates
        return means(info)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample the rows of some updates, with their noise."""
        cfg, policy = self.cfg, self.policy
        sampler = Uniform(self.experience.memory.replay)
        transitions = sampler.sample(cfg.batch, policy.horizon, cfg.gamma, self._generator, updates)
        rows = batch_rows(transitions, policy.observation_spec, self._unit)
        for name in ("noise", "next_noise"):
            rows[name] = torch.randn(rows["chunk"].shape, generator=self._generator)
        if cfg.guidance.on:
            rows[SUGGESTED] = suggested_rows(transitions, self._unit, cfg.guidance.reach)
        return rows

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {
            "networks": self._loss,
            "engine": self._engine,
            "normalizer": self._made,
            "experience": self.experience,
            "generator": self._generator,
            "owed": self._debt,
        }


def squashed(policy: Any, method: str) -> SquashedPolicy:
    """Check that a policy is tanh-Gaussian, and return it.

    Raises:
        CapabilityError: it is not.
    """
    if not isinstance(policy, SquashedPolicy):
        raise CapabilityError(
            f"policy {type(policy).__name__} lacks draw_with, reparametrised bounded actions: {method} needs a"
            " tanh-Gaussian policy (kind 'squashed')"
        )
    return policy


def groups(policy: SquashedPolicy, largest: float | None, tau: float) -> tuple[ParameterGroup, ...]:
    """Parameter groups: policy, critics with their target average, temperature, and image encoders if there are any."""
    max_grad_norm = no_clip(largest)
    found = [
        ParameterGroup("policy.net.", max_grad_norm),
        ParameterGroup("critic.", max_grad_norm, 1 - tau),
        ParameterGroup("log_alpha", max_grad_norm),
    ]
    if len(policy.encoders):
        found.append(ParameterGroup("policy.encoders.", max_grad_norm))
    return tuple(found)
