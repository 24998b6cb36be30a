"""Shared parts of off-policy learners: policy construction, batches, checks of settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.datasets.normalization import within_bounds
from robotrl.datasets.reader import Dataset
from robotrl.engine.base import ENGINE_MODES
from robotrl.engine.minibatches import fitting
from robotrl.errors import check_at_least, check_positive, out_of_range, unknown
from robotrl.learners.learner import Setup
from robotrl.learners.normalizers import ObsNormalizer, action_normalization
from robotrl.policies.base import ACTION
from robotrl.policies.q import QEnsemble
from robotrl.replay.buffer import Replay, Transitions
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import Arrays, Spec, VecSim, visible
from robotrl.transforms import TransformGroup, bounds_to_unit


def check_settings(cfg: Any, offline: bool = False) -> None:
    """Check the settings that off-policy learners share; fields that `cfg` lacks are skipped.

    Args:
        cfg: the algorithm's settings.
        offline: whether the learner may run without env steps.

    Raises:
        ConfigError: a setting is out of range; names the field, its value and the expectation.
    """
    for name, least in (
        ("env_steps", 0 if offline else 1),
        ("num_steps", 1),
        ("warmup", 0),
        ("batch", 1),
        ("capacity", 2),
        ("num_critics", 1),
        ("updates", 0 if offline and cfg.env_steps else 1),
        ("updates_per_iteration", 1),
    ):
        check_at_least(f"algo.{name}", getattr(cfg, name, least), least)
    for name in ("lr", "critic_lr", "value_lr", "alpha_lr", "initial_alpha", "utd_ratio"):
        check_positive(f"algo.{name}", getattr(cfg, name, 1.0))
    if cfg.max_grad_norm is not None and not 0 < cfg.max_grad_norm < math.inf:
        raise out_of_range("algo.max_grad_norm", cfg.max_grad_norm, "above 0, or none")
    if not 0 < cfg.gamma <= 1:
        raise out_of_range("algo.gamma", cfg.gamma, "above 0, at most 1")
    if not 0 < cfg.tau <= 1:
        raise out_of_range("algo.tau", cfg.tau, "above 0, at most 1")
    if cfg.engine not in ENGINE_MODES:
        raise unknown("algo.engine", str(cfg.engine), ENGINE_MODES)


def no_clip(largest: float | None) -> float:
    """Return the maximum gradient norm for the engine: infinity (no clipping) for None."""
    return math.inf if largest is None else largest


class PolicyBuilder:
    """The policy to train, and its running observation normalization if it has one.

    Args:
        setup: setup with a policy to start from, or the config of a new one.
        sim: sim of the policy.
        normalize_obs: whether a new policy gets a running normalization of its vector observations; a policy to
            start from keeps its own.
    """

    def __init__(self, setup: Setup, sim: VecSim, normalize_obs: bool) -> None:
        self.normalizer: ObsNormalizer | None = None
        self._world = setup.world
        policy: Any = setup.init_policy
        if policy is None:
            specs, action = visible(sim), sim.action_spec
            self.normalizer = ObsNormalizer(specs, setup.world) if normalize_obs else None
            inputs = () if self.normalizer is None else self.normalizer.transforms()
            policy = setup.fresh(specs, action, TransformGroup(inputs, within_bounds(action)))
        check_fit(policy, sim)
        self.policy = policy
        self.policy.control_dt_s = sim.control_dt_s

    def measure(self, replay: Replay) -> None:
        """Add all observations of a replay to the running normalization, if there is one."""
        if self.normalizer is not None:
            every = replay.view(replay.indices(), 1, 1.0).obs
            self.take(every)

    def take(self, obs: Arrays) -> None:
        """Add observations (B, ...) to the statistics, and update the policy's normalization."""
        if self.normalizer is not None:
            self.normalizer.update(obs)
            self.apply()

    def apply(self) -> None:
        """Set the current statistics as constants of the policy's transforms."""
        if self.normalizer is not None:
            self.policy.set_transforms(TransformGroup(self.normalizer.transforms(), self.policy.transforms.outputs))

    def state(self) -> dict[str, Any] | None:
        """State of the normalization for an exact resume; the learner saves the weights."""
        return None if self.normalizer is None else self.normalizer.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore the result of `state`.

        A learner made to resume does not know whether the run began with a new policy: the state decides whether a
        running normalization exists.
        """
        self.normalizer = None
        if state is not None:
            self.normalizer = ObsNormalizer(self.policy.observation_spec, self._world)
            self.normalizer.load(state)
            self.apply()


def critics_of(policy: Any, cfg: Any) -> QEnsemble:
    """Build the critics on a policy's context, from a learner's config."""
    width, horizon, action = policy.context_width, policy.horizon, policy.action_width
    hidden, activation = cfg.critic_hidden, cfg.critic_activation
    return QEnsemble(width, horizon, action, cfg.num_critics, hidden, cfg.layer_norm, activation)


class ActionNormalizer(nn.Module):
    """Maps the sim's actions to [-1, 1], the range that learners and critics use.

    Args:
        action_spec: the sim's action spec.
    """

    def __init__(self, action_spec: Spec) -> None:
        super().__init__()
        affine = bounds_to_unit(ACTION, action_spec.low, action_spec.high)
        self.scale: Tensor
        self.offset: Tensor
        self.register_buffer("scale", torch.tensor(affine.scale), persistent=False)
        self.register_buffer("offset", torch.tensor(affine.offset), persistent=False)

    @classmethod
    def of_policy(cls, policy: Any) -> ActionNormalizer:
        """Build the normalizer to the units of a policy's own output, which need not be those of the bounds.

        Raises:
            ConfigError: the policy does not have exactly one affine transform of its actions.
        """
        found, affine = cls(policy.action_spec), action_normalization(policy.transforms)
        found.scale.copy_(torch.tensor(affine.scale))
        found.offset.copy_(torch.tensor(affine.offset))
        return found

    def forward(self, chunk: Tensor) -> Tensor:
        """Normalize chunks (..., A)."""
        return chunk * self.scale + self.offset


def batch_rows(transitions: Transitions, keys: Mapping[str, Spec], unit: ActionNormalizer) -> dict[str, Tensor]:
    """Convert a batch of chunks to the rows of a loss.

    Args:
        transitions: batch from a sampler.
        keys: the policy's observations.
        unit: normalizer of the actions.

    Returns:
        "obs/KEY" and "next_obs/KEY" (B, ...) as stored, "chunk" (B, H, A) normalized, "reward" and "discount" (B,).
    """
    return {
        **{f"obs/{key}": transitions.obs[key] for key in keys},
        **{f"next_obs/{key}": transitions.next_obs[key] for key in keys},
        "chunk": unit(transitions.chunk),
        "reward": transitions.reward,
        "discount": transitions.discount,
    }


def detached(module: torch.nn.Module) -> dict[str, Tensor]:
    """Detach a module's parameters, for `torch.func.functional_call`: gradients flow to its inputs only."""
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


