"""Interface between the training loop and an algorithm: `Setup` and `Learner`; the settings' is `spec.LearnerCfg`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import nn

from robotrl.config import ActorCfg
from robotrl.engine.base import Updater
from robotrl.engine.distributed import ALONE, DistributedContext, check_processes
from robotrl.engine.engine import Engine
from robotrl.engine.fsdp import ShardedEngine
from robotrl.engine.update import LossModule, ParameterGroup
from robotrl.errors import CapabilityError
from robotrl.interventions.base import Intervention
from robotrl.learners.collection.collectors import Collectors, OwnSim
from robotrl.learners.feature_cache import FeatureCache
from robotrl.learners.parts import Part, follow, restore, saved
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
    collectors: Collectors = OwnSim()
    """Factory of the collector of rollouts, for algorithms whose envs may be divided over workers."""
    world: DistributedContext = ALONE
    """Distributed context, for algorithms that support several processes; their learner has it as `world`."""
    device: torch.device = CPU
    """Device of the networks; `init_policy` and the tensors of `make_sim`'s sim are on it, too."""
    fsdp: bool = False
    """Shard the trained weights over the processes (FSDP), for algorithms that get their engine from `engine`."""
    update_threads: int | None = None
    """Torch threads during updates; None: unchanged."""
    cache: Cache = "none"
    """Part of the policy whose outputs are cached, for algorithms that call `kept`; their learner has `caches`."""
    may_stop: bool = False
    """True if the run may stop early, once it is good enough."""
    resumed: bool = False
    """True if `Learner.load` follows: files that the config names may be gone; their contents are in the state."""
    accept_data: bool = False
    """True if the user accepts the dataset's doubtful properties as correct."""
    run: str = ""
    """Name of the run, by which it recognizes its own files outside its directory; empty: it has none."""
    answers: str | None = None
    """Directory of the run in which answers that cost are kept, where the settings name none; None: there is no run."""

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


Watch = Callable[[VecSim], Intervention]
"""Factory of the person or program that watches a sim and may take over; picklable if an actor process steps the
sim."""


class Stepper(Protocol):
    """Interface of an object that steps the sim for a learner."""

    remote: bool
    """True if another process steps the sim."""

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


class Learner(ABC):
    """One algorithm in training. The training loop calls `iterate` until `iterations` are done, and saves `state`.

    A subclass sets the attributes, and declares its state by `parts` and `counts`.
    """

    iterations: int
    """Number of iterations of the whole run."""
    policy: Any
    """Policy to evaluate and export (EMA weights if the algorithm averages)."""
    world: DistributedContext = ALONE
    """Distributed context; learners without support for several processes have only this one."""
    caches: ClassVar[bool] = False
    """True if it keeps the observations of updates in `Setup.kept`."""
    counts: ClassVar[tuple[str, ...]] = ("iteration",)
    """Names of the integers of the state, which are attributes; the first one seeds the streams that a resumed process
    begins anew."""
    iteration: int = 0
    """Number of iterations begun so far, where the learner counts them."""
    updates: int = 0
    """Number of updates so far, where the learner counts them."""
    _engine: Updater
    _stepper: Stepper | None = None
    """None: the learner does not step a sim."""
    _seed: int = 0

    @property
    def env_steps(self) -> int:
        """Env steps taken so far in training, summed over envs and processes."""
        return 0 if self._stepper is None else self._stepper.env_steps * self.world.size

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return 0.0 if self._stepper is None else self._stepper.sim_s

    @property
    def acts_remotely(self) -> bool:
        """True if an actor process steps the sim."""
        return self._stepper is not None and self._stepper.remote

    @property
    def sharded(self) -> bool:
        """True if the trained weights are sharded over the processes."""
        return self._engine.sharded

    @property
    def compile_s(self) -> float:
        """Seconds spent on compiling so far."""
        return self._engine.compile_s

    @abstractmethod
    def iterate(self) -> dict[str, float]:
        """Run one iteration; returns the scalars to log."""
        ...

    @abstractmethod
    def parts(self) -> dict[str, Part]:
        """Return the parts of the state by name, in the order in which they are restored; see `Part`."""
        ...

    def critic_tree(self) -> dict[str, Any] | None:
        """Return the critic to save beside the policy, for runs that start from it; None: there is none to hand on.

        See `robotrl.learners.critics.stored.critic_tree`.
        """
        return None

    def watch(self, make: Watch) -> None:
        """Let a person or program take over while the policy acts, and learn from the corrections.

        Args:
            make: factory of the intervention for the training sim.

        Raises:
            CapabilityError: the algorithm does not learn from interventions.
        """
        del make
        raise CapabilityError(
            f"{type(self).__name__} lacks watch: it cannot learn from interventions; expected intervention.by nobody"
        )

    def state(self) -> dict[str, Any]:
        """Return everything that an exact resume needs, including the state of the sim and its random streams."""
        numbers = {name: getattr(self, name) for name in self.counts}
        return saved(self.parts()) | numbers | {"processes": self.world.size}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`; process 0 resumes exactly, the others with new episodes and random streams.

        Raises:
            ConfigError: the state was saved by another number of processes.
        """
        check_processes(self.world, state)
        for name in self.counts:
            setattr(self, name, int(state[name]))
        for name, part in self.parts().items():
            if part is None:
                continue
            if self.world.rank == 0:
                restore(part, state[name])
            else:
                follow(part, state[name], self._seed + state[self.counts[0]])

    def close(self) -> None:
        """Close the sim and release everything else; the learner is not used again."""
        if self._stepper is not None:
            self._stepper.close()
