"""PA-RL: improve a policy from logged episodes by cloning the best of its own samples (Mark et al. 2024, 2412.06685).

A chunk critic learns from the logs, failures included; its target is what the policy would do next, the best of a few
samples. Then the policy is sampled in every logged state, the critic chooses, and the policy clones the choice. So it
needs samples and a cloning loss of a policy, but neither densities nor gradients through its sampling. The paper has
single actions; here a critic values whole chunks, as in Q-chunking (Li et al. 2025, 2507.07969).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from robotrl.engine.base import ENGINE_MODES
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, part, run_updates
from robotrl.errors import ConfigError, check_at_least, check_decay, check_number, check_positive, out_of_range, unknown
from robotrl.fn.bc_loss import CloneLoss, DrawShape, chunk_shape, clone_loss_of
from robotrl.fn.candidates.proposals import NoiseSampler, sampler_of
from robotrl.fn.candidates.select import Value, ascend, best_of
from robotrl.fn.schedule import warmed_cosine
from robotrl.learners.critics.chunk_critic import CriticSizes, check_critic, chunk_critic_loss, reduced
from robotrl.learners.critics.heldout import quality_on
from robotrl.learners.critics.logs import read_logs
from robotrl.learners.critics.stored import critic_tree, matter_of, start_from
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import ActionNormalizer, batch_rows, critics_of, no_clip, updates_per_call
from robotrl.learners.parts import Part
from robotrl.policies.networks.executed import ExecutedChunk
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.q import QEnsemble
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults, reads
from robotrl.utils.progress import track

CRITIC, CLONE = "critic", "clone"
"""Phases of the engine: first all updates of the critics, then those of the policy."""
REWARDS = ("stored", "success")
BLOCK = 1024
"""Most states in which chunks are chosen at once."""

# losses


def clone_choice(policy: Any, clone: CloneLoss, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy's own cloning loss on the chosen chunks; see docs/algorithms/bc.md."""
    ctx = policy.encode(part(batch, "obs/"))
    loss = clone.loss(policy, ctx, batch["chosen"], batch["valid"], **part(batch, "drawn/"))
    return loss, {"clone_loss": loss}


