"""Shards in Ray actors: the learner's side, with workers that die or hang.

A worker returns its state with each rollout. One that dies costs the rollout that it was collecting: another one takes
over the state, repeats the order, and gives the rollout that the first one would have given. Where the sim's state
cannot be restored, it begins new episodes from a seed that no other worker has, and says which.

Nodes may leave and join. Where no node has room for a new worker, the shard becomes the guest of another shard's
worker, which steps both; once there is room, the guest gets a worker of its own. The numbers stay the same.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from robotrl.cluster.ray_session import RaySession
from robotrl.cluster.ray_worker import (
    Packed,
    RayWorker,
    WorkerStarted,
    identity,
    packed_state,
    unpacked_state,
)
from robotrl.cluster.shard import CollectOrder, ShardRecipe, ShardRollout, shard_seed
from robotrl.cluster.weights import PublishedWeights, WeightsMessage
from robotrl.config import ClusterCfg
from robotrl.errors import ConfigError, RobotrlError, short
from robotrl.learners.actor.process import Failed
from robotrl.run.child_process import error_of_child

POLL_S = 0.25
"""Seconds between two checks of the workers."""
CLOSE_S = 5.0
"""Seconds that workers get to close their sims."""
Answer = TypeVar("Answer")


class _Ordered(NamedTuple):
    """An order on its way."""

    weights: PublishedWeights
    steps: int
    random: Any
    before: int
    found: Any
    """Reference to the rollout."""
    state: Any
    """Reference to the state after it."""


class _Next(NamedTuple):
    """A worker that starts, for a guest to move to."""

    worker: Any
    started: Any
    """Reference to its answer."""


class _Lost(Exception):
    """A worker is gone, or hangs."""


class _Slot:
    """One shard: its present worker, and what that was told to do."""

    def __init__(self, number: int, recipe: ShardRecipe, envs: range) -> None:
        self.number, self.recipe, self.envs = number, recipe, envs
        self.worker: Any = None
        self.host: int | None = None
        """Number of the shard whose worker steps this one, too; None: it has a worker of its own."""
        self.next: _Next | None = None
        self.started: WorkerStarted | None = None
        self.orders = deque[_Ordered]()
        self.snapshot: Packed | None = None
        """State after the last rollout that was taken; None before the first."""
        self.at: int | None = None
        """Version of the weights that the worker has after its orders."""
        self.failures = 0
        """Workers lost in a row."""
        self.since = 0.0
        """Time at which the oldest order began, at the earliest."""

    @property
    def name(self) -> str:
        """Description for messages."""
        where = "" if self.started is None else f" (process {self.started.pid} on {self.started.host})"
        return f"worker {self.number}{where}"


class RayShards:
    """Shards in Ray actors; implements `ShardRunner`.

    Args:
        recipes: one of each shard; they have the same policy.
        num_envs: envs of each shard.
        cfg: settings.

    Raises:
        RobotrlError: see `RaySession`; also a worker of another version, or one that does not start.
    """

    def __init__(self, recipes: Sequence[ShardRecipe], num_envs: int, cfg: ClusterCfg) -> None:
        self.restarts = self.lost_rollouts = 0
        """See `ShardRunner`."""
        self.weights_bytes = 0
        """See `ShardRunner`."""
        self._cfg = cfg
        self._seeds = np.random.SeedSequence(recipes[0].seed)
        self._slots = [
            _Slot(number, recipe, range(number * num_envs, (number + 1) * num_envs))
            for number, recipe in enumerate(recipes)
        ]
        self._references = dict[int, dict[str, Any]]()
        self._session = RaySession(cfg)
        import ray

        self._ray: Any = ray
        try:
            self._actor: Any = ray.remote(RayWorker)
            self._acting = self._put_acting(recipes[0].acting)
            self._begin(self._slots)
        except BaseException:
            self.close()
            raise

    def _put_acting(self, acting: Any) -> Any:
        """Store the policy once for all workers.

        Raises:
            ConfigError: it cannot be sent.
        """
        try:
            return self._ray.put(acting)
        except (TypeError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"cluster is 'ray', and the policy cannot be sent to another process ({short(str(error))}): expected"
                " classes and functions of modules"
            ) from error

    # start

    def _begin(self, slots: Sequence[_Slot]) -> None:
        """Start the first workers, all at once."""
        for slot in slots:
            self._make(slot)
        self._check_versions(slots)
        for slot, started in zip(slots, [self._start(slot, slot.worker) for slot in slots], strict=True):
            try:
                slot.started = self._checked(slot, self._answer(started, self._cfg.start_timeout_s))
            except _Lost as lost:
                raise RobotrlError(f"{slot.name} did not start: it {lost}; {self._free()}") from lost

    def _make(self, slot: _Slot) -> None:
        """Give a shard a worker of its own."""
        slot.worker, slot.host, slot.at = self._new(), None, None

    def _new(self) -> Any:
        return self._actor.options(num_cpus=self._cfg.cpus, max_restarts=0).remote()

    def _start(self, slot: _Slot, worker: Any) -> Any:
        return worker.start.remote(slot.recipe._replace(acting=None), self._acting)

    def _identity(self, slot: _Slot, reference: Any, end: float) -> Any:
        """Return what a new worker runs; one whose process is gone at once is replaced, as Ray keeps idle processes.

        Args:
            slot: its shard.
            reference: the answer that it was asked for.
            end: time by which it has to come, `time.monotonic`.

        Raises:
            RobotrlError: neither it nor the next one starts.
        """
        try:
            return self._answer(reference, max(0.0, end - time.monotonic()))
        except _Lost as lost:
            if time.monotonic() >= end:
                raise RobotrlError(f"{slot.name} did not start: it {lost}; {self._free()}") from lost
        self._make(slot)
        try:
            return self._answer(slot.worker.identity.remote(), max(0.0, end - time.monotonic()))
        except _Lost as lost:
            raise RobotrlError(f"{slot.name} did not start: it {lost}; {self._free()}") from lost

    def _check_versions(self, slots: Sequence[_Slot]) -> None:
        """Check that workers run what runs here, before they get anything to unpickle.

        Raises:
            ConfigError: a worker has another version.
            RobotrlError: a worker does not start.
        """
        ours, end = identity(), time.monotonic() + self._cfg.start_timeout_s
        for slot, reference in [(slot, slot.worker.identity.remote()) for slot in slots]:
            theirs = self._identity(slot, reference, end)
            for name, here, there in zip(ours._fields, ours, theirs, strict=True):
                if here != there:
                    raise ConfigError(f"{slot.name} has {name} {there}: expected {here}, as here")

    def _free(self) -> str:
        """Text about the CPUs of the cluster."""
        with suppress(Exception):
            free, whole = self._ray.available_resources(), self._ray.cluster_resources()
            return f"{free.get('CPU', 0):g} of the cluster's {whole.get('CPU', 0):g} CPUs are free"
        return "the cluster does not answer"

    def _answer(self, reference: Any, timeout_s: float) -> Any:
        """Wait for a worker's answer.

        Raises:
            _Lost: the worker is gone, or says nothing for so long.
            RobotrlError: it reported an error.
        """
        try:
            found = self._ray.get(reference, timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            raise _Lost(f"said nothing for {timeout_s:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise _Lost(_why(error)) from error
        return found

    # orders

    def submit(self, weights: PublishedWeights, steps: int, random: Any, before: int) -> None:
        """See `ShardRunner.submit`."""
        for slot in self._slots:
            self._send(slot, weights, steps, None if slot.number else random, before)

    def _send(self, slot: _Slot, weights: PublishedWeights, steps: int, random: Any, before: int) -> None:
        order = CollectOrder(self._message(slot, weights), steps, random, before)
        found, state = slot.worker.collect.options(num_returns=2).remote(slot.number, order)
        if not slot.orders:
            slot.since = time.monotonic()
        slot.orders.append(_Ordered(weights, steps, random, before, found, state))

    def _message(self, slot: _Slot, weights: PublishedWeights) -> WeightsMessage:
        """The message with references to what all workers share."""
        message = weights.message(slot.at)
        stored = self._references.setdefault(weights.version, {})
        kind = "whole" if message.base is None else "changes"
        if kind not in stored:
            stored[kind] = self._ray.put(message.blocks), self._ray.put(message.data)
        if slot.at != weights.version:
            self.weights_bytes += message.data.nbytes
        slot.at = weights.version
        blocks, data = stored[kind]
        return message._replace(blocks=blocks, data=data)

    def take(self) -> list[ShardRollout]:
        """See `ShardRunner.take`."""
        found = dict[int, ShardRollout]()
        while len(found) < len(self._slots):
            waiting = {slot.orders[0].found: slot for slot in self._slots if slot.number not in found}
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=POLL_S)
            for reference in ready:
                slot = waiting[reference]
                try:
                    # both are here, or the rollout does not count: a state on a node that is gone would be lost
                    both = [reference, slot.orders[0].state]
                    answer, state = self._answer(both, self._cfg.timeout_s)
                except _Lost as lost:
                    self._replace(slot, str(lost))
                    continue
                found[slot.number] = self._taken(slot, answer, state)
            for slot in waiting.values():
                limit_s = self._cfg.timeout_s * sum(one.worker is slot.worker for one in self._slots)
                if slot.number not in found and time.monotonic() - slot.since > limit_s:
                    self._replace(slot, f"sent nothing for {limit_s:g} s")
        self._forget()
        self._move_guests()
        return [found[slot.number] for slot in self._slots]

    def _taken(self, slot: _Slot, answer: ShardRollout | Failed, state: Packed) -> ShardRollout:
        """Take over a rollout.

        Raises:
            RobotrlError: the worker reported an error.
        """
        if isinstance(answer, Failed):
            which = f"{slot.name}, whose envs are {slot.envs[0]} to {slot.envs[-1]}"
            raise error_of_child(answer.kind, answer.message, which)
        slot.orders.popleft()
        slot.snapshot, slot.failures, slot.since = state, 0, time.monotonic()
        for text in answer.warned:
            warnings.warn(f"{slot.name}: {text}", stacklevel=4)
        return answer

    def _forget(self) -> None:
        """Free the weights that no order needs any more."""
        needed = {order.weights.version for slot in self._slots for order in slot.orders}
        newest = max(self._references, default=0)
        for version in [one for one in self._references if one not in needed and one != newest]:
            del self._references[version]

    # faults

    def _replace(self, slot: _Slot, why: str) -> None:
        """Start another worker for a shard, and repeat its orders.

        Raises:
            RobotrlError: workers of the shard were lost too often in a row.
        """
        orders = list(slot.orders)
        slot.orders.clear()
        self.lost_rollouts += bool(orders)
        while True:
            slot.failures += 1
            with suppress(Exception):
                # where it is shared, the others' orders are lost as well, and repeated
                self._ray.kill(slot.worker, no_restart=True)
            self._cancel(slot)
            if slot.failures > self._cfg.restarts:
                raise RobotrlError(
                    f"{slot.name} {why}; it was replaced {self._cfg.restarts} times in a row before (cluster.restarts),"
                    " so the run ends; its last checkpoint stands"
                )
            self.restarts += 1
            name, exact = slot.name, slot.started is not None and slot.started.exact
            if not exact:
                # a seed that no worker had before
                slot.recipe = slot.recipe._replace(seed=int(self._seeds.spawn(1)[0].generate_state(1)[0]) >> 1)
            how = "from the state before its rollout" if exact else f"with new episodes, from seed {slot.recipe.seed}"
            host = self._host(slot)
            who = "another one" if host is None else f"no node has room, so worker {host.number}"
            warnings.warn(f"{name} {why}: {who} goes on {how}", stacklevel=5)
            limit_s = self._cfg.start_timeout_s
            try:
                if host is None:
                    self._make(slot)
                else:
                    slot.worker, slot.host, slot.at = host.worker, host.number, None
                    # its own rollouts come first
                    limit_s += self._cfg.timeout_s
                slot.started = self._checked(slot, self._answer(self._start(slot, slot.worker), limit_s))
                if exact:
                    self._restore(slot, slot.worker)
            except _Lost as lost:
                why = str(lost)
                continue
            break
        for order in orders:
            self._send(slot, order.weights, order.steps, order.random, order.before)
        slot.since = time.monotonic()

    def _cancel(self, slot: _Slot) -> None:
        """End the worker that starts for a guest, if there is one."""
        if slot.next is not None:
            with suppress(Exception):
                self._ray.kill(slot.next.worker, no_restart=True)
            slot.next = None

    def _restore(self, slot: _Slot, worker: Any) -> None:
        """Give a worker the state of a shard after its last rollout."""
        if slot.snapshot is not None:
            loaded = worker.load.remote(slot.number, slot.snapshot)
            self._checked(slot, self._answer(loaded, self._cfg.start_timeout_s))

    # nodes that leave and join

    @property
    def shared(self) -> int:
        """See `ShardRunner`."""
        return sum(slot.host is not None for slot in self._slots)

    def _own(self, slot: _Slot, nodes: Container[str]) -> list[_Slot]:
        """The other shards with a worker of their own that runs on one of the nodes, and is not this shard's."""
        return [
            one
            for one in self._slots
            if one.worker is not slot.worker
            and one.host is None
            and one.started is not None
            and one.started.node in nodes
        ]

    def _room(self, slot: _Slot) -> int:
        """Number of workers that the nodes have room for beside those of other shards, and other learners, of this run.

        Where other learners and their workers are is not known: their cores count as those of workers.
        """
        cfg = self._cfg
        nodes = self._session.room(cfg.cpus)
        starting = sum(one.next is not None for one in self._slots)
        others = math.ceil((cfg.reserved_cpus - cfg.workers * cfg.cpus) / cfg.cpus)
        return sum(nodes.values()) - len(self._own(slot, nodes)) - starting - others

    def _host(self, slot: _Slot) -> _Slot | None:
        """The shard whose worker takes a lost worker's envs, too; None where there is room for a new worker."""
        if self._room(slot) > 0:
            return None
        hosts = self._own(slot, self._session.room(self._cfg.cpus))
        load = {one.number: sum(other.host == one.number for other in self._slots) for one in hosts}
        return min(hosts, key=lambda one: (load[one.number], one.number), default=None)

    def _move_guests(self) -> None:
        """Start workers for guests once there is room, and move those whose worker has started; nobody waits for it."""
        for slot in self._slots:
            if slot.host is None or slot.started is None or not slot.started.exact:
                continue
            if slot.next is None:
                # the host's worker stays
                if self._room(slot) > 1:
                    worker = self._new()
                    slot.next = _Next(worker, self._start(slot, worker))
            elif self._ray.wait([slot.next.started], timeout=0)[0]:
                (worker, reference), slot.next = slot.next, None
                try:
                    started = self._checked(slot, self._answer(reference, self._cfg.start_timeout_s))
                    self._restore(slot, worker)
                except _Lost:
                    with suppress(Exception):
                        self._ray.kill(worker, no_restart=True)
                    continue
                self._move(slot, worker, started)

    def _move(self, slot: _Slot, worker: Any, started: WorkerStarted) -> None:
        """Let a guest go on in a worker of its own, which has its state; orders are repeated there."""
        before, orders = slot.name, list(slot.orders)
        slot.orders.clear()
        with suppress(Exception):
            slot.worker.drop.remote(slot.number)
        slot.worker, slot.host, slot.started, slot.at = worker, None, started, None
        warnings.warn(f"a node has room: {before} goes on as {slot.name}", stacklevel=5)
        for order in orders:
            self._send(slot, order.weights, order.steps, order.random, order.before)
        slot.since = time.monotonic()

    def _checked(self, slot: _Slot, answer: Answer | Failed) -> Answer:
        """Return an answer that is no error.

        Raises:
            RobotrlError: it is one.
        """
        if isinstance(answer, Failed):
            raise error_of_child(answer.kind, answer.message, slot.name)
        return answer

    # state

    def states(self) -> list[dict[str, Any]]:
        """See `ShardRunner.states`."""
        return [unpacked_state(self._state(slot)) for slot in self._slots]

    def _state(self, slot: _Slot) -> Packed:
        while slot.snapshot is None:
            try:
                return self._answer(slot.worker.state.remote(slot.number), self._cfg.timeout_s)
            except _Lost as lost:
                self._replace(slot, str(lost))
        return slot.snapshot

    def load(self, states: list[dict[str, Any]]) -> None:
        """See `ShardRunner.load`."""
        for slot, state in zip(self._slots, states, strict=True):
            slot.orders.clear()
            slot.snapshot = packed_state(state)
        for slot, reference in [(slot, slot.worker.load.remote(slot.number, slot.snapshot)) for slot in self._slots]:
            try:
                self._checked(slot, self._answer(reference, self._cfg.timeout_s))
            except _Lost as lost:
                self._replace(slot, str(lost))

    def restart(self, seed: int) -> None:
        """See `ShardRunner.restart`."""
        for slot in self._slots:
            slot.orders.clear()
            slot.snapshot = slot.at = None
            slot.recipe = slot.recipe._replace(seed=shard_seed(seed, slot.number))
        for slot, reference in [(slot, self._start(slot, slot.worker)) for slot in self._slots]:
            try:
                slot.started = self._checked(slot, self._answer(reference, self._cfg.start_timeout_s))
            except _Lost as lost:
                self._replace(slot, str(lost))

    def close(self) -> None:
        """See `ShardRunner.close`."""
        with suppress(Exception):
            idle = [slot.worker.close.remote() for slot in self._slots if slot.worker is not None and not slot.orders]
            if idle:
                self._ray.wait(idle, num_returns=len(idle), timeout=CLOSE_S)
        for slot in self._slots:
            for worker in (slot.worker, None if slot.next is None else slot.next.worker):
                with suppress(Exception):
                    self._ray.kill(worker, no_restart=True)
        self._references.clear()
        self._session.close()


def _why(error: Exception) -> str:
    """Reason of a worker's end in a few words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "reason" in line.lower() or "exit" in line.lower() or "killed" in line.lower()]
    return f"ended ({type(error).__name__}: {short((named or lines or [''])[0])})"
