"""ResFiT's form of `residual` (2509.19301): a residual of each env step, by TD3 (Fujimoto et al. 2018) on single steps.

The frozen policy's chunk is held, and each of its actions is corrected with the observation of its own env step. The
critics value single actions by returns of n steps. The residual climbs the critics after some updates that train these
alone. Noise on the residual explores, and smooths the targets.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from robotrl.engine.engine import Context, LossOut, ParameterGroup
from robotrl.engine.minibatches import means, part
from robotrl.errors import check_at_least, check_number, check_positive
from robotrl.fn.bc_loss import DrawShape
from robotrl.fn.q_targets import bootstrap, ensemble_mse
from robotrl.fn.random.noise import randn
from robotrl.learners.critics.chunk_critic import reduced
from robotrl.learners.dataset import DatasetLearner, OffPolicyLoss
from robotrl.learners.memory.carried import MEMORY, NEXT_MEMORY
from robotrl.learners.off_policy import critics_of, detached, no_clip
from robotrl.learners.replay_collector import Acting
from robotrl.policies.q import REDUCTIONS
from robotrl.policies.step_residual import StepResidualPolicy
from robotrl.replay.buffer import Transitions
from robotrl.replay.layout import STEP
from robotrl.rollout.collector import Decision
from robotrl.spec import Arrays, Spec

if TYPE_CHECKING:
    from robotrl.algos.residual import ResidualCfg

CRITIC, BOTH = "critic", "both"
"""Phases of an update: the critics alone, or the residual as well."""
BASE, NEXT_BASE = "base_action", f"{STEP}next_base_action"
"""Columns of a replay: the frozen policy's action of a step, and what it still holds for the next one; NaN for none."""

# losses


def known_or_first(held: Tensor, first: Tensor) -> Tensor:
    """The frozen policy's actions (B, A) in some states.

    Args:
        held: (B, A) as recorded; NaN where none is known, or its chunk was used up.
        first: (B, A) first actions of chunks made in these states.
    """
    return torch.where(held.isnan(), first, held)


def explored(change: Tensor, noise: Tensor, std: float, scale: float) -> Tensor:
    """Changes (B, A) of actions with noise on them, still within the scale.

    Args:
        change: (B, A) s r.
        noise: (B, A) standard normal numbers.
        std: standard deviation of the noise, normalized units.
        scale: s.
    """
    return (change + std * noise).clamp(-scale, scale)


class StepResidualLoss(OffPolicyLoss):
    """Losses of the critics, and in phase "both" of the residual, too.

    Args:
        policy: the policy with the residual.
        cfg: settings.
    """

    def __init__(self, policy: StepResidualPolicy, cfg: ResidualCfg) -> None:
        super().__init__()
        self.learned = policy
        self.critic = critics_of(policy, cfg)
        # the frozen base is shared
        acting = copy.deepcopy(policy, {id(policy.base): policy.base})
        self.policy: StepResidualPolicy = acting.requires_grad_(False)
        """Average of the learned residual, which acts."""
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, learned, obs = self._cfg, self.learned, part(batch, "obs/")
        both = context.phase == BOTH
        with torch.no_grad():
            ctx = learned.encode(obs)
            wanted = bootstrap(batch["reward"], batch["discount"], self._next_value(batch, context))
        # the first action of the n steps, as it was executed
        values = self.critic(ctx, learned.executed(batch["chunk"][:, :1]))
        loss = critic_loss = ensemble_mse(values, wanted)
        info = {
            "critic_loss": critic_loss,
            "q": values.mean(),
            "q_spread": values.std(0, correction=0).mean(),
            "target": wanted.mean(),
        }
        if both:
            with torch.no_grad():
                base = known_or_first(batch["base"], learned.first_actions(obs, batch.get("noise"))[:, 0])
            change = learned.residual(ctx, base)
            value = reduced(self.critic, cfg.reduction, detached(self.critic))
            of_action = value(ctx, learned.corrected(base, change)[:, None])
            with torch.no_grad():
                gain = of_action - value(ctx, base[:, None])
            actor_loss = -of_action.mean()
            loss = loss + actor_loss
            info |= {"actor_loss": actor_loss, "residual": change.abs().mean(), "gain": gain.mean()}
        one = torch.ones_like(critic_loss)
        return LossOut(loss, info, (one * cfg.lr if both else None, one * cfg.critic_lr))

    def _next_value(self, batch: dict[str, Tensor], context: Context) -> Tensor:
        """Values (B,) of the averaged residual's actions, with noise, in the states after the n steps."""
        cfg, learned, obs = self._cfg.per_step, self.learned, part(batch, "next_obs/")
        ctx = learned.encode(obs)
        base = known_or_first(batch["next_base"], learned.first_actions(obs, batch.get("next_noise"))[:, 0])
        change = functional_call(learned.residual, part(context.average, "learned.residual."), (ctx, base))
        action = learned.corrected(base, explored(change, batch["smoothing"], cfg.noise, cfg.scale))
        values = functional_call(self.critic, part(context.average, "critic."), (ctx, action[:, None]))
        return REDUCTIONS[self._cfg.reduction](values)

    def groups(self) -> tuple[ParameterGroup, ...]:
        """See `OffPolicyLoss`; the averages act, and make the targets."""
        cfg, clip = self._cfg, no_clip(self._cfg.max_grad_norm)
        return (
            ParameterGroup("learned.residual.", clip, cfg.ema, ramp=True),
            ParameterGroup("critic.", clip, 1 - cfg.tau),
        )

    def draw(self, shape: DrawShape, generator: torch.Generator) -> dict[str, Tensor]:
        """See `OffPolicyLoss`: noise of the frozen policy in both states, and of the target's residual."""
        rows, each = shape.updates * shape.batch, self.learned.noise_shape
        drawn = {"smoothing": torch.randn((rows, shape.action), generator=generator)}
        if each is not None:
            drawn |= {name: torch.randn((rows, *each), generator=generator) for name in ("noise", "next_noise")}
        return drawn


