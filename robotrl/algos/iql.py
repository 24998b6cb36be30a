"""IQL: offline learning that evaluates only actions in the data (Kostrikov et al. 2022).

The state value is an upper expectile of the values of the data's actions; critics bootstrap from it; and the policy
clones the data's actions, weighted by their advantage. Any policy with a cloning loss can be trained: a Gaussian one by
its density, a generative one by its own cloning loss. The same learner may continue online.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from robotrl.datasets.agreement.agree import check_reach
from robotrl.datasets.normalization import transforms_for
from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import means, part, run_updates
from robotrl.errors import ConfigError, check_decay, out_of_range, unknown
from robotrl.fn.bc_loss import CloneLoss, DrawShape, clone_loss_of
from robotrl.fn.q_targets import advantage_weight, discounted_ones
from robotrl.learners.actor.remote import Experience, experience_of
from robotrl.learners.critics.iql_critic import iql_critic_loss, iql_values
from robotrl.learners.dataset import read_for
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import (
    ActionNormalizer,
    PolicyBuilder,
    batch_rows,
    check_settings,
    critics_of,
    demonstrations,
    no_clip,
    updates_per_call,
)
from robotrl.learners.parts import Part
from robotrl.learners.replay_collector import Acting
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.value import ValueNet
from robotrl.policies.q import QEnsemble
from robotrl.policies.reach import reach_of
from robotrl.replay.buffer import Mixed, Replay, Sampler, Transitions, Uniform, episode_returns
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import HasLogProb, LearnerCfg, MemoryNeeds, TrainDefaults, visible

Rewards = Literal["stored", "minus_one", "scaled"]
REWARDS: tuple[Rewards, ...] = ("stored", "minus_one", "scaled")
SCALED_RETURN = 1000.0
"""Range of returns after "scaled": best minus worst return of the dataset (Kostrikov et al. 2022, appendix)."""


@dataclass(frozen=True)
class IqlCfg(LearnerCfg):
    """Settings of IQL."""

    default_policy: ClassVar[str] = "gaussian"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 16})
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    updates: int = 20_000
    """Number of offline updates, on the dataset only."""
    updates_per_iteration: int = 500
    """Updates between two log lines."""
    env_steps: int = 0
    """Budget of online env steps after that, summed over all envs; 0 stays offline."""
    num_steps: int = 8
    """Online: env steps per env in an iteration; one update follows for each env step."""
    online_share: float = 0.5
    """Online: fraction of a batch from the policy's own experience."""
    batch: int = 256
    """Chunks per update."""
    capacity: int = 200_000
    """Online: capacity of the replay, env steps."""
    replay: str | None = None
    """Online: new directory of a replay on disk. None: in RAM and in the checkpoints."""
    rewards: Rewards = "stored"
    """Rewards of the dataset: "stored" as they are; "minus_one" less one per step, so that an episode with a sparse
    reward of 1 gains from being short; "scaled" so that the returns of its episodes span 1000."""
    lr: float = 3e-4
    """Learning rate of the policy."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    value_lr: float = 3e-4
    """Learning rate of the state value."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.005
    """Step of the target critics towards the critics per update, 0 to 1 (Polyak averaging)."""
    expectile: float = 0.7
    """Expectile of the state value, 0 to 1; 0.5 is the mean over the data's actions, towards 1 their best."""
    beta: float = 3.0
    """Inverse temperature of the advantage weights; 0 is plain behavior cloning."""
    max_weight: float = 100.0
    """Maximum weight of an action."""
    num_critics: int = 2
    """Number of critics; their minimum is used."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of critics and state value."""
    critic_activation: Activation = "relu"
    """Activation of critics and state value."""
    layer_norm: bool = False
    """Layer normalization in the critics."""
    ema: float = 0.99
    """Decay of the policy's averaged (EMA) weights, which act online and are evaluated. 0: no averaging."""
    max_grad_norm: float | None = None
    """Maximum gradient norm, for each network separately. None: no clipping."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    bf16: bool = False
    """Critics compute in bfloat16; losses and parameters stay in float32; faster only on hardware with bfloat16
    units."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for 10 to 60 s; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""

    @property
    def reads_rewards(self) -> bool:
        """True if it goes on online; offline the rewards are the dataset's."""
        return self.env_steps > 0

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, averages=bool(self.ema), bf16=self.bf16)

    def build(self, setup: Setup) -> IqlLearner:
        """Build the learner."""
        return IqlLearner(self, setup)


# losses


