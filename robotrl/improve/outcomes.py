"""Recorded outcomes against the task's own: each episode's actions are executed again from its start, in the sim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.improve.logged import LogFault, OwnEpisode
from robotrl.rollout.evaluate import Episode, Turn, at_rest, run_episodes
from robotrl.spec import Arrays, HasStateIds, Spec, VecSim

SAME = 1e-3
"""Largest difference of an observation, over its spread in the episode, that counts as the same motion."""
SHOWN = 3


class OutcomeCheck(NamedTuple):
    """Result of executing episodes again."""

    same: int
    """Number of episodes that moved as recorded, and whose success could be compared."""
    other: int
    """Number of those that moved otherwise, such as on a robot in real time, and of those without a start."""
    faults: tuple[LogFault, ...]


class TapeActor:
    """An actor that repeats recorded actions by start, and then rests.

    Args:
        tapes: (T, A) actions by the number of their start.
        action_spec: spec of the action.
        num_envs: N.
    """

    def __init__(self, tapes: dict[int, np.ndarray], action_spec: Spec, num_envs: int) -> None:
        self._tapes, self._rest = tapes, at_rest(action_spec)
        self._at = np.zeros(num_envs, np.int64)

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A)."""
        del obs
        self._at[turn.started.cpu().numpy()] = 0
        rows: list[np.ndarray] = []
        for env, start in enumerate(turn.start.tolist()):
            tape = self._tapes.get(start)
            rows.append(tape[self._at[env]] if tape is not None and self._at[env] < len(tape) else self._rest)
        self._at += 1
        return torch.from_numpy(np.stack(rows))


def check_outcomes(episodes: Sequence[OwnEpisode], sim_name: str, sim: VecSim) -> OutcomeCheck:
    """Compare recorded outcomes with those of the sim, where it repeats the recorded motion.

    Args:
        episodes: recorded episodes.
        sim_name: name of the sim; episodes of others are not compared.
        sim: the sim, with the options of the recording.
    """
    able = isinstance(sim, HasStateIds)
    rest = [episode for episode in episodes if able and episode.sim == sim_name and episode.start >= 0]
    unseen, same, wrong = len(episodes) - len(rest), 0, list[str]()
    while rest:
        # a start is executed once in a pass
        batch = {episode.start: episode for episode in reversed(rest)}
        rest = [episode for episode in rest if batch[episode.start] is not episode]
        actor = TapeActor({start: episode.actions for start, episode in batch.items()}, sim.action_spec, sim.num_envs)
        again = run_episodes(actor, sim, list(batch), record=True, description="outcomes by the task")
        for found in again:
            recorded = batch[found.state_id]
            if not moved_alike(recorded, found):
                unseen += 1
                continue
            same += 1
            if found.success != recorded.success:
                wrong.append(
                    f"{recorded.origin} is told as {_word(recorded.success)}, the task says {_word(found.success)}"
                )
    if not wrong:
        return OutcomeCheck(same, unseen, ())
    more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    text = f"{'; '.join(wrong[:SHOWN])}{more}, for the same motion: expected the task's own success"
    return OutcomeCheck(same, unseen, (LogFault("contradicted success", text),))


def moved_alike(recorded: OwnEpisode, again: Episode) -> bool:
    """True if an episode that was executed again is as long as the recorded one and passes the same observations."""
    if again.length != len(recorded.actions):
        return False
    for key, values in recorded.obs.items():
        found = again.obs[key][:-1]
        if values.dtype.kind != "f":
            continue
        spread = np.maximum(np.ptp(found, axis=0), np.abs(found).max(axis=0)) + 1e-9
        if not bool((np.abs(found - values) <= SAME * spread).all()):
            return False
    return True


def _word(success: bool) -> str:
    return "a success" if success else "a failure"