class PaRlLoss(LossModule):
    """Losses of the critics (phase "critic") and of the policy (phase "clone").

    Critics read the context of the policy that they began with, which stays as it is.

    Args:
        policy: the policy in training.
        clone: its cloning loss.
        cfg: settings.
    """

    def __init__(self, policy: Any, clone: CloneLoss, cfg: PaRlCfg) -> None:
        super().__init__()
        self.policy = policy
        self.base: Any = copy.deepcopy(policy).requires_grad_(False)
        self.critic: QEnsemble = critics_of(policy, cfg)
        self.executed = ExecutedChunk(policy)
        self._sampler: NoiseSampler = sampler_of(self.base)
        self._clone, self._cfg = clone, cfg

    def sampled(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """Samples (R, H, A) of the policy that it began with, as they would be executed."""
        return self.executed.clip(self._sampler.sample(ctx, noise))

    def value(self, weights: Mapping[str, Tensor]) -> Value:
        """Value of chunks (R, H, A) of the policy by critics with these weights."""
        value = reduced(self.critic, self._cfg.reduction, weights)
        return lambda ctx, chunk: value(ctx, self.executed(chunk))

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; the carry counts updates of the policy."""
        cfg = self._cfg
        if context.phase == CRITIC:
            ctx, next_ctx = (self.base.encode(part(batch, name)) for name in ("obs/", "next_obs/"))
            target = self.value(part(context.average, "critic."))
            loss, info = chunk_critic_loss(
                self.critic,
                batch | {"executed": self.executed(batch["chunk"])},
                ctx,
                # what the policy would do: the best of its samples
                lambda: best_of(self.sampled, target, next_ctx, batch["next_noise"]).value,
            )
            return LossOut(loss, info, (None, torch.full_like(loss, cfg.critic_lr)))
        loss, info = clone_choice(self.policy, self._clone, batch)
        done = context.carry["updates"]
        lr = cfg.lr * warmed_cosine(done, cfg.updates, 0, cfg.lr_end)
        return LossOut(loss, info | {"lr": lr}, (lr, None), {"updates": done + 1})


# update


class ChosenChunks:
    """Chosen chunks of all logged states, and scalars that stay once they are known."""

    def __init__(self) -> None:
        self.chunks: Tensor | None = None
        """(F, H, A); None until they are chosen."""
        self.scalars: dict[str, float] = {}

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"chunks": self.chunks, "scalars": dict(self.scalars)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.chunks, self.scalars = state["chunks"], dict(state["scalars"])


class PaRlLearner(Learner):
    """Trains critics on logged episodes, then the policy on their choice; see `PaRlCfg`.

    Raises:
        ConfigError: no policy or no dataset, one of other arrays or another rate, or settings out of range.
        CapabilityError: the policy has no samples from normal noise, or no cloning loss.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: PaRlCfg, setup: Setup) -> None:
        cfg.check()
        if setup.init_policy is None:
            raise ConfigError(
                "init_from is not given: PA-RL improves a policy; expected a run, e.g. a clone of algo bc"
            )
        if setup.dataset is None:
            raise ConfigError(
                "dataset is not given: PA-RL learns from logged episodes of the policy, failures included"
            )
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        model: Any = setup.init_policy
        self._clone = clone_loss_of(model)
        sampler_of(model)
        sim = setup.make_sim()
        check_fit(model, sim)
        self._logs = read_logs(cfg, setup, model, sim)
        model.control_dt_s = sim.control_dt_s
        sim.close()
        self.model: Any = model
        self.policy: Any = copy.deepcopy(model) if cfg.ema else model
        self._loss = PaRlLoss(model, self._clone, cfg).to(setup.device)
        self._matter = matter_of(model, CriticSizes.of(cfg), cfg.gamma)
        if cfg.init_critic is not None and not setup.resumed:
            start_from(cfg.init_critic, self._loss.critic, self._matter)
        self._engine = Engine(
            self._loss,
            (
                ParameterGroup("policy.", no_clip(cfg.max_grad_norm), cfg.ema or None, ramp=True),
                ParameterGroup("critic.", no_clip(cfg.max_grad_norm), 1 - cfg.tau),
            ),
            minibatch=cfg.batch,
            carry={"updates": 0.0},
            mode=cfg.engine,
            updates=setup.expected(cfg.critic_updates + cfg.updates),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._unit = ActionNormalizer.of_policy(model)
        self._device = setup.device
        self._learned, self._states = self._logs.frames(False), torch.arange(len(self._logs.replay))
        self._chosen = ChosenChunks()
        self._critic_iterations = math.ceil(cfg.critic_updates / cfg.updates_per_iteration)
        self.iterations = self._critic_iterations + math.ceil(cfg.updates / cfg.updates_per_iteration)

    def iterate(self) -> dict[str, float]:
        """Run updates of the critics or, after these, of the policy; returns scalars to log."""
        cfg = self.cfg
        self.iteration += 1
        if self.iteration <= self._critic_iterations:
            count = min(cfg.updates_per_iteration, cfg.critic_updates - self.updates)
            info = self._run(self._critic_rows, count, CRITIC)
            self._chosen.scalars = self._quality()
        else:
            if self._chosen.chunks is None:
                self._chosen.scalars = self._quality()
                self._choose()
            count = min(cfg.updates_per_iteration, cfg.critic_updates + cfg.updates - self.updates)
            info = self._run(self._clone_rows, count, CLONE)
            if cfg.ema:
                self._engine.write_average("policy.", self.policy)
        self.updates += count
        return info | self._chosen.scalars | {"updates": float(self.updates)}

    def _run(self, draw: Any, updates: int, phase: str) -> dict[str, float]:
        cfg = self.cfg
        most = UPDATES_PER_CALL * math.ceil(cfg.updates_per_iteration / UPDATES_PER_CALL)
        most = updates_per_call(most, cfg.batch, self.model.observation_spec)
        # a pretrained policy's noise can be larger than its observations
        noise = cfg.target_candidates * math.prod(sampler_of(self.model).noise_shape)
        most = fitting(most, 4 * cfg.batch * noise)
        return means(run_updates(self._engine, draw, updates, most, f"iteration {self.iteration}", phase))

    def _critic_rows(self, updates: int) -> dict[str, Tensor]:
        """Sample chunks of the episodes that are not held out, and noise of the next candidates."""
        cfg, count = self.cfg, updates * self.cfg.batch
        index = self._learned[torch.randint(len(self._learned), (count,), generator=self._generator)]
        transitions = self._logs.replay.view(index, self.model.horizon, cfg.gamma)
        rows = batch_rows(transitions, self.model.observation_spec, self._unit)
        shape = count, cfg.target_candidates, *sampler_of(self.model).noise_shape
        return rows | {"next_noise": torch.randn(shape, generator=self._generator)}

    def _clone_rows(self, updates: int) -> dict[str, Tensor]:
        """Sample states with the chunks chosen there, and the cloning loss's random numbers."""
        assert self._chosen.chunks is not None, "chunks are chosen before they are cloned"
        model, count = self.model, updates * self.cfg.batch
        index = torch.randint(len(self._states), (count,), generator=self._generator)
        rows = {f"obs/{key}": x for key, x in self._observed(index).items()}
        rows["chosen"] = self._chosen.chunks[index]
        rows["valid"] = torch.ones(rows["chosen"].shape[:2], dtype=torch.bool)
        shape = DrawShape(updates, self.cfg.batch, *chunk_shape(model))
        return rows | {f"drawn/{name}": x for name, x in self._clone.draw(model, shape, self._generator).items()}

    def _observed(self, index: Tensor) -> dict[str, Tensor]:
        """Observations (M, ...) of logged states (M,)."""
        obs = self._logs.replay.view(index, 1, 1.0).obs
        return {key: obs[key] for key in self.model.observation_spec}

    @torch.no_grad()
    def _contexts(self, index: Tensor) -> Tensor:
        """Contexts (M, D) of logged states (M,), of the policy that the run began with."""
        return self._loss.base.encode({key: x.to(self._device) for key, x in self._observed(index).items()})

    def _quality(self) -> dict[str, float]:
        """Quality of the critics on the episodes held out, as scalars to log."""
        return quality_on(self._logs, self._value_of, self.cfg.gamma)

    @torch.no_grad()
    def _value_of(self, index: Tensor) -> Tensor:
        """Values (M,) of the chunks that were executed from the logged states (M,)."""
        transitions = self._logs.replay.view(index, self.model.horizon, self.cfg.gamma)
        return self._value()(self._contexts(index), self._unit(transitions.chunk).to(self._device))

    def _value(self) -> Value:
        """Value of chunks by the averaged critics."""
        return self._loss.value(self._engine.averages("critic."))

    @torch.no_grad()
    def _choose(self) -> None:
        """Choose a chunk in each logged state: the best of the policy's own samples."""
        cfg, loss, value = self.cfg, self._loss, self._value()
        shape = sampler_of(self.model).noise_shape
        chunks, gains = list[Tensor](), list[Tensor]()
        with track(len(self._states), "choosing chunks", "states") as bar:
            for index in self._states.split(self._block()):
                noise = torch.randn((len(index), cfg.candidates, *shape), generator=self._generator).to(self._device)
                ctx = self._contexts(index)
                found = best_of(loss.sampled, value, ctx, noise)
                chunk = found.chunk
                if cfg.ascent_steps:
                    horizon, width = self.model.horizon, self.model.action_width
                    low, high = loss.executed.low, loss.executed.high
                    start = loss.executed(chunk)
                    chunk = chunk.clone()
                    chunk[:, :horizon, :width] = ascend(value, ctx, start, cfg.ascent_steps, cfg.ascent_size, low, high)
                chunks.append(chunk.cpu())
                gains.append((found.value - found.mean).cpu())
                bar.advance(len(index))
        self._chosen.chunks = torch.cat(chunks)
        self._chosen.scalars["chosen_gain"] = float(torch.cat(gains).mean())

    def _block(self) -> int:
        """States in which chunks are chosen at once: the contexts of all their candidates take bounded memory."""
        return fitting(BLOCK, 4 * self.cfg.candidates * self._contexts(self._states[:1]).shape[1])

    def critic_tree(self) -> dict[str, Any]:
        """See `Learner.critic_tree`: the averaged critics."""
        cfg = self.cfg
        return critic_tree(self._matter, self._engine.averages("critic."), cfg.reduction, self._chosen.scalars)

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`. The datasets are not saved; they are read again."""
        return {
            "networks": self._loss,
            "policy": self.policy,
            "engine": self._engine,
            "chosen": self._chosen,
            "generator": self._generator,
        }


# config


@dataclass(frozen=True)
class PaRlCfg(LearnerCfg):
    """Settings of PA-RL."""

    default_policy: ClassVar[str] = "flow"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"evaluation.every": 0, "checkpoint_every": 4})
    env_steps: ClassVar[int] = 0
    """It learns from logs alone."""
    critic_updates: int = 3_000
    """Number of updates of the critics, before the policy learns; 0 with `init_critic` takes that critic as it is."""
    updates: int = 8_000
    """Number of updates of the policy on the chosen chunks; 0 trains the critics alone, e.g. to judge them."""
    updates_per_iteration: int = 500
    """Updates between two log lines."""
    batch: int = 256
    """Chunks per update."""
    candidates: int = 16
    """Samples of the policy in a state, the best of which is cloned."""
    target_candidates: int = 4
    """Samples in the next state, the best of which is the target of the critics."""
    ascent_steps: int = 0
    """Steps by which a chosen chunk climbs its value before it is cloned. 0: none; a critic of few states is often
    wrong beside the samples, so turn it on only if evaluations are better with it."""
    ascent_size: float = 0.003
    """Length of such a step for each element, normalized units."""
    demos: str | None = field(default=None, metadata=reads("dataset"))
    """Directory of demonstrations beside the logs: the critics learn from them, and chunks are chosen in their states,
    too."""
    rewards: Literal["stored", "success"] = "stored"
    """Rewards of the logs: "stored" as they are; "success" 1 in the last step of an episode that succeeded, else 0."""
    held_out: float = 0.1
    """Fraction of the logged episodes that the critics do not learn from, and on which they are judged."""
    init_critic: str | None = field(default=None, metadata=reads("critic", kept=True))
    """Run whose critic the critics start from. None: fresh ones."""
    lr: float = 1e-3
    """Peak learning rate of the policy; it decays along a half cosine."""
    lr_end: float = 0.1
    """Final learning rate of the policy as a fraction of the peak, 0 to 1."""
    critic_lr: float = 1e-3
    """Learning rate of the critics."""
    gamma: float = 0.99
    """Discount per env step."""
    tau: float = 0.01
    """Step of the averaged critics towards the critics per update, 0 to 1 (Polyak averaging). The averaged ones make
    the targets, choose, and are saved."""
    reduction: Literal["mean", "min"] = "mean"
    """Value of a chunk: mean or minimum of the critics, in targets and in the choice."""
    num_critics: int = 4
    """Number of critics."""
    critic_hidden: tuple[int, ...] = (128, 128, 128)
    """Widths of the critics' hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics."""
    layer_norm: bool = True
    """Layer normalization in the critics."""
    ema: float = 0.99
    """Decay of the policy's averaged (EMA) weights, which are evaluated and saved. 0: no averaging."""
    max_grad_norm: float | None = None
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
        check_critic(self)
        for name in ("updates_per_iteration", "batch", "candidates", "target_candidates"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        for name in ("critic_updates", "updates", "ascent_steps"):
            check_at_least(f"algo.{name}", getattr(self, name), 0)
        for name in ("lr", "critic_lr", "ascent_size"):
            check_positive(f"algo.{name}", getattr(self, name))
        check_number("algo.lr_end", self.lr_end, 0.0, 1.0)
        check_decay("algo.ema", self.ema)
        if self.max_grad_norm is not None:
            check_positive("algo.max_grad_norm", self.max_grad_norm)
        for name in ("gamma", "tau"):
            if not 0 < getattr(self, name) <= 1:
                raise out_of_range(f"algo.{name}", getattr(self, name), "above 0, at most 1")
        if not 0 <= self.held_out < 1:
            raise out_of_range("algo.held_out", self.held_out, "0 or more, below 1")
        if self.rewards not in REWARDS:
            raise unknown("algo.rewards", str(self.rewards), REWARDS)
        if self.engine not in ENGINE_MODES:
            raise unknown("algo.engine", str(self.engine), ENGINE_MODES)
        if not self.critic_updates and self.init_critic is None:
            raise ConfigError("algo.critic_updates is 0 without algo.init_critic: expected updates, or a run's critic")
        if not self.critic_updates and not self.updates:
            raise ConfigError("algo.critic_updates and algo.updates are 0: expected one of them above 0")

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, averages=bool(self.ema))

    def beside(self, policy: Any) -> list[Any]:
        """Networks copied from the policy, for the memory estimate: the policy that it begins with."""
        return [policy]

    def build(self, setup: Setup) -> PaRlLearner:
        """Build the learner."""
        return PaRlLearner(self, setup)
