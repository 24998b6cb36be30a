"""Arithmetic on one step's result: which end is a failure, which a time-out, and when it is reported.

Pure functions of arrays, written for numpy and torch alike (`Any` below): `xp` is the module, numpy or torch. This
module imports nothing of robotrl and runs on Python 3.8, so that it can be used beside an Isaac Gym in another process.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Ends(NamedTuple):
    """Ends of episodes, as a step reports them."""

    terminated: Any
    """(N,) bool: nothing follows."""
    truncated: Any
    """(N,) bool: a time limit cut the episode."""
    time_out: Any
    """(N,) bool: the time limit was reached, whatever it means."""

    def done(self) -> Any:
        """(N,) bool: the episode ended."""
        return self.terminated | self.truncated


def flags(values: Any) -> Any:
    """Booleans from flags of any dtype: whole numbers and floats count as set unless they are 0."""
    return values != 0


def lab_ends(terminated: Any, time_outs: Any, finite_horizon: bool) -> Ends:
    """Ends of Isaac Lab's two flags.

    Args:
        terminated: (N,) bool.
        time_outs: (N,) bool.
        finite_horizon: True if the time limit belongs to the task: reaching it is an end after which nothing follows.
    """
    if finite_horizon:
        return Ends(terminated | time_outs, time_outs & ~time_outs, time_outs)
    return Ends(terminated, time_outs, time_outs)


def single_done_ends(done: Any, time_outs: Any) -> Ends:
    """Ends of Isaac Gym's single flag: `time_outs` says which of them are time-outs.

    A failure in the very step of the time limit counts as a time-out: the task does not tell them apart.

    Args:
        done: (N,) bool.
        time_outs: (N,) bool; where `done` is not set it is ignored.
    """
    time_out = done & time_outs
    return Ends(done & ~time_outs, time_out, time_out)


def late_reward(xp: Any, ended_before: Any, reward: Any) -> Any:
    """Rewards of a step in which some envs were only reset: theirs, which belong to no action, are 0.

    Args:
        xp: numpy or torch.
        ended_before: (N,) bool: envs whose episode ended one step before.
        reward: (N,) the step's rewards.
    """
    return xp.where(ended_before, xp.zeros_like(reward), reward)
