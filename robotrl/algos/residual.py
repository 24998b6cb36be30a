"""DICE-RL (2603.10263): a residual over a frozen policy's chunks, which climbs a chunk critic.

The frozen policy makes a chunk of noise, and a small network corrects it. The network climbs the critics in the states
of the policy's own rollouts, and stays near 0 elsewhere. The best of n corrected samples is executed. Any policy with
samples from normal noise can be the frozen one, which is neither trained nor differentiated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.algos.residual_forms.per_step import PerStepCfg, StepResidualLearner, StepResidualLoss, falling_share
from robotrl.engine.engine import Context, EngineMode, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import ConfigError, check_at_least, check_decay, check_number, check_positive, out_of_range, unknown
from robotrl.fn.bc_loss import DrawShape
from robotrl.fn.candidates.proposals import sampler_of
from robotrl.fn.candidates.select import valued
from robotrl.fn.q_targets import bootstrap
from robotrl.learners.critics.cal_ql import NOISE, ReturnsToGo, cal_ql_of, check_cal_ql
from robotrl.learners.critics.chunk_critic import CriticSizes, Reduction, check_critic, chunk_critic_loss, reduced
from robotrl.learners.critics.stored import critic_tree, matter_of, start_from
from robotrl.learners.dataset import DatasetLearner, OffPolicyLoss
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import check_settings, detached, no_clip
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.residual import ResidualInput, ResidualPolicy, ResidualPolicyCfg
from robotrl.policies.step_residual import StepResidualCfg, StepResidualPolicy
from robotrl.replay.buffer import Transitions
from robotrl.replay.types import SOURCES
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults, reads

Target = Literal["mean", "best"]
"""Value of the next state: of a random sample of the policy, or of its best."""
ActorRows = Literal["rollouts", "all"]
"""Rows in whose states the residual climbs the critics."""
OF_CHUNKS = (
    "scale",
    "residual_input",
    "noises",
    "actor_rows",
    "penalty",
    "slack",
    "candidates",
    "target_noises",
    "target",
    "cal_ql_alpha",
    "cal_ql_samples",
    "init_critic",
)
"""Settings that a residual of each env step does not have."""

# losses


def held(value: Tensor, base_value: Tensor, shortfall: Tensor, slack: float) -> Tensor:
    """Mask m (M, n) of the regularizer: 0 where the residual is let go, else 1.

    It is let go where the critics value the corrected chunk above the base policy's, and underestimate what was
    executed in that state by more than `slack`: there they promise too little rather than too much.

    Args:
        value: (M, n) of the corrected chunks.
        base_value: (M, n) of the base policy's chunks of the same noise.
        shortfall: (M,) target of the executed chunk minus its value.
        slack: in the units of returns.
    """
    return 1 - ((value > base_value) & (shortfall[:, None] > slack)).to(value.dtype)


def residual_loss(value: Tensor, change: Tensor, mask: Tensor, counts: Tensor, penalty: float) -> Tensor:
    """Climb the critics and stay near the base: -Q / mean |Q|, of some rows, plus penalty m |r|^2, of all rows.

    Args:
        value: (M, n) of the corrected chunks, differentiable.
        change: (M, n, H, A) the residual's part of them.
        mask: (M, n) m.
        counts: (M,) 1 for rows whose value counts, else 0.
        penalty: weight of the mean square over all elements.
    """
    rows = counts.sum().clamp(min=1)
    scale = ((value.detach().abs().mean(1) * counts).sum() / rows).clamp(min=1e-6)
    climbed = (value.mean(1) * counts).sum() / rows / scale
    return penalty * (mask * change.square().mean((-2, -1))).mean() - climbed


class ResidualLoss(OffPolicyLoss):
    """Losses of the residual and of the critics in one update.

    Args:
        policy: the policy with residual and critics.
        cfg: settings.
    """

    def __init__(self, policy: ResidualPolicy, cfg: ResidualCfg) -> None:
        super().__init__()
        self.learned = policy
        # the frozen base is shared
        acting = copy.deepcopy(policy, {id(policy.base): policy.base})
        self.policy: ResidualPolicy = acting.requires_grad_(False)
        """Averages of the learned networks, which act."""
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, learned = self._cfg, self.learned
        with torch.no_grad():
            ctx = learned.encode(part(batch, "obs/"))
            given = part(batch, "next_obs/"), batch["next_noise"]
            next_value = functional_call(_NextValue(learned, cfg.target), context.average, given)
        executed = learned.executed(batch["chunk"])
        critic_loss, info = chunk_critic_loss(
            learned.critic,
            batch | {"executed": executed},
            ctx,
            lambda: next_value,
            cal_ql_of(cfg, batch, ctx, learned.sampled, learned.executed),
        )
        value = reduced(learned.critic, cfg.reduction, detached(learned.critic))
        noise = batch["noise"]
        rows, shape = ctx.repeat_interleave(cfg.noises, 0), noise.shape[:2]
        base, change, chunk = learned.corrected(rows, noise.flatten(0, 1))
        of_chunk = value(rows, learned.executed(chunk)).unflatten(0, shape)
        with torch.no_grad():
            of_base = value(rows, learned.executed(base)).unflatten(0, shape)
            shortfall = bootstrap(batch["reward"], batch["discount"], next_value) - value(ctx, executed)
            mask = held(of_chunk, of_base, shortfall, cfg.slack)
        actor_loss = residual_loss(of_chunk, change.unflatten(0, shape), mask, batch["actor_rows"], cfg.penalty)
        info |= {
            "actor_loss": actor_loss,
            "residual": change.abs().mean(),
            "gain": (of_chunk - of_base).mean(),
            "let_go": 1 - mask.mean(),
        }
        one = torch.ones_like(actor_loss)
        return LossOut(critic_loss + actor_loss, info, (one * cfg.lr, one * cfg.critic_lr))

    def groups(self) -> tuple[ParameterGroup, ...]:
        """See `OffPolicyLoss`; the averages act, and make the targets."""
        cfg, clip = self._cfg, no_clip(self._cfg.max_grad_norm)
        return (
            ParameterGroup("learned.residual.", clip, cfg.ema, ramp=True),
            ParameterGroup("learned.critic.", clip, 1 - cfg.tau),
        )

    def draw(self, shape: DrawShape, generator: torch.Generator) -> dict[str, Tensor]:
        """See `OffPolicyLoss`: noise of the samples in a state and in the next one."""
        rows, cfg = shape.updates * shape.batch, self._cfg
        counts = {"noise": cfg.noises, "next_noise": cfg.target_noises}
        counts |= {NOISE: cfg.cal_ql_samples} if cfg.cal_ql_alpha else {}
        each = sampler_of(self.learned.base).noise_shape
        return {name: torch.randn((rows, n, *each), generator=generator) for name, n in counts.items()}


class _NextValue(nn.Module):
    """Value of a policy's samples as a forward pass, for `functional_call`."""

    def __init__(self, learned: ResidualPolicy, target: Target) -> None:
        super().__init__()
        self.learned = learned
        self._target = target

    def forward(self, obs: dict[str, Tensor], noise: Tensor) -> Tensor:
        learned = self.learned
        values = valued(learned.sampled, learned.value, learned.encode(obs), noise).values
        return values.mean(1) if self._target == "mean" else values.amax(1)


