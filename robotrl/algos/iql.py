"""IQL: offline learning that never asks for the value of an action outside the data (Kostrikov et al. 2022).

A state value is the upper expectile of the values of the actions in the data; critics learn from it; and the policy
clones the data's actions, those more that turned out better than expected. Any policy that can be cloned can be
trained: a Gaussian one by its density, a generative one by its own cloning loss. The same learner may go on online.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from robotrl.datasets.agreement.agree import check_reach
from robotrl.datasets.normalization import transforms_for
from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import means, part, run_updates
from robotrl.errors import ConfigError, check_decay, out_of_range, unknown
from robotrl.fn.bc_loss import CloneLoss, DrawShape, clone_loss_of
from robotrl.fn.q_targets import advantage_weight, bootstrap, discounted_ones, ensemble_mse, expectile_loss
from robotrl.learners.actor.remote import RemoteReplayCollector, experience_of
from robotrl.learners.dataset import read_for
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import (
    ActionNormalizer,
    PolicyBuilder,
    at_once,
    check_settings,
    critics_of,
    demonstrations,
    no_clip,
    rows_of,
)
from robotrl.learners.replay_collector import Acting, ReplayCollector
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.value import ValueNet
from robotrl.policies.q import QEnsemble, smallest
from robotrl.policies.reach import reach_of
from robotrl.replay.buffer import Mixed, Replay, Sampler, Transitions, Uniform, episode_returns
from robotrl.rollout.compatibility import check_fit
from robotrl.run.checkpoint import generator_state, set_generator_state
from robotrl.spec import HasLogProb, visible

Rewards = Literal["stored", "minus_one", "scaled"]
REWARDS: tuple[Rewards, ...] = ("stored", "minus_one", "scaled")
SCALED_RETURN = 1000.0
"""What "scaled" makes of the difference between the best and the worst return (Kostrikov et al. 2022, appendix)."""


@dataclass(frozen=True)
class IqlCfg:
    """Settings of IQL."""

    updates: int = 20_000
    """Updates on the dataset alone."""
    updates_per_iteration: int = 500
    """Updates between two log lines."""
    env_steps: int = 0
    """Budget of env steps after that, all envs counted; 0 stays offline."""
    num_steps: int = 8
    """Online: env steps of an iteration in each env, an update for each of them."""
    online_share: float = 0.5
    """Online: share of a batch that is the policy's own experience."""
    batch: int = 256
    """Chunks of an update."""
    capacity: int = 200_000
    """Online: env steps that the replay keeps."""
    replay: str | None = None
    """Online: new directory of a replay on disk; none keeps it in RAM and in the checkpoints."""
    rewards: Rewards = "stored"
    """"stored" as the dataset has them; "minus_one" less one in each step, which turns a sparse 1 into an urge to
    hurry; "scaled" so that the returns of the dataset's episodes span 1000."""
    lr: float = 3e-4
    """Of the policy."""
    critic_lr: float = 3e-4
    """Of the critics."""
    value_lr: float = 3e-4
    """Of the state value."""
    gamma: float = 0.99
    """Discount of one env step."""
    tau: float = 0.005
    """How far the target critics move towards the critics in an update."""
    expectile: float = 0.7
    """Of the state value; 0.5 is the mean of the data's actions, towards 1 the best of them."""
    beta: float = 3.0
    """How much more a better action is cloned; 0 is plain cloning."""
    max_weight: float = 100.0
    """Bound of an action's weight."""
    num_critics: int = 2
    """Critics; the least of their values counts."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of critics and state value."""
    critic_activation: Activation = "relu"
    """Between these layers."""
    layer_norm: bool = False
    """Layer normalisation in the critics."""
    ema: float = 0.99
    """Decay of the policy's averaged weights, which are what acts and is evaluated; 0 turns averaging off."""
    max_grad_norm: float | None = None
    """Gradients are clipped to this norm, each network for itself; none does not clip."""
    dataset_keys: tuple[str, ...] = ()
    """Columns of the dataset that have other names than the sim's, as "key=column"; see docs/datasets.md."""
    bf16: bool = False
    """Critics compute in bfloat16, losses and parameters stay in float32; faster only on hardware made for it."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and takes some 10 to 60 s once; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles where that costs less than it saves in this run."""

    def build(self, setup: Setup) -> IqlLearner:
        """The learner."""
        return IqlLearner(self, setup)


# losses


