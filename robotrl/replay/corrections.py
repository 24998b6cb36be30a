"""Steps in which a person took over, as a replay of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.replay.buffer import Replay
from robotrl.replay.types import StepRecord
from robotrl.spec import Arrays


class Correction(NamedTuple):
    """What somebody who watches says of the actions about to be executed."""

    action: Tensor
    """(N, A) in the sim's units; only the rows taken over count."""
    taken: Tensor
    """(N,) bool: this env's action is replaced, and the rest of its chunk is dropped."""


Corrector = Callable[[Arrays, Tensor, Tensor], Correction]
"""Called at every step with the observations (N, ...), the actions (N, A) that the policy would take, and which envs
(N,) bool are at the first step of an episode. `robotrl.interventions` has some."""


def add_corrections(replay: Replay, record: StepRecord, taken: Tensor) -> None:
    """Add the corrected rows of a step, each to its env's stream.

    Where a correction stopped before this step, its last one ends there as by a time limit: the episode went on, under
    another hand, so the value of what follows is bootstrapped.

    Args:
        replay: of as many streams as the record has rows.
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
    )
    replay.add(human, rows.tolist())