# update


@torch.no_grad()
def decide(std: float, policy: StepResidualPolicy, obs: Arrays, generator: torch.Generator, random: bool) -> Decision:
    """Sample actions (n, 1, A) with noise on the residual; see `robotrl.learners.replay_collector.Decide`.

    Args:
        std: standard deviation of the noise, normalized units.
        policy: the policy.
        obs: (n, ...) observations, and the policy's memory.
        generator: random generator.
        random: not used: the frozen policy acts from the first step on.
    """
    del random
    given, memory = {key: obs[key] for key in policy.observation_spec}, obs[MEMORY]
    policy.check_given(given)
    each, count = policy.noise_shape, len(memory)
    noise = None if each is None else randn((count, *each), generator, memory.device)
    asked = bool(policy.left(memory).isnan().any())
    step = policy.step(given, memory, policy.first_actions(given, noise) if asked else None)
    change = explored(step.change, randn(step.change.shape, generator, memory.device), std, policy.cfg.scale)
    action = policy.to_actions(policy.corrected(step.base, change)[:, None])
    return Decision(action, {BASE: step.base, NEXT_BASE: policy.left(step.memory), NEXT_MEMORY: step.memory})


def falling_share(cfg: ResidualCfg, updates: int) -> float:
    """Share of a batch from the replay after so many updates; the dataset's falls linearly with the online ones."""
    done = min(1.0, max(0, updates - cfg.updates) / cfg.demo_decay)
    return 1 - (cfg.demo_share + done * (cfg.demo_share_end - cfg.demo_share))


class StepResidualLearner(DatasetLearner):
    """Trains the residual of each env step and its critics; see `PerStepCfg` and `DatasetLearner`.

    Raises:
        ConfigError: no policy to start from, or settings out of range.
        CapabilityError: the policy's chunk cannot be held and corrected, or workers step the envs.
    """

    cfg: ResidualCfg

    @property
    def span(self) -> int:
        """See `DatasetLearner.span`: the n steps of a return."""
        return self.cfg.per_step.n_step

    def columns(self, action_spec: Spec) -> dict[str, tuple[int, ...]]:
        """See `DatasetLearner.columns`: actions of the frozen policy."""
        return {BASE: action_spec.shape, NEXT_BASE: action_spec.shape}

    def acting(self, seed: int) -> Acting:
        """See `DatasetLearner.acting`: with noise on the residual."""
        return super().acting(seed)._replace(decide=partial(decide, self.cfg.per_step.noise))

    def online_share(self) -> float:
        """See `DatasetLearner.online_share`."""
        return falling_share(self.cfg, self.updates)

    def more_rows(self, transitions: Transitions) -> dict[str, Tensor]:
        """See `DatasetLearner.more_rows`: the frozen policy's action, and what it still holds after the last step."""
        return {"base": transitions.extras[BASE], "next_base": transitions.extras[NEXT_BASE][:, -1]}

    def learn(self, updates: int) -> dict[str, float]:
        """See `DatasetLearner.learn`: first updates of the critics alone, then those of both networks."""
        both = self._climbs(self.updates + updates) - self._climbs(self.updates)
        info = self.run_phase(updates - both, CRITIC)
        for name, parts in self.run_phase(both, BOTH).items():
            info[name] = [*info.get(name, []), *parts]
        self.updates += updates
        self._engine.write_average("learned.", self.policy)
        return means(info)

    def _climbs(self, updates: int) -> int:
        """Number of the first `updates` updates that train the residual."""
        cfg = self.cfg.per_step
        return max(0, updates - cfg.critic_updates) // cfg.actor_every


# config


@dataclass(frozen=True)
class PerStepCfg:
    """Residual of each env step in place of one of each chunk (ResFiT)."""

    on: bool = False
    """Correct each action with the observation of its own env step, and value single actions. The settings of chunks,
    their samples and their regularizer then keep their defaults, and have no effect."""
    scale: float = 0.1
    """s: the residual moves each element of an action by at most this, normalized units."""
    n_step: int = 5
    """n, env steps of a return before the value of the next state."""
    critic_updates: int = 10_000
    """First updates, offline ones included, which train the critics alone."""
    actor_every: int = 2
    """After these: updates of the critics for each update of the residual."""
    noise: float = 0.05
    """Standard deviation of the noise on the residual, in rollouts and in targets, normalized units; with it the
    residual stays within `scale`."""

    def check(self) -> None:
        """Check that the settings are in range.

        Raises:
            ConfigError: one is not.
        """
        check_positive("algo.per_step.scale", self.scale)
        for name in ("n_step", "actor_every"):
            check_at_least(f"algo.per_step.{name}", vars(self)[name], 1)
        check_at_least("algo.per_step.critic_updates", self.critic_updates, 0)
        check_number("algo.per_step.noise", self.noise, 0.0, 10.0)
