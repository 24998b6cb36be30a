"""RLPD: SAC with demonstrations in every batch (Ball et al. 2023), with the practices of SERL (Luo et al. 2024).

Differences from `sac`: half of each batch is prior data (demonstrations and human interventions); the critics are an
ensemble with layer normalization, and targets use the minimum of a random subset; the targets have no entropy term; and
the critics make several updates per update of the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.algos.sac import groups, squashed
from robotrl.datasets.agreement.agree import check_reach
from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut
from robotrl.engine.minibatches import means, part, run_updates
from robotrl.errors import ConfigError, out_of_range
from robotrl.fn.q_targets import bootstrap, ensemble_mse, soft_actor, temperature_loss
from robotrl.learners.actor.remote import experience_of
from robotrl.learners.dataset import read_for
from robotrl.learners.guidance.build import guide_of, guided_buffers, suggestion_column
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
from robotrl.learners.learner import Learner, Setup, Watch
from robotrl.learners.off_policy import (
    ActionNormalizer,
    PolicyBuilder,
    batch_rows,
    check_settings,
    critics_of,
    demonstrations,
    detached,
    updates_per_call,
)
from robotrl.learners.parts import Part
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.q import QEnsemble, average, draw_members, smallest_of
from robotrl.policies.reach import reach_of
from robotrl.policies.squashed import SquashedPolicy
from robotrl.replay.buffer import Mixed, Sampler, Uniform
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults

CRITIC, BOTH = "critic", "both"
"""Phases of an update: the critics only, or all networks."""


@dataclass(frozen=True)
class RlpdCfg(LearnerCfg):
    """Settings of RLPD."""

    default_policy: ClassVar[str] = "squashed"
    # updates follow each env step
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 8, "tuned_on": "success"})
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 100_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 4
    """Env steps per env in an iteration; the updates due for them follow."""
    warmup: int = 1_000
    """Env steps before the first update; a new policy acts at random in them."""
    utd_ratio: int = 4
    """Update-to-data ratio: updates of the critics per env step; the policy and the temperature are updated in one of
    them."""
    batch: int = 256
    """Chunks per update."""
    demo_share: float = 0.5
    """Fraction of a batch that is prior data."""
    capacity: int = 200_000
    """Capacity of the replay, env steps; demonstrations are kept separately."""
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
    initial_alpha: float = 0.01
    """Initial temperature: the reward equivalent of one nat of entropy."""
    target_entropy: float = -0.5
    """Target entropy, nats per element of a chunk normalized to [-1, 1]."""
    num_critics: int = 4
    """Number of critics, 2 to 10."""
    subset: int = 2
    """Number of critics, drawn anew in each update, whose minimum is a target."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics."""
    layer_norm: bool = True
    """Layer normalization in the critics."""
    max_grad_norm: float | None = None
    """Maximum gradient norm, for each network separately. None: no clipping."""
    normalize_obs: bool = True
    """Observation normalization of a new policy, by the demonstrations and all later observations; part of the
    policy."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    guidance: GuidanceCfg = field(default_factory=GuidanceCfg)
    """Guidance by suggested actions, off by default; see docs/guidance.md."""
    bf16: bool = False
    """Networks compute in bfloat16; losses and parameters stay in float32; faster only on hardware with bfloat16
    units."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for 20 to 120 s; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, bf16=self.bf16)

    def build(self, setup: Setup) -> RlpdLearner:
        """Build the learner."""
        return RlpdLearner(self, setup)


# losses