def clone_loss(policy: Any, loss: CloneLoss | None, batch: dict[str, Tensor], ctx: Tensor, weight: Tensor) -> Tensor:
    """Advantage-weighted cloning (Kostrikov et al. 2022, eq. 7).

    Args:
        policy: what learns.
        loss: the cloning loss of a generative policy; None uses the density.
        batch: rows with "obs/KEY", "chunk", "valid" and what the cloning loss drew.
        ctx: (B, D) of "obs".
        weight: (B,).
    """
    valid = batch["valid"].to(weight.dtype)
    if loss is None:
        log_prob = policy.log_prob(part(batch, "obs/"), batch["chunk"]).sum(2)
        return -(weight[:, None] * valid * log_prob).sum(1).mean()
    # a cloning loss is a mean over valid elements, in which a weight may stand for an element's validity
    return loss.loss(policy, ctx, batch["chunk"], valid * weight[:, None], **part(batch, "drawn/"))


class IqlLoss(LossModule):
    """State value, critics and policy in one update.

    Args:
        policy: what learns.
        critic: critics on its context.
        value: state value on its context.
        clone: the policy's cloning loss, None for its density.
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
        seen = ctx.detach()
        with in_bf16(cfg.bf16, seen.device):
            with torch.no_grad():
                next_value = self.value(self.policy.encode(part(batch, "next_obs/"))).to(seen.dtype)
                judged = functional_call(self.critic, part(context.average, "critic."), (seen, batch["chunk"]))
            value = self.value(seen).to(seen.dtype)
            values = self.critic(seen, batch["chunk"])
        judged = smallest(judged)
        value_loss = expectile_loss(value, judged, cfg.expectile)
        target = bootstrap(batch["reward"], batch["discount"], next_value)
        critic_loss = ensemble_mse(values, target)
        advantage = judged - value.detach()
        weight = advantage_weight(advantage, cfg.beta, cfg.max_weight)
        policy_loss = clone_loss(self.policy, self._clone, batch, ctx, weight)
        info = {
            "value_loss": value_loss,
            "critic_loss": critic_loss,
            "policy_loss": policy_loss,
            "v": value.mean(),
            "q": values.mean(),
            "advantage": advantage.mean(),
            "weight": weight.mean(),
        }
        one = torch.ones_like(target[0])
        rates = one * cfg.lr, one * cfg.critic_lr, one * cfg.value_lr
        return LossOut(value_loss + critic_loss + policy_loss, info, rates, context.carry)


# rewards


class Relabelling(NamedTuple):
    """Rewards r become scale * r + shift."""

    scale: float
    shift: float

    def __call__(self, drawn: Transitions, gamma: float) -> Tensor:
        """(B,) rewards of chunks: each of their steps is relabelled, then discounted."""
        return self.scale * drawn.reward + self.shift * discounted_ones(drawn.steps, gamma).to(drawn.reward.dtype)


def relabelling(kind: Rewards, replay: Replay) -> Relabelling:
    """How `IqlCfg.rewards` changes rewards, given the dataset's.

    Raises:
        ConfigError: the kind is unknown, or returns are to be scaled that are all the same.
    """
    if kind not in REWARDS:
        raise unknown("algo.rewards", str(kind), REWARDS)
    if kind == "stored":
        return Relabelling(1.0, 0.0)
    if kind == "minus_one":
        return Relabelling(1.0, -1.0)
    _, returns = episode_returns(replay)
    span = float(returns.max() - returns.min())
    if span <= 0:
        raise ConfigError(f"algo.rewards is 'scaled': every episode of the dataset returns {float(returns[0]):g}")
    return Relabelling(SCALED_RETURN / span, 0.0)


Reward = Callable[[Transitions], Tensor]
"""Steps (chunks of one) to rewards (B,)."""


# update


class IqlLearner:
    """Trains a policy on a dataset, then online if asked to; see `IqlCfg`.

    Raises:
        ConfigError: no dataset, one of other arrays or another rate, or settings out of range.
        CapabilityError: the policy has neither a density nor a cloning loss.
    """

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
            # what cannot learn is told of before the dataset is looked at
            check_fit(model, sim)
            _clone_loss(model)
        inputs = () if model is None else model.transforms.inputs
        dataset = read_for(setup, cfg.dataset_keys, specs, sim, inputs)
        self._data = demonstrations(dataset, specs, sim.action_spec, sim.control_dt_s, accept=True)
        self._relabelling = relabelling(cfg.rewards, self._data)
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
            carry=torch.zeros(1),
            mode=cfg.engine,
            updates=setup.expected(cfg.updates + cfg.env_steps),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._unit = ActionNormalizer(sim.action_spec)
        self._steps = cfg.num_steps * sim.num_envs
        self._offline = math.ceil(cfg.updates / cfg.updates_per_iteration)
        self._iteration = 0
        self.updates = 0
        """Updates made so far."""
        self.iterations = self._offline + math.ceil(cfg.env_steps / self._steps)
        self.experience: ReplayCollector | RemoteReplayCollector | None = None
        """What the policy does online; None offline."""
        if cfg.env_steps:
            online = PolicyBuilder(setup._replace(init_policy=self.policy), sim, False)
            acting = Acting(setup.seed, cfg.gamma, random=False, warmup=0)
            self.experience = experience_of(cfg, setup, sim, online, self._generator, acting)
        else:
            sim.close()

    @property
    def env_steps(self) -> int:
        """Env steps taken so far."""
        return 0 if self.experience is None else self.experience.env_steps

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return 0.0 if self.experience is None else self.experience.sim_s

    @property
    def compile_s(self) -> float:
        """Seconds spent on compiling so far."""
        return self._engine.compile_s

    def close(self) -> None:
        """See `Learner.close`."""
        if self.experience is not None:
            self.experience.close()

    def relabel(self, reward: Reward) -> None:
        """Replace the dataset's rewards, e.g. by a success classifier's. To be called before the first iteration, in a
        resumed run again: the dataset is read anew.

        Raises:
            ConfigError: a reward is not finite, or they are not one for each step.
        """
        index = self._data.indices()
        self._data.set_reward(index, reward(self._data.view(index, 1, 1.0)))
        self._relabelling = relabelling(self.cfg.rewards, self._data)

    def iterate(self) -> dict[str, float]:
        """Updates on the dataset; after these, env steps and as many updates on both."""
        cfg = self.cfg
        self._iteration += 1
        scalars: dict[str, float] = {}
        if self._iteration <= self._offline:
            count = min(cfg.updates_per_iteration, cfg.updates - self.updates)
        else:
            assert self.experience is not None
            scalars |= self.experience.collect(cfg.num_steps)
            count = self._steps
        scalars |= self.learn(count)
        scalars["updates"] = float(self.updates)
        return scalars

    def learn(self, updates: int) -> dict[str, float]:
        """So many updates."""
        cfg = self.cfg
        most = UPDATES_PER_CALL * math.ceil(max(cfg.updates_per_iteration, self._steps) / UPDATES_PER_CALL)
        most = at_once(most, cfg.batch, self.model.observation_spec)
        info = run_updates(self._engine, self._draw, updates, most, f"iteration {self._iteration}")
        self.updates += updates
        if cfg.ema:
            self._engine.write_average("policy.", self.policy)
        return means(info)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Rows of so many updates, and what the cloning loss draws."""
        cfg, model = self.cfg, self.model
        sampler: Sampler = Uniform(self._data)
        replay = None if self.experience is None else self.experience.memory.replay
        if replay is not None and len(replay) > model.horizon * replay.streams:
            sampler = Mixed([(sampler, 1 - cfg.online_share), (Uniform(replay), cfg.online_share)])
        drawn = sampler.sample(cfg.batch, model.horizon, cfg.gamma, self._generator, updates)
        rows = rows_of(drawn, model.observation_spec, self._unit)
        rows |= {"valid": drawn.valid, "reward": self._relabelling(drawn, cfg.gamma)}
        if self._clone is not None:
            shape = DrawShape(updates, cfg.batch, model.horizon, model.action_width)
            rows |= {f"drawn/{name}": x for name, x in self._clone.draw(model, shape, self._generator).items()}
        return rows

    def state(self) -> dict[str, Any]:
        """See `Learner.state`. The dataset is read again."""
        return {
            "networks": self._loss.state_dict(),
            "policy": self.policy.state_dict(),
            "engine": self._engine.state(),
            "experience": None if self.experience is None else self.experience.state(),
            "generator": generator_state(self._generator),
            "iteration": self._iteration,
            "updates": self.updates,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self._loss.load_state_dict(state["networks"])
        self.policy.load_state_dict(state["policy"])
        self._engine.load(state["engine"])
        if self.experience is not None:
            self.experience.load(state["experience"])
        set_generator_state(self._generator, state["generator"])
        self._iteration, self.updates = int(state["iteration"]), int(state["updates"])


def _clone_loss(policy: Any) -> CloneLoss | None:
    """What a generative policy is cloned with; None for one with a density."""
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
