"""Worker process that scores pictures, and the messages between trainer and worker."""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import RobotrlError, short
from robotrl.rewards.scoring.scorer import PictureScorer, ScorerRecipe
from robotrl.rewards.scoring.slots import PictureSlots, SlotShape
from robotrl.run.child_process import end_with_parent

LONGEST_TEXT = 400
"""Characters of an error's text."""


class WorkerSetup(NamedTuple):
    """First message from trainer to worker, followed by the memory of the pictures."""

    recipe: ScorerRecipe
    shape: SlotShape
    threads: int
    cores: tuple[int, ...]


class BatchOrder(NamedTuple):
    """Message from trainer to worker: score the pictures in these slots (B,)."""

    slots: NDArray[np.int64]


class ScorerReady(NamedTuple):
    """Message from worker to trainer: the scorer is made."""

    identity: str
    num_outputs: int


class ScoredBatch(NamedTuple):
    """Message from worker to trainer: outputs of the batch that it was sent."""

    outputs: NDArray[np.float32]
    """(B, K), in the order of the pictures."""


class RefusedBatch(NamedTuple):
    """Message from worker to trainer: the scorer raised an error on the batch that it was sent, or gave outputs of
    another shape."""

    error: str


class WorkerFailed(NamedTuple):
    """Message from worker to trainer: no scorer could be made; the worker ends."""

    kind: str
    """Class name of the error."""
    message: str


WorkerMessage = ScorerReady | ScoredBatch | RefusedBatch | WorkerFailed


def work(connection: Connection) -> None:
    """Main function of a worker process: score batches until the trainer is gone.

    Args:
        connection: connection to the trainer, whose first message is the `WorkerSetup`.
    """
    end_with_parent(0.0)
    try:
        _work(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _work(connection: Connection) -> None:
    setup: WorkerSetup = connection.recv()
    slots = PictureSlots(setup.shape, recv_handle(connection), writable=False)
    try:
        if setup.cores:
            os.sched_setaffinity(0, setup.cores)
        scorer = setup.recipe.make()
        limit_threads(setup.threads)
    except Exception as error:  # whatever the user's factory raises; the trainer raises it again
        connection.send(WorkerFailed(type(error).__name__, error_text(error)))
        return
    connection.send(ScorerReady(scorer.identity, scorer.num_outputs))
    while True:
        order: BatchOrder = connection.recv()
        connection.send(score_batch(scorer, slots, order.slots))


def score_batch(scorer: PictureScorer, slots: PictureSlots, chosen: NDArray[np.int64]) -> ScoredBatch | RefusedBatch:
    """Score the pictures in the chosen slots (B,)."""
    pictures = slots.pictures[chosen]
    try:
        outputs = np.asarray(scorer.score(pictures), np.float32)
    except Exception as error:  # whatever the user's scorer raises: its pictures have no score
        return RefusedBatch(f"the scorer raised {type(error).__name__}: {error_text(error)}")
    expected = (len(chosen), scorer.num_outputs)
    if outputs.shape != expected:
        said = f"scorer {short(scorer.identity)} answered {len(chosen)} pictures with an array of shape {outputs.shape}"
        return RefusedBatch(f"{said}: expected {expected}")
    return ScoredBatch(outputs)


def limit_threads(threads: int) -> None:
    """Limit torch's threads, if torch is loaded; linear algebra of numpy reads the environment when it is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def error_text(error: Exception) -> str:
    """Text of an error in one line; where it is not one of robotrl's, with the line of code that raised it."""
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, RobotrlError) or not frames:
        return text
    return f"{short(text, LONGEST_TEXT)} ({frames[-1].filename}:{frames[-1].lineno})"
