"""Q-chunking (Li, Zhou & Levine 2025, 2507.07969): act by the best of n samples of a clone of all data.

A generative policy clones every chunk, the demonstrations' and its own experience's. At each decision it is sampled n
times, and the sample of the largest value is executed; nothing else maximizes the critics. Their target is what that
rule would do next. Any policy with samples from normal noise and a cloning loss can be the clone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.engine.engine import Context, EngineMode, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_decay, out_of_range
from robotrl.fn.bc_loss import CloneLoss, DrawShape, chunk_shape, clone_loss_of
from robotrl.fn.candidates.select import best_of
from robotrl.learners.critics.cal_ql import NOISE, ReturnsToGo, cal_ql_of, check_cal_ql
from robotrl.learners.critics.chunk_critic import CriticSizes, Reduction, check_critic, chunk_critic_loss
from robotrl.learners.critics.stored import critic_tree, matter_of, start_from
from robotrl.learners.dataset import DatasetLearner, OffPolicyLoss
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import check_settings, no_clip
from robotrl.policies.best_of import BestOfCfg, BestOfPolicy
from robotrl.policies.networks.mlp import Activation
from robotrl.replay.buffer import Transitions
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults, reads

# losses


def clone_data(policy: Any, clone: CloneLoss, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The clone's own cloning loss on all data, failures included: the choice is the critics'."""
    ctx = policy.encode(part(batch, "obs/"))
    loss = clone.loss(policy, ctx, batch["chunk"], batch["valid"], **part(batch, "drawn/"))
    return loss, {"clone_loss": loss}


class QcLoss(OffPolicyLoss):
    """Losses of the clone and of the critics in one update.

    Args:
        policy: the clone with its critics.
        cfg: settings.
    """

    def __init__(self, policy: BestOfPolicy, cfg: QcCfg) -> None:
        super().__init__()
        self.learned = policy
        self.policy: BestOfPolicy = copy.deepcopy(policy).requires_grad_(False)
        """Averages of the learned networks, which act."""
        self._clone = clone_loss_of(policy.base)
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, learned = self._cfg, self.learned
        cloned, info = clone_data(learned.base, self._clone, batch)
        with torch.no_grad():
            ctx = learned.encode(part(batch, "obs/"))
        given = part(batch, "next_obs/"), batch["next_noise"]
        loss, found = chunk_critic_loss(
            learned.critic,
            batch | {"executed": learned.executed(batch["chunk"])},
            ctx,
            # what the averaged policy would do: the best of its samples, by the averaged critics
            lambda: functional_call(_BestValue(learned), context.average, given),
            cal_ql_of(cfg, batch, ctx, learned.sampled, learned.executed),
        )
        one = torch.ones_like(batch["reward"][0])
        return LossOut(cloned + loss, info | found, (one * cfg.lr, one * cfg.critic_lr))

    def groups(self) -> tuple[ParameterGroup, ...]:
        """See `OffPolicyLoss`; the averages act, and make the targets."""
        cfg, clip = self._cfg, no_clip(self._cfg.max_grad_norm)
        return (
            ParameterGroup("learned.base.", clip, cfg.ema, ramp=True),
            ParameterGroup("learned.critic.", clip, 1 - cfg.tau),
        )

    def draw(self, shape: DrawShape, generator: torch.Generator) -> dict[str, Tensor]:
        """See `OffPolicyLoss`: the cloning loss's numbers, and noise of the candidates."""
        drawn = self._clone.draw(self.learned.base, shape, generator)
        rows, cfg = shape.updates * shape.batch, self._cfg
        counts = {"next_noise": cfg.target_candidates} | ({NOISE: cfg.cal_ql_samples} if cfg.cal_ql_alpha else {})
        return {f"drawn/{name}": x for name, x in drawn.items()} | {
            name: torch.randn((rows, n, shape.horizon, shape.action), generator=generator) for name, n in counts.items()
        }


class _BestValue(nn.Module):
    """Value of a policy's best sample as a forward pass, for `functional_call`."""

    def __init__(self, learned: BestOfPolicy) -> None:
        super().__init__()
        self.learned = learned

    def forward(self, obs: dict[str, Tensor], noise: Tensor) -> Tensor:
        learned = self.learned
        return best_of(learned.sampled, learned.value, learned.encode(obs), noise).value


