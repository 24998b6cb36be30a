"""Trainer's side of one worker process; no method waits for what the worker does."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import suppress
from multiprocessing.reduction import send_handle

import numpy as np

from robotrl.rewards.scoring.requests import ScoreRequest
from robotrl.rewards.scoring.slots import PictureSlots
from robotrl.rewards.scoring.worker import BatchOrder, ScorerReady, WorkerMessage, WorkerSetup, work
from robotrl.run.child_process import start_child

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that numpy's and torch's linear algebra read when they are loaded."""

KILLED_S = 5.0
"""Seconds to wait for the end of a process that was killed."""


class WorkerProcess:
    """A worker and the batch that it has.

    Args:
        setup: everything the worker needs to start.
        slots: memory of the pictures.

    Raises:
        OSError: the operating system refused to start it.
    """

    def __init__(self, setup: WorkerSetup, slots: PictureSlots) -> None:
        # spawned, not forked: threads of torch and of the trainer do not survive a fork
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs,), name="robotrl-scorer", daemon=True)
        try:
            # recipes name importable functions, so that a script needs no guard
            threads: dict[str, str] = dict.fromkeys(THREAD_VARIABLES, str(setup.threads))
            start_child(self._process, threads, needs_main=False)
            self.pid = self._process.pid
            assert self.pid is not None
            # a worker that has ended already is noticed as any other; both fit into the pipe's buffer: nothing waits
            with suppress(BrokenPipeError, ConnectionResetError):
                self.connection.send(setup)
                send_handle(self.connection, slots.descriptor, self.pid)
        except BaseException:
            self.connection.close()
            raise
        finally:
            # the pipe closes with the process only if nobody else holds that end
            theirs.close()
        self.ready: ScorerReady | None = None
        """The scorer, once it is made."""
        self.batch: list[ScoreRequest] = []
        """Requests that it scores at the moment."""
        self.since_s = time.monotonic()
        """Time of its start or, once it has been given one, of its newest batch."""

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when the process ends."""
        return self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.exitcode

    @property
    def idle(self) -> bool:
        """True if it may be given a batch."""
        return self.ready is not None and not self.batch

    def score(self, batch: list[ScoreRequest], now_s: float) -> None:
        """Give a batch to the idle worker.

        Raises:
            OSError: the worker is gone.
        """
        self.connection.send(BatchOrder(np.array([request.slot for request in batch], np.int64)))
        self.batch, self.since_s = batch, now_s

    def receive(self) -> WorkerMessage | None:
        """Return its next message; None if there is none.

        Raises:
            EOFError: there will be no more.
        """
        try:
            return self.connection.recv() if self.connection.poll() else None
        except OSError as error:
            raise EOFError from error

    def hang_up(self) -> None:
        """Close the connection: an idle worker then ends by itself."""
        self.connection.close()

    def end(self, grace_s: float) -> None:
        """End the process: it may end by itself within `grace_s` seconds, then it is killed."""
        self.hang_up()
        self._process.join(grace_s)
        if self._process.exitcode is None:
            self._process.kill()
            # one that the kernel does not let go, in a read of a dead disk, is left behind
            self._process.join(KILLED_S)
