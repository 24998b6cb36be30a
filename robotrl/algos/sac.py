"""SAC: off-policy maximum-entropy actor-critic with a learned temperature (Haarnoja et al. 2018b), over chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import means, part, run_updates
from robotrl.errors import CapabilityError
from robotrl.fn.q_targets import bootstrap, ensemble_mse, soft_actor, soft_value, temperature_loss
from robotrl.learners.actor.remote import experience_of
from robotrl.learners.learner import Setup, SimLearner
from robotrl.learners.off_policy import (
    ActionNormalizer,
    PolicyBuilder,
    UpdateToDataRatio,
    at_once,
    check_settings,
    critics_of,
    detached,
    no_clip,
    rows_of,
)
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.q import QEnsemble, smallest
from robotrl.policies.squashed import SquashedPolicy
from robotrl.replay.buffer import Uniform
from robotrl.run.checkpoint import generator_state, set_generator_state


@dataclass(frozen=True)
class SacCfg:
    """Settings of SAC."""

    env_steps: int = 1_000_000
    """Budget of env steps, all envs counted; rounded up to whole iterations."""
    num_steps: int = 8
    """Env steps of an iteration in each env; the updates that they are worth follow."""
    warmup: int = 5_000
    """Env steps before the first update; taken at random by a fresh policy."""
    utd_ratio: float = 1.0
    """Updates for each env step after the warm-up."""
    batch: int = 256
    """Chunks of an update."""
    capacity: int = 1_000_000
    """Env steps that the replay keeps."""
    replay: str | None = None
    """New directory of a replay on disk, which may exceed the memory; none keeps it in RAM and in the checkpoints."""
    lr: float = 3e-4
    """Of the policy."""
    critic_lr: float = 3e-4
    """Of the critics."""
    alpha_lr: float = 3e-4
    """Of the temperature."""
    gamma: float = 0.99
    """Discount of one env step."""
    tau: float = 0.005
    """How far the target critics move towards the critics in an update."""
    initial_alpha: float = 1.0
    """Temperature at the start: the worth of one nat of entropy in rewards."""
    target_entropy: float = -1.0
    """What the entropy is held at, in nats for each element of a chunk, normalised to [-1, 1]."""
    num_critics: int = 2
    """Critics; targets and the policy take the least of their values."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Between the critics' layers."""
    layer_norm: bool = False
    """Layer normalisation in the critics."""
    max_grad_norm: float | None = None
    """Gradients are clipped to this norm, each network for itself; none does not clip."""
    normalize_obs: bool = True
    """From scratch: running normalisation of observations, part of the policy; a policy to start from keeps its own."""
    bf16: bool = False
    """Networks compute in bfloat16, losses and parameters stay in float32; faster only on hardware made for it."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and takes some 10 to 60 s once; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles where that costs less than it saves in this run."""

    def build(self, setup: Setup) -> SacLearner:
        """The learner."""
        return SacLearner(self, setup)


# losses


