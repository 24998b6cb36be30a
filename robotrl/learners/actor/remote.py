"""Actor and learner in separate processes: one steps the sim, the other learns from what the first sends.

The actor works ahead, by `ActorCfg.lead` iterations at most, with the newest policy that it was sent; beyond that it
waits. So env steps and updates take place at the same time, and yet there are as many updates for each env step as in
one process. An actor that dies without a word, or says nothing for too long, is replaced by another; one that says why
it ends, ends the run with that reason. An actor whose learner is gone ends by itself.

A new process is handed its end of a pipe and nothing else; what it is to do comes through that pipe, whose end is
noticed on both sides, so nobody waits for a process that is gone, at whatever moment it went.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.config import ActorCfg
from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError, RobotrlError
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
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.learners.replay_collector import Acting, ReplayBuffers, ReplayCollector, Watch, worth_logging
from robotrl.replay.buffer import SOURCES, StepRecord
from robotrl.replay.corrections import add_corrections
from robotrl.rollout.collector import Collected
from robotrl.run.locking import stop_wished
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec import Arrays, VecSim
from robotrl.utils.safe_path import safe_children

HUMAN = SOURCES.index("human")
POLL_S = 0.25
"""How often somebody who waits looks whether the process is still there, and whether the run is to stop."""
STOP_S = 10.0
"""How long an actor that has not started may take once the run is to stop; another one is not made then."""
OURS = {kind.__name__: kind for kind in (CapabilityError, ConfigError, DataError, NumericsError, RobotrlError)}


class ActorProcess:
    """An actor's process, from the learner's side; nothing here blocks for longer than it is told to.

    Args:
        recipe: what it is made from.
    """

    def __init__(self, recipe: ActorRecipe) -> None:
        # spawned, not forked: threads of torch and of the sims do not survive a fork
        context = multiprocessing.get_context("spawn")
        work = ForkingPickler.dumps(recipe)
        self._connection, theirs = context.Pipe()
        try:
            # spawn writes the arguments before it knows whether anybody reads: they must fit into a pipe
            self._process = context.Process(target=act, args=(theirs,), name="robotrl-actor", daemon=True)
            _start(self._process)
        except BaseException:
            self._connection.close()
            raise
        finally:
            # the pipe ends with the process only when nobody else holds that end
            theirs.close()
        self._inbox = queue.SimpleQueue[Any]()
        self._outbox = queue.SimpleQueue[Any]()
        self._outbox.put(work)
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._write)]
        for thread in self._threads:
            thread.start()
        self.sim_s = 0.0
        """Seconds spent inside its sim."""
        self._ready = False

    @property
    def pid(self) -> int | None:
        """Of its process."""
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
        # a pipe holds less than the weights of a policy: a write waits until the actor reads, which may be never
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
        """Order something; returns at once."""
        self._outbox.put(order)

    def take(self, start_timeout_s: float, timeout_s: float) -> CollectedSteps | str:
        """The next batch, or, of an actor that is to be replaced, what became of it.

        Args:
            start_timeout_s: how long to wait until it has started.
            timeout_s: how long to wait for the batch then.

        Raises:
            RobotrlError: the actor says why it ends; of the kind that it met, if it is one of ours.
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
            if message.kind in OURS:
                raise OURS[message.kind](f"{message.message} (in the actor's process)")
            raise RobotrlError(f"the actor's process failed with {message.kind}: {message.message}")
        self.sim_s = message.sim_s
        return message

    def _wait(self, patience_s: float) -> Any:
        """The next message; None when there will be none.

        Raises:
            queue.Empty: there was none for so long.
        """
        end = time.monotonic() + patience_s
        stopping = False
        while True:
            try:
                return self._inbox.get(timeout=min(POLL_S, max(0.0, end - time.monotonic())))
            except queue.Empty:
                if self._process.exitcode is not None:
                    # what it said last may be on its way; its end shows nowhere else while a process that it has
                    # started itself holds the pipe
                    return self._last()
                if time.monotonic() >= end:
                    raise
            if not stopping and not self._ready and stop_wished():
                stopping, end = True, min(end, time.monotonic() + STOP_S)

    def _last(self) -> Any:
        try:
            return self._inbox.get(timeout=POLL_S)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the process: by asking it, which gives back devices, then by force."""
        self._outbox.put(None)
        self._process.join(GRACE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        # both end with the pipe, also where somebody else still holds its other end
        with socket.socket(fileno=os.dup(self._connection.fileno())) as pipe, suppress(OSError):
            pipe.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._connection.close()


def _start(process: BaseProcess) -> None:
    """Start an actor's process.

    Raises:
        OSError: the system refused.
    """
    # Ctrl-C reaches the whole group; what is blocked here stays so in the actor, from its first moment: the learner
    # saves, and then ends it. The tracker, if started with the process, would lift the block before
    with safe_children():
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class RemoteReplayCollector:
    """What `ReplayCollector` is, with the sim stepped in a process of its own.

    A resumed run goes on from its memory with an actor that starts anew, so it does not end bit for bit where an
    uninterrupted one does.

    Args:
        make_sim: makes the training sim, in the actor's process; picklable.
        made: the policy.
        memory: what is filled.
        acting: how the policy acts.
        budget: env steps of the whole run: the actor does not work ahead of its end.
        cfg: how the actor is treated.
    """

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
        """How many actors had to be replaced."""
        self.waited_s = 0.0
        """Seconds that the learner has waited for the actor."""
        self._make_sim, self._made, self._acting, self._budget, self._cfg = make_sim, made, acting, budget, cfg
        self._watch: Watch | None = None
        self._actor: ActorProcess | None = None
        self._ordered = 0
        self._sim_s = 0.0

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far, at the same time as the learner's."""
        return self._sim_s + (0.0 if self._actor is None else self._actor.sim_s)

    @property
    def warm(self) -> bool:
        """Whether there is enough to learn from."""
        return self.env_steps >= self._acting.warmup

    @property
    def pid(self) -> int | None:
        """Of the actor's process, once there is one."""
        return None if self._actor is None else self._actor.pid

    def watch(self, make: Watch) -> None:
        """See `ReplayCollector.watch`; whatever `make` refuses, it refuses when the actor starts."""
        self._watch = make
        self.memory.keep_corrections()

    def collect(self, steps: int) -> dict[str, float]:
        """The next `steps` steps of every env into the memory; gives what is worth logging.

        Raises:
            RobotrlError: the actor says why it ends, or it had to be replaced more often than allowed.
        """
        began = time.perf_counter()
        batch = self._next(steps)
        self.waited_s += time.perf_counter() - began
        seen = list[Arrays]()
        for packed in batch.records:
            record = StepRecord(*map(to_torch, packed))
            assert record.decision is not None and isinstance(record.source, (str, Tensor))
            self.memory.replay.add(record)
            if self.memory.corrections is not None and isinstance(record.source, Tensor):
                add_corrections(self.memory.corrections, record, record.source == HUMAN)
            seen.append({key: x[record.decision] for key, x in record.obs.items()})
        if self._made.normalizer is not None:
            self._made.take({key: torch.cat([obs[key] for obs in seen]) for key in seen[0]})
        self.env_steps += batch.env_steps
        episodes, returns = torch.from_numpy(batch.episodes), torch.from_numpy(batch.returns)
        scalars = worth_logging(Collected(batch.env_steps, episodes, returns, batch.corrected))
        return scalars | {"actor_restarts": float(self.restarts), "actor_wait_s": self.waited_s}

    def _next(self, steps: int) -> CollectedSteps:
        """The next batch; an actor that cannot give it is replaced."""
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
        """Give up an actor; its successor is made with the next order."""
        self.close()
        if stop_wished():
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
        # each actor has streams of its own: none repeats what one before it did
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
        """For a resume: what was received. What the actor is about is not known here."""
        return {"env_steps": self.env_steps, "random": self._acting.random, **self.memory.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave.

        Raises:
            DataError: the replay's directory is gone or not the one of that run.
            ConfigError: it stores other arrays than this run.
        """
        self.env_steps = int(state["env_steps"])
        self._acting = self._acting._replace(random=bool(state["random"]))
        self.memory.load(state)
        self.memory.cut()


def experience_of(
    cfg: Any, setup: Setup, sim: VecSim, made: PolicyBuilder, generator: torch.Generator, acting: Acting | None = None
) -> ReplayCollector | RemoteReplayCollector:
    """The experience of a learner, with the sim stepped where the run wants it.

    Args:
        cfg: the algorithm's config.
        setup: what the learner is made from.
        sim: the training sim; it is closed where another process has one.
        made: the policy.
        generator: of the learner.
        acting: how the policy acts; None: from the config, and a fresh policy warms up at random.

    Raises:
        ConfigError: another process is wanted, to which the sim's maker cannot be sent.
    """
    if acting is None:
        acting = Acting(setup.seed, cfg.gamma, setup.init_policy is None, cfg.warmup)
    memory = ReplayBuffers(sim, cfg.capacity, cfg.replay, setup.run)
    if not setup.actor.process:
        return ReplayCollector(sim, made, memory, acting, generator)
    sim.close()
    try:
        ForkingPickler.dumps(setup.make_sim)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"actor.process is True, and make_sim cannot be sent to another process ({error}): expected a function of a"
            " module, or functools.partial of one"
        ) from error
    return RemoteReplayCollector(setup.make_sim, made, memory, acting, cfg.env_steps, setup.actor)
