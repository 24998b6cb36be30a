"""Samplers: choose the start steps of a batch, reproducibly from the buffer's content and the generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, check_at_least, out_of_range
from robotrl.replay.types import Transitions
from robotrl.replay.views import ChunkReach

if TYPE_CHECKING:
    from robotrl.replay.buffer import Replay

ROUNDS = 4
"""Rounds of rejection sampling before all steps are enumerated."""
MOST_TRIES = 256
"""Most steps that are drawn for each row of a batch."""


class Sampler(Protocol):
    """Draws batches of chunks."""

    def sample(
        self, batch: int, horizon: int, gamma: float, generator: torch.Generator, updates: int = 1
    ) -> Transitions:
        """Draw `updates` minibatches in sequence: updates * batch rows.

        Args:
            batch: rows of one minibatch; shares and weights hold within each minibatch.
            horizon: H of the chunks.
            gamma: discount of each env step.
            generator: a CPU generator.
            updates: number of minibatches.

        Raises:
            ConfigError: no step can be sampled.
        """
        ...


class Uniform:
    """Draws start steps uniformly, with replacement.

    Args:
        replay: the buffer to sample from.
        decisions: only steps at which the policy began a chunk; needed if extras belong to the chunk.
    """

    def __init__(self, replay: Replay, decisions: bool = False) -> None:
        self.replay = replay
        self.decisions = decisions

    def sample(
        self, batch: int, horizon: int, gamma: float, generator: torch.Generator, updates: int = 1
    ) -> Transitions:
        """See `Sampler.sample`."""
        return self.replay.gather(self._draw(batch * updates, horizon, generator), gamma)

    def _draw(self, count: int, horizon: int, generator: torch.Generator) -> ChunkReach:
        check_at_least("replay batch", count, 1)
        parts: list[ChunkReach] = []
        missing, per_row = count, horizon if self.decisions else 1
        for _ in range(ROUNDS):
            spare = 8 + missing // 32
            tries = (missing + spare) * per_row
            found = self.replay.sampleable(self.replay.draw(tries, generator), horizon, self.decisions)
            parts.append(found.first(missing))
            missing -= len(parts[-1].starts)
            if 2 * len(found.starts) * per_row < tries:
                # few steps have a score
                per_row = min(MOST_TRIES, tries // max(len(found.starts), 1) + 1)
            if not missing:
                break
        else:
            every = self.replay.indices(horizon, self.decisions)
            if not len(every):
                what = "decision" if self.decisions else "step"
                raise ConfigError(
                    f"the replay holds no {what} whose chunk of {horizon} steps is complete and whose rewards are known"
                )
            chosen = every[torch.randint(len(every), (missing,), generator=generator)]
            parts.append(self.replay.reach(chosen.numpy(), horizon))
        return (
            parts[0]
            if len(parts) == 1
            else ChunkReach(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))
        )


class Mixed:
    """Combines several samplers in fixed shares, e.g. half demonstrations and half rollouts (Ball et al. 2023, RLPD).

    A minibatch holds the rows of the first sampler, then those of the second, and so on. Row counts follow the largest
    remainder method: each share is rounded down, and the remaining rows go to the largest fractions, the earlier
    sampler first; so every minibatch has the same counts.

    Args:
        parts: samplers and their shares, above 0, with sum 1.

    Raises:
        ConfigError: the shares are invalid.
    """

    def __init__(self, parts: Sequence[tuple[Sampler, float]]) -> None:
        shares = [share for _, share in parts]
        if not parts or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
            raise out_of_range("replay shares", shares, "numbers above 0 of sum 1")
        self.parts = list(parts)

    def counts(self, batch: int) -> list[int]:
        """Number of rows of each sampler in a minibatch.

        Raises:
            ConfigError: the minibatch is too small: a sampler would get no row.
        """
        exact = [batch * share for _, share in self.parts]
        # rounded, so that a share such as 1/3 of 9 rows is 3 whatever its last bit
        counts = [int(rows + 1e-9) for rows in exact]
        order = sorted(range(len(exact)), key=lambda i: (round(counts[i] - exact[i], 9), i))
        for i in order[: batch - sum(counts)]:
            counts[i] += 1
        if min(counts) < 1:
            raise out_of_range("replay batch", batch, f"enough rows for shares of {[s for _, s in self.parts]}")
        return counts

    def sample(
        self, batch: int, horizon: int, gamma: float, generator: torch.Generator, updates: int = 1
    ) -> Transitions:
        """See `Sampler.sample`."""
        counts = self.counts(batch)
        drawn = [
            sampler.sample(count, horizon, gamma, generator, updates)
            for (sampler, _), count in zip(self.parts, counts, strict=True)
        ]
        return Transitions._make(_join(list(fields), updates) for fields in zip(*drawn, strict=True))


def _join(fields: list[Tensor] | list[dict[str, Tensor]], updates: int) -> Tensor | dict[str, Tensor]:
    """Interleave the samplers' batches minibatch by minibatch."""
    if isinstance(fields[0], dict):
        tables = [field for field in fields if isinstance(field, dict)]
        return {key: _stack([table[key] for table in tables], updates) for key in tables[0]}
    return _stack([field for field in fields if isinstance(field, Tensor)], updates)


def _stack(parts: list[Tensor], updates: int) -> Tensor:
    rows = [part.reshape(updates, -1, *part.shape[1:]) for part in parts]
    return torch.cat(rows, 1).flatten(0, 1)