# update


class ResidualLearner(DatasetLearner):
    """Trains residual and critics on the policy's own steps and a dataset; see `ResidualCfg` and `DatasetLearner`.

    Raises:
        ConfigError: no policy to start from, or settings out of range.
        CapabilityError: the policy has no samples from normal noise.
    """

    def __init__(self, cfg: ResidualCfg, setup: Setup, make_loss: Callable[[Any], OffPolicyLoss]) -> None:
        super().__init__(cfg, setup, make_loss)
        self._returns = ReturnsToGo(self._data, cfg.gamma) if cfg.cal_ql_alpha else None

    def online_share(self) -> float:
        """See `DatasetLearner.online_share`: the demonstrations' share falls linearly with the online updates."""
        return falling_share(self.cfg, self.updates)

    def more_rows(self, transitions: Transitions) -> dict[str, Tensor]:
        """See `DatasetLearner.more_rows`: which rows climb, and returns to go for Cal-QL."""
        own = transitions.source != SOURCES.index("demo")
        counts = own if self.cfg.actor_rows == "rollouts" else torch.ones_like(own)
        returns = {} if self._returns is None else self._returns.rows(transitions)
        return {"actor_rows": counts.float()} | returns

    def learn(self, updates: int) -> dict[str, float]:
        """See `DatasetLearner.learn`; the averages act from then on."""
        scalars = super().learn(updates)
        self._engine.write_average("learned.", self.policy)
        return scalars

    def critic_tree(self) -> dict[str, Any]:
        """See `Learner.critic_tree`: the averaged critics."""
        matter = matter_of(self.policy.base, CriticSizes.of(self.cfg), self.cfg.gamma)
        return critic_tree(matter, self._engine.averages("learned.critic."), self.cfg.reduction, {})


