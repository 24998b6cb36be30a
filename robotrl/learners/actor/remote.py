"""Actor and learner in separate processes: the actor steps the sim, the learner trains on the collected steps.

The actor works ahead by at most `ActorCfg.lead` iterations, with the newest policy that it was sent; then it waits. So
env steps and updates run at the same time, with the same number of updates per env step as in one process. An actor
that dies without an error message, or sends nothing for too long, is replaced. An actor that reports an error ends the
run with that error. An actor whose learner is gone ends by itself.

A new process receives only its end of a pipe, and its recipe through that pipe. Both sides notice when the pipe
closes, so neither waits for a process that is gone.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import queue
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from robotrl.config import ActorCfg
from robotrl.errors import CapabilityError, ConfigError, RobotrlError
from robotrl.learners.actor.process import (
    GRACE_S,
    ActorRecipe,
    CollectedSteps,
    CollectRequest,
    Failed,
    Ready,
    act,
    to_numpy,
    to_torch,
)
from robotrl.learners.actor.workers import WorkerReplayCollector
from robotrl.learners.collection.collectors import StepsCollectors
from robotrl.learners.learner import Setup, Watch
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.learners.replay_collector import (
    Acting,
    Guide,
    ReplayBuffers,
    ReplayCollector,
    decided_on,
    loggable_scalars,
)
from robotrl.replay.buffer import StepRecord
from robotrl.rollout.collector import Collected
from robotrl.run.child_process import error_of_child, start_child
from robotrl.run.locking import stop_requested
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec import VecSim
from robotrl.spec.late_rewards import LateRewards

POLL_S = 0.25
"""Seconds between two checks, while waiting, of whether the process is alive and whether the run was asked to stop."""
STOP_S = 10.0
"""Seconds that an actor may still take to start once the run was asked to stop; it is not replaced then."""


class ActorProcess:
    """Learner's side of an actor process; no method blocks for longer than its time limit.

    Args:
        recipe: everything the actor needs to start.
    """

    def __init__(self, recipe: ActorRecipe) -> None:
        # spawned, not forked: threads of torch and of the sims do not survive a fork
        context = multiprocessing.get_context("spawn")
        work = ForkingPickler.dumps(recipe)
        self._connection, theirs = context.Pipe()
        try:
            # spawn writes the arguments before anybody reads: they must fit into a pipe's buffer
            self._process = context.Process(target=act, args=(theirs,), name="robotrl-actor", daemon=True)
            start_child(self._process)
        except BaseException:
            self._connection.close()
            raise
        finally:
            # the pipe closes with the process only if nobody else holds that end
            theirs.close()
        self._inbox = queue.SimpleQueue[Any]()
        self._outbox = queue.SimpleQueue[Any]()
        self._outbox.put(work)
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._write)]
        for thread in self._threads:
            thread.start()
        self.sim_s = 0.0
        """Seconds spent inside the actor's sim."""
        self._ready = False

    @property
    def pid(self) -> int | None:
        """Process ID."""
        return self._process.pid

    def _read(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                self._inbox.put(None)
                return
            self._inbox.put(message)

    def _write(self) -> None:
        # a pipe's buffer is smaller than a policy's weights: a write waits until the actor reads, which may be never
        while True:
            message = self._outbox.get()
            try:
                if isinstance(message, (bytes, memoryview)):
                    self._connection.send_bytes(message)
                else:
                    self._connection.send(message)
            except OSError:
                return
            if message is None:
                return

    def send(self, order: CollectRequest) -> None:
        """Send a request to the actor; returns at once."""
        self._outbox.put(order)

    def take(self, start_timeout_s: float, timeout_s: float) -> CollectedSteps | str:
        """Return the next batch, or a sentence saying why the actor must be replaced.

        Args:
            start_timeout_s: seconds to wait until the actor has started.
            timeout_s: seconds to wait for the batch after that.

        Raises:
            RobotrlError: the actor reported an error; its class is kept where it is one of robotrl's.
        """
        while True:
            patience_s = timeout_s if self._ready else start_timeout_s
            try:
                message = self._wait(patience_s)
            except queue.Empty:
                return f"{'sent nothing' if self._ready else 'did not start'} for {patience_s:g} s"
            if not isinstance(message, Ready):
                break
            self._ready = True
        if message is None:
            self._process.join(GRACE_S)
            return f"ended with exit code {self._process.exitcode}"
        if isinstance(message, Failed):
            raise error_of_child(message.kind, message.message, "the actor's process")
        self.sim_s = message.sim_s
        return message

    def _wait(self, patience_s: float) -> Any:
        """Return the next message, or None when there will be none.

        Raises:
            queue.Empty: no message came within `patience_s` seconds.
        """
        end = time.monotonic() + patience_s
        stopping = False
        while True:
            try:
                return self._inbox.get(timeout=min(POLL_S, max(0.0, end - time.monotonic())))
            except queue.Empty:
                if self._process.exitcode is not None:
                    # its last message may still be on its way; the pipe does not show that the process ended while a
                    # child process of it holds the pipe
                    return self._last()
                if time.monotonic() >= end:
                    raise
            if not stopping and not self._ready and stop_requested():
                stopping, end = True, min(end, time.monotonic() + STOP_S)

    def _last(self) -> Any:
        try:
            return self._inbox.get(timeout=POLL_S)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the process: by a request, so that it can release devices, then by force."""
        self._outbox.put(None)
        self._process.join(GRACE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        # closes the pipe for both threads, even if another process still holds its other end
        with socket.socket(fileno=os.dup(self._connection.fileno())) as pipe, suppress(OSError):
            pipe.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._connection.close()


class RemoteReplayCollector:
    """`ReplayCollector` whose sim is stepped in a separate process.

    A resumed run continues from its replay buffers with a new actor, so it is not bit-identical to an uninterrupted
    one.

    Args:
        make_sim: factory of the training sim, called in the actor's process; picklable.
        made: builder of the policy.
        memory: replay buffers to fill.
        acting: settings of how the policy acts.
        budget: env steps of the whole run; the actor does not work ahead beyond them.
        cfg: settings of the actor process.
    """

    remote = True
    """See `Stepper`."""

    def __init__(
        self,
        make_sim: Callable[[], VecSim],
        made: PolicyBuilder,
        memory: ReplayBuffers,
        acting: Acting,
        budget: int,
        cfg: ActorCfg,
    ) -> None:
        self.memory = memory
        self.env_steps = 0
        """Env steps received so far."""
        self.restarts = 0
        """Number of actors that were replaced."""
        self.waited_s = 0.0
        """Seconds that the learner has waited for the actor."""
        self.late_lost = 0
        """Number of late rewards whose steps were no longer there."""
        self._logged: list[Mapping[str, float]] = []
        self._make_sim, self._made, self._acting, self._budget, self._cfg = make_sim, made, acting, budget, cfg
        self._watch: Watch | None = None
        self._actor: ActorProcess | None = None
        self._ordered = 0
        self._sim_s = 0.0

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far, in parallel with the learner's updates."""
        return self._sim_s + (0.0 if self._actor is None else self._actor.sim_s)

    @property
    def warm(self) -> bool:
        """True once `warmup` env steps are taken, so that updates may begin."""
        return self.env_steps >= self._acting.warmup

    @property
    def pid(self) -> int | None:
        """ID of the actor's process, or None before it starts."""
        return None if self._actor is None else self._actor.pid

    def watch(self, make: Watch) -> None:
        """See `ReplayCollector.watch`; errors of `make` are raised when the actor starts."""
        self._watch = make
        self.memory.keep_corrections()

    def collect(self, steps: int) -> dict[str, float]:
        """Add the next `steps` steps of every env to the replay buffers; returns scalars to log.

        Raises:
            RobotrlError: see `take`.
        """
        return loggable_scalars(self.take(steps)) | self.scalars()

    def scalars(self) -> dict[str, float]:
        """Return the scalars to log of the actor process and its sim, means over the batches since the last call."""
        names = dict.fromkeys(name for one in self._logged for name in one)
        found = {name: [one[name] for one in self._logged if name in one] for name in names}
        self._logged = []
        sim = {name: sum(values) / len(values) for name, values in found.items()}
        own = sim | {"actor_restarts": float(self.restarts), "actor_wait_s": self.waited_s}
        return own | ({"late_rewards_lost": float(self.late_lost)} if self.late_lost else {})

    def take(self, steps: int) -> Collected:
        """Add the next `steps` steps of every env to the replay buffers.

        Raises:
            RobotrlError: the actor reported an error, or it had to be replaced more often than allowed.
        """
        began = time.perf_counter()
        batch = self._next(steps)
        self.waited_s += time.perf_counter() - began
        records = [StepRecord(*map(to_torch, packed)) for packed in batch.records]
        self.late_lost += self.memory.add_records(records, LateRewards(*map(to_torch, batch.late)))
        if self._made.normalizer is not None:
            self._made.take(decided_on(records))
        self._logged.append(batch.scalars)
        self.env_steps += batch.env_steps
        episodes, returns = torch.from_numpy(batch.episodes), torch.from_numpy(batch.returns)
        return Collected(batch.env_steps, episodes, returns, batch.corrected)

    def _next(self, steps: int) -> CollectedSteps:
        """Return the next batch; replace an actor that cannot give it."""
        while True:
            if self._actor is None:
                try:
                    self._actor, self._ordered = ActorProcess(self._recipe()), 0
                except OSError as error:
                    self._replace(f"could not be started ({error.strerror})")
                    continue
            left = math.ceil((self._budget - self.env_steps) / (steps * self.memory.layout.streams))
            batches = max(1, min(self._cfg.lead, left)) - self._ordered
            policy = self._made.policy
            self._actor.send(CollectRequest(to_numpy(policy.state_dict()), policy.transforms, steps, batches))
            self._ordered += batches
            found = self._actor.take(self._cfg.start_timeout_s, self._cfg.timeout_s)
            if isinstance(found, CollectedSteps):
                self._ordered -= 1
                return found
            self._replace(found)

    def _replace(self, what: str) -> None:
        """End an actor; the next request starts a new one."""
        self.close()
        if stop_requested():
            raise RobotrlError(f"the actor's process {what}, and the run was asked to stop: its last checkpoint stands")
        self.restarts += 1
        if self.restarts > self._cfg.restarts:
            raise RobotrlError(
                f"the actor's process {what}, after {self.env_steps} env steps; it was replaced"
                f" {self._cfg.restarts} times before (actor.restarts), so the run ends"
            )
        warnings.warn(f"the actor's process {what}: another one goes on", stacklevel=4)
        self.memory.cut()

    def _recipe(self) -> ActorRecipe:
        # each actor has random streams of its own, so that it does not repeat those of the one before
        sequence = np.random.SeedSequence((self._acting.seed, self.env_steps, self.restarts))
        acting = self._acting._replace(seed=int(sequence.generate_state(1)[0]) >> 1)
        tree = to_numpy(policy_tree(self._made.policy))
        return ActorRecipe(self._make_sim, self._watch, tree, self.memory.layout, acting, self.env_steps)

    def close(self) -> None:
        """End the actor."""
        if self._actor is not None:
            self._actor.close()
            self._sim_s += self._actor.sim_s
            self._actor = None

    def state(self) -> dict[str, Any]:
        """State to resume from: the received steps. The state of the actor's sim is not known here."""
        return {"env_steps": self.env_steps, "random": self._acting.random, **self.memory.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            DataError: the replay's directory is gone or not the one of that run.
            ConfigError: it stores other arrays than this run.
        """
        self.env_steps = int(state["env_steps"])
        self._acting = self._acting._replace(random=bool(state["random"]))
        self.memory.load(state)
        self.memory.cut()


Experience = ReplayCollector | RemoteReplayCollector | WorkerReplayCollector
"""Who fills the replay buffers of a learner."""


def experience_of(
    cfg: Any,
    setup: Setup,
    sim: VecSim,
    made: PolicyBuilder,
    generator: torch.Generator,
    acting: Acting | None = None,
    memory: ReplayBuffers | None = None,
    guide: Guide | None = None,
) -> Experience:
    """Build the replay collector of a learner, in this process, with a separate actor process, or on workers.

    Args:
        cfg: the algorithm's config.
        setup: the learner's setup.
        sim: the training sim; closed here if a separate process steps its own.
        made: builder of the policy.
        generator: the learner's random generator.
        acting: settings of how the policy acts; None: from the config, a fresh policy warms up with random actions.
        memory: replay buffers to fill; None: from the config.
        guide: who suggests actions, if anybody.

    Raises:
        ConfigError: `actor.process` is set, and the sim factory cannot be pickled, or somebody suggests actions.
        CapabilityError: somebody suggests actions beside workers.
    """
    if acting is None:
        acting = Acting(setup.seed, cfg.gamma, setup.init_policy is None, cfg.warmup)
    if memory is None:
        memory = ReplayBuffers(sim, cfg.capacity, cfg.replay, setup.run)
    if isinstance(setup.collectors, StepsCollectors):
        if guide is not None:
            sim.close()
            raise CapabilityError("algo.guidance is on, and asks beside the learner's own sim: expected cluster none")
        return WorkerReplayCollector(setup.collectors, sim, made, memory, acting, generator)
    if not setup.actor.process:
        return ReplayCollector(sim, made, memory, acting, generator, guide)
    sim.close()
    if guide is not None:
        raise ConfigError(
            "actor.process is True and algo.guidance.by is not 'nobody': expected actor.process False, suggestions are"
            " made beside the sim"
        )
    try:
        ForkingPickler.dumps(setup.make_sim)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"actor.process is True, and make_sim cannot be sent to another process ({error}): expected a function of a"
            " module, or functools.partial of one"
        ) from error
    return RemoteReplayCollector(setup.make_sim, made, memory, acting, cfg.env_steps, setup.actor)
