"""Replay collector of a learner whose envs are stepped by workers (`robotrl.cluster`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from robotrl.errors import CapabilityError
from robotrl.learners.collection.acting import MemorylessActing, independent
from robotrl.learners.collection.collectors import STEP_VERSION, StepsCollectors
from robotrl.learners.learner import Watch
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.learners.replay_collector import Acting, Decide, ReplayBuffers, decided_on, loggable_scalars
from robotrl.rollout.collector import Collected, Decision
from robotrl.spec import Arrays, CarriesMemory, VecSim


class ReplayActing(MemorylessActing):
    """A policy as it acts for a replay, at first at random; implements `StepsActing`.

    Args:
        policy: the policy.
        decide: sampler of chunks.
        random_steps: env steps of the run before which actions are random.
    """

    def __init__(self, policy: Any, decide: Decide, random_steps: int) -> None:
        self.network, self.horizon = policy, policy.horizon
        self._decide, self.random_steps = decide, random_steps

    def decide(self, obs: Arrays, generator: torch.Generator, before: int) -> Decision:
        """See `StepsActing.decide`."""
        return self._decide(self.network, obs, generator, before < self.random_steps)

    def settings(self) -> Any:
        """See `RolloutActing.settings`: the policy's transforms, and until when actions are random."""
        return self.network.transforms, self.random_steps

    def apply(self, settings: Any) -> None:
        """See `RolloutActing.apply`."""
        transforms, self.random_steps = settings
        # a policy may have no transforms of its own, which never change then
        if transforms != self.network.transforms:
            self.network.set_transforms(transforms)

    def copied(self, num_envs: int, device: torch.device) -> ReplayActing:
        """See `RolloutActing.copied`."""
        return ReplayActing(independent(self.network, device), self._decide, self.random_steps)


class WorkerReplayCollector:
    """`ReplayCollector` whose envs are divided over workers.

    Args:
        collectors: factory of the workers.
        sim: the training sim, for its specs.
        made: builder of the policy.
        memory: replay buffers to fill; they get the column `STEP_VERSION`.
        acting: settings of how the policy acts.
        generator: the learner's random generator.

    Raises:
        CapabilityError: the policy has a memory.
    """

    remote = False
    """See `Stepper`."""

    def __init__(
        self,
        collectors: StepsCollectors,
        sim: VecSim,
        made: PolicyBuilder,
        memory: ReplayBuffers,
        acting: Acting,
        generator: torch.Generator,
    ) -> None:
        if isinstance(made.policy, CarriesMemory):
            raise CapabilityError(
                f"envs are stepped by workers, which keep no memory of {type(made.policy).__name__} between two steps:"
                " expected cluster none"
            )
        memory.add_column(STEP_VERSION, ())
        self.memory, self._made, self._warmup = memory, made, acting.warmup
        self._acting = ReplayActing(made.policy, acting.decide, acting.warmup if acting.random else 0)
        self._collector = collectors.steps(sim, self._acting, memory.layout, acting.gamma, acting.seed, generator)
        self.late_lost = 0
        """Number of late rewards whose steps were no longer there."""

    @property
    def env_steps(self) -> int:
        """Env steps received so far."""
        return self._collector.env_steps

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return self._collector.sim_s

    @property
    def warm(self) -> bool:
        """True once `warmup` env steps are taken, so that updates may begin."""
        return self.env_steps >= self._warmup

    def watch(self, make: Watch) -> None:
        """See `ReplayCollector.watch`.

        Raises:
            CapabilityError: nobody can take over beside a worker.
        """
        del make
        raise CapabilityError(
            "envs are stepped by workers, where nobody can take over: expected intervention.by nobody"
        )

    def collect(self, steps: int) -> dict[str, float]:
        """Add the next `steps` steps of every env to the replay buffer; returns scalars to log.

        Raises:
            RobotrlError: see `StepsCollector.steps`.
        """
        return loggable_scalars(self.take(steps)) | self.scalars()

    def scalars(self) -> dict[str, float]:
        """Return the scalars to log of the workers."""
        return self._collector.scalars() | ({"late_rewards_lost": float(self.late_lost)} if self.late_lost else {})

    def take(self, steps: int) -> Collected:
        """Add the next `steps` steps of every env to the replay buffer.

        Raises:
            RobotrlError: see `StepsCollector.steps`.
        """
        before = self.env_steps
        batch = self._collector.steps(steps)
        if batch.cut:
            self.memory.replay.cut(batch.cut)
        self.late_lost += self.memory.add_records(batch.records, batch.late)
        if self._made.normalizer is not None:
            seen = decided_on(batch.records)
            # chunks of the batch before may last to the end of this one
            if len(next(iter(seen.values()))):
                self._made.take(seen)
        return Collected(self.env_steps - before, batch.episodes, batch.returns, 0)

    def close(self) -> None:
        """End the workers."""
        self._collector.close()

    def state(self) -> dict[str, Any]:
        """State for an exact resume: the workers' sims, the replay buffer and until when actions are random."""
        return {
            "workers": self._collector.state(),
            "random_steps": self._acting.random_steps,
            **self.memory.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            DataError: the replay's directory is gone or belongs to another run.
            ConfigError: it stores other arrays than this run.
        """
        self._acting.random_steps = int(state["random_steps"])
        self.memory.load(state)
        self._collector.load(state["workers"])
