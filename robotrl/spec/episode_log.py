"""Capability of sims whose environment logs means over the episodes that ended."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class HasEpisodeLog(Protocol):
    """The environment logs numbers of its own about episodes that ended, for example the sum of each reward term."""

    def take_episode_log(self) -> dict[str, float]:
        """Mean of each number over the episodes that ended since the last call, by the environment's name of it."""
        ...


@runtime_checkable
class HasRunScalars(Protocol):
    """A sim in a process of its own that keeps scalars for the run's log."""

    def take_run_scalars(self) -> dict[str, float]:
        """Scalars since the last call, by name."""
        ...