# update


class QcLearner(DatasetLearner):
    """Trains clone and critics on a dataset and on the policy's own steps; see `QcCfg` and `DatasetLearner`."""

    def __init__(self, cfg: QcCfg, setup: Setup, make_loss: Callable[[Any], OffPolicyLoss]) -> None:
        super().__init__(cfg, setup, make_loss)
        self._returns = ReturnsToGo(self._data, cfg.gamma) if cfg.cal_ql_alpha else None

    def more_rows(self, transitions: Transitions) -> dict[str, Tensor]:
        """See `DatasetLearner.more_rows`: returns to go, for Cal-QL."""
        return {} if self._returns is None else self._returns.rows(transitions)

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
class QcCfg(LearnerCfg):
    """Settings of Q-chunking."""

    updates: int = 0
    """Number of offline updates, on the dataset only; 0 to learn online from the start."""
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
    online_share: float = 0.5
    """Online: fraction of a batch from the policy's own experience, if there is a dataset."""
    batch: int = 256
    """Chunks per update."""
    capacity: int = 200_000
    """Online: capacity of the replay, env steps."""
    replay: str | None = None
    """Online: new directory of a replay on disk. None: in RAM and in the checkpoints."""
    candidates: int = 16
    """n, samples per decision, the best of which is executed; also of the policy that is exported."""
    target_candidates: int = 4
    """Samples in the next state, the best of which is the target; fewer than `candidates` save time and bootstrap from
    less overestimation."""
    reduction: Reduction = "mean"
    """Value of a chunk: mean or minimum of the critics."""
    cal_ql_alpha: float = 0.0
    """Weight of the Cal-QL term of the critics, on the dataset's chunks; 0: none."""
    cal_ql_samples: int = 4
    """Cal-QL: samples of the clone in each state."""
    init_critic: str | None = field(default=None, metadata=reads("critic", kept=True))
    """Run whose critic the critics start from. None: fresh ones."""
    lr: float = 3e-4
    """Learning rate of the clone."""
    critic_lr: float = 1e-3
    """Learning rate of the critics."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.01
    """Step of the averaged critics towards the critics per update, 0 to 1 (Polyak averaging)."""
    num_critics: int = 4
    """Number of critics."""
    critic_hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics."""
    layer_norm: bool = True
    """Layer normalization in the critics."""
    ema: float = 0.99
    """Decay of the clone's averaged (EMA) weights, which act."""
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
        check_critic(self)
        check_cal_ql(self)
        for name in ("candidates", "target_candidates"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        check_decay("algo.ema", self.ema)
        if not 0 < self.online_share < 1:
            raise out_of_range("algo.online_share", self.online_share, "above 0 and below 1")

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, averages=True)

    def build(self, setup: Setup) -> QcLearner:
        """Build the learner; its policy is a best-of-n policy."""
        self.check()
        return QcLearner(self, setup, partial(_loss, self, setup.resumed))


def _loss(cfg: QcCfg, resumed: bool, policy: Any) -> QcLoss:
    """Loss of a clone with critics; a best-of-n policy keeps its own."""
    wanted = BestOfCfg(
        cfg.candidates, cfg.reduction, cfg.num_critics, cfg.critic_hidden, cfg.critic_activation, cfg.layer_norm
    )
    if isinstance(policy, BestOfPolicy):
        if policy.cfg != wanted:
            raise ConfigError(
                f"init_from is a best-of-n policy with {policy.cfg}: expected the settings of algo, {wanted}"
            )
        return QcLoss(policy, cfg)
    clone_loss_of(policy)
    learned = wanted.build(policy)
    if chunk_shape(policy) != (learned.horizon, learned.action_width):
        raise CapabilityError(
            f"policy {type(policy).__name__} plans chunks {chunk_shape(policy)}, of which"
            f" {(learned.horizon, learned.action_width)} are executed: Q-chunking clones what was executed, all of it"
        )
    if cfg.init_critic is not None and not resumed:
        start_from(cfg.init_critic, learned.critic, matter_of(policy, CriticSizes.of(cfg), cfg.gamma))
    return QcLoss(learned, cfg)