class UpdateToDataRatio:
    """Number of updates due for env steps, for a ratio that need not be an integer."""

    def __init__(self, ratio: float) -> None:
        self._ratio, self.owed = ratio, 0.0

    def take(self, env_steps: int) -> int:
        """Return the whole updates due after this many more env steps."""
        self.owed += env_steps * self._ratio
        due = int(self.owed + 1e-9)
        self.owed -= due
        return due

    def state(self) -> float:
        """State for an exact resume."""
        return self.owed

    def load(self, state: float) -> None:
        """Restore the result of `state`."""
        self.owed = float(state)


def updates_per_call(updates: int, batch: int, keys: Mapping[str, Spec]) -> int:
    """Number of updates whose rows are sampled at once, so that the rows take bounded memory.

    Args:
        updates: largest number of updates in one call.
        batch: M rows per update.
        keys: observations of a row, which holds two of each; its other arrays are small.
    """
    each = 2 * sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in keys.values())
    return fitting(updates, each * batch)


def demonstrations(
    dataset: Dataset,
    observation_spec: Mapping[str, Spec],
    action_spec: Spec,
    control_dt_s: float | None,
    extras: Mapping[str, tuple[int, ...]] | None = None,
    accept: bool = False,
) -> Replay:
    """Load a dataset into a replay of its own, in RAM, so that rollouts never overwrite it.

    Args:
        dataset: result of `read_dataset`.
        observation_spec: the arrays to keep.
        action_spec: the sim's action.
        control_dt_s: seconds between two of the sim's steps; None if unknown.
        extras: see `Replay.create`.
        accept: whether the dataset's doubtful properties are accepted, or were reported already.

    Raises:
        ConfigError: the dataset contradicts the specs or the rate; see `robotrl.datasets.agreement.agree`.
        DataError: it is doubtful.
    """
    replay = Replay.create(
        None,
        observation_spec,
        action_spec,
        streams=1,
        capacity=max(2, dataset.num_frames),
        extras=extras,
        control_dt_s=control_dt_s,
    )
    replay.add_demos(dataset, accept=accept)
    return replay