def clone_loss(policy: Any, loss: CloneLoss | None, batch: dict[str, Tensor], ctx: Tensor, weight: Tensor) -> Tensor:
    """Advantage-weighted cloning loss (Kostrikov et al. 2022, eq. 7).

    Args:
        policy: the policy in training.
        loss: cloning loss of a generative policy; None uses the density.
        batch: rows with "obs/KEY", "chunk", "valid" and the cloning loss's random numbers.
        ctx: (B, D) contexts of the observations.
        weight: (B,) weights of the chunks.
    """
    valid = batch["valid"].to(weight.dtype)
    if loss is None:
        log_prob = policy.log_prob(part(batch, "obs/"), batch["chunk"]).sum(2)
        return -(weight[:, None] * valid * log_prob).sum(1).mean()
    # the cloning loss is a mean over valid elements: multiplying `valid` by the weight weights the elements
    return loss.loss(policy, ctx, batch["chunk"], valid * weight[:, None], **part(batch, "drawn/"))


class IqlLoss(LossModule):
    """Losses of state value, critics and policy, in one update.

    Args:
        policy: the policy in training.
        critic: critics on its context.
        value: state value on its context.
        clone: the policy's cloning loss; None uses its density.
        cfg: settings.
    """

    def __init__(self, policy: Any, critic: QEnsemble, value: ValueNet, clone: CloneLoss | None, cfg: IqlCfg) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.value = value
        self._clone = clone
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg = self._cfg
        ctx = self.policy.encode(part(batch, "obs/"))
        detached_ctx = ctx.detach()
        with in_bf16(cfg.bf16, detached_ctx.device):
            with torch.no_grad():
                next_ctx = self.policy.encode(part(batch, "next_obs/"))
            averaged = part(context.average, "critic.")
            found = iql_values(self.critic, self.value, averaged, detached_ctx, next_ctx, batch["chunk"])
        critics_loss, info = iql_critic_loss(found, batch["reward"], batch["discount"], cfg.expectile)
        advantage = found.target_q - found.value.detach()
        weight = advantage_weight(advantage, cfg.beta, cfg.max_weight)
        policy_loss = clone_loss(self.policy, self._clone, batch, ctx, weight)
        info |= {"policy_loss": policy_loss, "advantage": advantage.mean(), "weight": weight.mean()}
        one = torch.ones_like(policy_loss)
        rates = one * cfg.lr, one * cfg.critic_lr, one * cfg.value_lr
        return LossOut(critics_loss + policy_loss, info, rates)


# rewards


class Relabeling(NamedTuple):
    """Linear change of rewards: r becomes scale * r + shift."""

    scale: float
    shift: float

    def __call__(self, transitions: Transitions, gamma: float) -> Tensor:
        """Change the rewards of chunks, (B,): each of their steps, then discounted."""
        return self.scale * transitions.reward + self.shift * discounted_ones(transitions.steps, gamma).to(
            transitions.reward.dtype
        )


def relabeling(kind: Rewards, replay: Replay) -> Relabeling:
    """Return the change of rewards for `IqlCfg.rewards`, given the dataset.

    Raises:
        ConfigError: the kind is unknown, or returns to be scaled are all the same.
    """
    if kind not in REWARDS:
        raise unknown("algo.rewards", str(kind), REWARDS)
    if kind == "stored":
        return Relabeling(1.0, 0.0)
    if kind == "minus_one":
        return Relabeling(1.0, -1.0)
    _, returns = episode_returns(replay)
    span = float(returns.max() - returns.min())
    if span <= 0:
        raise ConfigError(f"algo.rewards is 'scaled': every episode of the dataset returns {float(returns[0]):g}")
    return Relabeling(SCALED_RETURN / span, 0.0)


Reward = Callable[[Transitions], Tensor]
"""Function from steps (chunks of one) to rewards (B,)."""


# update


