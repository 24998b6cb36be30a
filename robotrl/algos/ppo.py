"""PPO (Schulman et al. 2017) for policies with a closed-form density, from scratch or from a pretrained policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import share
from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.errors import CapabilityError, check_at_least, check_positive, out_of_range, unknown
from robotrl.fn.loss import PolicyLoss, ppo_clip, value_clipped_mse, value_mse
from robotrl.fn.q_targets import ensemble_mse
from robotrl.fn.schedule import line
from robotrl.learners.collection.acting import RolloutActing, independent
from robotrl.learners.collection.older_policy import LARGEST_WEIGHT, correction
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.losses import (
    ACTION_COEF,
    MARGIN_COEF,
    actor_guidance,
    carry_of,
    critic_guidance,
    set_coefficients,
)
from robotrl.learners.guidance.rollouts import RolloutSuggestions
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.memory.contexts import Contexts, SingleContexts, contexts_of
from robotrl.learners.normalizers import ObsNormalizer
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.learners.on_policy import (
    OBS,
    ROWS,
    OnPolicyBatch,
    Rollouts,
    check_ranges,
    check_settings,
    finite,
    make_batch,
    observations,
    rollout_scalars,
    update_scalars,
)
from robotrl.learners.parts import Part, restore, saved
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.value import Critic
from robotrl.policies.q import QEnsemble
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.storage import Rollout
from robotrl.spec import Density, HasDensity, HasMemory, LearnerCfg, MemoryNeeds, privileged
from robotrl.utils.batched import in_parts

SCHEDULES = ("constant", "linear", "adaptive")
CORRECTIONS = ("decoupled", "vtrace")
LR_RANGE = (1e-5, 1e-2)
"""Bounds of an adaptive learning rate."""
SPREAD_ROWS = 256
"""Number of first observations of a rollout over which the logged std is averaged."""


@dataclass(frozen=True)
class PpoCfg(LearnerCfg):
    """Settings of PPO."""

    default_policy: ClassVar[str] = "by-action"
    chooses: ClassVar[bool] = True
    """Support of discrete (categorical) actions."""
    recurrent: ClassVar[bool] = True
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 1_000_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 80
    """Env steps per env in a rollout."""
    epochs: int = 5
    """Passes over a rollout's decisions."""
    minibatch: int = 480
    """Decisions per gradient step, summed over processes."""
    microbatch: int | None = None
    """Decisions per forward and backward pass, to save memory; must divide a process's minibatch. The result is that of
    the whole minibatch up to rounding. None: the whole minibatch."""
    bptt_steps: int = 16
    """Policies with memory only: decisions in a segment, through which gradients flow back in time. The minibatch holds
    whole segments."""
    lr: float = 3e-4
    """Learning rate of the policy."""
    critic_lr: float = 1e-3
    """Learning rate of the critic."""
    lr_schedule: Literal["constant", "linear", "adaptive"] = "constant"
    """Schedule of both learning rates: "linear" decays to 0 over the budget; "adaptive" divides them by 1.5 after a
    minibatch with an approximate KL above twice `desired_kl`, and multiplies them by 1.5 below half of it (Rudin et al.
    2022)."""
    desired_kl: float = 0.01
    """Target KL of an adaptive learning rate."""
    gamma: float = 0.99
    """Discount per env step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation (GAE), per decision."""
    clip_coef: float = 0.2
    """PPO clip range of the ratio of a whole chunk."""
    value_clip: float | None = None
    """Value clip range: largest change of a value from its estimate before the iteration, in units of the
    normalized return. None: no clipping."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    target_kl: float | None = 0.03
    """Stop the actor's updates of an iteration once the approximate KL of a minibatch exceeds this. None: no limit."""
    critic_warmup_env_steps: int = 10_240
    """Env steps at the start of the budget, summed over all envs, whose iterations train the critic only; useful when
    fine-tuning."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for actor and critic separately."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's hidden layers."""
    critic_activation: Activation = "silu"
    """Activation of the critic."""
    normalize_obs: bool = True
    """Running normalization of observations, part of a new policy; a pretrained policy keeps its own."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    correction: Literal["decoupled", "vtrace"] = "decoupled"
    """Correction for rollouts of an older policy (`cluster.max_staleness`), of no effect without them: "decoupled"
    weights the advantages of GAE by the ratio of the policies; "vtrace" takes advantages and targets of V-trace."""
    guidance: GuidanceCfg = field(default_factory=GuidanceCfg)
    """Guidance by suggested actions, off by default: adds critics of actions and both losses; see docs/guidance.md."""
    bf16: bool = False
    """Networks compute in bfloat16; densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for 10 to 60 s; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)
        check_ranges(self)
        self.guidance.check()

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.minibatch, self.microbatch, splits=True, num_steps=self.num_steps, bf16=self.bf16)

    def build(self, setup: Setup) -> PpoLearner:
        """Build the learner."""
        return PpoLearner(self, setup)


