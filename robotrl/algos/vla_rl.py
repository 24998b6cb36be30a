"""PPO with a critic for autoregressive policies, as in VLA-RL (Lu et al. 2025, 2505.18719).

Each decision is one action with one ratio for all its tokens, and with generalized advantages over env steps. The
critic reads features from a frozen copy of the policy, so it does not affect the policy's encoder, and is trained alone
at first. A learned process reward may be added to the sim's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import share
from robotrl.engine.engine import Context, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.errors import CapabilityError, check_at_least, check_positive
from robotrl.fn.loss import ppo_clip, value_clipped_mse
from robotrl.fn.progress.shaping import Form
from robotrl.fn.schedule import warmed
from robotrl.fn.text import tokens
from robotrl.learners.collection.acting import MemorylessActing, RolloutActing, independent
from robotrl.learners.collection.older_policy import correction
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.normalizers import ObsNormalizer
from robotrl.learners.on_policy import (
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
from robotrl.learners.parts import Part
from robotrl.learners.token_policy import say, start_from
from robotrl.policies.networks.value import Critic
from robotrl.rewards.process_model import ProcessReward
from robotrl.rewards.process_stored import load_process, process_from_tree, process_tree
from robotrl.rewards.process_term import ProcessTerm
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import HasObservationEncoder, LearnerCfg, MemoryNeeds, measured, privileged, reads
from robotrl.utils.batched import in_parts

CRITIC, BOTH = "critic", "both"
"""Phases of the engine: critic only, or actor and critic."""
READ = "read"
"""Key of the frozen copy's features among the observations."""


@dataclass(frozen=True)
class VlaRlCfg(LearnerCfg):
    """Settings of VLA-RL; discount, clip ranges, the critic's size and its warmup are the published ones."""

    default_policy: ClassVar[str] = "token-vla"
    clusters: ClassVar[bool] = True
    corrects_staleness: ClassVar[bool] = True
    env_steps: int = 400_000
    """Budget of env steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 40
    """Env steps per env in a rollout."""
    epochs: int = 2
    """Passes over a rollout's decisions; with 1, the ratio is always 1 and nothing is clipped."""
    minibatch: int = 128
    """Decisions per gradient step."""
    microbatch: int | None = None
    """Decisions per forward and backward pass, to save memory; must divide the minibatch. None: the whole minibatch."""
    lr: float = 1e-4
    """Learning rate of the policy."""
    warmup: int = 20
    """Updates of linear learning-rate warmup of the policy, so that Adam's noisy first steps do not undo the
    pretraining."""
    critic_lr: float = 1e-3
    """Learning rate of the critic."""
    gamma: float = 0.99
    """Discount per env step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation (GAE), per decision."""
    clip_coef: float = 0.2
    """PPO clip range of a decision's ratio."""
    value_clip: float = 0.2
    """Value clip range: largest change of a value from its estimate before the iteration."""
    normalize_advantage: bool = False
    """Normalize a rollout's advantages to mean 0 and standard deviation 1."""
    target_kl: float | None = None
    """Stop the actor's updates of an iteration once the approximate KL of a minibatch exceeds this. None: no limit."""
    critic_warmup_env_steps: int = 12_800
    """Env steps at the start of the budget, summed over all envs, whose iterations train the critic only."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for actor and critic separately."""
    critic_hidden: tuple[int, ...] = (1024, 512)
    """Widths of the critic's hidden layers."""
    process_reward: str | None = field(default=None, metadata=reads("checkpoint", kept=True))
    """Directory of a process reward (`robotrl reward process`) whose term is added to the sim's reward in training."""
    process_form: Form = "potential"
    """Form of the added reward: "potential", the discounted change of the progress, which keeps the optimal policy; or
    the progress itself, as published."""
    process_scale: float = 1.0
    """Factor of the added reward."""
    bf16: bool = False
    """Networks compute in bfloat16; densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "eager"
    """Execution mode of updates: "eager", "compiled" or "auto"; see docs/engine.md."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        check_ranges(self)
        check_positive("algo.value_clip", self.value_clip)
        check_at_least("algo.warmup", self.warmup, 0)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.minibatch, self.microbatch, splits=True, num_steps=self.num_steps, bf16=self.bf16)

    def beside(self, policy: Any) -> list[Any]:
        """See `LearnerCfg.beside`: the critic's frozen encoder is a copy of the policy."""
        return [policy]

    def build(self, setup: Setup) -> VlaRlLearner:
        """Build the learner."""
        return VlaRlLearner(self, setup)


