"""Policy gradient through a denoising chain: what ReinFlow, DPPO, Flow-SDE, Flow-Noise and their like share.

A method is a `ChainLoss`: how it decides (and what it records), and the loss of its actor. `ChainLearner` does the
rest, the same for all: rollouts, advantages, epochs on the engine, averaged weights, checkpoints. A method that does
not use the chain's density at all (likelihood-free ratios) is one, too: see docs/add-an-algorithm.md.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import check_processes, share, take_up
from robotrl.engine.engine import Context, EngineMode, LossModule, LossOut, ParameterGroup, Updates
from robotrl.errors import CapabilityError, ConfigError, check_decay, check_number
from robotrl.fn.loss import PolicyLoss, value_mse
from robotrl.fn.schedule import line
from robotrl.learners.learner import Setup, SimLearner
from robotrl.learners.normalizers import ObsNormalizer, RewardNormalizer
from robotrl.learners.on_policy import (
    OnPolicyBatch,
    check_settings,
    epoch_order,
    finite,
    joined,
    make_batch,
    observations,
    rollout_scalars,
    update_scalars,
)
from robotrl.policies.networks.value import Critic
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.run.checkpoint import generator_state
from robotrl.spec import HasChain, privileged

ADAM_EPS = 1e-8
CRITIC, BOTH = "critic", "both"
"""The engine's phases."""


@dataclass(frozen=True)
class ChainCfg:
    """Settings that all methods of the family have."""

    env_steps: int = 800_000
    """Budget of env steps, all envs counted; rounded up to whole iterations."""
    num_steps: int = 80
    """Env steps of a rollout in each env."""
    epochs: int = 5
    """Passes over a rollout's decisions."""
    minibatch: int = 480
    """Decisions for each gradient step, all their denoising steps included."""
    microbatch: int | None = None
    """Decisions whose gradient is taken at once, where those of a minibatch do not fit into memory; a divisor of it."""
    lr: float = 3e-4
    """Of the policy, and of what explores with it."""
    critic_lr: float = 1e-3
    """Of the critic."""
    lr_end: float = 1.0
    """Both learning rates at the end of the budget, as a part of those at its start; they fall along a line."""
    muon: float = 0.0
    """The actor's matrices between hidden states move by Muon, with so many times the learning rate; see
    docs/engine.md. 0 moves them by Adam, as all else."""
    start_noise: float = 1.0
    """Deviation of the noise that chains begin with while they learn: 1 as published; less is nearer to a policy that
    is deployed with less (`policy.deploy_noise`). What chains begin with has no part in a ratio."""
    gamma: float = 0.99
    """Discount of one env step."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation, for each decision."""
    clip_coef: float = 0.01
    """Clip range of the ratio."""
    target_kl: float | None = None
    """The actor's updates of an iteration end once a minibatch's approximate KL passes this; None never ends them."""
    critic_warmup: int = 2
    """First iterations that train the critic alone."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm, actor and critic each for itself."""
    ema: float = 0.0
    """Decay for each gradient step of the averaged weights that are evaluated; 0 evaluates the weights themselves."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's hidden layers."""
    bf16: bool = False
    """Networks compute in bfloat16, densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and takes some 10 to 60 s once; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles where that costs less than it saves in this run."""


MakeCritic = Callable[[Any], Critic]
"""(policy that is fine-tuned) to a critic of its contexts."""


class ActorTerms(NamedTuple):
    """What a method says of its actor on a minibatch."""

    surrogate: PolicyLoss
    """The clipped surrogate, and how far the policy has moved."""
    more: Tensor | None = None
    """A scalar to be minimised besides: bonuses, regularisers."""
    info: dict[str, Tensor] | None = None
    """Scalars to log."""


