"""Policy gradient through a denoising chain: shared base of ReinFlow, DPPO, Flow-SDE and Flow-Noise.

A method is a `ChainLoss`: it samples actions, records what the loss needs, and computes the actor loss. `ChainLearner`
does the rest, the same for all methods: rollouts, advantages, the correction for rollouts of an older policy, epochs on
the engine, averaged weights, checkpoints. A method without the chain's density (likelihood-free ratios) is a
`ChainLoss`, too: see docs/add-an-algorithm.md.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import share
from robotrl.engine.engine import Context, EngineMode, LossModule, LossOut, ParameterGroup, Updates
from robotrl.errors import CapabilityError, ConfigError, check_decay, check_number
from robotrl.fn.loss import PolicyLoss, value_mse
from robotrl.fn.schedule import line
from robotrl.learners.collection.acting import MemorylessActing, RolloutActing, independent
from robotrl.learners.collection.older_policy import WEIGHT, correction
from robotrl.learners.denoising_sampling import warn_of_start_noise
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.normalizers import ObsNormalizer
from robotrl.learners.on_policy import (
    OnPolicyBatch,
    Rollouts,
    check_ranges,
    check_settings,
    finite,
    joined,
    make_batch,
    observations,
    rollout_scalars,
    update_scalars,
)
from robotrl.learners.parts import Part
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.value import Critic
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import HasChain, LearnerCfg, MemoryNeeds, TrainDefaults, privileged
from robotrl.utils.batched import in_parts

ADAM_EPS = 1e-8
CRITIC, BOTH = "critic", "both"
"""Phases of the engine: critic only, or actor and critic."""


@dataclass(frozen=True)
class ChainCfg(LearnerCfg):
    """Settings shared by all methods of the family."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"tuned_on": "success"})
    clusters: ClassVar[bool] = True
    env_steps: int = 800_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 80
    """Env steps per env in a rollout."""
    epochs: int = 5
    """Passes over a rollout's decisions."""
    minibatch: int = 480
    """Decisions per gradient step; each includes all its denoising steps."""
    microbatch: int | None = None
    """Decisions per forward and backward pass, to save memory; must divide the minibatch. None: the whole minibatch."""
    lr: float = 3e-4
    """Learning rate of the policy, and of its exploration noise network if it has one."""
    critic_lr: float = 1e-3
    """Learning rate of the critic."""
    lr_end: float = 1.0
    """Final learning rates as a fraction of the initial ones, 0 to 1; they decay linearly. 1: constant."""
    muon: float = 0.0
    """Train the actor's hidden weight matrices with Muon, at this multiple of the learning rate; see docs/engine.md. 0:
    Adam for all parameters."""
    start_noise: float = 1.0
    """Standard deviation of the initial noise of chains in training: 1 as published; a smaller value is closer to a
    policy deployed with less noise (`policy.deploy_noise`). The initial noise does not enter the ratio."""
    gamma: float = 0.99
    """Discount per env step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation (GAE), per decision."""
    clip_coef: float = 0.01
    """PPO clip range of the ratio."""
    target_kl: float | None = None
    """Stop the actor's updates of an iteration once the approximate KL of a minibatch exceeds this. None: no limit."""
    critic_warmup_env_steps: int = 10_240
    """Env steps at the start of the budget, summed over all envs, whose iterations train the critic only."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for actor and critic separately."""
    ema: float = 0.0
    """Decay per gradient step of the averaged (EMA) weights that are evaluated. 0: no averaging."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's hidden layers."""
    bf16: bool = False
    """Networks compute in bfloat16; densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for 10 to 60 s; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        check_ranges(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.minibatch, self.microbatch, True, self.num_steps, bool(self.ema), self.bf16)


class MakeCritic(Protocol):
    """Factory of the critic of a policy's contexts."""

    def __call__(self, policy: Any, activation: Activation = "silu") -> Critic:
        """Make the critic of the policy that is fine-tuned."""
        ...


class ActorTerms(NamedTuple):
    """Actor loss of a method on a minibatch."""

    surrogate: PolicyLoss
    """Clipped surrogate loss, approximate KL and clip fraction."""
    more: Tensor | None = None
    """Additional scalar loss: bonuses, regularizers."""
    info: dict[str, Tensor] | None = None
    """Scalars to log."""


