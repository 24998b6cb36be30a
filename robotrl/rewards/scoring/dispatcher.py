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
    RefusedBatch,
    ScoredBatch,
    ScorerReady,
    WorkerFailed,
    WorkerSetup,
)
from robotrl.rewards.scoring.worker_process import WorkerProcess
from robotrl.run.child_process import error_of_child

LOSSES = 5
"""Workers lost in a row, without one answer, before others are started in their place after a pause only. With one more
for each further process: those of all places together that ended by themselves, before a service that never came up
gives up, and before one that did counts as down."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
"""Pause before a worker is started again: the first one, which doubles with every further loss, and the longest."""
START_S = 600.0
"""Seconds that a worker may take to make its scorer."""
GRACE_S = 1.0
"""Seconds that a worker gets to end by itself before it is killed."""
RETRY_S = 1.0
"""Shortest time after which a start that the operating system refused is tried again, s."""
PROCESS = "a worker of the scoring service"


class Dispatcher:
    """Workers of the service, and the thread that attends to them.

    Until every worker has made its scorer once, too many losses are an error. After that nothing is: workers that end
    are started again for ever, with a growing pause. While none of them is there, the ledger is shut, so that requests
    have no answer; it opens again with the first worker that is ready.

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
        self.up = False
        """True once every worker has made its scorer."""
        self.error: RobotrlError | None = None
        """Error of a service that did not come up."""
        self._workers: list[WorkerProcess | None] = [None] * cfg.processes
        self._losses = 0
        """Workers that ended since the last answer; those that hang are there, and may be faster again."""
        self._losses_of = [0] * cfg.processes
        """Workers of each place that ended or hung since its own last answer."""
        self._resume_s = [0.0] * cfg.processes
        """Time before which no worker is started in each place."""
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="robotrl-scoring", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts the workers."""
        self._thread.start()

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
        while not self._closing and self.error is None:
            try:
                self._attend()
            # outermost frame of the thread: an error of ours must not end a run whose scorer has worked
            except Exception as error:
                self._start_over(_internal(error))
        workers = [worker for worker in self._workers if worker is not None]
        for worker in workers:
            worker.hang_up()
        end_s = time.monotonic() + GRACE_S
        for worker in workers:
            worker.end(max(0.0, end_s - time.monotonic()))

    def _attend(self) -> None:
        """Do all that is due, and sleep until more is."""
        now_s = time.monotonic()
        for place, worker in enumerate(self._workers):
            if worker is None and not self._closing and now_s >= self._resume_s[place]:
                self._start(place)
        now_s = time.monotonic()
        with self._changed:
            if self._ledger.expire(now_s):
                self._changed.notify_all()
        self._give_batches(now_s)
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
        starts_s = [at_s for at_s, worker in zip(self._resume_s, self._workers, strict=True) if worker is None]
        return min([due_s, *starts_s, *(self._limit_s(worker) for worker in workers)])

    def _limit_s(self, worker: WorkerProcess) -> float:
        """Time when a worker counts as hanging."""
        if worker.ready is None:
            return worker.since_s + START_S
        return worker.since_s + self._cfg.timeout_s if worker.batch else float("inf")

    def _start(self, place: int) -> None:
        try:
            self._workers[place] = WorkerProcess(self._setup, self._slots)
        except OSError as error:
            self._count_loss(place, f"could not be started ({error.strerror})")
            self._resume_s[place] = max(self._resume_s[place], time.monotonic() + RETRY_S)

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
                if isinstance(message, WorkerFailed):
                    self._refuse(place, worker, error_of_child(message.kind, message.message, PROCESS))
                    return
                if isinstance(message, ScorerReady) and self.scorer not in (None, message):
                    expected = f"{message} beside {self.scorer}; expected the same identity and outputs"
                    self._refuse(place, worker, RobotrlError(f"scorers of one recipe differ: {expected}"))
                    return
                self._take(place, worker, message)
        except EOFError:
            ended = True
        if ended:
            self._lose(place, worker, None)
        elif time.monotonic() >= self._limit_s(worker):
            limit_s = START_S if worker.ready is None else self._cfg.timeout_s
            self._lose(place, worker, limit_s)

    def _take(self, place: int, worker: WorkerProcess, message: ScorerReady | ScoredBatch | RefusedBatch) -> None:
        with self._changed:
            if isinstance(message, ScorerReady):
                self.scorer = worker.ready = message
                self.up = self.up or all(one is not None and one.ready is not None for one in self._workers)
                self._ledger.shut = False
            else:
                self._losses = self._losses_of[place] = 0
                batch, worker.batch = worker.batch, []
                if isinstance(message, ScoredBatch):
                    self._ledger.scored(batch, message.outputs, time.monotonic())
                else:
                    self._ledger.refused(batch, message.error, time.monotonic())
            self._changed.notify_all()

    def _refuse(self, place: int, worker: WorkerProcess, error: RobotrlError) -> None:
        """End a worker that no other would do better than; an error of a service that did not come up."""
        if not self.up:
            self._fail(error)
            return
        self._end(place, worker, 0.0)
        self._count_loss(place, f"failed: {error}")

    def _lose(self, place: int, worker: WorkerProcess, hung_s: float | None) -> None:
        """End a worker; another one is started in its place.

        Args:
            place: its place among the workers.
            worker: the worker.
            hung_s: seconds for which it did not answer; None for one that ended by itself.
        """
        self._end(place, worker, GRACE_S if hung_s is None else 0.0)
        if hung_s is None:
            self._count_loss(place, f"ended with exit code {worker.exit_code}")
        elif worker.ready is None:
            self._count_loss(place, f"did not start for {hung_s:g} s")
        else:
            self._count_restart(place, f"did not answer for {hung_s:g} s")

    def _end(self, place: int, worker: WorkerProcess, grace_s: float) -> None:
        """End a worker; the pictures that it had wait once more."""
        self._workers[place] = None
        worker.end(grace_s)
        with self._changed:
            self._ledger.lost(worker.batch, time.monotonic())
            self._changed.notify_all()

    def _count_loss(self, place: int, what: str) -> None:
        """Count a worker that ended; too many in a row are an error, or leave the service down."""
        self._losses += 1
        too_many = self._losses >= LOSSES + self._cfg.processes - 1
        said = (
            f"{PROCESS} {what}: workers were lost {self._losses} times in a row without one answer in between"
            f" (scorer {self._setup.recipe.factory})"
        )
        if too_many and not self.up:
            self._fail(RobotrlError(said))
            return
        self._count_restart(place, what)
        if too_many:
            self._shut_if_none_is_ready(said)

    def _count_restart(self, place: int, what: str) -> None:
        """Count a worker that another one is started for, after a pause if there were too many in a row."""
        self._losses_of[place] += 1
        beyond = self._losses_of[place] - LOSSES
        if beyond >= 0:
            self._resume_s[place] = time.monotonic() + min(FIRST_PAUSE_S * 2.0 ** min(beyond, 10), LONGEST_PAUSE_S)
        with self._changed:
            counters = self._ledger.counters
            counters.restarts += 1
            if counters.restarts == 1:
                self._ledger.notices.append(f"{PROCESS} {what}: another one goes on; further ones are only counted")

    def _shut_if_none_is_ready(self, said: str) -> None:
        """Leave all pictures without a score while no worker is ready."""
        if any(worker is not None and worker.ready is not None for worker in self._workers):
            return
        with self._changed:
            counters = self._ledger.counters
            if not counters.outages:
                self._ledger.notices.append(
                    f"the scoring service is down: {said}; steps have no score until a worker is ready again, which is"
                    f" tried every {LONGEST_PAUSE_S:g} s or more often; further outages are only counted"
                )
            counters.outages += not self._ledger.shut
            self._ledger.shut_down(time.monotonic())
            self._changed.notify_all()

    def _start_over(self, error: RobotrlError) -> None:
        """End all workers after an error of the thread itself."""
        if not self.up:
            self._fail(error)
            return
        for place, worker in enumerate(self._workers):
            self._workers[place] = None
            if worker is not None:
                worker.end(0.0)
            self._losses = max(self._losses, LOSSES + self._cfg.processes - 2)
            self._losses_of[place] = max(self._losses_of[place], LOSSES - 1)
            self._count_loss(place, f"was ended: {error}")

    def _fail(self, error: RobotrlError) -> None:
        with self._changed:
            self.error = self.error or error
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