class ChainLoss(LossModule):
    """The networks and the loss of one method. The carry is (whether the actor still learns, learning rate).

    Subclasses put what explores with the policy into `actor` under a name of its own, and may add frozen networks as
    other attributes. They implement `decide` and `terms`.

    Args:
        policy: what is fine-tuned.
        make_critic: makes its critic.
        cfg: the settings that all methods have.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(self, policy: Any, make_critic: MakeCritic, cfg: ChainCfg) -> None:
        super().__init__()
        self.actor = nn.ModuleDict({"policy": policy})
        self.critic = make_critic(policy)
        self._shared = cfg

    @property
    def policy(self) -> Any:
        """What is fine-tuned."""
        return self.actor["policy"]

    @abstractmethod
    def decide(self, obs: dict[str, Tensor], generator: torch.Generator) -> Decision:
        """Act on observations (n, ...), and record what `terms` needs."""
        ...

    @abstractmethod
    def terms(self, rows: dict[str, Tensor], obs: dict[str, Tensor], ctx: Tensor) -> ActorTerms:
        """The actor's loss.

        Args:
            rows: minibatch (M, ...) of the record, "advantage", and what `draw` gave.
            obs: raw observations (M, ...).
            ctx: (M, D) `policy.encode(obs)`, through which gradients flow.
        """
        ...

    def draw(self, batch: OnPolicyBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """More rows (B, ...) for an iteration's minibatches: what the loss needs by chance, for example."""
        del batch, generator
        return {}

    def schedule(self, progress: float) -> None:
        """Set what changes over the budget; called before each rollout with the part of it that is used up."""
        del progress

    def deployed(self, policy: Any) -> Any:
        """What runs on the robot, made of the fine-tuned policy or of a copy with averaged weights."""
        return policy

    @property
    def learned_steps(self) -> int:
        """Rows of the policy's network that a decision is in an update; of most methods the denoising steps that learn.

        With those of acting, which are all denoising steps, they are logged: methods differ in this above all.
        """
        return self.policy.denoising_steps

    def value(self, obs: dict[str, Tensor]) -> Tensor:
        """The critic on raw observations (B, ...)."""
        return self.critic(self.critic.encode(obs, self.policy.encode(obs)))

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        with in_bf16(self._shared.bf16, context.carry.device):
            return self._loss(batch, context)

    def _loss(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        cfg = self._shared
        going, lr = context.carry.unbind()
        obs = observations(batch)
        critic_lr = lr * (cfg.critic_lr / cfg.lr)
        if context.phase == CRITIC:
            with torch.no_grad():
                seen = self.critic.encode(obs, self.policy.encode(obs))
            value_loss = value_mse(self.critic(seen), batch["value_target"])
            info = {"value_loss": value_loss, "actor_on": torch.zeros_like(going), "lr": lr}
            return LossOut(value_loss, info, (None, critic_lr), context.carry)
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
            "actor_on": going,
            "lr": lr,
            **(found.info or {}),
        }
        return LossOut(loss, info, (lr * going, critic_lr), context.carry)

    def next_carry(self, carry: Tensor, info: Mapping[str, Tensor]) -> Tensor:
        """See `LossModule.next_carry`."""
        if self._shared.target_kl is None or "approx_kl" not in info:
            return carry
        going, lr = carry.unbind()
        return torch.stack([going * (info["approx_kl"] <= self._shared.target_kl).to(going.dtype), lr])


# update


def start_from(setup: Setup, method: str) -> Any:
    """The policy that is fine-tuned.

    Raises:
        ConfigError: there is none.
        CapabilityError: it has no denoising chain.
    """
    policy: Any = setup.init_policy
    if policy is None:
        raise ConfigError(
            f"init_from is not given: {method} fine-tunes a policy that flows or denoises; expected a run, e.g. of"
            " peg-insert-bc-flow, or of tabletop-bc-flow for one that reads"
        )
    if not isinstance(setup.init_policy, HasChain):
        raise CapabilityError(
            f"policy {type(policy).__name__} lacks HasChain: {method} needs a flow or diffusion policy"
        )
    return policy


