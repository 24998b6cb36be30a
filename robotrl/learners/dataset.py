"""Learning from a run's dataset: `read_for` reads it, `DatasetLearner` runs an off-policy loss on it.

An algorithm of this kind is its config and its loss (`OffPolicyLoss`); `robotrl/algos/fql.py` and `td3_bc.py` show it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robotrl.datasets.agreement.agree import agree, check_reach
from robotrl.datasets.agreement.issues import DataIssue
from robotrl.datasets.normalization import transforms_for
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.engine.engine import UPDATES_PER_CALL, Engine, LossModule, ParameterGroup
from robotrl.engine.minibatches import means, run_updates
from robotrl.errors import ConfigError
from robotrl.fn.bc_loss import DrawShape
from robotrl.learners.actor.remote import Experience, experience_of
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import (
    ActionNormalizer,
    PolicyBuilder,
    UpdateToDataRatio,
    batch_rows,
    demonstrations,
    updates_per_call,
)
from robotrl.learners.parts import Part
from robotrl.learners.replay_collector import Acting, ReplayBuffers
from robotrl.policies.reach import reach_of
from robotrl.replay.buffer import Mixed, Replay, Sampler, Transitions, Uniform
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import Spec, VecSim, privileged, visible
from robotrl.spec.json_fields import name_values
from robotrl.transforms import Transform

KEYS = "algo.dataset_keys"
"""Name of the setting that renames columns."""


def read_for(
    setup: Setup,
    keys: Sequence[str],
    specs: Mapping[str, Spec],
    sim: VecSim,
    inputs: Sequence[Transform] = (),
) -> Dataset:
    """Read the dataset of a run, and check it against the sim and the policy.

    Args:
        setup: setup with a dataset.
        keys: `dataset_keys` of the algorithm, "key=column" each.
        specs: specs of the observations to read.
        sim: sim of the policy; its privileged arrays have to agree as well, where the dataset has them.
        inputs: input transforms (normalization) of a policy that was trained before.

    Raises:
        ConfigError: there is no dataset, or it contradicts the sim; see `agree`.
        DataError: it cannot be read, or is doubtful; see `read_dataset` and `agree`.
    """
    if setup.dataset is None:
        raise ConfigError("dataset is not given: expected the directory of one (make one: robotrl demos)")
    dataset = read_dataset(setup.dataset)
    if sim.control_dt_s is None:
        reason = f"it is recorded at {dataset.fps:g} Hz, and the sim states no control rate (its option control_dt_s)"
        dataset = replace(dataset, issues=(*dataset.issues, DataIssue(reason, severe=False)))
    return agree(
        dataset,
        specs,
        sim.action_spec,
        sim.control_dt_s,
        columns=name_values(keys, KEYS),
        field=KEYS,
        beside={key: sim.observation_spec[key] for key in privileged(sim) if key not in specs},
        inputs=inputs,
        accept=setup.accept_data,
    )


class OffPolicyLoss(LossModule):
    """A loss on chunks of recorded steps, with what `DatasetLearner` asks of it."""

    policy: Any
    """The policy that acts and is evaluated, one of the networks in training."""

    @abstractmethod
    def groups(self) -> tuple[ParameterGroup, ...]:
        """Return the parameter groups, in the order of the learning rates of `forward`."""
        ...

    @abstractmethod
    def draw(self, shape: DrawShape, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample the loss's random numbers, (U M, ...) each; they are rows of the minibatches."""
        ...


