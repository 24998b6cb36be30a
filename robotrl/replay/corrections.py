"""Human corrections (steps in which a person took over) as a separate replay buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.replay.buffer import Replay
from robotrl.replay.types import StepRecord
from robotrl.spec import Arrays


class Correction(NamedTuple):
    """A supervisor's replacement of actions about to be executed."""

    action: Tensor
    """(N, A) in the sim's units; only rows with `taken` count."""
    taken: Tensor
    """(N,) bool: envs whose action is replaced; the rest of their chunk is dropped."""


Corrector = Callable[[Arrays, Tensor, Tensor], Correction]
"""Function called at every step with the observations (N, ...), the policy's actions (N, A), and whether each env (N,)
bool is at the first step of an episode. Implementations are in `robotrl.interventions`."""


def add_corrections(replay: Replay, record: StepRecord, taken: Tensor) -> None:
    """Store the corrected rows of a step, each in its env's stream.

    If a correction stopped before this step, its last step is stored as truncated: the episode went on under the
    policy, so the value of the next state is bootstrapped.

    Args:
        replay: buffer with as many streams as the record has rows.
        record: the step of all envs.
        taken: (N,) bool: rows whose action was replaced.
    """
    released = torch.nonzero(~taken).squeeze(1)
    replay.close_episode(released.tolist(), {key: x[released] for key, x in record.obs.items()})
    rows = torch.nonzero(taken).squeeze(1)
    if not len(rows):
        return
    mine = taken[record.final_ids]
    place = torch.cumsum(taken, 0) - 1
    human = StepRecord(
        {key: x[rows] for key, x in record.obs.items()},
        record.action[rows],
        record.reward[rows],
        record.terminated[rows],
        record.truncated[rows],
        {key: x[mine] for key, x in record.final_obs.items()},
        place[record.final_ids[mine]],
        "human",
        cost=None if record.cost is None else record.cost[rows],
        missing=None if record.missing is None else record.missing[rows],
    )
    replay.add(human, rows.tolist())
