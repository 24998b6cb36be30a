"""RL-100's offline stage: policy gradient through the denoising chain, in the states of logs (arXiv 2510.14830).

Critics of IQL learn from the logs, failures included. Then an old policy, which is frozen, samples noisy chains in
logged states; the chunk at a chain's end has an advantage by the critics, and each step of the chain has a ratio. No
action of the logs is cloned, and no sim is stepped. A gate judges each iteration's updates by the critics, in logged
states or along steps of learned dynamics: either the policy becomes the old one, or all its updates are undone.

The online stage is `robotrl.algos.rl100_online`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from robotrl.algos.flow_sde import policy_loss
from robotrl.engine.base import ENGINE_MODES
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, part, run_updates
from robotrl.engine.snapshot import Snapshot
from robotrl.errors import ConfigError, check_at_least, check_decay, check_number, check_positive, out_of_range, unknown
from robotrl.fn import chain
from robotrl.fn.advantage import normalize
from robotrl.fn.candidates.proposals import sampler_of
from robotrl.fn.candidates.select import Value
from robotrl.fn.dynamics.along import value_along
from robotrl.learners.critics.chunk_critic import CriticSizes, Reduction, reduced
from robotrl.learners.critics.gate_record import GateRecord
from robotrl.learners.critics.heldout import quality_on
from robotrl.learners.critics.iql_critic import iql_critic_loss, iql_values
from robotrl.learners.critics.logs import read_logs
from robotrl.learners.critics.stored import critic_tree, matter_of, state_value_tree
from robotrl.learners.denoising import start_from
from robotrl.learners.denoising_sampling import chain_log_prob, draw_chain, step_log_prob
from robotrl.learners.dynamics.cfg import DynamicsCfg
from robotrl.learners.dynamics.ensemble import StateChanges
from robotrl.learners.dynamics.fit import DynamicsFit
from robotrl.learners.dynamics.stored import dynamics_tree
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import ActionNormalizer, batch_rows, critics_of, no_clip, updates_per_call
from robotrl.learners.parts import Part
from robotrl.policies.networks.executed import ExecutedChunk
from robotrl.policies.networks.mlp import ACTIVATIONS, Activation
from robotrl.policies.networks.value import ValueNet
from robotrl.policies.q import QEnsemble
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults, reads

CRITIC, DYNAMICS, POLICY = "critic", "dynamics", "policy"
"""Stages of a run, in order; the first and the last are phases of the engine, the dynamics have an engine of their
own."""
REWARDS = ("stored", "success")
REDUCTION: Reduction = "min"
"""Value of a chunk by the critics, as in IQL."""
BLOCK = 1024
"""Most states that are scored at once."""

# losses


def chunk_advantage(q: Tensor, v: Tensor, batch: int) -> Tensor:
    """Advantages Q - V, normalized over each minibatch.

    Args:
        q: (U M,) values of the chunks.
        v: (U M,) values of the states.
        batch: M, rows of a minibatch.
    """
    rows = (q - v).view(-1, batch)
    return torch.stack([normalize(row, torch.ones_like(row, dtype=torch.bool)) for row in rows]).flatten()


class Rl100Loss(LossModule):
    """Losses of the critics (phase "critic") and of the policy (phase "policy").

    Contexts are rows of the policy's minibatches, so no gradient reaches the encoder: it stays as it is, and the
    critics read the same contexts throughout.

    Args:
        policy: the policy in training.
        cfg: settings.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(self, policy: Any, cfg: Rl100Cfg) -> None:
        super().__init__()
        self.policy = policy
        self.old: Any = copy.deepcopy(policy).requires_grad_(False)
        self.critic: QEnsemble = critics_of(policy, cfg)
        self.state_value = ValueNet(policy.context_width, cfg.critic_hidden, cfg.critic_activation)
        self.executed = ExecutedChunk(policy)
        self.kernel = chain.cps(cfg.noise, cfg.std_floor)
        self._cfg = cfg

    def value(self, weights: Mapping[str, Tensor]) -> Value:
        """Value of chunks (R, H, A) of the policy by critics with these weights."""
        value = reduced(self.critic, REDUCTION, weights)
        return lambda ctx, chunk: value(ctx, self.executed(chunk))

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg = self._cfg
        if context.phase == CRITIC:
            ctx, next_ctx = (self.old.encode(part(batch, name)) for name in ("obs/", "next_obs/"))
            averaged, chunk = part(context.average, "critic."), self.executed(batch["chunk"])
            found = iql_values(self.critic, self.state_value, averaged, ctx, next_ctx, chunk)
            loss, info = iql_critic_loss(found, batch["reward"], batch["discount"], cfg.expectile)
            critic_lr = torch.full_like(loss, cfg.critic_lr)
            return LossOut(loss, info, (None, critic_lr, critic_lr))
        log_prob = step_log_prob(chain_log_prob(self.policy, batch["ctx"], self.kernel, batch["chain"]))
        out = policy_loss(log_prob, batch, cfg.clip_coef)
        info = {
            "pg_loss": out.loss,
            "approx_kl": out.approx_kl,
            "clip_fraction": out.clip_fraction,
            "ratio_error": out.ratio_error,
        }
        return LossOut(out.loss, info, (torch.full_like(out.loss, cfg.lr), None, None))