class ChainLoss(LossModule):
    """Networks and loss of one method. The carry is "actor_active", 1 while the actor still learns, and "lr".

    Subclasses add exploration networks to `actor` under a name of their own, and may add frozen networks as other
    attributes. They implement `decide`, `log_prob` and `terms`.

    Args:
        policy: the policy to fine-tune.
        make_critic: function that makes its critic.
        cfg: settings shared by all methods.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: ChainCfg) -> None:
        super().__init__()
        self.actor = nn.ModuleDict({"policy": policy})
        self.critic = make_critic(policy)
        self._shared = cfg

    @property
    def policy(self) -> Any:
        """The policy that is fine-tuned."""
        return self.actor["policy"]

    @abstractmethod
    def decide(self, obs: dict[str, Tensor], generator: torch.Generator) -> Decision:
        """Act on observations (n, ...), and record what `terms` needs."""
        ...

    @abstractmethod
    def log_prob(self, rows: dict[str, Tensor], ctx: Tensor) -> Tensor:
        """Log-probabilities (M, ...) of decisions under the policy as it is, one for each ratio.

        They are those that `decide` records as "log_prob".

        Args:
            rows: (M, ...) of the record.
            ctx: (M, D) `policy.encode(obs)`.
        """
        ...

    @abstractmethod
    def terms(self, rows: dict[str, Tensor], obs: dict[str, Tensor], ctx: Tensor) -> ActorTerms:
        """Compute the actor's loss.

        Args:
            rows: minibatch (M, ...) of the record, "advantage", the weights of the ratios (see `older_policy.WEIGHT`),
                and the rows that `draw` gave.
            obs: raw observations (M, ...).
            ctx: (M, D) `policy.encode(obs)`, through which gradients flow.
        """
        ...

    def draw(self, batch: OnPolicyBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return additional rows (B, ...) for an iteration's minibatches, e.g. random numbers that the loss needs."""
        del batch, generator
        return {}

    def schedule(self, progress: float) -> None:
        """Update scheduled settings; called before each rollout with the used part of the budget, 0 to 1."""
        del progress

    def deployed(self, policy: Any) -> Any:
        """Return the policy that runs on the robot, from the fine-tuned policy or its copy with averaged weights."""
        return policy

    @property
    def learned_steps(self) -> int:
        """Policy evaluations per decision in an update; in most methods, the number of trained denoising steps.

        It is logged beside the evaluations of acting (all denoising steps), because methods differ in this cost.
        """
        return self.policy.denoising_steps

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """Evaluate the critic on raw observations (B, ...)."""
        return self.critic(self.critic.encode(obs, self.policy.encode(obs)))

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        with in_bf16(self._shared.bf16, context.device):
            return self._loss(batch, context)

    def _loss(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        cfg = self._shared
        active, lr = context.carry["actor_active"], context.carry["lr"]
        obs = observations(batch)
        critic_lr = lr * (cfg.critic_lr / cfg.lr)
        if context.phase == CRITIC:
            with torch.no_grad():
                seen = self.critic.encode(obs, self.policy.encode(obs))
            value_loss = value_mse(self.critic(seen), batch["value_target"])
            info = {"value_loss": value_loss, "actor_on": torch.zeros_like(active), "lr": lr}
            return LossOut(value_loss, info, (None, critic_lr))
        ctx = self.policy.encode(obs)
        value_loss = value_mse(self.critic(self.critic.encode(obs, ctx.detach())), batch["value_target"])
        found = self.terms(batch, obs, ctx)
        out = found.surrogate
        loss = out.loss + value_loss
        if found.more is not None:
            loss = loss + found.more
        info = {
            "pg_loss": out.loss,
            "value_loss": value_loss,
            "approx_kl": out.approx_kl,
            "clip_fraction": out.clip_fraction,
            "ratio_error": out.ratio_error,
            "actor_on": active,
            "lr": lr,
            **(found.info or {}),
        }
        return LossOut(loss, info, (lr * active, critic_lr))

    def next_carry(self, carry: dict[str, Tensor], info: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `LossModule.next_carry`."""
        if self._shared.target_kl is None or "approx_kl" not in info:
            return carry
        active = carry["actor_active"]
        return carry | {"actor_active": active * (info["approx_kl"] <= self._shared.target_kl).to(active.dtype)}


# acting


class ChainRolloutActing(MemorylessActing):
    """A method's exploring policy, as it acts in rollouts; implements `RolloutActing`.

    Args:
        loss: the method.
        cfg: settings shared by all methods.
        device: device of the networks.
    """

    def __init__(self, loss: ChainLoss, cfg: ChainCfg, device: torch.device) -> None:
        self._loss, self._cfg, self._device = loss, cfg, device
        self._progress = 0.0

    @property
    def horizon(self) -> int:
        """See `RolloutActing.horizon`."""
        return self._loss.policy.horizon

    @property
    def network(self) -> nn.Module:
        """See `RolloutActing.network`: the policy and its exploration networks."""
        return self._loss.actor

    def decide(self, obs: dict[str, Tensor], generator: torch.Generator, envs: Collector) -> Decision:
        """See `RolloutActing.decide`."""
        del envs
        with torch.no_grad(), in_bf16(self._cfg.bf16, self._device):
            decision = self._loss.decide(obs, generator)
        # sims take float32, whatever the dtype of the networks
        return decision._replace(chunk=decision.chunk.float())

    def schedule(self, progress: float) -> None:
        """Update scheduled settings; see `ChainLoss.schedule`."""
        self._progress = progress
        self._loss.schedule(progress)

    def settings(self) -> float:
        """See `RolloutActing.settings`: the used part of the budget."""
        return self._progress

    def apply(self, settings: float) -> None:
        """See `RolloutActing.apply`."""
        self.schedule(settings)

    def copied(self, num_envs: int, device: torch.device) -> RolloutActing:
        """See `RolloutActing.copied`."""
        del num_envs
        return ChainRolloutActing(independent(self._loss, device), self._cfg, device)


# update


def start_from(setup: Setup, method: str) -> Any:
    """Return the policy to fine-tune.

    Raises:
        ConfigError: no policy is given.
        CapabilityError: the policy has no denoising chain.
    """
    policy: Any = setup.init_policy
    if policy is None:
        raise ConfigError(
            f"init_from is not given: {method} fine-tunes a policy that flows or denoises; expected a run, e.g. of"
            " `robotrl train --sim NAME --algo bc`, or of tabletop-bc-flow for one that reads"
        )
    if not isinstance(setup.init_policy, HasChain):
        raise CapabilityError(
            f"policy {type(policy).__name__} lacks HasChain: {method} needs a flow or diffusion policy"
        )
    return policy


class ChainLearner(Learner):
    """Online fine-tuning of a flow or diffusion policy, with the loss that `make_loss` makes.

    Args:
        cfg: settings.
        setup: see `Setup`; a policy to start from is required.
        method: name of the method in errors.
        make_loss: function from (policy, critic factory) to the method's loss module.

    Raises:
        ConfigError: no policy to start from, settings out of range, or a sim that it was not trained for.
        CapabilityError: the policy has no denoising chain.
    """

    caches = True

    def __init__(
        self, cfg: ChainCfg, setup: Setup, method: str, make_loss: Callable[[Any, MakeCritic], ChainLoss]
    ) -> None:
        policy = start_from(setup, method)
        check_settings(cfg, policy.horizon)
        check_decay("algo.ema", cfg.ema)
        for name, high in (("lr_end", 1.0), ("start_noise", 1.0), ("muon", 1e3)):
            check_number(f"algo.{name}", getattr(cfg, name), 0.0, high)
        warn_of_start_noise(policy, cfg.start_noise)
        self.cfg = cfg
        self.world, self._seed = setup.world, setup.seed
        torch.manual_seed(setup.seed)
        self.sim = setup.make_sim()
        check_fit(policy, self.sim)
        policy.control_dt_s = self.sim.control_dt_s
        hidden = [key for key in privileged(self.sim) if key not in policy.observation_spec]
        specs = {key: self.sim.observation_spec[key] for key in hidden}
        self._keys = {*policy.observation_spec, *specs}
        self._privileged = ObsNormalizer(specs, self.world)
        kind = next(policy.parameters())

        def make_critic(policy: Any, activation: Activation = "silu") -> Critic:
            transforms = self._privileged.transforms()
            return Critic(policy.context_width, specs, transforms, cfg.critic_hidden, activation)

        self.loss = make_loss(policy, make_critic).to(dtype=kind.dtype, device=kind.device)
        model = self.loss.policy
        self.kept = setup.kept(model, cfg.microbatch or cfg.minibatch, cfg.bf16)
        self._average: Any = copy.deepcopy(model) if cfg.ema else None
        self.policy: Any = self.loss.deployed(model if self._average is None else self._average)
        self._acting = ChainRolloutActing(self.loss, cfg, setup.device)
        self._rollouts = Rollouts(cfg, setup, self.sim, self._acting, cfg.normalize_reward)
        self._generator, self.iterations = self._rollouts.generator, self._rollouts.iterations
        self._stepper = self._collector = self._rollouts.collector
        self._engine = setup.engine(
            self.loss,
            (
                ParameterGroup("actor.", cfg.max_grad_norm, cfg.ema or None, muon=cfg.muon),
                ParameterGroup("critic.", cfg.max_grad_norm),
            ),
            minibatch=share("algo.minibatch", cfg.minibatch, self.world),
            carry={"actor_active": 1.0, "lr": cfg.lr},
            mode=cfg.engine,
            updates=self._rollouts.updates,
            eps=ADAM_EPS,
            microbatch=cfg.microbatch,
        )

    def iterate(self) -> dict[str, float]:
        """Run one rollout and its epochs of updates."""
        batch, scalars = self.collect()
        scalars |= self.update(batch)
        # the critic's privileged observations are normalized with all data so far; the next rollout's values use it
        self._privileged.update(batch.obs)
        self.loss.critic.set_transforms(self._privileged.transforms())
        return finite(self.world.means(scalars))

    def collect(self) -> tuple[OnPolicyBatch, dict[str, float]]:
        """Collect a rollout with the current policy; returns its decisions with advantages, and scalars to log."""
        cfg = self.cfg
        self._acting.schedule(self.iteration / self.iterations)
        rollout, reward = self._rollouts.collect(self.policy)
        batch = make_batch(rollout, self.loss.value, cfg.gamma, cfg.gae_lambda, world=self.world, keep=self._keep)
        self.iteration += 1
        scalars = rollout_scalars(rollout, batch, reward) | self._rollouts.collector.scalars()
        batch, more = self._corrected(batch)
        scalars |= more
        scalars["acting_evaluations"] = float(len(batch.advantage) * self.loss.policy.denoising_steps)
        return batch, scalars

    def _corrected(self, batch: OnPolicyBatch) -> tuple[OnPolicyBatch, dict[str, float]]:
        """Return the batch with the weights of its ratios, and scalars to log; see `older_policy.correction`."""
        behavior = batch.record["log_prob"]
        if not self._rollouts.collector.staleness:
            return batch._replace(record=batch.record | {WEIGHT: torch.ones_like(behavior)}), {}
        proximal = self._proximal(batch)
        found = correction(proximal, behavior)
        return batch._replace(record=batch.record | {"log_prob": proximal, WEIGHT: found.weight}), found.scalars

    @torch.no_grad()
    def _proximal(self, batch: OnPolicyBatch) -> Tensor:
        """Log-probabilities (B, ...) of an older policy's decisions under the policy before this update."""

        def log_prob(rows: dict[str, Tensor]) -> Tensor:
            with in_bf16(self.cfg.bf16, self._engine.device):
                return self.loss.log_prob(rows, self.loss.policy.encode(observations(rows)))

        return in_parts(log_prob, batch.rows(), self.cfg.microbatch or self.cfg.minibatch)

    def _keep(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keep the observations that updates read (or their cached features); the sim may give more, e.g. images."""
        return self.kept({key: x for key, x in obs.items() if key in self._keys})

    def update(self, batch: OnPolicyBatch) -> dict[str, float]:
        """Run the update epochs over a rollout's decisions; returns scalars to log."""
        cfg = self.cfg
        carry = self._engine.carry
        carry["actor_active"].fill_(1.0)
        carry["lr"].fill_(cfg.lr * line((self.iteration - 1) / self.iterations, cfg.lr_end))
        rows = {**batch.rows(), **self.loss.draw(batch, self._generator)}
        order = self._rollouts.order(len(batch.advantage), self._engine.minibatch, keep_all=False)
        warm_up = self._rollouts.critic_only(self.iteration)
        epochs, evaluations = list[Updates](), 0
        for part in order.chunk(cfg.epochs):
            # once the KL limit has stopped the actor, the remaining epochs train the critic only, at lower cost
            phase = CRITIC if warm_up or carry["actor_active"] == 0 else BOTH
            evaluations += len(part) * self.loss.learned_steps * (phase == BOTH)
            epochs.append(self._engine.run(rows, part, self._rollouts.capacity, f"iteration {self.iteration}", phase))
        if self._average is not None:
            self._engine.write_average("actor.policy.", self._average)
        return {**update_scalars(joined(epochs)), "update_evaluations": float(evaluations)}

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {
            "networks": self.loss,
            "engine": self._engine,
            "privileged_normalizer": self._privileged,
        } | self._rollouts.parts()

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        if self._average is not None:
            self._engine.write_average("actor.policy.", self._average)
        self.loss.critic.set_transforms(self._privileged.transforms())