class RlpdLoss(LossModule):
    """Losses of the critics, and in phase "both" of policy and temperature, too.

    Args:
        policy: tanh-Gaussian policy.
        critic: its critics.
        cfg: settings.
    """

    def __init__(self, policy: SquashedPolicy, critic: QEnsemble, cfg: RlpdCfg) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.log_alpha = nn.Parameter(torch.tensor(math.log(cfg.initial_alpha)))
        self._cfg = cfg
        self._target_entropy = cfg.target_entropy * policy.horizon * policy.action_width

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg = self._cfg
        both = context.phase == BOTH
        with in_bf16(cfg.bf16, batch["chunk"].device):
            target = self._target(batch, context)
            ctx = self.policy.encode(part(batch, "obs/"))
            values = self.critic(ctx, batch["chunk"])
        loss = critic_loss = ensemble_mse(values, target)
        info = {"critic_loss": critic_loss, "q": values.mean(), "target": target.mean()}
        if cfg.guidance.on:
            margin = critic_guidance(cfg.guidance, self.critic, ctx, batch, values, context.carry[MARGIN_COEF])
            loss = loss + margin.loss
            info |= margin.info
        if both:
            actor_loss, more = self._actor(ctx.detach(), batch, context)
            loss = loss + actor_loss
            info |= more
        one = torch.ones_like(target[0])
        rates = [one * cfg.lr if both else None, one * cfg.critic_lr, one * cfg.alpha_lr if both else None]
        if len(self.policy.encoders):
            rates.append(one * cfg.critic_lr)
        return LossOut(loss, info, tuple(rates))

    def _actor(self, ctx: Tensor, batch: dict[str, Tensor], context: Context) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses of the policy, from the mean of all critics, and of the temperature."""
        guidance = self._cfg.guidance
        with in_bf16(self._cfg.bf16, ctx.device):
            sample = self.policy.draw_with(ctx, batch["noise"])
            q_pi = functional_call(self.critic, detached(self.critic), (ctx, sample.normalized_action))
        log_prob = sample.log_prob.flatten(1).sum(1)
        alpha = self.log_alpha.exp()
        terms = soft_actor(average(q_pi), log_prob, alpha)
        alpha_loss = temperature_loss(self.log_alpha, log_prob, self._target_entropy)
        loss, info = terms.loss + alpha_loss, {"actor_loss": terms.loss, "entropy": terms.entropy, "alpha": alpha}
        if guidance.on:
            coef = context.carry[ACTION_COEF]
            density = partial(self.policy.log_prob_of, ctx)
            guided = actor_guidance(guidance, density, self.critic, ctx, batch, q_pi, coef)
            loss, info = loss + guided.loss, info | guided.info
        return loss, info

    @torch.no_grad()
    def _target(self, batch: dict[str, Tensor], context: Context) -> Tensor:
        """Bootstrap targets of the critics (B,), without an entropy term."""
        ctx = self.policy.encode(part(batch, "next_obs/"))
        sample = self.policy.draw_with(ctx, batch["next_noise"])
        values = functional_call(self.critic, part(context.average, "critic."), (ctx, sample.normalized_action))
        return bootstrap(batch["reward"], batch["discount"], smallest_of(values, batch["members"]))


# update


class RlpdLearner(Learner):
    """Trains a tanh-Gaussian policy from demonstrations and its own experience; see `RlpdCfg`.

    Raises:
        ConfigError: no dataset, one of other arrays or another rate, or settings out of range.
        CapabilityError: the policy is not tanh-Gaussian.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: RlpdCfg, setup: Setup) -> None:
        _check(cfg)
        if setup.dataset is None:
            raise ConfigError("dataset is not given: RLPD learns from demonstrations (make some: robotrl demos)")
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        dataset = read_for(setup, cfg.dataset_keys, sim.observation_spec, sim)
        # demonstrations have no suggestions, but the same columns
        columns = suggestion_column(cfg.guidance, sim)
        self._demos = demonstrations(
            dataset, sim.observation_spec, sim.action_spec, sim.control_dt_s, columns, accept=True
        )
        self._made = PolicyBuilder(setup, sim, cfg.normalize_obs)
        self.policy: Any = squashed(self._made.policy, "RLPD")
        check_reach(dataset, self.policy.transforms, sim.action_spec, reach_of(self.policy))
        self._made.measure(self._demos)
        critic = critics_of(self.policy, cfg)
        self._loss = RlpdLoss(self.policy, critic, cfg).to(setup.device)
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
        self._steps = cfg.num_steps * sim.num_envs
        self.iterations = math.ceil(cfg.env_steps / self._steps)

    def watch(self, make: Watch) -> None:
        """Let a person or program take over while the policy acts; corrections are used as prior data, too.

        Args:
            make: factory of the intervention for the training sim.
        """
        self.experience.watch(make)

    def iterate(self) -> dict[str, float]:
        """Run some env steps and the updates due for them."""
        self.iteration += 1
        warm = self.experience.warm
        scalars = self.experience.collect(self.cfg.num_steps)
        if warm and self.experience.memory.replay.has_chunk(self.policy.horizon):
            scalars |= self.learn(self._steps)
        scalars["updates"] = float(self.updates)
        return scalars

    def learn(self, env_steps: int) -> dict[str, float]:
        """Run the updates due for some env steps: first those of the critics only, then those of all networks."""
        set_coefficients(self._engine.carry, self.cfg.guidance, self.env_steps)
        critics = (self.cfg.utd_ratio - 1) * env_steps
        most = UPDATES_PER_CALL * math.ceil(max(critics, env_steps) / UPDATES_PER_CALL)
        most = updates_per_call(most, self.cfg.batch, self.policy.observation_spec)
        what = f"iteration {self.iteration}"
        info = run_updates(self._engine, self._draw, critics, most, what, CRITIC)
        for name, parts in run_updates(self._engine, self._draw, env_steps, most, what, BOTH).items():
            info[name] = [*info.get(name, []), *parts]
        self.updates += critics + env_steps
        return means(info)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample the rows of some updates, with noise and the subset of critics for the targets."""
        cfg, policy = self.cfg, self.policy
        transitions = self._sampler().sample(cfg.batch, policy.horizon, cfg.gamma, self._generator, updates)
        rows = batch_rows(transitions, policy.observation_spec, self._unit)
        for name in ("noise", "next_noise"):
            rows[name] = torch.randn(rows["chunk"].shape, generator=self._generator)
        if cfg.guidance.on:
            rows[SUGGESTED] = suggested_rows(transitions, self._unit, cfg.guidance.reach)
        rows["members"] = draw_members(cfg.num_critics, cfg.subset, updates, cfg.batch, self._generator)
        return rows

    def _sampler(self) -> Sampler:
        """Build the sampler of prior data and replay; corrections and demonstrations are weighted by their size."""
        share, corrections = self.cfg.demo_share, self.experience.memory.corrections
        prior: list[tuple[Sampler, float]] = [(Uniform(self._demos), share)]
        if corrections is not None:
            count = len(corrections.indices(self.policy.horizon))
            part_of = count / (count + len(self._demos))
            if round(part_of * share * self.cfg.batch) >= 1:
                prior = [(Uniform(self._demos), share * (1 - part_of)), (Uniform(corrections), share * part_of)]
        return Mixed([*prior, (Uniform(self.experience.memory.replay), 1 - share)])

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`. Demonstrations are not saved; their dataset is read again."""
        return {
            "networks": self._loss,
            "engine": self._engine,
            "normalizer": self._made,
            "experience": self.experience,
            "generator": self._generator,
        }


def _check(cfg: RlpdCfg) -> None:
    check_settings(cfg)
    if not 0 < cfg.demo_share < 1:
        raise out_of_range("algo.demo_share", cfg.demo_share, "above 0 and below 1")
    if cfg.utd_ratio < 1 or cfg.utd_ratio % 1:
        raise out_of_range("algo.utd_ratio", cfg.utd_ratio, "a whole number, 1 or more")
    if not 1 <= cfg.subset <= cfg.num_critics:
        raise out_of_range("algo.subset", cfg.subset, f"1 to {cfg.num_critics}, the number of members")