# update


class Rl100Learner(Learner):
    """Trains critics on logged episodes, then the policy by its own chains in their states; see `Rl100Cfg`.

    Raises:
        ConfigError: no policy or no dataset, one of other arrays or another rate, no held-out episode, or settings out
            of range.
        CapabilityError: the policy has no denoising chain.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: Rl100Cfg, setup: Setup) -> None:
        cfg.check()
        model: Any = start_from(setup, "RL-100")
        sampler_of(model)
        if setup.dataset is None:
            raise ConfigError(
                "dataset is not given: RL-100 learns from logged episodes of the policy, failures included"
            )
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        check_fit(model, sim)
        self._logs = read_logs(cfg, setup, model, sim)
        model.control_dt_s = sim.control_dt_s
        sim.close()
        self.model: Any = model
        self.policy: Any = copy.deepcopy(model) if cfg.ema else model
        self._loss = Rl100Loss(model, cfg).to(setup.device)
        self._matter = matter_of(model, CriticSizes.of(cfg), cfg.gamma)
        self._stages = self._stages_of(cfg)
        self._engine = Engine(
            self._loss,
            (
                ParameterGroup("policy.", no_clip(cfg.max_grad_norm), cfg.ema or None, ramp=True),
                ParameterGroup("critic.", no_clip(cfg.max_grad_norm), 1 - cfg.tau),
                ParameterGroup("state_value.", no_clip(cfg.max_grad_norm)),
            ),
            minibatch=cfg.batch,
            mode=cfg.engine,
            updates=setup.expected(cfg.critic_updates + cfg.updates),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._seed = setup.seed
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._unit = ActionNormalizer.of_policy(model)
        self._device = setup.device
        self._learned = self._logs.frames(False)
        self._gate_frames = self._gate_frames_of_logs()
        self._quality: dict[str, float] = {}
        self._gate = GateRecord()
        self._dynamics = self._dynamics_of_logs(setup) if cfg.gate_steps > 1 else None
        self.iterations = sum(math.ceil(count / cfg.updates_per_iteration) for count in self._stages.values())
        # all policies are scored with the same noise, so that the difference of two scores has less of it
        noise = torch.Generator().manual_seed(setup.seed)
        self._gate_noise = torch.randn((len(self._gate_frames), *sampler_of(model).noise_shape), generator=noise)

    def _gate_frames_of_logs(self) -> Tensor:
        """Frames in whose states the gate scores policies: of held-out episodes, evenly spaced."""
        frames = self._logs.frames(True)
        if not len(frames):
            raise ConfigError(
                f"algo.held_out is {self.cfg.held_out:g} of {int((~self._logs.demonstrated).sum())} logged episodes, of"
                " which none is held out for the gate: expected more episodes or a larger fraction"
            )
        count = min(self.cfg.gate_states, len(frames))
        return frames[(torch.arange(count) * len(frames)) // count]

    def _dynamics_of_logs(self, setup: Setup) -> DynamicsFit:
        """Dynamics of the logs' states, which the policy's encoder makes: it never changes in a run."""
        learned, held = (self._changes(frames) for frames in (self._learned, self._logs.frames(True)))
        return DynamicsFit(self.cfg.dynamics, learned, held, setup.seed, setup.device)

    @torch.no_grad()
    def _changes(self, frames: Tensor) -> StateChanges:
        """Whole chunks from frames (M,) that did not end their episode: logs do not hold the state after its end."""
        found, encode = list[StateChanges](), self._loss.old.encode
        for index in frames.split(BLOCK):
            rows = self._logs.replay.view(index, self.model.horizon, self.cfg.gamma)
            some = (rows.steps == self.model.horizon) & ~rows.terminated & ~rows.truncated
            ctx, next_ctx = (
                encode({key: obs[key][some].to(self._device) for key in self.model.observation_spec}).cpu()
                for obs in (rows.obs, rows.next_obs)
            )
            chunk = self._loss.executed(self._unit(rows.chunk[some]).to(self._device)).cpu()
            found.append(StateChanges(ctx, chunk, next_ctx))
        return StateChanges(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    @staticmethod
    def _stages_of(cfg: Rl100Cfg) -> dict[str, int]:
        """Number of updates of each stage, in order."""
        dynamics = cfg.dynamics.updates if cfg.gate_steps > 1 else 0
        return {CRITIC: cfg.critic_updates, DYNAMICS: dynamics, POLICY: cfg.updates}

    def _next(self) -> tuple[str, int]:
        """Stage of the next iteration, and its number of updates."""
        end = 0
        for stage, updates in self._stages.items():
            end += updates
            if self.updates < end:
                return stage, min(self.cfg.updates_per_iteration, end - self.updates)
        raise RuntimeError("all updates were made: expected at most `iterations` iterations")

    def iterate(self) -> dict[str, float]:
        """Run updates of the critics, then of the dynamics, then of the policy; returns scalars to log."""
        stage, count = self._next()
        self.iteration += 1
        if stage == CRITIC:
            info = means(self._run(self._critic_rows, count, CRITIC))
            self._quality = quality_on(self._logs, self._value_of, self.cfg.gamma)
        elif stage == DYNAMICS:
            assert self._dynamics is not None, "the stage has no updates without dynamics"
            info = self._dynamics.fit(count, f"iteration {self.iteration}")
        else:
            info = self._improve(count)
        self.updates += count
        return info | self._quality | self._gate.scalars | {"updates": float(self.updates)}

    def _improve(self, count: int) -> dict[str, float]:
        """Make updates of the policy, and undo them unless the gate accepts; returns scalars to log."""
        if self._gate.score is None:
            self._gate.begin(self._score())
        before = Snapshot(self._loss, self._engine)
        found = self._run(self._policy_rows, count, POLICY)
        # of the first minibatch, in which policy and old policy are the same
        error = float(found["ratio_error"][0][0])
        self._write_average()
        if self._gate.judge(self._score(), self.cfg.margin):
            self._loss.old.load_state_dict(self._loss.policy.state_dict())
        else:
            before.restore()
            self._write_average()
        return means(found) | {"ratio_error": error}

    def _write_average(self) -> None:
        if self.cfg.ema:
            self._engine.write_average("policy.", self.policy)

    def _run(self, draw: Any, updates: int, phase: str) -> dict[str, list[Tensor]]:
        cfg, model = self.cfg, self.model
        most = UPDATES_PER_CALL * math.ceil(cfg.updates_per_iteration / UPDATES_PER_CALL)
        most = updates_per_call(most, cfg.batch, model.observation_spec)
        points = (model.denoising_steps + 1) * math.prod(sampler_of(model).noise_shape)
        most = fitting(most, 4 * cfg.batch * (points + model.context_width))
        return run_updates(self._engine, draw, updates, most, f"iteration {self.iteration}", phase)

    def _critic_rows(self, updates: int) -> dict[str, Tensor]:
        """Sample chunks of the episodes that are not held out."""
        index = self._drawn(updates)
        transitions = self._logs.replay.view(index, self.model.horizon, self.cfg.gamma)
        return batch_rows(transitions, self.model.observation_spec, self._unit)

    @torch.no_grad()
    def _policy_rows(self, updates: int) -> dict[str, Tensor]:
        """Sample chains of the old policy in logged states, with their advantages."""
        cfg, loss = self.cfg, self._loss
        value, rows = loss.value(self._engine.averages("critic.")), dict[str, list[Tensor]]()
        for index in self._drawn(updates).split(cfg.batch):
            drawn = draw_chain(loss.old, loss.kernel, self._observed(index), self._generator)
            q = value(drawn.ctx, drawn.chain.x[:, -1])
            found = {
                "ctx": drawn.ctx,
                "chain": drawn.chain.x,
                "log_prob": step_log_prob(drawn.chain.log_prob),
                "advantage": chunk_advantage(q, loss.state_value(drawn.ctx), cfg.batch),
            }
            for name, x in found.items():
                rows.setdefault(name, []).append(x)
        return {name: torch.cat(parts) for name, parts in rows.items()}

    def _drawn(self, updates: int) -> Tensor:
        """Frames of the rows of some updates, of episodes that are not held out."""
        return self._learned[torch.randint(len(self._learned), (updates * self.cfg.batch,), generator=self._generator)]

    def _observed(self, index: Tensor) -> dict[str, Tensor]:
        """Observations (M, ...) of logged states (M,)."""
        obs = self._logs.replay.view(index, 1, 1.0).obs
        return {key: obs[key].to(self._device) for key in self.model.observation_spec}

    @torch.no_grad()
    def _score(self) -> float:
        """J: mean value of the policy, as it is saved, from the held-out states; see `value_along`."""
        value, decode = self._value(), sampler_of(self.policy).sample
        # the same draws for all policies
        draws = torch.Generator().manual_seed(self._seed)

        def move(ctx: Tensor, chunk: Tensor) -> Tensor:
            assert self._dynamics is not None, "one step needs no model"
            model = self._dynamics.model
            network = torch.randint(len(model.elites), (len(ctx),), generator=draws).to(ctx.device)
            noise = torch.randn(ctx.shape, generator=draws).to(ctx)
            return model.step(ctx, self._loss.executed(chunk), network, noise)

        total = 0.0
        for index, first in zip(self._gate_frames.split(BLOCK), self._gate_noise.split(BLOCK), strict=True):

            def act(ctx: Tensor, step: int, first: Tensor = first) -> Tensor:
                noise = torch.randn(first.shape, generator=draws) if step else first
                return decode(ctx, noise.to(ctx))

            ctx = self._loss.old.encode(self._observed(index))
            total += float(value_along(ctx, self.cfg.gate_steps, act, value, move).sum())
        return total / len(self._gate_frames)

    @torch.no_grad()
    def _value_of(self, index: Tensor) -> Tensor:
        """Values (M,) of the chunks that were executed from the logged states (M,)."""
        transitions = self._logs.replay.view(index, self.model.horizon, self.cfg.gamma)
        ctx = self._loss.old.encode(self._observed(index))
        return self._value()(ctx, self._unit(transitions.chunk).to(self._device))

    def _value(self) -> Value:
        """Value of chunks by the averaged critics."""
        return self._loss.value(self._engine.averages("critic."))

    def critic_tree(self) -> dict[str, Any]:
        """See `Learner.critic_tree`: the averaged critics, the state value, and the dynamics if there are any."""
        tree = critic_tree(self._matter, self._engine.averages("critic."), REDUCTION, self._quality)
        tree |= state_value_tree(self._loss.state_value)
        return tree if self._dynamics is None else tree | dynamics_tree(self._dynamics.model)

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`. The datasets are not saved; they are read again."""
        return {
            "networks": self._loss,
            "policy": self.policy,
            "engine": self._engine,
            "gate": self._gate,
            "dynamics": self._dynamics,
            "generator": self._generator,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`; the quality of finished critics is computed again."""
        super().load(state)
        if self.iteration:
            self._quality = quality_on(self._logs, self._value_of, self.cfg.gamma)


# config


@dataclass(frozen=True)
class Rl100Cfg(LearnerCfg):
    """Settings of RL-100's offline stage."""

    default_policy: ClassVar[str] = "flow"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"evaluation.every": 0, "checkpoint_every": 4})
    env_steps: ClassVar[int] = 0
    """It learns from logs alone."""
    critic_updates: int = 3_000
    """Number of updates of the critics, before the policy learns."""
    updates: int = 5_000
    """Number of updates of the policy, those that the gate undoes included; 0 trains the critics alone, e.g. to judge
    them."""
    updates_per_iteration: int = 250
    """Updates between two decisions of the gate, and between two log lines."""
    batch: int = 256
    """Rows per update: chunks of the critics, chains of the policy with all their steps."""
    noise: float = 0.7
    """Share of fresh noise in a step of a chain, above 0, at most 1; see `chain.cps`."""
    std_floor: float = 0.05
    """Minimum standard deviation of a step, normalized units: the only noise of the last one."""
    clip_coef: float = 0.01
    """PPO clip range of the ratio of a step, which is a mean over chunk and action."""
    margin: float = 0.01
    """Least rise of the score J that the gate accepts, as a fraction of |J| before; 0 or more."""
    gate_states: int = 2_048
    """Most held-out states from which the gate scores the policy."""
    gate_steps: int = 1
    """Decisions over which the gate sums the critics' values. 1: that of the first decision; more: along the steps of
    dynamics that learn from the logs, as published (20)."""
    dynamics: DynamicsCfg = field(default_factory=DynamicsCfg)
    """The dynamics, where `gate_steps` is above 1."""
    demos: str | None = field(default=None, metadata=reads("dataset"))
    """Directory of demonstrations beside the logs: the critics learn from them, and chains are sampled in their states,
    too."""
    rewards: Literal["stored", "success"] = "stored"
    """Rewards of the logs: "stored" as they are; "success" 1 in the last step of an episode that succeeded, else 0."""
    held_out: float = 0.1
    """Fraction of the logged episodes that nothing learns from: they judge the critics, and the gate scores in their
    states."""
    lr: float = 1e-4
    """Learning rate of the policy."""
    critic_lr: float = 1e-3
    """Learning rate of critics and state value."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.01
    """Step of the averaged critics towards the critics per update, 0 to 1 (Polyak averaging). The averaged ones make
    the targets of the state value and the advantages, score, and are saved."""
    expectile: float = 0.7
    """Expectile of the state value, 0 to 1; 0.5 is the mean over the data's chunks, towards 1 their best."""
    num_critics: int = 2
    """Number of critics; their minimum is used."""
    critic_hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the hidden layers of critics and state value."""
    critic_activation: Activation = "relu"
    """Activation of critics and state value."""
    layer_norm: bool = True
    """Layer normalization in the critics."""
    ema: float = 0.99
    """Decay of the policy's averaged (EMA) weights, which are scored, evaluated and saved. 0: no averaging."""
    max_grad_norm: float | None = 1.0
    """Maximum gradient norm, for each network separately. None: no clipping."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the policy's, as "key=column"; see docs/datasets.md."""
    engine: EngineMode = "auto"
    """Execution mode of updates: "compiled", "eager", or "auto", which compiles if that saves time in this run."""

    @property
    def reads_rewards(self) -> bool:
        """See `LearnerCfg.reads_rewards`: rewards are those of the logs."""
        return False

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        for name in ("critic_updates", "updates_per_iteration", "gate_states", "gate_steps", "num_critics"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        # the advantages of one row cannot be normalized
        check_at_least("algo.batch", self.batch, 2)
        check_at_least("algo.updates", self.updates, 0)
        for name in ("lr", "critic_lr", "std_floor", "clip_coef"):
            check_positive(f"algo.{name}", getattr(self, name))
        check_number("algo.margin", self.margin, 0.0, 1e6)
        self.dynamics.check()
        check_decay("algo.ema", self.ema)
        if self.max_grad_norm is not None:
            check_positive("algo.max_grad_norm", self.max_grad_norm)
        for name in ("gamma", "tau", "noise"):
            if not 0 < getattr(self, name) <= 1:
                raise out_of_range(f"algo.{name}", getattr(self, name), "above 0, at most 1")
        for name in ("expectile", "held_out"):
            if not 0 < getattr(self, name) < 1:
                raise out_of_range(f"algo.{name}", getattr(self, name), "above 0 and below 1")
        if self.rewards not in REWARDS:
            raise unknown("algo.rewards", str(self.rewards), REWARDS)
        if self.critic_activation not in ACTIVATIONS:
            raise unknown("algo.critic_activation", str(self.critic_activation), ACTIVATIONS)
        if self.engine not in ENGINE_MODES:
            raise unknown("algo.engine", str(self.engine), ENGINE_MODES)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, averages=bool(self.ema))

    def beside(self, policy: Any) -> list[Any]:
        """Networks copied from the policy, for the memory estimate: the old policy."""
        return [policy]

    def build(self, setup: Setup) -> Rl100Learner:
        """Build the learner."""
        return Rl100Learner(self, setup)
