"""Supervisor of the workers of a sim: requests to all at once, losses, restarts within a budget."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from numpy.typing import NDArray

from robotrl.errors import RobotrlError
from robotrl.sims.remote.faults import RemoteFault, WorkerLost
from robotrl.sims.remote.memory import Layout, new_memory
from robotrl.sims.remote.process import GRACE_S, Launch, SimWorker


class SentRequest(NamedTuple):
    """A request that was sent."""

    number: int
    worker: SimWorker
    alive: bool
    """False if the worker was gone."""


class WorkerPool:
    """Workers that share the envs of a sim.

    Args:
        launch: how they are started.
        num_envs: N.
        workers: W, up to N.
        restarts: losses of one worker in a row, with no episode that ended in between, after which the sim gives up.

    Raises:
        RobotrlError: a worker could not be started, or its environment could not be made.
    """

    def __init__(self, launch: Launch, num_envs: int, workers: int, restarts: int) -> None:
        self._launch, self._restarts = launch, restarts
        bounds = [num_envs * k // workers for k in range(workers + 1)]
        self.rows = list(pairwise(bounds))
        """First env of each worker, and the end of its envs."""
        self.memory = new_memory()
        self.lost = 0
        """Workers lost so far."""
        self._in_a_row = [0] * workers
        self._why: dict[int, str] = {}
        self._layout: Layout | None = None
        self._workers: list[SimWorker] = []
        self._finalizer = weakref.finalize(self, _end, self._workers, self.memory)
        self.descriptions: list[dict[str, Any]] = []
        try:
            for number, rows in enumerate(self.rows):
                self._workers.append(SimWorker(launch, number, rows, self.memory))
            self.descriptions = self._described()
        except WorkerLost as lost:
            self._give_up()
            raise RemoteFault(f"{launch.name}: a worker {lost} while it was started; see its output above") from None
        except BaseException:
            self._give_up()
            raise
        for number, found in enumerate(self.descriptions):
            self._check_same(number, found)

    def _described(self) -> list[dict[str, Any]]:
        """Descriptions of all workers; all are greeted before any is waited for, so that they start at once."""
        found: dict[int, dict[str, Any]] = {}
        for stage in (SimWorker.greet, SimWorker.description):
            for number, worker in enumerate(self._workers):
                if number in found:
                    continue
                try:
                    said = stage(worker)
                except WorkerLost as lost:
                    found[number] = self._another(number, lost)
                else:
                    found |= {} if said is None else {number: said}
        return [found[number] for number in range(len(self._workers))]

    def _another(self, number: int, lost: WorkerLost) -> dict[str, Any]:
        """Description of another worker in place of one that was killed or hung while it was started.

        Raises:
            WorkerLost: it ended by itself, as another one would.
        """
        if not lost.may_pass:
            raise lost
        self._why[number] = str(lost)
        return self.replace(number)

    def _check_same(self, number: int, found: Mapping[str, Any]) -> None:
        for part, value in self.descriptions[0].items():
            if found[part] != value:
                self.close()
                raise RemoteFault(
                    f"{self._launch.name}: {part} of worker {number} is {found[part]}: expected {value}, as before"
                )

    @property
    def pids(self) -> list[int]:
        """Ids of the served processes."""
        return [worker.pid for worker in self._workers]

    def share(self, layout: Layout) -> None:
        """Tell all workers the layout of the shared memory."""
        self._layout = layout
        try:
            for number, worker in enumerate(self._workers):
                try:
                    worker.share(layout)
                except WorkerLost as lost:
                    self._another(number, lost)
        except WorkerLost as lost:
            self.close()
            raise RemoteFault(f"{self._launch.name}: a worker {lost} while it was started") from None
        except BaseException:
            self.close()
            raise

    def ask(self, kind: bytes, numbers: Iterable[int]) -> list[SentRequest]:
        """Send a request to some workers at once; `answers` waits for them."""
        return [SentRequest(number, self._workers[number], self._workers[number].ask(kind)) for number in numbers]

    def answers(self, asked: Iterable[SentRequest]) -> list[int]:
        """Wait for all workers that were asked; returns the numbers of those lost.

        Raises:
            RobotrlError: an environment raised; all others have answered.
        """
        lost: list[int] = []
        fault: RobotrlError | None = None
        for number, worker, alive in asked:
            try:
                if not alive:
                    raise worker.loss()
                worker.done()
            except WorkerLost as error:
                self._why[number] = str(error)
                lost.append(number)
            except RobotrlError as error:
                fault = fault or error
        if fault is not None:
            raise fault
        return lost

    def call(
        self,
        number: int,
        name: str,
        named: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        expert: int | None = None,
    ) -> Any:
        """Call a method of a worker's environment; see `SimWorker.call`.

        Raises:
            WorkerLost: the worker is gone; `replace` starts another one.
        """
        try:
            return self._workers[number].call(name, named or {}, arrays or {}, expert)
        except WorkerLost as error:
            self._why[number] = str(error)
            raise

    def succeeded(self, number: int) -> None:
        """Note that an episode of a worker ended: its losses are counted from 0 again."""
        self._in_a_row[number] = 0

    def replace(self, number: int) -> dict[str, Any]:
        """Kill what is left of a lost worker, and start another one in its place; returns its description.

        Raises:
            RobotrlError: too many were lost in a row, or the new one describes another environment.
        """
        worker = self._workers[number]
        worker.kill()
        why = self._why.pop(number, "ended")
        while True:
            self.lost += 1
            self._in_a_row[number] += 1
            if self._in_a_row[number] > self._restarts:
                raise RemoteFault(
                    f"{worker.who} {why}, the {_nth(self._in_a_row[number])} loss in a row: expected an episode to end"
                    f" between losses; restarts is {self._restarts}"
                )
            what = "its episodes are lost and begin again in a new one" if self._layout else "another one is started"
            warnings.warn(f"{worker.who} {why}; {what}", stacklevel=4)
            try:
                return self._start(number)
            except WorkerLost as error:
                why = f"{error} while it was started"
                self._workers[number].kill()

    def _start(self, number: int) -> dict[str, Any]:
        worker = self._workers[number] = SimWorker(self._launch, number, self.rows[number], self.memory)
        worker.greet()
        found = worker.description()
        if self._layout is not None:
            self._check_same(number, found)
            worker.share(self._layout)
        return found

    def _give_up(self) -> None:
        """End workers that have no environment yet."""
        for worker in self._workers:
            worker.kill()
        self.close()

    def close(self) -> None:
        """End all workers; safe to call twice."""
        self._finalizer()


def _end(workers: Sequence[SimWorker], memory: int) -> None:
    for worker in workers:
        worker.leave()
    deadline = time.monotonic() + GRACE_S
    for worker in workers:
        worker.wait(deadline)
    with suppress(OSError):
        os.close(memory)


def _nth(number: int) -> str:
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number, 'th') }"