# config


@dataclass(frozen=True)
class ResidualCfg(LearnerCfg):
    """Settings of DICE-RL, and of ResFiT."""

    updates: int = 0
    """Number of offline updates, on the dataset only; 0 to learn online from the start. Of demonstrations they train
    the critics alone, see `actor_rows`."""
    updates_per_iteration: int = 500
    """Offline: updates between two log lines."""
    env_steps: int = 100_000
    """Budget of online env steps after that, summed over all envs; 0 stays offline."""
    num_steps: int = 8
    """Online: env steps per env in an iteration."""
    warmup: int = 4_800
    """Online: env steps before the first update."""
    utd_ratio: float = 0.16
    """Online: updates per env step."""
    demo_share: float = 0.5
    """Online: fraction of a batch from the dataset, if there is one, at the first update; 0 drops the dataset."""
    demo_share_end: float = 0.1
    """Online: this fraction after `demo_decay` updates."""
    demo_decay: int = 10_000
    """Online: updates in which `demo_share` falls linearly to `demo_share_end`."""
    batch: int = 256
    """Chunks per update."""
    capacity: int = 200_000
    """Online: capacity of the replay, env steps."""
    replay: str | None = None
    """Online: new directory of a replay on disk. None: in RAM and in the checkpoints."""
    scale: float = 1.0
    """s: the residual moves each element of a chunk by at most this, normalized units."""
    residual_input: ResidualInput = "noise"
    """Input of the residual besides the context: the noise, or the frozen policy's chunk."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the residual's hidden layers."""
    activation: Activation = "silu"
    """Activation of the residual."""
    noises: int = 16
    """Samples of the frozen policy in each state of an update."""
    actor_rows: ActorRows = "rollouts"
    """Rows in whose states the residual climbs the critics: of the policy's own steps, or of the dataset, too. Of a
    dataset of the policy's own episodes, offline, take "all"."""
    penalty: float = 10.0
    """Weight of the residual's mean square; large stays with the frozen policy."""
    slack: float = 0.5
    """The penalty is lifted where the critics underestimate by more than this, in the units of returns, and value the
    corrected chunk above the frozen policy's."""
    candidates: int = 16
    """n, samples per decision, the best of which is executed; also of the policy that is exported. 1: no choice."""
    target_noises: int = 4
    """Samples in the next state."""
    target: Target = "mean"
    """Value of the next state: the mean of these samples, or their best, which is what acts where `candidates` is above
    1, and overestimates more."""
    reduction: Reduction = "min"
    """Value of a chunk: mean or minimum of the critics, in targets, in the climb and in the choice."""
    cal_ql_alpha: float = 0.0
    """Weight of the Cal-QL term of the critics, on the dataset's chunks; 0: none."""
    cal_ql_samples: int = 4
    """Cal-QL: samples of the policy in each state."""
    init_critic: str | None = field(default=None, metadata=reads("critic", kept=True))
    """Run whose critic the critics start from. None: fresh ones."""
    lr: float = 1e-4
    """Learning rate of the residual."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.01
    """Step of the averaged critics towards the critics per update, 0 to 1 (Polyak averaging)."""
    num_critics: int = 10
    """Number of critics."""
    critic_hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics."""
    layer_norm: bool = True
    """Layer normalization in the critics."""
    ema: float = 0.99
    """Decay of the residual's averaged (EMA) weights, which act."""
    max_grad_norm: float | None = None
    """Maximum gradient norm, for each network separately. None: no clipping."""
    per_step: PerStepCfg = field(default_factory=PerStepCfg)
    """Residual of each env step (ResFiT), off by default."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    engine: EngineMode = "auto"
    """Execution mode of updates: "compiled", "eager", or "auto", which compiles if that saves time in this run."""
    default_policy: ClassVar[str] = "flow"
    # online, an iteration has few env steps, and an evaluation many
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 16, "evaluation.max_share": 1.0})
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        check_settings(self, offline=True)
        check_critic(self)
        check_cal_ql(self)
        for name in ("noises", "candidates", "target_noises", "demo_decay"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        check_positive("algo.scale", self.scale)
        for name in ("penalty", "slack"):
            check_number(f"algo.{name}", getattr(self, name), 0.0, 1e9)
        check_decay("algo.ema", self.ema)
        for name in ("demo_share", "demo_share_end"):
            if not 0 <= getattr(self, name) < 1:
                raise out_of_range(f"algo.{name}", getattr(self, name), "0 or more, below 1")
        for name, choices in (
            ("target", Target),
            ("actor_rows", ActorRows),
            ("residual_input", ResidualInput),
            ("activation", Activation),
        ):
            if getattr(self, name) not in get_args(choices):
                raise unknown(f"algo.{name}", str(getattr(self, name)), get_args(choices))
        self.per_step.check()
        self._check_form()

    def _check_form(self) -> None:
        """Check that no setting of the other form is changed, since it would have no effect."""
        if not self.per_step.on:
            if self.per_step != PerStepCfg():
                raise ConfigError(
                    f"algo.per_step is {self.per_step}: expected algo.per_step.on True with these settings"
                )
            return
        defaults = {one.name: one.default for one in fields(self)}
        for name in OF_CHUNKS:
            if getattr(self, name) != defaults[name]:
                instead = "; the scale of each env step is algo.per_step.scale" if name == "scale" else ""
                raise ConfigError(
                    f"algo.{name} is {getattr(self, name)!r} and algo.per_step.on True, which has no chunks to correct:"
                    f" expected the default, {defaults[name]!r}{instead}"
                )

    def trains_memory(self, policy: Any) -> bool:
        """See `LearnerCfg.trains_memory`: a residual of each env step goes on with its own policy."""
        return self.per_step.on and isinstance(policy, StepResidualPolicy)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, averages=True)

    def build(self, setup: Setup) -> ResidualLearner | StepResidualLearner:
        """Build the learner; its policy is a residual policy, of chunks or of env steps."""
        self.check()
        if setup.init_policy is None:
            raise ConfigError(
                "init_from is not given: a residual corrects a frozen policy; expected a run, e.g. a clone of algo bc"
            )
        if self.per_step.on:
            return StepResidualLearner(self, setup, partial(_step_loss, self))
        return ResidualLearner(self, setup, partial(_loss, self, setup.resumed))


def _loss(cfg: ResidualCfg, resumed: bool, policy: Any) -> ResidualLoss:
    """Loss of a residual over a frozen policy; a residual policy keeps its own."""
    wanted = ResidualPolicyCfg(
        cfg.candidates,
        cfg.reduction,
        cfg.num_critics,
        cfg.critic_hidden,
        cfg.critic_activation,
        cfg.layer_norm,
        scale=cfg.scale,
        residual_input=cfg.residual_input,
        hidden=cfg.hidden,
        activation=cfg.activation,
    )
    if isinstance(policy, ResidualPolicy):
        if policy.cfg != wanted:
            raise ConfigError(
                f"init_from is a residual policy with {policy.cfg}: expected the settings of algo, {wanted}"
            )
        return ResidualLoss(policy, cfg)
    learned = wanted.build(policy)
    if cfg.init_critic is not None and not resumed:
        start_from(cfg.init_critic, learned.critic, matter_of(policy, CriticSizes.of(cfg), cfg.gamma))
    return ResidualLoss(learned, cfg)


def _step_loss(cfg: ResidualCfg, policy: Any) -> StepResidualLoss:
    """Loss of a residual of each env step over a frozen policy; a policy with one keeps its own."""
    wanted = StepResidualCfg(cfg.per_step.scale, cfg.hidden, cfg.activation)
    if isinstance(policy, StepResidualPolicy):
        if policy.cfg != wanted:
            raise ConfigError(
                f"init_from is a policy with {policy.cfg}: expected the settings of algo and algo.per_step, {wanted}"
            )
        return StepResidualLoss(policy, cfg)
    return StepResidualLoss(wanted.build(policy), cfg)
