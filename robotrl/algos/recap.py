"""RECAP: clone all episodes, with the advantage of each action as an input (pi*0.6, arXiv 2511.14759).

A categorical value of states learns the returns of logged episodes, failures included. By it each frame is labeled: its
action is positive if its advantage is among the best, or if a person chose it. The policy clones every frame with its
label as a condition, which is dropped now and then, and acts with the positive one. So it needs a cloning loss, but
neither a critic of actions nor samples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.engine.base import ENGINE_MODES
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, part, run_updates
from robotrl.errors import ConfigError, check_at_least, check_decay, check_number, check_positive, out_of_range, unknown
from robotrl.fn.bc_loss import CloneLoss, DrawShape, chunk_shape, clone_loss_of
from robotrl.fn.returns.episode_returns import return_scale, returns_to_go, step_advantages, step_rewards
from robotrl.fn.returns.selection import kept_frames, share_threshold
from robotrl.fn.returns.two_hot import two_hot_loss
from robotrl.fn.schedule import warmed_cosine
from robotrl.labels.sidecar import LABELS, labels_path, write_labels
from robotrl.learners.critics.heldout import quality_on
from robotrl.learners.critics.logs import Logs, read_logs
from robotrl.learners.critics.state_value import HIGH, LOW, BestValue, StateValue, ValueEncoder, check_state_value
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import ActionNormalizer, no_clip, updates_per_call
from robotrl.learners.parts import Part
from robotrl.policies.conditioned import ConditionedCfg, ConditionedPolicy
from robotrl.policies.networks.condition import NEGATIVE, POSITIVE
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.steered import weights_sha256
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults, reads

VALUE, CLONE = "value", "clone"
"""Phases of the engine: first all updates of the value, then those of the policy."""
TimeLimit = Literal["open", "failed"]
TIME_LIMITS = ("open", "failed")
BLOCK = 1024
"""Frames that are valued at once."""

# losses


def conditioned_clone(
    policy: ConditionedPolicy, clone: CloneLoss, batch: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The base policy's own cloning loss on recorded chunks, its context conditioned by each row's label."""
    ctx = policy.condition(policy.base.encode(part(batch, "obs/")), batch["condition"])
    loss = clone.loss(policy.base, ctx, batch["chunk"], batch["valid"], **part(batch, "drawn/"))
    return loss, {"clone_loss": loss}


class RecapLoss(LossModule):
    """Losses of the value (phase "value") and of the policy (phase "clone").

    Args:
        policy: the policy in training.
        clone: the cloning loss of its base policy.
        cfg: settings.
    """

    def __init__(self, policy: ConditionedPolicy, clone: CloneLoss, cfg: RecapCfg) -> None:
        super().__init__()
        self.policy = policy
        self.value = StateValue(policy.base, cfg)
        self._clone, self._cfg = clone, cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; the carry counts updates of the policy."""
        cfg = self._cfg
        if context.phase == VALUE:
            loss = two_hot_loss(self.value(part(batch, "obs/")), batch["return_to_go"], LOW, HIGH)
            return LossOut(loss, {"value_loss": loss}, (None, torch.full_like(loss, cfg.value_lr)))
        loss, info = conditioned_clone(self.policy, self._clone, batch)
        done = context.carry["updates"]
        lr = cfg.lr * warmed_cosine(done, cfg.updates, 0, cfg.lr_end)
        return LossOut(loss, info | {"lr": lr}, (lr, None), {"updates": done + 1})


# labels


class CountedEpisodes(NamedTuple):
    """Logged episodes whose returns count their steps, scaled to [-1, 0] for each task."""

    rewards: NDArray[np.float64]
    """(F,) scaled rewards."""
    offsets: NDArray[np.int64]
    """(E + 1,) first frame of each episode, and F."""
    open_end: NDArray[np.bool_]
    """(E,) True where a time limit cut the episode: it neither succeeded nor failed."""

    def returns(self, end_value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns (F,) from each frame on, within [-1, 0].

        Args:
            end_value: (E,) value of the last frame, which counts at open ends in place of its step.
        """
        last = self.rewards[self.offsets[1:] - 1]
        tail = np.where(self.open_end, end_value - last, 0.0)
        return np.clip(returns_to_go(self.rewards, self.offsets, tail), LOW, HIGH)


