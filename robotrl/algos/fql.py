"""FQL: flow Q-learning (Park, Li & Levine 2025, 2502.02538), offline and then online.

A flow policy clones the data. A policy of one step is pulled towards the chunks that the flow makes of the same noise,
and climbs the critics. Only the one-step policy acts, so no gradient passes through the flow's integration. On chunks
of several actions it is QC-FQL (Li, Zhou & Levine 2025, 2507.07969).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.engine.engine import Context, EngineMode, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import (
    CapabilityError,
    ConfigError,
    check_at_least,
    check_decay,
    check_positive,
    out_of_range,
    unknown,
)
from robotrl.fn.bc_loss import DrawShape, flow_matching_loss
from robotrl.fn.distillation.same_noise import same_noise
from robotrl.fn.q_targets import bootstrap, ensemble_mse
from robotrl.learners.critics.chunk_critic import CriticSizes
from robotrl.learners.critics.stored import critic_tree, matter_of, start_from
from robotrl.learners.dataset import DatasetLearner, OffPolicyLoss
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import check_settings, critics_of, detached, no_clip
from robotrl.policies.flow import FlowPolicy
from robotrl.policies.networks.executed import ExecutedChunk
from robotrl.policies.networks.mlp import ACTIVATIONS, Activation
from robotrl.policies.q import REDUCTIONS, QEnsemble, average
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults, reads

Scalar = tuple[Tensor, dict[str, Tensor]]
"""A loss, and scalars to log."""


def flow_loss(flow: FlowPolicy, batch: dict[str, Tensor]) -> Scalar:
    """Clone the data by flow matching: |v(s, (1 - t) e + t a, t) - (a - e)|^2 over valid elements."""
    ctx = flow.encode(part(batch, "obs/"))
    loss = flow_matching_loss(flow, ctx, batch["chunk"], batch["valid"], batch["noise"], batch["t"])
    return loss, {"flow_loss": loss}


def critic_loss(values: Tensor, batch: dict[str, Tensor], next_value: Tensor) -> Scalar:
    """Squared error of values (E, B) to reward + discount * Q'(s', mu(s', z')), with Q' (B,) given."""
    target = bootstrap(batch["reward"], batch["discount"], next_value)
    loss = ensemble_mse(values, target)
    return loss, {"critic_loss": loss, "q": values.mean(), "target": target.mean()}


def actor_loss(chunk: Tensor, flow_chunk: Tensor, value: Tensor, alpha: float, normalize_q: bool) -> Scalar:
    """Distill the flow and climb the critics: alpha |mu(s, z) - flow(s, z)|^2 - Q(s, mu(s, z)) / |Q|.

    Args:
        chunk: (B, H, A) of the one-step policy.
        flow_chunk: (B, H, A) of the flow from the same noise; no gradient flows into it.
        value: (B,) of the chunks.
        alpha: weight of the distillation.
        normalize_q: divide by the mean |Q| of the minibatch, so that alpha does not depend on the scale of rewards.
    """
    distance = same_noise(chunk, flow_chunk)
    scale = value.detach().abs().mean().clamp(min=1e-6) if normalize_q else 1.0
    loss = alpha * distance - value.mean() / scale
    return loss, {"distill_loss": distance, "q_policy": value.mean()}


class FqlLoss(OffPolicyLoss):
    """The three losses in one update: of the flow, the critics and the one-step policy.

    Critics read the flow's context, without gradient; images are encoded by flow and one-step policy separately.

    Args:
        policy: flow policy whose weights both policies start from.
        cfg: settings.
    """

    def __init__(self, policy: FlowPolicy, cfg: FqlCfg) -> None:
        super().__init__()
        self.flow: FlowPolicy = policy.with_steps(cfg.flow_steps)
        self.learned: FlowPolicy = policy.with_steps(1)
        """The one-step policy in training."""
        self.policy: FlowPolicy = copy.deepcopy(self.learned).requires_grad_(False)
        """Average of its weights, which acts."""
        self.critic: QEnsemble = critics_of(policy, cfg)
        self.executed = ExecutedChunk(policy)
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, obs, next_obs = self._cfg, part(batch, "obs/"), part(batch, "next_obs/")
        with torch.no_grad():
            ctx, next_ctx = self.flow.encode(obs), self.flow.encode(next_obs)
            flow_chunk = self.flow.decode(ctx, batch["z"])
            # what the robot would do: the averaged policy, from noise as it is deployed
            next_noise = self.learned.deploy_noise * batch["next_z"]
            next_chunk = functional_call(_Decoded(self.learned), averaged(context), (next_obs, next_noise))
            given = next_ctx, self.executed(next_chunk)
            next_q = functional_call(self.critic, part(context.average, "critic."), given)
        chunk = self.learned.decode(self.learned.encode(obs), batch["z"])
        q_pi = functional_call(self.critic, detached(self.critic), (ctx, self.executed(chunk)))
        losses = (
            flow_loss(self.flow, batch),
            critic_loss(self.critic(ctx, self.executed(batch["chunk"])), batch, REDUCTIONS[cfg.target](next_q)),
            actor_loss(chunk, flow_chunk, average(q_pi), cfg.alpha, cfg.normalize_q),
        )
        lr = torch.full_like(batch["reward"][0], cfg.lr)
        info = {name: value for _, infos in losses for name, value in infos.items()}
        return LossOut(losses[0][0] + losses[1][0] + losses[2][0], info, (lr, lr, lr))

    def groups(self) -> tuple[ParameterGroup, ...]:
        """See `OffPolicyLoss`; the averages of one-step policy and critics act, and make the targets."""
        cfg, clip = self._cfg, no_clip(self._cfg.max_grad_norm)
        return (
            ParameterGroup("flow.", clip),
            ParameterGroup("learned.", clip, cfg.ema, ramp=True),
            ParameterGroup("critic.", clip, 1 - cfg.tau),
        )

    def draw(self, shape: DrawShape, generator: torch.Generator) -> dict[str, Tensor]:
        """See `OffPolicyLoss`: noise and times of flow matching, and noise of the one-step policy."""
        noises = {name: torch.randn(shape.chunks, generator=generator) for name in ("noise", "z", "next_z")}
        return noises | {"t": torch.rand(shape.chunks[0], generator=generator)}


