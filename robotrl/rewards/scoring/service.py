"""Scoring service: the trainer submits pictures and collects their scores when they are there."""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, RobotrlError, check_count
from robotrl.rewards.scoring.answer_files import AnswerFiles
from robotrl.rewards.scoring.cache import picture_key
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.dispatcher import Dispatcher
from robotrl.rewards.scoring.ledger import ACCEPTED, Answers, Offer, ScoreLedger, check_new_tickets
from robotrl.rewards.scoring.scorer import ScorerRecipe
from robotrl.rewards.scoring.slots import PictureSlots, SlotShape
from robotrl.rewards.scoring.worker import ScorerReady, WorkerSetup
from robotrl.run.locking import stop_requested

POLL_S = 0.25
"""Seconds between two checks, while waiting, of whether the run was asked to stop."""
LARGEST_SIDE = 1 << 14
UNBOUNDED = 1 << 62
"""Room where there is always some."""


class ScoringService:
    """Scores pictures in processes of its own.

    `submit` and `collect` return at once, whatever the workers do; only `submit` with `when_full` "wait" and a full
    queue, and `wait`, take longer. Each accepted ticket is answered exactly once, unless it is forgotten. One thread of
    the process that made it may use a service.

    Once it is made, a scorer that is slow or ends is no error: pictures are without a valid answer, which is counted,
    until workers that are started in the place of those before answer again.

    Args:
        recipe: how each worker makes its scorer.
        cfg: settings.
        picture_shape: height and width of the pictures, pixels.

    Raises:
        ConfigError: a setting is out of range, or the factory cannot be imported.
        DataError: the directory of answers cannot be used.
        RobotrlError: the factory raised an error, whose text this has; or no worker started.
    """

    def __init__(self, recipe: ScorerRecipe, cfg: ServiceCfg, picture_shape: tuple[int, int]) -> None:
        cfg.check()
        recipe.check()
        for name, side in zip(("height", "width"), picture_shape, strict=True):
            check_count(f"picture_shape {name}", side, 1, LARGEST_SIDE, "pixels")
        self._cfg = cfg
        self._owner = os.getpid()
        self._open = True
        self._slots = PictureSlots.reserve(SlotShape(cfg.queue_frames, *picture_shape))
        self._ledger = ScoreLedger(self._slots, cfg)
        self._changed = threading.Condition()
        setup = WorkerSetup(recipe, self._slots.shape, cfg.threads, cfg.cores)
        self._dispatcher = Dispatcher(setup, self._slots, cfg, self._ledger, self._changed)
        self._dispatcher.start()
        # before the processes are ended that multiprocessing still knows: they would be replaced
        atexit.register(self.close)
        try:
            self._scorer = self._wait_for_workers()
            self._nothing = Answers.of({}, self._scorer.num_outputs)
            if cfg.answers is not None:
                self._ledger.files = self._open_files(cfg.answers)
        except BaseException:
            self.close()
            raise

    def _wait_for_workers(self) -> ScorerReady:
        with self._lock():
            while not self._dispatcher.up:
                self._raise_failed()
                if stop_requested():
                    raise RobotrlError("the run was asked to stop before the scorer was made")
                self._changed.wait(POLL_S)
            self._raise_failed()
        assert self._dispatcher.scorer is not None
        return self._dispatcher.scorer

    def _open_files(self, directory: str) -> AnswerFiles:
        height, width = self._slots.shape.height, self._slots.shape.width
        files = AnswerFiles(directory, self.identity, self.num_outputs, (height, width))
        files.warn_of_damage()
        return files

    @property
    def identity(self) -> str:
        """Identity of the scorer."""
        return self._scorer.identity

    @property
    def num_outputs(self) -> int:
        """K, the number of outputs for each picture."""
        return self._scorer.num_outputs

    @property
    def pending(self) -> int:
        """Number of tickets without an answer yet, those forgotten left out."""
        with self._lock():
            return self._ledger.requests.pending

    @property
    def room(self) -> int:
        """Number of pictures that a `submit` of now would not drop for want of a slot; with `when_full` "wait", any."""
        if self._cfg.when_full == "wait":
            return UNBOUNDED
        with self._lock():
            return self._ledger.requests.room

    @property
    def pids(self) -> list[int]:
        """IDs of the worker processes."""
        return self._dispatcher.pids

    def submit(self, tickets: NDArray[np.int64], pictures: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Submit pictures.

        Args:
            tickets: (n,) unique numbers of the caller, by which it knows the answers.
            pictures: (n, h, w, 3) uint8; copied.

        Returns:
            (n,): whether each was accepted. Others were dropped, as the queue was full, or refused, as the budget was
            spent or no worker runs; they get no answer.

        Raises:
            ConfigError: shapes or types are others, or the answer of a ticket is still to come or to be collected.
            RobotrlError: the service is closed.
        """
        self._check_pictures(tickets, pictures)
        keep = self._cfg.cache_frames > 0 or self._ledger.files is not None
        contiguous = np.ascontiguousarray(pictures)
        keys = [picture_key(picture) for picture in contiguous] if keep else [None] * len(contiguous)
        accepted = np.zeros(len(contiguous), np.bool_)
        end_s = time.monotonic() + (self._cfg.wait_s if self._cfg.when_full == "wait" else 0.0)
        with self._lock():
            self._raise_failed()
            check_new_tickets(tickets.tolist(), self._ledger.known)
            for row, (ticket, picture, key) in enumerate(zip(tickets.tolist(), contiguous, keys, strict=True)):
                offer = self._ledger.offer(ticket, picture, key)
                while offer is Offer.FULL and self._wait_for_room(end_s):
                    offer = self._ledger.offer(ticket, picture, key)
                self._ledger.count(offer)
                accepted[row] = offer in ACCEPTED
        self._dispatcher.wake()
        self._warn()
        return accepted

    def _wait_for_room(self, end_s: float) -> bool:
        """Wait for answers, with the lock released; False if it is too late."""
        left_s = end_s - time.monotonic()
        if left_s <= 0 or stop_requested():
            return False
        self._dispatcher.wake()
        self._changed.wait(min(left_s, POLL_S))
        self._raise_failed()
        return True

    def _check_pictures(self, tickets: NDArray[np.int64], pictures: NDArray[np.uint8]) -> None:
        if tickets.dtype != np.int64 or tickets.ndim != 1:
            raise ConfigError(f"tickets are {tickets.dtype} of shape {tickets.shape}: expected int64 of shape (n,)")
        expected = (len(tickets), self._slots.shape.height, self._slots.shape.width, 3)
        if pictures.dtype != np.uint8 or pictures.shape != expected:
            found = f"{pictures.dtype} of shape {pictures.shape}"
            raise ConfigError(f"pictures are {found}: expected uint8 of shape {expected}")

    def collect(self) -> Answers:
        """Return all answers that have arrived since the last call.

        Raises:
            RobotrlError: the service is closed, and there are no more answers.
        """
        answers = self._take()
        self._warn()
        return answers

    def wait(self, limit_s: float) -> Answers:
        """Wait until nothing is pending, for `limit_s` seconds at most, and return what `collect` does.

        It returns earlier if the run was asked to stop.

        Raises:
            RobotrlError: the service is closed, and there are no more answers.
        """
        end_s = time.monotonic() + limit_s
        with self._lock():
            while self._open and self._ledger.requests.pending and not stop_requested():
                self._raise_failed()
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, POLL_S))
        answers = self._take()
        self._warn()
        return answers

    def _take(self) -> Answers:
        with self._lock():
            if self._open and not self._ledger.answered:
                self._raise_failed()
                return self._nothing
            return self._ledger.take(self.num_outputs)

    def forget(self, tickets: NDArray[np.int64]) -> None:
        """Drop the requests and answers of tickets (n,); unknown ones are ignored."""
        with self._lock():
            self._ledger.forget(tickets.tolist())

    def metrics(self) -> dict[str, float]:
        """Scalars to log; see `ScoreLedger.scalars`."""
        with self._lock():
            return self._ledger.scalars()

    @property
    def paid(self) -> int:
        """Number of pictures that were paid for, see `max_requests`."""
        with self._lock():
            return self._ledger.requests.paid

    cost = 0.0
    """Money that was paid: none."""

    def charge(self, count: int, cost: float = 0.0) -> None:
        """Count pictures that were paid for before, by the run that this one goes on with."""
        del cost
        with self._lock():
            self._ledger.requests.paid += count

    def _raise_failed(self) -> None:
        if self._dispatcher.error is not None:
            raise self._dispatcher.error
        if not self._open:
            raise RobotrlError("the scoring service is closed: expected an open one")

    def _lock(self) -> threading.Condition:
        # in a fork the lock may be held for ever
        if os.getpid() != self._owner:
            raise RobotrlError("the scoring service belongs to the process that made it: expected one of this process")
        return self._changed

    def _warn(self) -> None:
        if not self._ledger.notices:  # in every step: one that is just being added is given in the next
            return
        with self._lock():
            notices, self._ledger.notices = self._ledger.notices, []
        for notice in notices:
            warnings.warn(notice, stacklevel=3)

    def close(self) -> None:
        """End the workers; requests without an answer are dropped. May be called repeatedly."""
        # a fork of the trainer has no part in its workers
        if not self._open or os.getpid() != self._owner:
            return
        self._open = False
        atexit.unregister(self.close)
        self._dispatcher.close()
        with self._lock():
            self._ledger.requests.drop_all()
        self._slots.close()
        try:
            if self._ledger.files is not None:
                self._ledger.files.close()
        except OSError as error:
            warnings.warn(f"stored answers may be lost in a power cut: {error.strerror}", stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