class DatasetLearner(Learner):
    """Runs an off-policy loss on a dataset, then optionally on the policy's own steps, too.

    A row of a minibatch is a chunk, or another `span` of env steps: "obs/KEY" and "next_obs/KEY", "chunk" (H, A) in the
    policy's units, "valid" (H,), "reward" discounted within the chunk, and "discount", which is 0 where the task ended
    the episode.

    Args:
        cfg: the algorithm's settings: `updates`, `updates_per_iteration`, `batch`, `gamma`, `dataset_keys`, `engine`
            and `env_steps`; if that is above 0, also `num_steps`, `warmup`, `utd_ratio`, `capacity`, `replay`, and
            `online_share` unless the learner overrides the method.
        setup: the learner's setup; without a dataset it has a policy to start from.
        make_loss: makes the loss of a policy.

    Raises:
        ConfigError: neither dataset nor policy, offline updates without a dataset, or a dataset of other arrays or
            another rate.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: Any, setup: Setup, make_loss: Callable[[Any], OffPolicyLoss]) -> None:
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        columns = self.columns(sim.action_spec)
        model, self._data = _policy_and_data(cfg, setup, sim, columns)
        model.control_dt_s = sim.control_dt_s
        self._loss = make_loss(model).to(setup.device)
        self.policy: Any = self._loss.policy
        self._unit = ActionNormalizer.of_policy(model)
        self._engine = Engine(
            self._loss,
            self._loss.groups(),
            minibatch=cfg.batch,
            carry={"updates": 0.0},
            mode=cfg.engine,
            updates=setup.expected(cfg.updates + (cfg.env_steps * cfg.utd_ratio if cfg.env_steps else 0)),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._offline = math.ceil(cfg.updates / cfg.updates_per_iteration)
        self._steps, self._debt = 0, UpdateToDataRatio(cfg.utd_ratio if cfg.env_steps else 0.0)
        self.iterations = self._offline
        self._most = cfg.updates_per_iteration
        self.experience: Experience | None = None
        """Collector of online experience; None offline."""
        if not cfg.env_steps:
            sim.close()
            return
        self._steps = cfg.num_steps * sim.num_envs
        self.iterations += math.ceil(cfg.env_steps / self._steps)
        self._most = max(self._most, math.ceil(self._steps * cfg.utd_ratio) + 1)
        online = PolicyBuilder(setup._replace(init_policy=self.policy), sim, False)
        memory = ReplayBuffers(sim, cfg.capacity, cfg.replay, setup.run, columns)
        acting = self.acting(setup.seed)
        self._stepper = self.experience = experience_of(cfg, setup, sim, online, self._generator, acting, memory)

    @property
    def span(self) -> int:
        """Env steps of a row: those of a chunk, unless the learner overrides it."""
        return self.policy.horizon

    def columns(self, action_spec: Spec) -> dict[str, tuple[int, ...]]:
        """Shapes of extra columns of dataset and replay, see `Replay.create`; none here."""
        del action_spec
        return {}

    def acting(self, seed: int) -> Acting:
        """Return how the policy acts online: as it is, from the first step on."""
        return Acting(seed, self.cfg.gamma, random=False, warmup=self.cfg.warmup)

    def iterate(self) -> dict[str, float]:
        """Run offline updates on the dataset or, after these, env steps and the updates due for them."""
        cfg = self.cfg
        self.iteration += 1
        scalars: dict[str, float] = {}
        if self.iteration <= self._offline:
            count = min(cfg.updates_per_iteration, cfg.updates - self.updates)
        else:
            assert self.experience is not None
            warm = self.experience.warm
            scalars |= self.experience.collect(cfg.num_steps)
            learns = warm and (self._data is not None or self.experience.memory.replay.has_chunk(self.span))
            count = self._debt.take(self._steps) if learns else 0
        if count:
            scalars |= self.learn(count)
        scalars["updates"] = float(self.updates)
        return scalars

    def learn(self, updates: int) -> dict[str, float]:
        """Run this many updates; returns means of the loss's scalars."""
        info = self.run_phase(updates)
        self.updates += updates
        return means(info)

    def run_phase(self, updates: int, phase: str = "") -> dict[str, list[Tensor]]:
        """Run updates of a phase of the loss; returns its scalars, as `run_updates`."""
        most = UPDATES_PER_CALL * math.ceil(self._most / UPDATES_PER_CALL)
        most = updates_per_call(most, self.cfg.batch, self.policy.observation_spec)
        return run_updates(self._engine, self._draw, updates, most, f"iteration {self.iteration}", phase)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample the rows of some updates, with the loss's random numbers."""
        cfg, policy = self.cfg, self.policy
        transitions = self._sampler().sample(cfg.batch, self.span, cfg.gamma, self._generator, updates)
        rows = batch_rows(transitions, policy.observation_spec, self._unit) | {"valid": transitions.valid}
        rows |= self.more_rows(transitions)
        shape = DrawShape(updates, cfg.batch, policy.horizon, policy.action_width)
        return rows | self._loss.draw(shape, self._generator)

    def more_rows(self, transitions: Transitions) -> dict[str, Tensor]:
        """Rows (U M, ...) of the chunks that the loss reads besides the usual ones; none here."""
        del transitions
        return {}

    def online_share(self) -> float:
        """Fraction of the next batches from the policy's own experience, above 0; 1 drops the dataset."""
        return self.cfg.online_share

    def _sampler(self) -> Sampler:
        """Build the sampler of dataset and experience, in fixed shares once there is enough of both."""
        replay = None if self.experience is None else self.experience.memory.replay
        if self._data is None:
            assert replay is not None
            return Uniform(replay)
        if replay is None or len(replay) <= self.span * replay.streams or not replay.has_chunk(self.span):
            return Uniform(self._data)
        share = self.online_share()
        if share == 1:
            return Uniform(replay)
        return Mixed([(Uniform(self._data), 1 - share), (Uniform(replay), share)])

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`. The dataset is not saved; it is read again."""
        return {
            "networks": self._loss,
            "engine": self._engine,
            "experience": self.experience,
            "owed": self._debt,
            "generator": self._generator,
        }


def _policy_and_data(
    cfg: Any, setup: Setup, sim: VecSim, columns: Mapping[str, tuple[int, ...]]
) -> tuple[Any, Replay | None]:
    """Return the policy to start from, or a new one with the dataset's normalization; and the dataset as a replay."""
    model: Any = setup.init_policy
    specs = visible(sim)
    if model is not None:
        # reject a policy that cannot act here before the dataset is read
        check_fit(model, sim)
    if setup.dataset is None:
        if model is None:
            raise ConfigError("dataset is not given: expected recorded episodes (robotrl demos), or --init-from")
        if cfg.updates or not cfg.env_steps:
            raise ConfigError(
                f"algo.updates is {cfg.updates} and algo.env_steps {cfg.env_steps} without a dataset: expected 0 "
                "updates offline, and env steps"
            )
        return model, None
    inputs = () if model is None else model.transforms.inputs
    dataset = read_for(setup, cfg.dataset_keys, specs, sim, inputs)
    data = demonstrations(dataset, specs, sim.action_spec, sim.control_dt_s, columns, accept=True)
    if model is None:
        model = setup.fresh(specs, sim.action_spec, transforms_for(dataset, specs, sim.action_spec))
    check_reach(dataset, model.transforms, sim.action_spec, reach_of(model))
    return model, data