# losses


def decision_log_prob(logits: Tensor, action_tokens: Tensor, temperature: float) -> Tensor:
    """Return (B,) log-probabilities of all tokens (B, H, A) of a decision together."""
    return tokens.log_prob(logits, action_tokens, temperature).flatten(1).sum(dim=1)


class VlaRlLoss(LossModule):
    """Loss of actor and critic; the carry is "actor_active", 1 while the actor still learns, and its "updates".

    Args:
        policy: the policy in training.
        critic: critic on the frozen copy's features, on measured numbers, and on the sim's privileged arrays.
        cfg: settings.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(self, policy: nn.Module, critic: Critic, cfg: VlaRlCfg) -> None:
        super().__init__()
        self.policy: Any = policy
        self.critic = critic
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, policy = self._cfg, self.policy
        active, done = context.carry["actor_active"], context.carry["updates"]
        obs = observations(batch)
        value = self.critic(self.critic.encode(obs, obs[READ]))
        value_loss = value_clipped_mse(value, batch["value"], batch["value_target"], cfg.value_clip)
        critic_lr = torch.tensor(cfg.critic_lr, dtype=value.dtype, device=value.device)
        if context.phase == CRITIC:
            info = {"value_loss": value_loss, "actor_on": torch.zeros_like(active)}
            return LossOut(value_loss, info, (None, critic_lr))
        with in_bf16(cfg.bf16, context.device):
            logits = policy.token_logits(policy.encode(obs), batch["tokens"])
        log_prob = decision_log_prob(logits, batch["tokens"], policy.temperature)
        out = ppo_clip(log_prob, batch["log_prob"], batch["advantage"], cfg.clip_coef)
        info = {
            "pg_loss": out.loss,
            "value_loss": value_loss,
            "approx_kl": out.approx_kl,
            "clip_fraction": out.clip_fraction,
            "ratio_error": out.ratio_error,
            "actor_on": active,
        }
        with torch.no_grad():
            info["entropy"] = tokens.entropy(logits, policy.temperature).mean()
        lr = cfg.lr * active * warmed(done, cfg.warmup)
        carry = {"actor_active": active, "updates": done + active}
        return LossOut(out.loss + value_loss, info, (lr, critic_lr), carry)

    def next_carry(self, carry: dict[str, Tensor], info: Any) -> dict[str, Tensor]:
        """See `LossModule.next_carry`."""
        if self._cfg.target_kl is None or "approx_kl" not in info:
            return carry
        active = carry["actor_active"]
        return carry | {"actor_active": active * (info["approx_kl"] <= self._cfg.target_kl).to(active.dtype)}


# acting


class TokenRolloutActing(MemorylessActing):
    """An autoregressive policy, as it acts in rollouts; implements `RolloutActing`.

    Args:
        policy: the policy.
        bf16: whether networks compute in bfloat16.
        device: device of the networks.
    """

    def __init__(self, policy: Any, bf16: bool, device: torch.device) -> None:
        self.network, self.horizon = policy, policy.horizon
        self._bf16, self._device = bf16, device

    @torch.no_grad()
    def decide(self, obs: dict[str, Tensor], generator: torch.Generator, envs: Collector) -> Decision:
        """See `RolloutActing.decide`."""
        del envs
        policy = self.network
        with in_bf16(self._bf16, self._device):
            ctx, decision = say(policy, obs, generator)
            action_tokens = decision.record["tokens"]
            logits = policy.token_logits(ctx, action_tokens)
        log_prob = decision_log_prob(logits, action_tokens, policy.temperature)
        return decision._replace(record={**decision.record, "log_prob": log_prob})

    def copied(self, num_envs: int, device: torch.device) -> RolloutActing:
        """See `RolloutActing.copied`."""
        del num_envs
        return TokenRolloutActing(independent(self.network, device), self._bf16, device)


# update


class VlaRlLearner(Learner):
    """Fine-tunes an autoregressive policy with a critic; see `VlaRlCfg`.

    Raises:
        ConfigError: settings out of range, no policy to start from, a sim that it was not trained for, or a process
            reward that may not be used or is not for the sim.
        CapabilityError: the policy is not autoregressive over tokens, or has no observation encoder.
        DataError: the process reward's files are damaged.
    """

    caches = True

    def __init__(self, cfg: VlaRlCfg, setup: Setup) -> None:
        policy = start_from(setup, "VLA-RL")
        if not isinstance(setup.init_policy, HasObservationEncoder):
            raise CapabilityError(
                f"policy {type(policy).__name__} lacks HasObservationEncoder: its critic needs its features"
            )
        check_settings(cfg, policy.horizon)
        cfg.check()
        self.cfg = cfg
        self.world, self._seed = setup.world, setup.seed
        torch.manual_seed(setup.seed)
        self.sim = setup.make_sim()
        check_fit(policy, self.sim)
        self.policy: Any = policy
        self.policy.control_dt_s = self.sim.control_dt_s
        # a resumed run has it in its state
        wanted = None if setup.resumed else cfg.process_reward
        self._process = None if wanted is None else self._added(load_process(wanted))
        self.kept = setup.kept(policy, cfg.microbatch or cfg.minibatch, cfg.bf16)
        self._reader: Any = policy.observation_encoder()
        # measured numbers as they are, too: the features do not hold them exactly
        seen = policy.observation_spec
        numbers = {key: seen[key] for key in measured(seen)}
        numbers |= {key: self.sim.observation_spec[key] for key in privileged(self.sim)}
        self._keys, self._numbers = tuple(seen | numbers), tuple(numbers)
        self._normalizer = ObsNormalizer(numbers, self.world)
        critic = Critic(self._reader.width, numbers, self._normalizer.transforms(), cfg.critic_hidden)
        self.critic = critic.to(setup.device)
        self._engine = setup.engine(
            VlaRlLoss(policy, self.critic, cfg),
            (ParameterGroup("policy.", cfg.max_grad_norm), ParameterGroup("critic.", cfg.max_grad_norm)),
            minibatch=share("algo.minibatch", cfg.minibatch, self.world),
            carry={"actor_active": 1.0, "updates": 0.0},
            mode=cfg.engine,
            microbatch=cfg.microbatch,
            updates_per_call=1,
        )
        acting = TokenRolloutActing(policy, cfg.bf16, setup.device)
        self._rollouts = Rollouts(cfg, setup, self.sim, acting, normalize_reward=False)
        self._generator, self.iterations = self._rollouts.generator, self._rollouts.iterations
        self._stepper = self._collector = self._rollouts.collector

    def iterate(self) -> dict[str, float]:
        """Run one rollout and its epochs of updates."""
        cfg = self.cfg
        rollout, sim_reward = self._rollouts.collect(self.policy)
        scalars = self._rollouts.collector.scalars()
        if self._process is not None:
            added = self._process.term(rollout)
            rollout = rollout._replace(reward=sim_reward + added.reward)
            scalars["process_reward"] = float(added.reward[rollout.valid].mean())
            scalars["process_progress"] = float(added.progress[rollout.valid].mean())
        # encode once, for the values now and in all epochs
        rollout = rollout._replace(
            obs=self._read(rollout.obs, rollout.valid), next_obs=self._read(rollout.next_obs, rollout.valid)
        )
        # even the first rollout's values use its own mean and standard deviation
        self._normalizer.update({key: rollout.obs[key][rollout.valid] for key in self._numbers})
        self.critic.set_transforms(self._normalizer.transforms())
        batch = make_batch(
            rollout, self._value, cfg.gamma, cfg.gae_lambda, world=self.world, normalized=cfg.normalize_advantage
        )
        # the critic has its own features: the cache is for the policy's epochs
        batch = batch._replace(obs=self.kept(batch.obs))
        scalars |= rollout_scalars(rollout, batch, sim_reward)
        if self._rollouts.collector.staleness:
            batch, more = self._corrected(batch)
            scalars |= more
        self.iteration += 1
        return finite(self.world.means(scalars | self._update(batch)))

    def _corrected(self, batch: OnPolicyBatch) -> tuple[OnPolicyBatch, dict[str, float]]:
        """Return the batch of an older policy for the update, and scalars to log; see `older_policy.correction`.

        The weight of a decision is that of all its tokens together, as is its ratio.
        """
        proximal = self._proximal(batch)
        weight, scalars = correction(proximal, batch.record["log_prob"])
        return batch._replace(record=batch.record | {"log_prob": proximal}, advantage=batch.advantage * weight), scalars

    @torch.no_grad()
    def _proximal(self, batch: OnPolicyBatch) -> Tensor:
        """Log-probabilities (B,) of an older policy's decisions under the policy before this update."""
        cfg, policy = self.cfg, self.policy

        def log_prob(rows: dict[str, Tensor]) -> Tensor:
            with in_bf16(cfg.bf16, self._engine.device):
                logits = policy.token_logits(policy.encode(observations(rows)), rows["tokens"])
            return decision_log_prob(logits, rows["tokens"], policy.temperature)

        return in_parts(log_prob, batch.rows(), cfg.microbatch or cfg.minibatch)

    def _value(self, obs: dict[str, Tensor]) -> Tensor:
        return self.critic(self.critic.encode(obs, obs[READ]))

    @torch.no_grad()
    def _read(self, obs: dict[str, Tensor], valid: Tensor) -> dict[str, Tensor]:
        """Add the frozen copy's features of the valid rows to the observations (M, N, ...) of policy and critic."""
        shown = {key: obs[key] for key in self._keys}
        rows = {key: shown[key][valid] for key in self.policy.observation_spec}
        read = torch.zeros(*valid.shape, self._reader.width, device=valid.device)
        read[valid] = in_parts(self._reader, rows, self.cfg.minibatch)
        return {**shown, READ: read}

    def _update(self, batch: OnPolicyBatch) -> dict[str, float]:
        self._engine.carry["actor_active"].fill_(1.0)
        rows = {**batch.rows(), "value": batch.value}
        order = self._rollouts.order(len(batch.advantage), self._engine.minibatch, keep_all=True)
        phase = CRITIC if self._rollouts.critic_only(self.iteration) else BOTH
        what = f"iteration {self.iteration}"
        return update_scalars(self._engine.run(rows, order, self._rollouts.capacity, what, phase))

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`; the critic's frozen encoder is that of the start of the run."""
        return {
            "policy": self.policy,
            "critic": self.critic,
            "normaliser": self._normalizer,
            "reader": self._reader,
            "engine": self._engine,
        } | self._rollouts.parts()

    def state(self) -> dict[str, Any]:
        """See `Learner.state`; a process reward is part of it."""
        process = {} if self._process is None else {"process": process_tree(self._process.reward)}
        return process | super().state()

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        self.critic.set_transforms(self._normalizer.transforms())
        if "process" in state:
            self._process = self._added(process_from_tree(state["process"], "the checkpoint"))

    def _added(self, reward: ProcessReward) -> ProcessTerm:
        cfg = self.cfg
        return ProcessTerm(reward, self.sim, cfg.process_form, cfg.process_scale, cfg.gamma, name="algo.process_reward")
