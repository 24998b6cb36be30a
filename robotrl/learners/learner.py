"""Interface between the training loop and an algorithm: `Setup`, `Learner`, `LearnerCfg`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from robotrl.config import ActorCfg
from robotrl.engine.base import Updater
from robotrl.engine.distributed import ALONE, DistributedContext
from robotrl.engine.engine import Engine
from robotrl.engine.fsdp import ShardedEngine
from robotrl.engine.update import LossModule, ParameterGroup
from robotrl.learners.feature_cache import FeatureCache
from robotrl.spec import Cache, VecSim
from robotrl.utils.devices import CPU

USED = 0.25
"""Expected used part of the budget of a run that may stop early."""


class Setup(NamedTuple):
    """Everything an algorithm needs to build its learner."""

    make_sim: Callable[[], VecSim]
    """Factory of the training sim; offline algorithms call it only for its specs."""
    policy_cfg: Any
    """Config of the policy to build when `init_policy` is None."""
    init_policy: nn.Module | None
    """The policy to fine-tune, or None to start from scratch."""
    dataset: Path | None
    """Demonstrations, for algorithms that learn from them."""
    seed: int
    """Random seed of this process."""
    actor: ActorCfg = ActorCfg()
    """Settings of the actor process, for algorithms that support one."""
    world: DistributedContext = ALONE
    """Distributed context, for algorithms that support several processes; their learner has it as `world`."""
    device: torch.device = CPU
    """Device of the networks; `init_policy` and the tensors of `make_sim`'s sim are on it, too."""
    fsdp: bool = False
    """Shard the trained weights over the processes (FSDP), for algorithms that get their engine from `engine`."""
    update_threads: int | None = None
    """Torch threads during updates; None: unchanged."""
    cache: Cache = "none"
    """Part of the policy whose outputs are cached, for algorithms that call `kept`; their learner has it as `kept`."""
    may_stop: bool = False
    """True if the run may stop early, once it is good enough."""
    resumed: bool = False
    """True if `Learner.load` follows: files that the config names may be gone; their contents are in the state."""
    accept_data: bool = False
    """True if the user accepts the dataset's doubtful properties as correct."""
    run: str = ""
    """Name of the run, by which it recognizes its own files outside its directory; empty: it has none."""

    def expected(self, updates: float) -> int:
        """Estimate the number of updates that the run will make.

        Args:
            updates: number of updates of its whole budget.
        """
        return round(updates * (USED if self.may_stop else 1.0))

    def fresh(self, *parts: Any) -> Any:
        """Build a new policy from its config and `parts`, on the device."""
        return self.policy_cfg.build(*parts).to(self.device)

    def kept(self, policy: Any, rows: int, bf16: bool) -> FeatureCache:
        """Build the feature cache; see `FeatureCache`.

        Raises:
            CapabilityError: see `FeatureCache`.
            ConfigError: see `FeatureCache`.
        """
        return FeatureCache(policy, self.cache, rows, bf16)

    def engine(self, loss: LossModule, groups: Sequence[ParameterGroup], **options: Any) -> Updater:
        """Build the update engine, sharded with `fsdp`; see `Engine` for the options.

        Raises:
            ConfigError: see `Engine` and `ShardedEngine`.
            CapabilityError: weights are to be sharded over one process.
        """
        return (ShardedEngine if self.fsdp else Engine)(
            loss, groups, world=self.world, threads=self.update_threads, **options
        )


class Learner(Protocol):
    """One algorithm in training. The training loop calls `iterate` until `iterations` are done, and saves `state`."""

    iterations: int
    env_steps: int
    """Env steps taken in training so far."""
    policy: Any
    """Policy to evaluate and export (EMA weights if the algorithm averages)."""

    def iterate(self) -> dict[str, float]:
        """Run one iteration; returns the scalars to log."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything that an exact resume needs, including the state of the sim and its random streams."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        ...

    def close(self) -> None:
        """Close the sim and release everything else; the learner is not used again."""
        ...


class Stepper(Protocol):
    """Interface of an object that steps the sim for a learner."""

    @property
    def env_steps(self) -> int:
        """Env steps taken so far."""
        ...

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        ...

    def close(self) -> None:
        """Close the sim."""
        ...


class SimLearner:
    """Base class of learners that step a sim: the attributes that the training loop reads besides `Learner`'s."""

    world: DistributedContext = ALONE
    """Distributed context; learners without support for several processes have only this one."""
    _stepper: Stepper
    _engine: Updater

    @property
    def env_steps(self) -> int:
        """Env steps taken so far, summed over envs and processes."""
        return self._stepper.env_steps * self.world.size

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return self._stepper.sim_s

    @property
    def sharded(self) -> bool:
        """True if the trained weights are sharded over the processes."""
        return self._engine.sharded

    @property
    def compile_s(self) -> float:
        """Seconds spent on compiling so far."""
        return self._engine.compile_s

    def close(self) -> None:
        """See `Learner.close`."""
        self._stepper.close()


class LearnerCfg(Protocol):
    """Config of an algorithm, which builds its learner."""

    def build(self, setup: Setup) -> Learner:
        """Build the learner, ready for its first iteration."""
        ...