def count_steps(logs: Logs, fail_cost: float | None, time_limit: TimeLimit) -> CountedEpisodes:
    """Returns of logged episodes by RECAP's reward: -1 a step, 0 at success, -fail_cost at a failed end.

    Args:
        logs: episodes with known outcomes.
        fail_cost: cost of a failed end, in steps; None takes the steps of the task's longest episode.
        time_limit: "failed" if an episode that a time limit cut counts as failed.
    """
    assert logs.success is not None, "read_logs checks that outcomes are known"
    offsets, lengths = logs.offsets, np.diff(logs.offsets)
    ends = logs.replay.view(torch.from_numpy(offsets[1:] - 1), 1, 1.0)
    failed = ~logs.success & (ends.terminated.numpy() | (time_limit == "failed"))
    longest = np.zeros(int(logs.tasks.max()) + 1)
    np.maximum.at(longest, logs.tasks, lengths)
    cost = longest[logs.tasks] if fail_cost is None else np.full(len(lengths), fail_cost)
    rewards = step_rewards(offsets, logs.success, failed, cost)
    scale = return_scale(returns_to_go(rewards, offsets, np.zeros(len(lengths))), offsets, logs.tasks)
    return CountedEpisodes(rewards / np.repeat(scale, lengths), offsets, ~logs.success & ~failed)


class LabeledFrames:
    """Labels of all frames, once there are any; a part of the learner's state."""

    def __init__(self) -> None:
        self.columns: dict[str, Tensor] = {}
        """(F,) each, by the names of `robotrl.labels.sidecar.LABELS`."""
        self.scalars: dict[str, float] = {}
        """Shares of the labels, to log."""

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"columns": dict(self.columns), "scalars": dict(self.scalars)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.columns, self.scalars = dict(state["columns"]), dict(state["scalars"])


def label_frames(
    logs: Logs, episodes: CountedEpisodes, values: NDArray[np.float64], horizon: int, cfg: RecapCfg
) -> LabeledFrames:
    """Label all frames by the values of their states.

    Args:
        logs: the episodes.
        episodes: their rewards.
        values: (F,) of the frames' states.
        horizon: H, steps of a chunk.
        cfg: settings.
    """
    advantage = step_advantages(episodes.rewards, values, episodes.offsets, episodes.open_end, cfg.advantage_steps)
    chosen = logs.person | np.repeat(logs.demonstrated, np.diff(episodes.offsets))
    # a person's actions are positive anyway: the threshold is that of the policy's own
    own = advantage[~chosen]
    threshold = share_threshold(own, cfg.positive_share) if len(own) else 0.0
    keep = kept_frames(values, episodes.offsets, horizon, cfg.keep_delta)
    found: dict[str, NDArray[Any]] = {
        "return_to_go": episodes.returns(values[episodes.offsets[1:] - 1]),
        "progress": values,
        "advantage": advantage,
        "positive": chosen | (advantage > threshold),
        "keep": keep,
    }
    out = LabeledFrames()
    out.columns = {name: torch.from_numpy(found[name].astype(LABELS[name])) for name in LABELS}
    out.scalars = {
        "labels/positive": float(found["positive"].mean()),
        "labels/threshold": threshold,
        "labels/kept": float(keep.mean()),
    }
    return out


# update