class SacLoss(LossModule):
    """Critics, policy and temperature in one update.

    The policy is judged by the critics as they were before the update. Pictures are encoded by the policy's encoders,
    which learn from the critics' error (Yarats et al. 2021); the policy's own loss leaves them.

    Args:
        policy: tanh-Gaussian.
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
            drawn = self.policy.draw_with(ctx.detach(), batch["noise"])
            judged = functional_call(self.critic, detached(self.critic), (ctx.detach(), drawn.raw))
        log_prob = drawn.log_prob.flatten(1).sum(1)
        alpha = self.log_alpha.exp()
        critic_loss = ensemble_mse(values, target)
        actor = soft_actor(smallest(judged), log_prob, alpha)
        alpha_loss = temperature_loss(self.log_alpha, log_prob, self._target_entropy)
        info = {
            "critic_loss": critic_loss,
            "actor_loss": actor.loss,
            "q": values.mean(),
            "target": target.mean(),
            "entropy": actor.entropy,
            "alpha": alpha,
            "next_log_prob": next_log_prob.mean(),
        }
        one = torch.ones_like(target[0])
        rates = [one * cfg.lr, one * cfg.critic_lr, one * cfg.alpha_lr]
        if len(self.policy.encoders):
            rates.append(one * cfg.critic_lr)
        return LossOut(critic_loss + actor.loss + alpha_loss, info, tuple(rates), context.carry)

    @torch.no_grad()
    def _target(self, batch: dict[str, Tensor], context: Context) -> tuple[Tensor, Tensor]:
        """What the values are pulled to (B,), and the log-density of the actions that follow."""
        ctx = self.policy.encode(part(batch, "next_obs/"))
        drawn = self.policy.draw_with(ctx, batch["next_noise"])
        log_prob = drawn.log_prob.flatten(1).sum(1)
        values = functional_call(self.critic, part(context.average, "critic."), (ctx, drawn.raw))
        value = soft_value(smallest(values), log_prob, self.log_alpha.exp())
        return bootstrap(batch["reward"], batch["discount"], value), log_prob


# update


class SacLearner(SimLearner):
    """Trains a tanh-Gaussian policy; see `SacCfg`.

    Raises:
        ConfigError: settings out of range.
        CapabilityError: the policy is not tanh-Gaussian.
    """

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
            carry=torch.zeros(1),
            mode=cfg.engine,
            updates=setup.expected(cfg.env_steps * cfg.utd_ratio),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._stepper = self.experience = experience_of(cfg, setup, sim, self._made, self._generator)
        self._unit = ActionNormalizer(sim.action_spec)
        self._debt = UpdateToDataRatio(cfg.utd_ratio)
        self._iteration = 0
        self._steps = cfg.num_steps * sim.num_envs
        self.updates = 0
        """Updates made so far."""
        self.iterations = math.ceil(cfg.env_steps / self._steps)

    def iterate(self) -> dict[str, float]:
        """Some env steps, and the updates that they are worth."""
        self._iteration += 1
        warm = self.experience.warm
        scalars = self.experience.collect(self.cfg.num_steps)
        if warm:
            scalars |= self.learn(self._debt.take(self._steps))
        scalars["updates"] = float(self.updates)
        return scalars

    def learn(self, updates: int) -> dict[str, float]:
        """So many updates on what was collected."""
        most = math.ceil(self._steps * self.cfg.utd_ratio) + 1
        most = UPDATES_PER_CALL * math.ceil(most / UPDATES_PER_CALL)
        most = at_once(most, self.cfg.batch, self.policy.observation_spec)
        info = run_updates(self._engine, self._draw, updates, most, f"iteration {self._iteration}")
        self.updates += updates
        return means(info)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Rows of so many updates, and their noise."""
        cfg, policy = self.cfg, self.policy
        sampler = Uniform(self.experience.memory.replay)
        drawn = sampler.sample(cfg.batch, policy.horizon, cfg.gamma, self._generator, updates)
        rows = rows_of(drawn, policy.observation_spec, self._unit)
        for name in ("noise", "next_noise"):
            rows[name] = torch.randn(rows["chunk"].shape, generator=self._generator)
        return rows

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {
            "networks": self._loss.state_dict(),
            "engine": self._engine.state(),
            "normalizer": self._made.state(),
            "experience": self.experience.state(),
            "generator": generator_state(self._generator),
            "owed": self._debt.owed,
            "iteration": self._iteration,
            "updates": self.updates,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self._loss.load_state_dict(state["networks"])
        self._engine.load(state["engine"])
        self._made.load(state["normalizer"])
        self.experience.load(state["experience"])
        set_generator_state(self._generator, state["generator"])
        self._debt.owed = float(state["owed"])
        self._iteration, self.updates = int(state["iteration"]), int(state["updates"])


def squashed(policy: Any, method: str) -> SquashedPolicy:
    """The policy, if it is tanh-Gaussian.

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
    """Policy, critics with their target average, temperature, and the encoders of pictures where there are any."""
    max_grad_norm = no_clip(largest)
    found = [
        ParameterGroup("policy.net.", max_grad_norm),
        ParameterGroup("critic.", max_grad_norm, 1 - tau),
        ParameterGroup("log_alpha", max_grad_norm),
    ]
    if len(policy.encoders):
        found.append(ParameterGroup("policy.encoders.", max_grad_norm))
    return tuple(found)