class _Decoded(nn.Module):
    """Chunks of a policy from observations and noise as a forward pass, for `functional_call`."""

    def __init__(self, learned: FlowPolicy) -> None:
        super().__init__()
        self.learned = learned

    def forward(self, obs: dict[str, Tensor], noise: Tensor) -> Tensor:
        return self.learned.decode(self.learned.encode(obs), noise)


def averaged(context: Context) -> dict[str, Tensor]:
    """Averaged weights of the one-step policy, named as in `_Decoded`."""
    return {name: x for name, x in context.average.items() if name.startswith("learned.")}


# update


class FqlLearner(DatasetLearner):
    """Trains flow, critics and one-step policy on a dataset and on own steps; see `FqlCfg` and `DatasetLearner`."""

    def learn(self, updates: int) -> dict[str, float]:
        """See `DatasetLearner.learn`; the average acts from then on."""
        scalars = super().learn(updates)
        self._engine.write_average("learned.", self.policy)
        return scalars

    def critic_tree(self) -> dict[str, Any]:
        """See `Learner.critic_tree`: the averaged critics."""
        matter = matter_of(self.policy, CriticSizes.of(self.cfg), self.cfg.gamma)
        return critic_tree(matter, self._engine.averages("critic."), self.cfg.target, {})


# config


@dataclass(frozen=True)
class FqlCfg(LearnerCfg):
    """Settings of FQL."""

    updates: int = 20_000
    """Number of offline updates, on the dataset only; 0 to learn online from the start."""
    updates_per_iteration: int = 500
    """Offline: updates between two log lines."""
    env_steps: int = 0
    """Budget of online env steps after that, summed over all envs; 0 stays offline."""
    num_steps: int = 8
    """Online: env steps per env in an iteration."""
    warmup: int = 1_000
    """Online: env steps before the first update."""
    utd_ratio: float = 1.0
    """Online: updates per env step."""
    online_share: float = 0.5
    """Online: fraction of a batch from the policy's own experience, if there is a dataset."""
    batch: int = 256
    """Chunks per update."""
    capacity: int = 200_000
    """Online: capacity of the replay, env steps."""
    replay: str | None = None
    """Online: new directory of a replay on disk. None: in RAM and in the checkpoints."""
    alpha: float = 10.0
    """Weight of the distillation; large stays close to the data, 0 only climbs the critics."""
    normalize_q: bool = True
    """Divide the critics' part of the policy loss by the mean of |Q|, which makes `alpha` independent of rewards."""
    flow_steps: int = 10
    """Euler steps of the flow that is distilled; the flow policy's own number does not matter."""
    target: Literal["mean", "min"] = "mean"
    """Value of the next state: mean or minimum of the critics."""
    init_critic: str | None = field(default=None, metadata=reads("critic", kept=True))
    """Run whose critic the critics start from. None: fresh ones."""
    lr: float = 3e-4
    """Learning rate of all networks."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.005
    """Step of the target critics towards the critics per update, 0 to 1 (Polyak averaging)."""
    num_critics: int = 2
    """Number of critics; the policy climbs their mean."""
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "silu"
    """Activation of the critics."""
    layer_norm: bool = True
    """Layer normalization in the critics."""
    ema: float = 0.99
    """Decay of the one-step policy's averaged (EMA) weights, which act and are saved. 0: no averaging."""
    max_grad_norm: float | None = None
    """Maximum gradient norm, for each network separately. None: no clipping."""
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
        check_at_least("algo.flow_steps", self.flow_steps, 2)
        check_positive("algo.alpha", self.alpha)
        check_decay("algo.ema", self.ema)
        if not 0 < self.online_share < 1:
            raise out_of_range("algo.online_share", self.online_share, "above 0 and below 1")
        if self.target not in REDUCTIONS:
            raise unknown("algo.target", str(self.target), REDUCTIONS)
        if self.critic_activation not in ACTIVATIONS:
            raise unknown("algo.critic_activation", str(self.critic_activation), ACTIVATIONS)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, averages=True)

    def build(self, setup: Setup) -> FqlLearner:
        """Build the learner; its policy is a flow policy of one step."""
        self.check()
        return FqlLearner(self, setup, partial(_loss, self, setup.resumed))

    def beside(self, policy: Any) -> list[Any]:
        """Networks copied from the policy, for the memory estimate: the flow."""
        return [policy]


def _loss(cfg: FqlCfg, resumed: bool, policy: Any) -> FqlLoss:
    if not isinstance(policy, FlowPolicy):
        raise CapabilityError(f"policy {type(policy).__name__} is not a FlowPolicy: FQL distills a flow (kind 'flow')")
    if policy.denoising_steps == 1 and not resumed:
        raise ConfigError("policy.denoising_steps is 1: expected 2 or more, a policy of one step has no flow to clone")
    loss = FqlLoss(policy, cfg)
    if cfg.init_critic is not None and not resumed:
        start_from(cfg.init_critic, loss.critic, matter_of(policy, CriticSizes.of(cfg), cfg.gamma))
    return loss