class RecapLearner(Learner):
    """Trains a value on logged episodes, labels them, then clones them by their labels; see `RecapCfg`.

    Raises:
        ConfigError: no policy or no dataset, one of other arrays or another rate or without outcomes, or settings out
            of range.
        CapabilityError: the policy has no cloning loss, or cannot be conditioned.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: RecapCfg, setup: Setup) -> None:
        cfg.check()
        if setup.init_policy is None:
            raise ConfigError(
                "init_from is not given: RECAP improves a policy; expected a run, e.g. a clone of algo bc"
            )
        if setup.dataset is None:
            raise ConfigError(
                "dataset is not given: RECAP learns from logged episodes of the policy, failures included"
            )
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        model = conditioned_policy(cfg, setup.init_policy).to(setup.device)
        self._clone = clone_loss_of(model.base)
        sim = setup.make_sim()
        check_fit(model, sim)
        self._logs = read_logs(cfg, setup, model, sim)
        self._episodes = count_steps(self._logs, cfg.fail_cost, cfg.time_limit)
        frames = torch.arange(len(self._episodes.rewards))
        self._logs.replay.set_reward(frames, torch.from_numpy(self._episodes.rewards).float())
        model.control_dt_s = sim.control_dt_s
        sim.close()
        self.model: Any = model
        self.policy: Any = copy.deepcopy(model) if cfg.ema else model
        self._maker = {
            "algorithm": "recap",
            "settings": asdict(cfg),
            "seed": setup.seed,
            "policy": weights_sha256(setup.init_policy),
        }
        self._dataset = setup.dataset
        self._loss = RecapLoss(model, self._clone, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            (
                ParameterGroup("policy.", no_clip(cfg.max_grad_norm), cfg.ema or None, ramp=True),
                ParameterGroup("value.", no_clip(cfg.max_grad_norm)),
            ),
            minibatch=cfg.batch,
            carry={"updates": 0.0},
            mode=cfg.engine,
            updates=setup.expected(cfg.value_updates + cfg.updates),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._unit = ActionNormalizer.of_policy(model)
        self._device = setup.device
        self._frames = frames
        self._learned = self._value_frames()
        self._returns = torch.zeros(0)
        """(F,) targets of the value in this iteration."""
        self._best, self._labels = BestValue(), LabeledFrames()
        self._value_iterations = math.ceil(cfg.value_updates / cfg.updates_per_iteration)
        self.iterations = self._value_iterations + math.ceil(cfg.updates / cfg.updates_per_iteration)

    def _value_frames(self) -> Tensor:
        """Frames that the value learns from: not those held out, and no last frame of an open end, whose return is
        the value itself.
        """
        episodes = self._episodes
        learns = np.repeat(~self._logs.held_out, np.diff(episodes.offsets))
        learns[episodes.offsets[1:][episodes.open_end] - 1] = False
        return torch.from_numpy(np.flatnonzero(learns))

    def iterate(self) -> dict[str, float]:
        """Run updates of the value or, after these, of the policy; returns scalars to log.

        Raises:
            DataError: the value is trained, and does not rank held-out episodes as `least_rank` asks.
        """
        cfg = self.cfg
        self.iteration += 1
        step = self.iteration - 1
        info: dict[str, float] = {}
        if step < self._value_iterations:
            if self._best.since < cfg.patience:
                info = self._improve_value(min(cfg.updates_per_iteration, cfg.value_updates - self.updates))
            if self.iteration == self._value_iterations:
                self._label()
        else:
            done = (step - self._value_iterations) * cfg.updates_per_iteration
            count = min(cfg.updates_per_iteration, cfg.updates - done)
            info = self._run(self._clone_rows, count, CLONE)
            self.updates += count
            if cfg.ema:
                self._engine.write_average("policy.", self.policy)
        return info | self._best.scalars | self._labels.scalars | {"updates": float(self.updates)}

    def _improve_value(self, count: int) -> dict[str, float]:
        """Train the value, and keep it if it ranks held-out episodes better than before."""
        episodes = self._episodes
        # before the first update an open end counts as low as a failed one
        end_value = np.full(len(episodes.open_end), LOW)
        if self._best.weights and episodes.open_end.any():
            ends = torch.from_numpy(episodes.offsets[1:] - 1)
            end_value = self._values(self._loss.value, ends)
        self._returns = torch.from_numpy(episodes.returns(end_value)).float()
        info = self._run(self._value_rows, count, VALUE)
        self.updates += count
        quality = quality_on(self._logs, lambda index: self._value_of(self._loss.value, index), 1.0)
        self._best.offer(self._loss.value, quality.get("critic/heldout_rank"), quality)
        return info

    def _label(self) -> None:
        """Label all frames by the best value, and store the labels if they have a name.

        Raises:
            DataError: the value cannot be trusted, or the disk is full.
        """
        cfg = self.cfg
        self._best.check(cfg.least_rank)
        value = copy.deepcopy(self._loss.value)
        self._best.load_into(value)
        values = self._values(value, self._frames)
        self._labels = label_frames(self._logs, self._episodes, values, self.model.horizon, cfg)
        if cfg.labels is not None:
            logged = int(self._episodes.offsets[int((~self._logs.demonstrated).sum())])
            columns = {name: x[:logged].numpy() for name, x in self._labels.columns.items()}
            write_labels(self._dataset, cfg.labels, columns, self._maker)

    def _run(self, draw: Any, updates: int, phase: str) -> dict[str, float]:
        cfg = self.cfg
        most = UPDATES_PER_CALL * math.ceil(cfg.updates_per_iteration / UPDATES_PER_CALL)
        most = updates_per_call(most, cfg.batch, self.model.observation_spec)
        most = fitting(most, 4 * cfg.batch * math.prod(chunk_shape(self.model.base)))
        return means(run_updates(self._engine, draw, updates, most, f"iteration {self.iteration}", phase))

    def _value_rows(self, updates: int) -> dict[str, Tensor]:
        """Sample frames of the episodes that are not held out, with their returns."""
        index = self._learned[torch.randint(len(self._learned), (updates * self.cfg.batch,), generator=self._generator)]
        rows = {f"obs/{key}": x for key, x in self._observed(index).items()}
        return rows | {"return_to_go": self._returns[index]}

    def _clone_rows(self, updates: int) -> dict[str, Tensor]:
        """Sample chunks of all episodes with their labels, some of which are dropped, and the loss's random numbers."""
        model, count = self.model, updates * self.cfg.batch
        index = torch.randint(len(self._frames), (count,), generator=self._generator)
        transitions = self._logs.replay.view(index, model.horizon, 1.0)
        rows = {f"obs/{key}": transitions.obs[key] for key in model.observation_spec}
        rows |= {"chunk": self._unit(transitions.chunk), "valid": transitions.valid}
        positive = self._labels.columns["positive"][index][:, None]
        condition = torch.where(positive, torch.tensor(POSITIVE), torch.tensor(NEGATIVE))
        stated = torch.rand(count, generator=self._generator) >= self.cfg.drop
        rows["condition"] = condition * stated[:, None]
        shape = DrawShape(updates, self.cfg.batch, *chunk_shape(model.base))
        return rows | {f"drawn/{name}": x for name, x in self._clone.draw(model.base, shape, self._generator).items()}

    def _observed(self, index: Tensor) -> dict[str, Tensor]:
        """Observations (M, ...) of frames (M,)."""
        obs = self._logs.replay.view(index, 1, 1.0).obs
        return {key: obs[key] for key in self.model.observation_spec}

    @torch.no_grad()
    def _value_of(self, value: StateValue, index: Tensor) -> Tensor:
        """Values (M,) of the states of frames (M,)."""
        return value.mean({key: x.to(self._device) for key, x in self._observed(index).items()})

    def _values(self, value: StateValue, index: Tensor) -> NDArray[np.float64]:
        """Values (M,) of the states of frames (M,), in blocks."""
        blocks = [self._value_of(value, block).cpu() for block in index.split(BLOCK)]
        return torch.cat(blocks).numpy().astype(np.float64)

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`. The datasets are not saved; they are read again."""
        return {
            "networks": self._loss,
            "policy": self.policy,
            "engine": self._engine,
            "best": self._best,
            "labels": self._labels,
            "generator": self._generator,
        }


def conditioned_policy(cfg: RecapCfg, policy: Any) -> ConditionedPolicy:
    """The policy with a condition; one that has it keeps its own.

    Raises:
        CapabilityError: see `ConditionedCfg.build`.
        ConfigError: the policy has a condition of other settings.
    """
    wanted = ConditionedCfg(cfg.guidance, cfg.condition_hidden)
    if not isinstance(policy, ConditionedPolicy):
        return wanted.build(policy)
    if policy.cfg != wanted:
        raise ConfigError(
            f"init_from is a conditioned policy with {policy.cfg}: expected the settings of algo, {wanted}"
        )
    return policy


# config


@dataclass(frozen=True)
class RecapCfg(LearnerCfg):
    """Settings of RECAP."""

    default_policy: ClassVar[str] = "flow"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"evaluation.every": 0, "checkpoint_every": 4})
    env_steps: ClassVar[int] = 0
    """It learns from logs alone."""
    rewards: ClassVar[Literal["success"]] = "success"
    """Only the outcomes of the logs count, whatever their rewards."""
    value_updates: int = 3_000
    """Largest number of updates of the value, before the frames are labeled; see `patience`."""
    updates: int = 8_000
    """Number of updates of the policy on the labeled frames; 0 labels alone."""
    updates_per_iteration: int = 250
    """Updates between two log lines; after so many the value is judged."""
    batch: int = 256
    """Rows per update."""
    advantage_steps: int = 10
    """N, env steps over which an advantage looks ahead."""
    positive_share: float = 0.3
    """Fraction of the policy's own frames that are positive: those of the largest advantages. Frames of a person's
    corrections and of demonstrations are positive anyway."""
    drop: float = 0.3
    """Probability with which the condition of a row is dropped, 0 to 1."""
    guidance: float = 1.0
    """Guidance beta of the policy when it acts, 0 or more; see `ConditionedCfg`. Only 1 for policies in closed form."""
    condition_hidden: tuple[int, ...] = (64,)
    """Widths of the condition network's hidden layers."""
    fail_cost: float | None = None
    """Cost of a failed end, env steps. None: as many as the longest episode of the task has."""
    time_limit: TimeLimit = "open"
    """Meaning of an episode without success that a time limit cut: "open", the value of its last frame stands for the
    rest; or "failed", of tasks in which being late is a failure."""
    keep_delta: float = 0.1
    """Loss of progress within the next chunk, 0 to 1, above which the label `keep` of a frame is False; see
    `BcCfg.labels`. RECAP itself clones all frames."""
    labels: str | None = None
    """Name under which the labels are stored beside the dataset, e.g. "recap": DATASET.labels/recap.parquet. None: they
    are not."""
    demos: str | None = field(default=None, metadata=reads("dataset"))
    """Directory of demonstrations beside the logs: value and policy learn from them, too."""
    held_out: float = 0.2
    """Fraction of the logged episodes that the value does not learn from, and by which it is chosen."""
    least_rank: float = 0.5
    """Least rank correlation of the value on held-out episodes, -1 to 1; below, the run ends with an error before the
    policy learns. -1 takes any value."""
    patience: int = 4
    """Iterations without a better rank after which the value learns no more."""
    value_encoder: ValueEncoder = "policy"
    """Context of the value: "policy", that of the policy the run begins with, frozen; "own", a copy of its encoder that
    learns."""
    bins: int = 201
    """Number of bins of the value, from -1 to 0."""
    value_hidden: tuple[int, ...] = (256, 256)
    """Widths of the value's hidden layers."""
    value_activation: Activation = "silu"
    """Activation of the value."""
    value_lr: float = 3e-4
    """Learning rate of the value."""
    lr: float = 1e-3
    """Peak learning rate of the policy; it decays along a half cosine."""
    lr_end: float = 0.1
    """Final learning rate of the policy as a fraction of the peak, 0 to 1."""
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
        """See `LearnerCfg.reads_rewards`: outcomes are those of the logs."""
        return False

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        check_state_value(self)
        for name in ("value_updates", "updates_per_iteration", "batch", "advantage_steps"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        check_at_least("algo.updates", self.updates, 0)
        for name in ("lr", "value_lr"):
            check_positive(f"algo.{name}", getattr(self, name))
        for name in ("lr_end", "drop", "keep_delta"):
            check_number(f"algo.{name}", getattr(self, name), 0.0, 1.0)
        for name in ("positive_share", "held_out"):
            if not 0 < getattr(self, name) < 1:
                raise out_of_range(f"algo.{name}", getattr(self, name), "above 0 and below 1")
        if not 0 <= self.guidance < math.inf:
            raise out_of_range("algo.guidance", self.guidance, "0 or more")
        if self.fail_cost is not None:
            check_positive("algo.fail_cost", self.fail_cost)
        if self.time_limit not in TIME_LIMITS:
            raise unknown("algo.time_limit", str(self.time_limit), TIME_LIMITS)
        if self.labels is not None:
            labels_path("dataset", self.labels)
        check_decay("algo.ema", self.ema)
        if self.max_grad_norm is not None:
            check_positive("algo.max_grad_norm", self.max_grad_norm)
        if self.engine not in ENGINE_MODES:
            raise unknown("algo.engine", str(self.engine), ENGINE_MODES)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, averages=bool(self.ema))

    def beside(self, policy: Any) -> list[Any]:
        """Networks copied from the policy, for the memory estimate: the policy whose context the value reads."""
        return [policy]

    def build(self, setup: Setup) -> RecapLearner:
        """Build the learner."""
        return RecapLearner(self, setup)