class IqlLearner(Learner):
    """Trains a policy on a dataset, then optionally online; see `IqlCfg`.

    Raises:
        ConfigError: no dataset, one of other arrays or another rate, or settings out of range.
        CapabilityError: the policy has neither a density nor a cloning loss.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: IqlCfg, setup: Setup) -> None:
        _check(cfg)
        if setup.dataset is None:
            raise ConfigError("dataset is not given: IQL learns from recorded episodes (make some: robotrl demos)")
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        specs = visible(sim)
        model: Any = setup.init_policy
        if model is not None:
            # reject a policy that cannot learn before the dataset is read
            check_fit(model, sim)
            _clone_loss(model)
        inputs = () if model is None else model.transforms.inputs
        dataset = read_for(setup, cfg.dataset_keys, specs, sim, inputs)
        self._data = demonstrations(dataset, specs, sim.action_spec, sim.control_dt_s, accept=True)
        self._relabeling = relabeling(cfg.rewards, self._data)
        if model is None:
            model = setup.fresh(specs, sim.action_spec, transforms_for(dataset, specs, sim.action_spec))
        check_reach(dataset, model.transforms, sim.action_spec, reach_of(model))
        model.control_dt_s = sim.control_dt_s
        self.model: Any = model
        self.policy: Any = copy.deepcopy(model) if cfg.ema else model
        self._clone = _clone_loss(model)
        value = ValueNet(model.context_width, cfg.critic_hidden, cfg.critic_activation)
        self._loss = IqlLoss(model, critics_of(model, cfg), value, self._clone, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            (
                ParameterGroup("policy.", no_clip(cfg.max_grad_norm), cfg.ema or None, ramp=True),
                ParameterGroup("critic.", no_clip(cfg.max_grad_norm), 1 - cfg.tau),
                ParameterGroup("value.", no_clip(cfg.max_grad_norm)),
            ),
            minibatch=cfg.batch,
            mode=cfg.engine,
            updates=setup.expected(cfg.updates + cfg.env_steps),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._unit = ActionNormalizer.of_policy(model)
        self._steps = cfg.num_steps * sim.num_envs
        self._offline = math.ceil(cfg.updates / cfg.updates_per_iteration)
        self.iterations = self._offline + math.ceil(cfg.env_steps / self._steps)
        self.experience: Experience | None = None
        """Collector of online experience; None offline."""
        if cfg.env_steps:
            online = PolicyBuilder(setup._replace(init_policy=self.policy), sim, False)
            acting = Acting(setup.seed, cfg.gamma, random=False, warmup=0)
            self._stepper = self.experience = experience_of(cfg, setup, sim, online, self._generator, acting)
        else:
            sim.close()

    def relabel(self, reward: Reward) -> None:
        """Replace the dataset's rewards, e.g. by a success classifier's, before the first iteration.

        A resumed run must call it again, because the dataset is read again.

        Raises:
            ConfigError: a reward is not finite, or there is not one per step.
        """
        index = self._data.indices()
        self._data.set_reward(index, reward(self._data.view(index, 1, 1.0)))
        self._relabeling = relabeling(self.cfg.rewards, self._data)

    def iterate(self) -> dict[str, float]:
        """Run offline updates on the dataset, or, after these, env steps and as many updates on both."""
        cfg = self.cfg
        self.iteration += 1
        scalars: dict[str, float] = {}
        if self.iteration <= self._offline:
            count = min(cfg.updates_per_iteration, cfg.updates - self.updates)
        else:
            assert self.experience is not None
            scalars |= self.experience.collect(cfg.num_steps)
            count = self._steps
        scalars |= self.learn(count)
        scalars["updates"] = float(self.updates)
        return scalars

    def learn(self, updates: int) -> dict[str, float]:
        """Run this many updates; returns means of the loss's scalars."""
        cfg = self.cfg
        most = UPDATES_PER_CALL * math.ceil(max(cfg.updates_per_iteration, self._steps) / UPDATES_PER_CALL)
        most = updates_per_call(most, cfg.batch, self.model.observation_spec)
        info = run_updates(self._engine, self._draw, updates, most, f"iteration {self.iteration}")
        self.updates += updates
        if cfg.ema:
            self._engine.write_average("policy.", self.policy)
        return means(info)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample the rows of some updates, with the cloning loss's random numbers."""
        cfg, model = self.cfg, self.model
        sampler: Sampler = Uniform(self._data)
        replay = None if self.experience is None else self.experience.memory.replay
        if replay is not None and len(replay) > model.horizon * replay.streams:
            sampler = Mixed([(sampler, 1 - cfg.online_share), (Uniform(replay), cfg.online_share)])
        transitions = sampler.sample(cfg.batch, model.horizon, cfg.gamma, self._generator, updates)
        rows = batch_rows(transitions, model.observation_spec, self._unit)
        rows |= {"valid": transitions.valid, "reward": self._relabeling(transitions, cfg.gamma)}
        if self._clone is not None:
            shape = DrawShape(updates, cfg.batch, model.horizon, model.action_width)
            rows |= {f"drawn/{name}": x for name, x in self._clone.draw(model, shape, self._generator).items()}
        return rows

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`. The dataset is not saved; it is read again."""
        return {
            "networks": self._loss,
            "policy": self.policy,
            "engine": self._engine,
            "experience": self.experience,
            "generator": self._generator,
        }


def _clone_loss(policy: Any) -> CloneLoss | None:
    """Cloning loss of a generative policy; None for a policy with a density."""
    return None if isinstance(policy, HasLogProb) else clone_loss_of(policy)


def _check(cfg: IqlCfg) -> None:
    check_settings(cfg, offline=True)
    for name in ("expectile", "online_share"):
        if not 0 < getattr(cfg, name) < 1:
            raise out_of_range(f"algo.{name}", getattr(cfg, name), "above 0 and below 1")
    if not 0 <= cfg.beta < math.inf:
        raise out_of_range("algo.beta", cfg.beta, "0 or more")
    if not 1 <= cfg.max_weight < math.inf:
        raise out_of_range("algo.max_weight", cfg.max_weight, "1 or more")
    check_decay("algo.ema", cfg.ema)