# losses


def policy_loss(density: Density, batch: dict[str, Tensor], clip_coef: float) -> PolicyLoss:
    """PPO's clipped surrogate, one ratio per chunk.

    Args:
        density: density of the policy on M observations.
        batch: rows (M, ...) of "raw", "log_prob" and "advantage".
        clip_coef: clip range.
    """
    return ppo_clip(chunk_log_prob(density, batch["raw"]), batch["log_prob"], batch["advantage"], clip_coef)


def chunk_log_prob(density: Density, action: Tensor) -> Tensor:
    """Return (B,) log-densities of whole chunks (B, H, A)."""
    return density.log_prob(action).flatten(1).sum(1)


class PpoLoss(LossModule):
    """Loss of actor and critic; the carry is "actor_active", 1 while the actor still learns, and the actor's "lr".

    Args:
        policy: the policy.
        critic: critic of states.
        cfg: settings.
        judge: critics of actions, with guidance: they say whether a suggestion is better than the action taken.
        contexts: contexts of the rows; None: each row is a decision for itself.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(
        self,
        policy: Any,
        critic: Critic,
        cfg: PpoCfg,
        judge: QEnsemble | None = None,
        contexts: Contexts | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self._contexts = SingleContexts(policy) if contexts is None else contexts
        self.critic = critic
        self.judge = judge
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        with in_bf16(self._cfg.bf16, context.device):
            return self._loss(batch, context)

    def _loss(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        cfg = self._cfg
        active, lr = context.carry["actor_active"], context.carry["lr"]
        batch, ctx = self._contexts.encode_rows(batch)
        obs = observations(batch)
        density: Density = self.policy.density(ctx)
        out = policy_loss(density, batch, cfg.clip_coef)
        entropy = density.entropy().flatten(1).sum(1).mean()
        value_loss = self._value_loss(self.critic(self.critic.encode(obs, ctx.detach())), batch)
        loss = out.loss - cfg.entropy_coef * entropy + value_loss
        info = {
            "pg_loss": out.loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": out.approx_kl,
            "clip_fraction": out.clip_fraction,
            "ratio_error": out.ratio_error,
            "actor_on": active,
            "lr": lr,
        }
        rates = [lr * active, lr * (cfg.critic_lr / cfg.lr)]
        if self.judge is not None:
            guided, more = self._guidance(self.judge, density, ctx.detach(), batch, context)
            loss, info = loss + guided, info | more
            rates.append(rates[1])
        return LossOut(loss, info, tuple(rates))

    def _guidance(
        self, judge: QEnsemble, density: Density, ctx: Tensor, batch: dict[str, Tensor], context: Context
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses of suggestions, and that of the critics of actions: the critic's targets, at the actions taken.

        The action taken is the policy's own: the one that a suggestion has to be better than.
        """
        cfg, carry = self._cfg.guidance, context.carry
        values = judge(ctx, batch["raw"].clamp(-1.0, 1.0))
        judge_loss = ensemble_mse(values, batch["value_target"])
        margin = critic_guidance(cfg, judge, ctx, batch, values, carry[MARGIN_COEF])
        action = actor_guidance(cfg, density.log_prob, judge, ctx, batch, values, carry[ACTION_COEF])
        info = {"action_value_loss": judge_loss} | margin.info | action.info
        return judge_loss + margin.loss + action.loss, info

    def next_carry(self, carry: dict[str, Tensor], info: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `LossModule.next_carry`."""
        cfg = self._cfg
        active, lr = carry["actor_active"], carry["lr"]
        if cfg.target_kl is not None:
            active = active * (info["approx_kl"] <= cfg.target_kl).to(active.dtype)
        if cfg.lr_schedule == "adaptive":
            factor = torch.ones_like(lr)
            factor = torch.where(info["approx_kl"] > 2 * cfg.desired_kl, factor / 1.5, factor)
            factor = torch.where(info["approx_kl"] < cfg.desired_kl / 2, factor * 1.5, factor)
            lr = (lr * factor).clamp(*LR_RANGE)
        return {**carry, "actor_active": active, "lr": lr}

    def _value_loss(self, value: Tensor, batch: dict[str, Tensor]) -> Tensor:
        if self._cfg.value_clip is None:
            return value_mse(value, batch["value_target"])
        return value_clipped_mse(value, batch["value"], batch["value_target"], self._cfg.value_clip)


# acting


class DensityActing:
    """A policy with a closed-form density, as it acts in rollouts; implements `RolloutActing`.

    Args:
        policy: the policy.
        contexts: contexts of its decisions.
        cfg: settings.
        device: device of the networks.
        guide: asks for suggestions beside the policy, with guidance.
    """

    def __init__(
        self,
        policy: Any,
        contexts: Contexts,
        cfg: PpoCfg,
        device: torch.device,
        guide: RolloutSuggestions | None = None,
    ) -> None:
        self.network, self.horizon = policy, policy.horizon
        self._contexts, self._cfg, self._device, self._guide = contexts, cfg, device, guide

    @torch.no_grad()
    def decide(self, obs: dict[str, Tensor], generator: torch.Generator, envs: Collector) -> Decision:
        """See `RolloutActing.decide`."""
        if self._guide is not None:
            self._guide.ask(obs, envs.started)
        policy: Any = self.network
        with in_bf16(self._cfg.bf16, self._device):
            ctx, memory = self._contexts.decide(obs, envs)
            density: Density = policy.density(ctx)
        action = density.sample(generator)
        record = {"raw": action, "log_prob": chunk_log_prob(density, action)} | memory
        return Decision(policy.to_actions(action), record)

    def settings(self) -> Any:
        """See `RolloutActing.settings`: the policy's transforms, which normalize observations."""
        return self.network.transforms

    def apply(self, settings: Any) -> None:
        """See `RolloutActing.apply`."""
        if settings != self.network.transforms:
            self.network.set_transforms(settings)

    def copied(self, num_envs: int, device: torch.device) -> RolloutActing:
        """See `RolloutActing.copied`.

        Raises:
            CapabilityError: suggestions are made beside the learner's own sim.
        """
        if self._guide is not None:
            raise CapabilityError("algo.guidance is on, and asks beside the learner's own sim: expected cluster none")
        policy = independent(self.network, device)
        return DensityActing(policy, contexts_of(policy, self._cfg.bptt_steps, num_envs), self._cfg, device)

    def state(self) -> dict[str, Any]:
        """See `RolloutActing.state`."""
        return saved(self._contexts.parts())

    def load(self, state: dict[str, Any]) -> None:
        """See `RolloutActing.load`."""
        for name, part in self._contexts.parts().items():
            restore(part, state[name])


# update


class PpoLearner(Learner):
    """Trains a policy with a closed-form density; see `PpoCfg`.

    Several processes (`Setup.world`) learn as one: each has its own sim and random streams and computes its share of
    every minibatch; gradients, advantages, normalizations and the KL limit are computed over all.

    Raises:
        ConfigError: settings out of range.
        CapabilityError: the policy has no closed-form density.
    """

    def __init__(self, cfg: PpoCfg, setup: Setup) -> None:
        _check(cfg)
        self.cfg = cfg
        self.world = setup.world
        self._seed = setup.seed
        torch.manual_seed(setup.seed)
        self.sim = setup.make_sim()
        hidden = {key: self.sim.observation_spec[key] for key in privileged(self.sim)}
        self._made = PolicyBuilder(setup, self.sim, cfg.normalize_obs)
        self.policy = self._made.policy
        if not isinstance(self._made.policy, HasDensity | HasMemory):
            raise CapabilityError(
                f"policy {type(self.policy).__name__} lacks HasDensity: PPO needs a density and an entropy in closed"
                " form, as CategoricalPolicy, GaussianPolicy and BetaPolicy have them"
            )
        check_settings(cfg, self.policy.horizon)
        cfg.guidance.check()
        if cfg.guidance.on and isinstance(self._made.policy, HasMemory):
            raise CapabilityError(
                f"policy {type(self.policy).__name__} has a memory, and guidance judges single observations: expected"
                " algo.guidance off, or a policy without memory"
            )
        self._contexts = contexts_of(self.policy, cfg.bptt_steps, self.sim.num_envs)
        guide = None
        if cfg.guidance.on:
            guide = RolloutSuggestions(cfg.guidance, self.sim, self.policy, setup.seed, setup.answers)
        self._guide = guide
        self._privileged = ObsNormalizer(hidden, self.world)
        self.critic = Critic(
            self.policy.context_width,
            hidden,
            self._privileged.transforms(),
            cfg.critic_hidden,
            cfg.critic_activation,
        ).to(setup.device)
        self._judge = None if guide is None else _judge_of(self.policy, cfg).to(setup.device)
        acting = DensityActing(self.policy, self._contexts, cfg, setup.device, guide)
        self._rollouts = Rollouts(cfg, setup, self.sim, acting, cfg.normalize_reward)
        self._generator, self.iterations = self._rollouts.generator, self._rollouts.iterations
        self._stepper = self._collector = self._rollouts.collector
        self._engine = Engine(
            PpoLoss(self.policy, self.critic, cfg, self._judge, self._contexts),
            tuple(ParameterGroup(f"{name}.", cfg.max_grad_norm) for name in _learning(self._judge)),
            minibatch=self._contexts.count("algo.minibatch", share("algo.minibatch", cfg.minibatch, self.world)),
            carry={"actor_active": 1.0, "lr": cfg.lr} | carry_of(cfg.guidance),
            updates_per_call=self._contexts.updates_per_call,
            mode=self._contexts.engine_mode(cfg.engine),
            updates=self._rollouts.updates,
            threads=setup.update_threads,
            eps=cfg.adam_eps,
            microbatch=None if cfg.microbatch is None else self._contexts.count("algo.microbatch", cfg.microbatch),
            world=self.world,
        )

    def iterate(self) -> dict[str, float]:
        """Run one rollout and its epochs of updates."""
        cfg = self.cfg
        rollout, reward = self._rollouts.collect(self.policy)
        if self._guide is not None:
            self._guide.add_to(rollout)
        rollout = self._contexts.remembered(rollout)
        proximal = self._proximal(rollout) if self._rollouts.collector.staleness else None
        ratio = None if proximal is None else proximal - rollout.record["log_prob"][rollout.valid]
        traced = ratio if cfg.correction == "vtrace" else None
        batch = make_batch(
            rollout, self._value, cfg.gamma, cfg.gae_lambda, cfg.microbatch, self.world, log_ratio=traced
        )
        scalars = rollout_scalars(rollout, batch, reward)
        scalars |= self._rollouts.collector.scalars()
        if proximal is not None:
            batch, more = self._corrected(batch, proximal)
            scalars |= more
        scalars["reward_scale"] = self.policy.reward_scale or 1.0
        self.iteration += 1
        scalars |= self._update(batch, rollout)
        scalars["std"] = self._spread(batch)
        scalars |= {} if self._guide is None else self._guide.metrics()
        # the next rollout and its updates use the statistics of all observations so far
        self._made.take(rollout.obs)
        self._privileged.update(rollout.obs)
        self.critic.set_transforms(self._privileged.transforms())
        return finite(self.world.means(scalars))

    def _value(self, obs: dict[str, Tensor]) -> Tensor:
        return self.critic(self.critic.encode(obs, self._contexts.encode(obs)))

    @torch.no_grad()
    def _proximal(self, rollout: Rollout) -> Tensor:
        """Log-probabilities (B,) of an older policy's decisions under the policy before this update."""

        def log_prob(rows: dict[str, Tensor]) -> Tensor:
            with in_bf16(self.cfg.bf16, self._engine.device):
                density: Density = self.policy.density(self._contexts.encode(observations(rows)))
            return chunk_log_prob(density, rows["raw"])

        obs = {OBS + key: x[rollout.valid] for key, x in rollout.obs.items()}
        rows = {**obs, "raw": rollout.record["raw"][rollout.valid]}
        return in_parts(log_prob, rows, self.cfg.microbatch or ROWS)

    def _corrected(self, batch: OnPolicyBatch, proximal: Tensor) -> tuple[OnPolicyBatch, dict[str, float]]:
        """Return the batch of an older policy for the update, and scalars to log.

        The ratio is to the policy before this update. In the decoupled objective the advantage is weighted for the
        policy that acted; the advantage of V-trace is so already.
        """
        decoupled = self.cfg.correction == "decoupled"
        found = correction(proximal, batch.record["log_prob"], LARGEST_WEIGHT if decoupled else 1.0)
        advantage = batch.advantage * found.weight if decoupled else batch.advantage
        return batch._replace(record=batch.record | {"log_prob": proximal}, advantage=advantage), found.scalars

    @torch.no_grad()
    def _spread(self, batch: OnPolicyBatch) -> float:
        """Mean standard deviation of the policy on some of the observations."""
        obs = {key: x[:SPREAD_ROWS] for key, x in batch.obs.items()}
        return float(self.policy.density(self._contexts.encode(obs)).std.mean())

    def _update(self, batch: OnPolicyBatch, rollout: Rollout) -> dict[str, float]:
        cfg = self.cfg
        carry = self._engine.carry
        carry["actor_active"].fill_(float(not self._rollouts.critic_only(self.iteration)))
        set_coefficients(carry, cfg.guidance, self.env_steps)
        if cfg.lr_schedule == "linear":
            carry["lr"].fill_(cfg.lr * line((self.iteration - 1) / self.iterations, 0.0))
        rows, capacity = self._contexts.rows_of(batch, rollout), self._contexts.capacity(self._rollouts.capacity)
        order = self._rollouts.order(len(rows["advantage"]), self._engine.minibatch, keep_all=True)
        return update_scalars(self._engine.run(rows, order, capacity, f"iteration {self.iteration}"))

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        parts = {
            "policy": self.policy,
            "critic": self.critic,
            "engine": self._engine,
            "obs_normalizer": self._made,
            "privileged_normalizer": self._privileged,
        } | self._rollouts.parts()
        parts |= self._contexts.parts()
        return parts if self._guide is None else parts | {"guide": self._guide, "judge": self._judge}

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        self.critic.set_transforms(self._privileged.transforms())

    def close(self) -> None:
        """See `Learner.close`."""
        if self._guide is not None:
            self._guide.close()
        super().close()


def _judge_of(policy: Any, cfg: PpoCfg) -> QEnsemble:
    """Two critics of actions, of the critic's widths; layer normalization bounds their values of unseen actions."""
    shape = (policy.context_width, policy.horizon, policy.action_width)
    return QEnsemble(*shape, 2, cfg.critic_hidden, layer_norm=True, activation=cfg.critic_activation)


def _learning(judge: QEnsemble | None) -> tuple[str, ...]:
    """Names of the loss's networks, in the order of its learning rates."""
    return ("policy", "critic") if judge is None else ("policy", "critic", "judge")


def _check(cfg: PpoCfg) -> None:
    if cfg.lr_schedule not in SCHEDULES:
        raise unknown("algo.lr_schedule", str(cfg.lr_schedule), SCHEDULES)
    if cfg.correction not in CORRECTIONS:
        raise unknown("algo.correction", str(cfg.correction), CORRECTIONS)
    check_positive("algo.desired_kl", cfg.desired_kl)
    if cfg.value_clip is not None and not cfg.value_clip > 0:
        raise out_of_range("algo.value_clip", cfg.value_clip, "above 0, or none")
    check_positive("algo.adam_eps", cfg.adam_eps)
    check_at_least("algo.bptt_steps", cfg.bptt_steps, 1)