class ChainLearner(SimLearner):
    """Fine-tunes a generative policy on line, with whatever method `make_loss` makes.

    Args:
        cfg: settings.
        setup: see `Setup`; a policy to start from is required.
        method: what to call the method in errors.
        make_loss: (policy, maker of its critic) to the method's loss module.

    Raises:
        ConfigError: no policy to start from, settings out of range, or a sim that it was not trained for.
        CapabilityError: the policy has no denoising chain.
    """

    def __init__(
        self, cfg: ChainCfg, setup: Setup, method: str, make_loss: Callable[[Any, MakeCritic], ChainLoss]
    ) -> None:
        policy = start_from(setup, method)
        check_settings(cfg, policy.horizon)
        check_decay("algo.ema", cfg.ema)
        for name, high in (("lr_end", 1.0), ("start_noise", 1.0), ("muon", 1e3)):
            check_number(f"algo.{name}", getattr(cfg, name), 0.0, high)
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

        def make_critic(tuned: Any) -> Critic:
            return Critic(tuned.context_width, specs, self._privileged.transforms(), cfg.critic_hidden)

        self.loss = make_loss(policy, make_critic).to(dtype=kind.dtype, device=kind.device)
        model = self.loss.policy
        self.kept = setup.kept(model, cfg.microbatch or cfg.minibatch, cfg.bf16)
        self._average: Any = copy.deepcopy(model) if cfg.ema else None
        self.policy: Any = self.loss.deployed(model if self._average is None else self._average)
        self.iterations = math.ceil(cfg.env_steps / (cfg.num_steps * self.sim.num_envs * self.world.size))
        decisions = cfg.num_steps * self.sim.num_envs * self.world.size / model.horizon
        self._engine = setup.engine(
            self.loss,
            (
                ParameterGroup("actor.", cfg.max_grad_norm, cfg.ema or None, muon=cfg.muon),
                ParameterGroup("critic.", cfg.max_grad_norm),
            ),
            minibatch=share("algo.minibatch", cfg.minibatch, self.world),
            carry=torch.tensor([1.0, cfg.lr]),
            mode=cfg.engine,
            updates=setup.expected(self.iterations * cfg.epochs * math.ceil(decisions / cfg.minibatch)),
            eps=ADAM_EPS,
            microbatch=cfg.microbatch,
        )
        normaliser = RewardNormalizer(self.sim.num_envs, cfg.gamma, self.world)
        self._reward_normalizer = normaliser if cfg.normalize_reward else None
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._stepper = self._collector = Collector(self.sim, model.horizon, cfg.gamma)
        self._collector.reset(setup.seed, {"stagger": True})
        self._iteration = 0

    def iterate(self) -> dict[str, float]:
        """One rollout and its epochs."""
        batch, scalars = self.collect()
        scalars |= self.update(batch)
        # what the critic alone sees is normalised by all that was seen; the next rollout is valued with this
        self._privileged.update(batch.obs)
        self.loss.critic.set_transforms(self._privileged.transforms())
        return finite(self.world.means(scalars))

    def collect(self) -> tuple[OnPolicyBatch, dict[str, float]]:
        """A rollout under the policy as it is: its decisions with their advantages, and what to log of it."""
        cfg = self.cfg
        self.loss.schedule(self._iteration / self.iterations)
        rollout = self.world.with_episodes(self._collector.collect(self._decide, cfg.num_steps))
        reward = rollout.reward
        if self._reward_normalizer is not None:
            rollout = self._reward_normalizer.normalise(rollout)
            self.policy.reward_scale = self._reward_normalizer.scale
        batch = make_batch(rollout, self.loss.value, cfg.gamma, cfg.gae_lambda, world=self.world, keep=self._keep)
        self._iteration += 1
        scalars = rollout_scalars(rollout, batch, reward)
        scalars["acting_evaluations"] = float(len(batch.advantage) * self.loss.policy.denoising_steps)
        return batch, scalars

    def _keep(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is looked at again; a sim may show more, pictures for example."""
        return self.kept({key: x for key, x in obs.items() if key in self._keys})

    def update(self, batch: OnPolicyBatch) -> dict[str, float]:
        """The epochs over a rollout's decisions; gives what to log of them."""
        cfg = self.cfg
        self._engine.carry[0] = 1.0
        self._engine.carry[1] = cfg.lr * line((self._iteration - 1) / self.iterations, cfg.lr_end)
        rows = {**batch.rows(), **self.loss.draw(batch, self._generator)}
        size, minibatch = len(batch.advantage), self._engine.minibatch
        most = self.world.most(size)
        order = epoch_order(size, minibatch, cfg.epochs, self._generator, keep_all=False, most=most)
        # a decision takes a step or more, so no rollout holds more of them than it has steps
        capacity = cfg.num_steps * self.sim.num_envs
        warm_up = self._iteration <= cfg.critic_warmup
        epochs, evaluations = list[Updates](), 0
        for part in order.chunk(cfg.epochs):
            # once the KL limit has stopped the actor, the rest of the iteration is the critic's, at its own cost
            phase = CRITIC if warm_up or self._engine.carry[0] == 0 else BOTH
            evaluations += len(part) * self.loss.learned_steps * (phase == BOTH)
            epochs.append(self._engine.run(rows, part, capacity, f"iteration {self._iteration}", phase))
        if self._average is not None:
            self._engine.write_average("actor.policy.", self._average)
        return {**update_scalars(joined(epochs)), "update_evaluations": float(evaluations)}

    def _decide(self, obs: dict[str, Tensor]) -> Decision:
        with torch.no_grad(), in_bf16(self.cfg.bf16, self._engine.device):
            decision = self.loss.decide(obs, self._generator)
        # sims take float32, whatever the networks are of
        return decision._replace(chunk=decision.chunk.float())

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {
            "networks": self.loss.state_dict(),
            "engine": self._engine.state(),
            "privileged_normalizer": self._privileged.state(),
            "reward_normalizer": None if self._reward_normalizer is None else self._reward_normalizer.state(),
            "generator": generator_state(self._generator),
            "collector": self._collector.state(),
            "iteration": self._iteration,
            "processes": self.world.size,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`; the state is that of process 0, the others begin new episodes with streams of their own.

        Raises:
            ConfigError: the state is that of another number of processes.
        """
        check_processes(self.world, state)
        self.loss.load_state_dict(state["networks"])
        self._engine.load(state["engine"])
        if self._average is not None:
            self._engine.write_average("actor.policy.", self._average)
        self._privileged.load(state["privileged_normalizer"])
        self.loss.critic.set_transforms(self._privileged.transforms())
        if self._reward_normalizer is not None:
            self._reward_normalizer.load(state["reward_normalizer"])
        self._iteration = int(state["iteration"])
        exactly = take_up(self.world, state, self._seed + self._iteration, self._generator, self._collector)
        if not exactly and self._reward_normalizer is not None:
            self._reward_normalizer.restart()
