"""Base of the perturbation families: what is drawn for an episode depends on its key alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robotrl.fn.random import counter_rng
from robotrl.spec import HasStateIds

Ids = NDArray[np.int64]
Reals = NDArray[np.float64]


class EpisodeDraws:
    """Random numbers of episodes, by their keys.

    The key of an episode is its start id, where starts are numbered: the same start then meets the same perturbation,
    whatever the sim's seed, the number of envs and the policy. Otherwise it counts the episodes of each env, and the
    numbers depend on the sim's seed.

    Args:
        seed: seed of the sim.
        numbered: True if starts are numbered.
    """

    def __init__(self, seed: int, numbered: bool) -> None:
        self._seed, self._numbered = seed, numbered

    def uniform(self, stream: int, keys: Ids, count: int) -> Reals:
        """Numbers (n, count) from 0 to 1 of a stream, for keys (n,)."""
        return counter_rng.uniform(stream if self._numbered else stream ^ self._seed, keys, count)

    def signed(self, stream: int, keys: Ids, count: int) -> Reals:
        """Numbers (n, count) from -1 to 1 of a stream, for keys (n,)."""
        return 2.0 * self.uniform(stream, keys, count) - 1.0


class Variation:
    """One family with its size; subclasses override what they change.

    Args:
        sim: the sim.
    """

    def __init__(self, sim: Any) -> None:
        self.sim = sim

    def begin(self, envs: Tensor, keys: Ids, draws: EpisodeDraws) -> dict[str, Tensor] | None:
        """Change the sim as the episodes of the envs (n,) begin, whose keys are (n,).

        Returns:
            The observation of all envs, None if it stays.
        """
        del envs, keys, draws

    def seen(self, obs: dict[str, Tensor], keys: Ids, steps: Ids, draws: EpisodeDraws) -> dict[str, Tensor]:
        """Observations of the policy (n, ...), by keys (n,) and steps (n,) of the episodes; the sim's stay."""
        del keys, steps, draws
        return obs

    def said(self, instructions: list[str], keys: Ids, draws: EpisodeDraws) -> list[str]:
        """Instructions of the policy, of episodes with keys (n,)."""
        del keys, draws
        return instructions


def is_numbered(sim: Any) -> bool:
    """True if the sim's starts are numbered."""
    return isinstance(sim, HasStateIds)
