"""What the runner and an algorithm agree on."""

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
"""Part of its budget that a run uses which ends where it is good enough: as a rule a small one."""


class Setup(NamedTuple):
    """What an algorithm is made from."""

    make_sim: Callable[[], VecSim]
    """Makes the training sim; algorithms that learn from data alone do not call it but for its specs."""
    policy_cfg: Any
    """Config of the policy to build, when there is none to start from."""
    init_policy: nn.Module | None
    """The policy to fine-tune, or None to start from scratch."""
    dataset: Path | None
    """Demonstrations, for algorithms that learn from them."""
    seed: int
    """Of this process."""
    actor: ActorCfg = ActorCfg()
    """Where the training sim is stepped, for algorithms that leave the choice."""
    world: DistributedContext = ALONE
    """The processes that learn together, for algorithms that can; their learner has it as `world`."""
    device: torch.device = CPU
    """Where networks act and learn; `init_policy` is there, and so is what the sim of `make_sim` gives."""
    fsdp: bool = False
    """Whether each process has a part of what learns, for algorithms that ask `engine` for theirs."""
    update_threads: int | None = None
    """Threads of torch while networks learn, None for as many as otherwise."""
    cache: Cache = "none"
    """What is kept of observations, for algorithms that ask `kept` for it; their learner has it as `kept`."""
    may_stop: bool = False
    """Whether the run ends before its budget where it is good enough."""
    resumed: bool = False
    """Whether `Learner.load` follows: files that the config names may be gone, and are in the state that is loaded."""
    accept_data: bool = False
    """Whether what is doubtful about the dataset is right, as its user says."""
    run: str = ""
    """Name of the run, by which what it left outside its directory is known as its own; empty: it is not."""

    def expected(self, updates: float) -> int:
        """How many updates the run will make, as far as one can tell.

        Args:
            updates: of its whole budget.
        """
        return round(updates * (USED if self.may_stop else 1.0))

    def fresh(self, *parts: Any) -> Any:
        """A policy that its config builds of `parts`, on the device."""
        return self.policy_cfg.build(*parts).to(self.device)

    def kept(self, policy: Any, rows: int, bf16: bool) -> FeatureCache:
        """What of observations is kept; see `FeatureCache`.

        Raises:
            CapabilityError: as of `FeatureCache`.
            ConfigError: as of `FeatureCache`.
        """
        return FeatureCache(policy, self.cache, rows, bf16)

    def engine(self, loss: LossModule, groups: Sequence[ParameterGroup], **options: Any) -> Updater:
        """The update engine of a learner that can learn together; see `Engine` for the options.

        Raises:
            ConfigError: as of `Engine` or `ShardedEngine`.
            CapabilityError: weights are to be spread over one process.
        """
        return (ShardedEngine if self.fsdp else Engine)(
            loss, groups, world=self.world, threads=self.update_threads, **options
        )


class Learner(Protocol):
    """One algorithm at work. The runner calls `iterate` until `iterations` are done, and saves `state`."""

    iterations: int
    env_steps: int
    """Env steps taken in training so far."""
    policy: Any
    """The policy to evaluate and export (EMA weights where the algorithm keeps them)."""

    def iterate(self) -> dict[str, float]:
        """One iteration; gives the scalars to log."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything an exact resume needs, the sim and random streams of its own included."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` gave."""
        ...

    def close(self) -> None:
        """Give back the sim and whatever else it holds; it is not used again."""
        ...


class Stepper(Protocol):
    """Whatever steps the sim for a learner."""

    @property
    def env_steps(self) -> int:
        """Env steps taken so far."""
        ...

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        ...

    def close(self) -> None:
        """Give back the sim."""
        ...


class SimLearner:
    """What the runner reads of a learner that steps a sim, besides `Learner`."""

    world: DistributedContext = ALONE
    """The processes that learn together; of a learner that can only learn alone, none but this one."""
    _stepper: Stepper
    _engine: Updater

    @property
    def env_steps(self) -> int:
        """Env steps taken so far, each env's of each process counted."""
        return self._stepper.env_steps * self.world.size

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return self._stepper.sim_s

    @property
    def sharded(self) -> bool:
        """Whether what it learns is spread over the processes."""
        return self._engine.sharded

    @property
    def compile_s(self) -> float:
        """Seconds spent on compiling so far."""
        return self._engine.compile_s

    def close(self) -> None:
        """See `Learner.close`."""
        self._stepper.close()


class LearnerCfg(Protocol):
    """Config of an algorithm; knows how to build its learner."""

    def build(self, setup: Setup) -> Learner:
        """The learner, ready for its first iteration."""
        ...
