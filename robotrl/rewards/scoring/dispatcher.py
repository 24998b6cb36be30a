"""Thread that gives batches to the workers, takes their answers, and replaces workers that end or hang."""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection, wait

from robotrl.errors import RobotrlError
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.ledger import ScoreLedger
from robotrl.rewards.scoring.slots import PictureSlots
from robotrl.rewards.scoring.worker import (
    ScoredBatch,
    ScorerReady,
    WorkerFailed,
    WorkerMessage,
    WorkerSetup,
)
from robotrl.rewards.scoring.worker_process import WorkerProcess
from robotrl.run.child_process import error_of_child

LOSSES = 5
"""Workers lost in a row, without one answer, before the service gives up; one more for each further process."""
START_S = 600.0
"""Seconds that a worker may take to make its scorer."""
GRACE_S = 1.0
"""Seconds that a worker gets to end by itself before it is killed."""
PROCESS = "a worker of the scoring service"


class Dispatcher:
    """Workers of the service, and the thread that attends to them.

    Args:
        setup: everything a worker needs to start.
        slots: memory of the pictures.
        cfg: settings.
        ledger: requests and answers.
        changed: lock of the ledger, notified of answers, of ready workers and of an error.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        slots: PictureSlots,
        cfg: ServiceCfg,
        ledger: ScoreLedger,
        changed: threading.Condition,
    ) -> None:
        self._setup, self._slots, self._cfg, self._ledger, self._changed = setup, slots, cfg, ledger, changed
        self.scorer: ScorerReady | None = None
        """The scorer, once a worker has made one."""
        self.error: RobotrlError | None = None
        """Error that ended the service."""
        self._workers: list[WorkerProcess | None] = [None] * cfg.processes
        self._losses = 0
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="robotrl-scoring", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts the workers."""
        self._thread.start()

    @property
    def all_ready(self) -> bool:
        """True once every worker has made its scorer."""
        return all(worker is not None and worker.ready is not None for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """IDs of the worker processes that run."""
        return [worker.pid for worker in self._workers if worker is not None and worker.pid is not None]

    def wake(self) -> None:
        """Let the thread look at the requests; not with the lock held, for which it would wait."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """End thread and workers."""
        self._closing = True
        if self._wake >= 0:
            self.wake()
            self._thread.join()
            os.close(self._wake)
            self._wake = -1

    # the thread

    def _run(self) -> None:
        _keep_off(self._cfg.cores)
        try:
            while not self._closing and self.error is None:
                self._attend()
        # outermost frame of the thread: every error is reported to the trainer
        except Exception as error:
            self._fail(error if isinstance(error, RobotrlError) else _internal(error))
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.hang_up()
        end_s = time.monotonic() + GRACE_S
        for worker in workers:
            worker.end(max(0.0, end_s - time.monotonic()))

    def _attend(self) -> None:
        """Do all that is due, and sleep until more is."""
        for place, worker in enumerate(self._workers):
            if worker is None and not self._closing:
                self._start(place)
        now_s = time.monotonic()
        with self._changed:
            if self._ledger.expire(now_s):
                self._changed.notify_all()
        self._give_batches(now_s)
        if None in self._workers:
            return
        workers = [worker for worker in self._workers if worker is not None]
        sources: list[Connection | int] = [self._wake]
        for worker in workers:
            sources += [worker.connection, worker.sentinel]
        wait(sources, max(0.0, min(self._next_s(workers) - time.monotonic(), START_S)))
        _drain(self._wake)
        for place, worker in enumerate(self._workers):
            if worker is not None:
                self._listen(place, worker)

    def _next_s(self, workers: list[WorkerProcess]) -> float:
        """Time when something is due that no worker announces."""
        with self._changed:
            due_s = self._ledger.requests.deadline_s(any(worker.idle for worker in workers))
        return min([due_s, *(self._limit_s(worker) for worker in workers)])

    def _limit_s(self, worker: WorkerProcess) -> float:
        """Time when a worker counts as hanging."""
        if worker.ready is None:
            return worker.since_s + START_S
        return worker.since_s + self._cfg.timeout_s if worker.batch else float("inf")

    def _start(self, place: int) -> None:
        try:
            self._workers[place] = WorkerProcess(self._setup, self._slots)
        except OSError as error:
            self._count_loss(f"could not be started ({error.strerror})")
            time.sleep(GRACE_S)

    def _give_batches(self, now_s: float) -> None:
        for place, worker in enumerate(self._workers):
            if worker is None or not worker.idle:
                continue
            with self._changed:
                batch = self._ledger.requests.next_batch(now_s)
            if not batch:
                return
            try:
                worker.score(batch, now_s)
            except OSError:
                with self._changed:
                    self._ledger.requests.give_back(batch)
                self._lose(place, worker, None)

    def _listen(self, place: int, worker: WorkerProcess) -> None:
        """Take a worker's messages, and replace it if it ended or hangs."""
        # a process that has ended sends nothing after this
        ended = worker.exit_code is not None
        try:
            while (message := worker.receive()) is not None:
                self._take(worker, message)
        except EOFError:
            ended = True
        if self.error is not None:
            return
        if ended:
            self._lose(place, worker, None)
        elif time.monotonic() >= self._limit_s(worker):
            limit_s = START_S if worker.ready is None else self._cfg.timeout_s
            self._lose(place, worker, limit_s)

    def _take(self, worker: WorkerProcess, message: WorkerMessage) -> None:
        if isinstance(message, WorkerFailed):
            self._fail(error_of_child(message.kind, message.message, PROCESS))
            return
        with self._changed:
            if isinstance(message, ScorerReady):
                self._welcome(worker, message)
            else:
                self._losses = 0
                batch, worker.batch = worker.batch, []
                if isinstance(message, ScoredBatch):
                    self._ledger.scored(batch, message.outputs, time.monotonic())
                else:
                    self._ledger.refused(batch, message.error, time.monotonic())
            self._changed.notify_all()

    def _welcome(self, worker: WorkerProcess, scorer: ScorerReady) -> None:
        if self.scorer is not None and scorer != self.scorer:
            self.error = RobotrlError(
                f"scorers of one recipe differ: {scorer} beside {self.scorer}; expected the same identity and outputs"
            )
        self.scorer = worker.ready = scorer

    def _lose(self, place: int, worker: WorkerProcess, hung_s: float | None) -> None:
        """End a worker; another one is started in its place.

        Args:
            place: its place among the workers.
            worker: the worker.
            hung_s: seconds for which it did not answer; None for one that ended by itself.
        """
        self._workers[place] = None
        worker.end(GRACE_S if hung_s is None else 0.0)
        with self._changed:
            self._ledger.lost(worker.batch, time.monotonic())
            self._changed.notify_all()
        if hung_s is None:
            self._count_loss(f"ended with exit code {worker.exit_code}")
        else:
            self._count_loss(f"{'did not start' if worker.ready is None else 'did not answer'} for {hung_s:g} s")

    def _count_loss(self, what: str) -> None:
        """Count a lost worker; too many in a row end the service."""
        self._losses += 1
        if self._losses >= LOSSES + self._cfg.processes - 1:
            self._fail(
                RobotrlError(
                    f"{PROCESS} {what}: workers were lost {self._losses} times in a row without one answer in between"
                    f" (scorer {self._setup.recipe.factory})"
                )
            )
            return
        with self._changed:
            counters = self._ledger.counters
            counters.restarts += 1
            if counters.restarts == 1:
                self._ledger.notices.append(f"{PROCESS} {what}: another one goes on; further ones are only counted")

    def _fail(self, error: RobotrlError) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()


def _keep_off(cores: tuple[int, ...]) -> None:
    """Keep the calling thread off the workers' cores, where there are others.

    It holds Python's lock and the ledger's at times. A worker that then takes its core would stop the trainer, too.
    """
    others = os.sched_getaffinity(0) - set(cores)
    if cores and others:
        os.sched_setaffinity(0, others)


def _drain(wake: int) -> None:
    try:
        os.eventfd_read(wake)
    except BlockingIOError:
        return


def _internal(error: Exception) -> RobotrlError:
    text = f"the scoring service failed with {type(error).__name__}: {error}"
    wrapped = RobotrlError(text)
    wrapped.__cause__ = error
    return wrapped
