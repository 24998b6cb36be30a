"""DSRL: soft actor-critic over the initial noise of a frozen policy (Wagenmaker et al. 2025, 2506.15799).

The noise is the action, and the frozen policy a part of the environment. The variant `dsrl_na` learns from executed
actions and needs fewer env steps; this one runs no denoising during updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.fn.q_targets import bootstrap, ensemble_mse, soft_actor, soft_value, temperature_loss
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import detached
from robotrl.learners.parts import Part
from robotrl.learners.steering import NOISE, UPDATES_PER_CALL, SteeringLearner, critics, saturated
from robotrl.policies.q import smallest
from robotrl.policies.steered import SteeredPolicy
from robotrl.replay.samplers import Sampler, Uniform
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults


@dataclass(frozen=True)
class DsrlCfg(LearnerCfg):
    """Settings of DSRL."""

    default_policy: ClassVar[str] = "steered"
    # few envs, because an update is slow and some follow each decision of all envs
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 16, "tuned_on": "success"})
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 100_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 80
    """Env steps per env in an iteration."""
    warmup: int = 8_000
    """Env steps with the base policy's own noise before the first update."""
    updates: int = 20
    """Updates after each decision of all envs."""
    batch: int = 256
    """Decisions per update."""
    capacity: int = 1_000_000
    """Capacity of the replay, env steps."""
    lr: float = 3e-4
    """Learning rate of actor, critics and temperature."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.005
    """Step of the target critics towards the critics per update, 0 to 1 (Polyak averaging)."""
    num_critics: int = 2
    """Number of critics; targets and the actor use their minimum."""
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the critics' hidden layers."""
    initial_alpha: float = 0.1
    """Initial temperature: the reward equivalent of one nat of entropy."""
    target_entropy: float = 0.0
    """Target entropy, nats per element of the noise divided by its bound."""
    reward_shift: float = -1.0
    """Number added to the reward of each env step; -1 turns rewards 0 and 1 into -1 and 0, so that each step before
    success costs."""
    max_grad_norm: float = 10.0
    """Maximum gradient norm, for each network separately."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for about a minute; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps)

    def build(self, setup: Setup) -> DsrlLearner:
        """Build the learner."""
        return DsrlLearner(self, setup)


# losses


class DsrlLoss(LossModule):
    """Losses of the noise critics, the actor and the temperature, in one update.

    Args:
        policy: steered policy; its base policy's parameters are constants.
        cfg: settings.
    """

    def __init__(self, policy: SteeredPolicy, cfg: DsrlCfg) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critics(policy, policy.base_noise, cfg, cfg.num_critics)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(cfg.initial_alpha)))
        self._cfg = cfg
        self._target_entropy = cfg.target_entropy * math.prod(policy.base_noise)

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        actor, bound = self.policy.actor, self.policy.actor.bound
        target = self._target(batch, context)
        with torch.no_grad():
            ctx = self.policy.encode(part(batch, "obs/"))
        values = self.critic(ctx, batch[NOISE] / bound)
        sample = actor.draw(ctx, batch["normal"])
        q_pi = functional_call(self.critic, detached(self.critic), (ctx, sample.noise / bound))
        alpha = self.log_alpha.exp()
        critic_loss = ensemble_mse(values, target)
        actor_terms = soft_actor(smallest(q_pi), sample.log_prob, alpha)
        alpha_loss = temperature_loss(self.log_alpha, sample.log_prob, self._target_entropy)
        info = {
            "critic_loss": critic_loss,
            "actor_loss": actor_terms.loss,
            "q": values.mean(),
            "target": target.mean(),
            "entropy": actor_terms.entropy,
            "alpha": alpha,
            "saturated": saturated(sample.noise, bound),
        }
        lr = torch.full_like(target[0], self._cfg.lr)
        return LossOut(critic_loss + actor_terms.loss + alpha_loss, info, (lr, lr, lr))

    @torch.no_grad()
    def _target(self, batch: dict[str, Tensor], context: Context) -> Tensor:
        """The target r + gamma^n (1 - terminated) (min Q'(s', w') - alpha log pi(w'|s')), (B,)."""
        ctx = self.policy.encode(part(batch, "next_obs/"))
        sample = self.policy.actor.draw(ctx, batch["next_normal"])
        chunk = sample.noise / self.policy.actor.bound
        values = functional_call(self.critic, part(context.average, "critic."), (ctx, chunk))
        value = soft_value(smallest(values), sample.log_prob, self.log_alpha.exp())
        return bootstrap(batch["reward"], batch["discount"], value)


# update


class DsrlLearner(SteeringLearner):
    """Trains the noise actor of a frozen policy; see `DsrlCfg`.

    Raises:
        ConfigError: settings out of range, or a base policy that does not fit the sim.
        CapabilityError: the policy cannot be steered.
    """

    def __init__(self, cfg: DsrlCfg, setup: Setup) -> None:
        self.cfg = cfg
        super().__init__(cfg, setup)
        # only steps at which a chunk began have noise
        self._decisions: Sampler = Uniform(self.replay, decisions=True)
        self._loss = DsrlLoss(self.policy, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            (
                ParameterGroup("policy.actor.", cfg.max_grad_norm),
                ParameterGroup("critic.", cfg.max_grad_norm, 1 - cfg.tau),
                ParameterGroup("log_alpha", cfg.max_grad_norm),
            ),
            minibatch=cfg.batch,
            mode=cfg.engine,
            updates=setup.expected(self.learned * cfg.updates),
            threads=setup.update_threads,
            updates_per_call=UPDATES_PER_CALL,
        )

    def learn(self) -> dict[str, float]:
        """See `SteeringLearner.learn`."""
        cfg = self.cfg
        count = cfg.updates * cfg.batch
        rows = self.rows(self._decisions, cfg.updates)
        # the noise is the action here
        del rows["chunk"]
        rows |= {"normal": self.normal(count), "next_normal": self.normal(count)}
        return self._engine.run(rows, torch.arange(count), count, f"iteration {self.iteration}").mean()

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        own_parts: dict[str, Part] = {"networks": self._loss, "engine": self._engine}
        return own_parts | super().parts()
