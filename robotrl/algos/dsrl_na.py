"""DSRL with noise aliasing: an action critic and a noise critic (Wagenmaker et al. 2025, 2506.15799, sec. 4.3).

The action critic learns from executed chunks of any source, including demonstrations. The noise critic is distilled
from it through the frozen policy, and the actor maximizes the noise critic: no gradient passes through the denoiser.

Unlike in the paper, the noise critic learns the advantage of a noise over others in the same state. The state's own
value cancels in the actor's gradient, but it dominates the variance of the values (ten times the rest on peg-insert),
so a critic of whole values would spend its updates on it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.datasets.agreement.agree import check_reach
from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import ConfigError, check_at_least, out_of_range
from robotrl.fn.q_targets import bootstrap, ensemble_mse, soft_actor, soft_value, temperature_loss
from robotrl.learners.dataset import read_for
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import ActionNormalizer, demonstrations, detached
from robotrl.learners.parts import Part
from robotrl.learners.steering import NOISE, UPDATES_PER_CALL, SteeringLearner, critics, saturated
from robotrl.policies.q import smallest
from robotrl.policies.reach import reach_of
from robotrl.policies.steered import SteeredPolicy
from robotrl.replay.buffer import Replay
from robotrl.replay.samplers import Mixed, Sampler, Uniform
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults

LEARN, DISTILL = "learn", "distill"


@dataclass(frozen=True)
class DsrlNaCfg(LearnerCfg):
    """Settings of DSRL with noise aliasing."""

    default_policy: ClassVar[str] = "steered"
    # few envs, because an update is slow and some follow each decision of all envs
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 16, "tuned_on": "success"})
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 100_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 80
    """Env steps per env in an iteration."""
    warmup: int = 8_000
    """Env steps with the base policy's own noise before the first update."""
    updates: int = 20
    """Updates of action critic, actor and temperature after each decision of all envs."""
    distill_updates: int = 10
    """Updates of the noise critic after those of the action critic."""
    decoded: int = 2_560
    """Number of new (noise, decoded chunk) pairs for the noise critic after each decision of all envs."""
    group: int = 8
    """Pairs per state, 2 or more; the noise critic learns their values minus the group's mean."""
    own_share: float = 0.5
    """Fraction of a state's pairs whose noise is sampled from the actor; the rest is the base policy's noise, as
    published. At 0, the actor may exploit noise that the noise critic was never trained on."""
    pairs: int = 50_000
    """Number of pairs that are kept and reused; they stay valid because the base policy is frozen."""
    batch: int = 256
    """Chunks per update, or pairs per update of the noise critic."""
    capacity: int = 1_000_000
    """Capacity of the replay, env steps."""
    demo_share: float = 0.0
    """Fraction of demonstrations in each batch of the action critic, below 1; above 0 needs a dataset."""
    lr: float = 3e-4
    """Learning rate of actor, critics and temperature."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.005
    """Step of the target critics towards the critics per update, 0 to 1 (Polyak averaging)."""
    num_critics: int = 2
    """Number of action critics; targets and the noise critic use their minimum."""
    critic_hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of the critics' hidden layers."""
    initial_alpha: float = 0.1
    """Initial temperature: the reward equivalent of one nat of entropy."""
    target_entropy: float = 0.0
    """Target entropy, nats per element of the noise divided by its bound."""
    reward_shift: float = -1.0
    """Number added to the reward of each env step; -1 turns rewards 0 and 1 into -1 and 0, so that each step before
    success costs."""
    max_grad_norm: float = 10.0
    """Maximum gradient norm, for each network separately."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    engine: EngineMode = "auto"
    """"compiled" needs a C++ compiler and compiles once for about a minute; "eager" runs the same function uncompiled;
    "auto" times the first updates and compiles if that saves time in this run."""

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps)

    def build(self, setup: Setup) -> DsrlNaLearner:
        """Build the learner."""
        return DsrlNaLearner(self, setup)


# losses


class DsrlNaLoss(LossModule):
    """Losses of two phases. "learn": action critics, actor and temperature; "distill": noise critic.

    Args:
        policy: steered policy; its base policy's parameters are constants.
        unit: normalizer of the executed actions.
        cfg: settings.
    """

    def __init__(self, policy: SteeredPolicy, unit: ActionNormalizer, cfg: DsrlNaCfg) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critics(policy, (policy.horizon, policy.action_width), cfg, cfg.num_critics)
        self.noise_critic = critics(policy, policy.base_noise, cfg, 1)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(cfg.initial_alpha)))
        # a copy, which moves to the networks' device: the replay's chunks stay with the sim
        self._unit, self._cfg = copy.deepcopy(unit), cfg
        self._target_entropy = cfg.target_entropy * math.prod(policy.base_noise)

    def executed(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Decode noise to the chunk (B, H, A) that the sim would execute, in [-1, 1] like the replay's chunks."""
        return self._unit(self.policy.to_actions(self.policy.steer(ctx, noise)))

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        return self._distill(batch, context) if context.phase == DISTILL else self._learn(batch, context)

    def _learn(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        actor, bound = self.policy.actor, self.policy.actor.bound
        target = self._target(batch, context)
        with torch.no_grad():
            ctx = self.policy.encode(part(batch, "obs/"))
        values = self.critic(ctx, batch["chunk"])
        sample = actor.draw(ctx, batch["normal"])
        q_pi = functional_call(self.noise_critic, detached(self.noise_critic), (ctx, sample.noise / bound))
        alpha = self.log_alpha.exp()
        critic_loss = ensemble_mse(values, target)
        actor_terms = soft_actor(smallest(q_pi), sample.log_prob, alpha)
        alpha_loss = temperature_loss(self.log_alpha, sample.log_prob, self._target_entropy)
        info = {
            "critic_loss": critic_loss,
            "actor_loss": actor_terms.loss,
            "q": values.mean(),
            "target": target.mean(),
            "entropy": actor_terms.entropy,
            "alpha": alpha,
            "saturated": saturated(sample.noise, bound),
        }
        lr = torch.full_like(target[0], self._cfg.lr)
        return LossOut(critic_loss + actor_terms.loss + alpha_loss, info, (lr, lr, None, lr))

    @torch.no_grad()
    def _target(self, batch: dict[str, Tensor], context: Context) -> Tensor:
        """The target r + gamma^n (1 - terminated) (min Q^A'(s', D(s', w')) - alpha log pi(w'|s')), (B,)."""
        ctx = self.policy.encode(part(batch, "next_obs/"))
        sample = self.policy.actor.draw(ctx, batch["next_normal"])
        chunk = self.executed(ctx, sample.noise)
        values = functional_call(self.critic, part(context.average, "critic."), (ctx, chunk))
        value = soft_value(smallest(values), sample.log_prob, self.log_alpha.exp())
        return bootstrap(batch["reward"], batch["discount"], value)

    def _distill(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """Loss of the noise critic (1, B); its targets are the action critics' values of the decoded chunks."""
        with torch.no_grad():
            ctx = self.policy.encode(part(batch, "obs/"))
            target = relative(smallest(self.critic(ctx, batch["chunk"])), self._cfg.group)
        values = self.noise_critic(ctx, batch[NOISE] / self.policy.actor.bound)
        loss = ensemble_mse(values, target)
        rates = (None, None, torch.full_like(target[0], self._cfg.lr), None)
        return LossOut(loss, {"distill_loss": loss, "distill_spread": target.std()}, rates)


def relative(values: Tensor, group: int) -> Tensor:
    """Subtract the group's mean from values (B,); each `group` consecutive rows are one group."""
    rows = values.view(-1, group)
    return (rows - rows.mean(1, keepdim=True)).flatten()


# update


class Pairs:
    """Ring buffer of (state, noise, decoded chunk) rows.

    Args:
        capacity: number of rows; a multiple of `group`.
        group: number of consecutive rows of one state, which are sampled together.
    """

    def __init__(self, capacity: int, group: int) -> None:
        self._capacity, self._group = capacity, group
        self._rows: dict[str, Tensor] = {}
        self._added = 0

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add rows (n, ...) of each name, in whole groups, over the oldest; n at most the capacity."""
        if not self._rows:
            self._rows = {name: x.new_zeros((self._capacity, *x.shape[1:])) for name, x in rows.items()}
        count = len(next(iter(rows.values())))
        places = (self._added + torch.arange(count)) % self._capacity
        for name, x in rows.items():
            self._rows[name][places] = x.to(self._rows[name].device)
        self._added += count

    def sample(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample rows (count, ...) uniformly, in whole groups, with replacement."""
        count_stored = min(self._added, self._capacity) // self._group
        first = torch.randint(count_stored, (count // self._group, 1), generator=generator) * self._group
        places = (first + torch.arange(self._group)).flatten()
        return {name: x[places] for name, x in self._rows.items()}

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"rows": {name: x[: self._added] for name, x in self._rows.items()}, "added": self._added}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._rows, self._added = {}, 0
        if state["rows"]:
            self.add(state["rows"])
        self._added = int(state["added"])


class DsrlNaLearner(SteeringLearner):
    """Trains the noise actor of a frozen policy by noise aliasing; see `DsrlNaCfg`.

    Raises:
        ConfigError: settings out of range, or a base policy or demonstrations that do not fit the sim.
        CapabilityError: the policy cannot be steered.
    """

    def __init__(self, cfg: DsrlNaCfg, setup: Setup) -> None:
        check_at_least("algo.distill_updates", cfg.distill_updates, 1)
        if not 1 <= cfg.decoded <= cfg.pairs:
            raise out_of_range("algo.decoded", cfg.decoded, f"1 to {cfg.pairs}, algo.pairs")
        if cfg.group < 2:
            raise out_of_range("algo.group", cfg.group, "2 or more: values are compared within a state")
        for name in ("batch", "decoded", "pairs"):
            if getattr(cfg, name) % cfg.group:
                raise out_of_range(f"algo.{name}", getattr(cfg, name), f"a multiple of {cfg.group}, algo.group")
        if not 0 <= cfg.own_share <= 1:
            raise out_of_range("algo.own_share", cfg.own_share, "0 to 1")
        if not 0 <= cfg.demo_share < 1:
            raise out_of_range("algo.demo_share", cfg.demo_share, "0 or more and below 1")
        self.cfg = cfg
        super().__init__(cfg, setup)
        self._states: Sampler = Uniform(self.replay)
        self._chunks = self._states
        if cfg.demo_share:
            self._chunks = Mixed([(Uniform(self._demos(setup)), cfg.demo_share), (self._states, 1 - cfg.demo_share)])
        self._loss = DsrlNaLoss(self.policy, self.unit, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            (
                ParameterGroup("policy.actor.", cfg.max_grad_norm),
                ParameterGroup("critic.", cfg.max_grad_norm, 1 - cfg.tau),
                ParameterGroup("noise_critic.", cfg.max_grad_norm),
                ParameterGroup("log_alpha", cfg.max_grad_norm),
            ),
            minibatch=cfg.batch,
            mode=cfg.engine,
            updates=setup.expected(self.learned * (cfg.updates + cfg.distill_updates)),
            threads=setup.update_threads,
            updates_per_call=UPDATES_PER_CALL,
        )
        self._pairs = Pairs(cfg.pairs, cfg.group)

    def _demos(self, setup: Setup) -> Replay:
        """Load the demonstrations into a replay of their own, which rollouts never overwrite."""
        if setup.dataset is None:
            raise ConfigError(f"dataset is not given: algo.demo_share is {self.cfg.demo_share}, which needs one")
        sim, layout = self.sim, self.experience.memory.layout
        dataset = read_for(setup, self.cfg.dataset_keys, layout.observation_spec, sim)
        check_reach(dataset, self.policy.transforms, layout.action_spec, reach_of(self.policy.base))
        return demonstrations(
            dataset, layout.observation_spec, layout.action_spec, sim.control_dt_s, layout.extras, accept=True
        )

    def learn(self) -> dict[str, float]:
        """See `SteeringLearner.learn`."""
        return self._learn() | self._distill()

    def _learn(self) -> dict[str, float]:
        cfg = self.cfg
        count = cfg.updates * cfg.batch
        rows = self.rows(self._chunks, cfg.updates)
        # the action critic does not need the noise that a chunk was decoded from
        del rows[NOISE]
        rows |= {"normal": self.normal(count), "next_normal": self.normal(count)}
        return self._run(rows, count, LEARN)

    def _distill(self) -> dict[str, float]:
        cfg = self.cfg
        self._pairs.add(self._decode(cfg.decoded))
        count = cfg.distill_updates * cfg.batch
        return self._run(self._pairs.sample(count, self.generator), count, DISTILL)

    @torch.no_grad()
    def _decode(self, count: int) -> dict[str, Tensor]:
        """Sample states from the replay and noise for each, and decode the noise to chunks."""
        cfg = self.cfg
        states = self._states.sample(count // cfg.group, self.policy.horizon, cfg.gamma, self.generator)
        device = self._engine.device
        obs = {key: states.obs[key].to(device).repeat_interleave(cfg.group, 0) for key in self.policy.observation_spec}
        ctx = self.policy.encode(obs)
        own = torch.arange(count) % cfg.group < round(cfg.own_share * cfg.group)
        noise = self.policy.actor.plain(self.uniform(count).to(device))
        noise[own] = self.policy.actor.draw(ctx[own], self.normal(int(own.sum())).to(device)).noise
        chunk = self._loss.executed(ctx, noise)
        return {**{f"obs/{key}": x for key, x in obs.items()}, NOISE: noise, "chunk": chunk}

    def _run(self, rows: dict[str, Tensor], count: int, phase: str) -> dict[str, float]:
        return self._engine.run(rows, torch.arange(count), count, f"iteration {self.iteration}", phase).mean()

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        own_parts: dict[str, Part] = {"networks": self._loss, "engine": self._engine, "pairs": self._pairs}
        return own_parts | super().parts()
