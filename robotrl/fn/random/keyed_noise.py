"""Random streams per row of a batch, keyed by (seed, start state, decision).

A row's numbers depend only on its key, not on the number, choice or order of the other rows. They are those of
`robotrl.deploy.noise.CounterNoise`, for whole batches: Philox4x64-10 (Salmon et al. 2011), key = seed, counter words
(block, draw, decision, start), and Box-Muller. So a policy in an evaluation gets the noise that its exported bundle
gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Words = NDArray[np.uint64]

WORD = 0xFFFFFFFFFFFFFFFF
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_FACTORS: Words = np.array([0xD2E7470EE14C6C93, 0xCA5A826395121157], np.uint64)[:, None, None]
_FACTORS_LOW, _FACTORS_HIGH = _FACTORS & _LOW, _FACTORS >> _HALF
_BUMPS: Words = np.array([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], np.uint64)
_ROUNDS = 10


def decision_key(start: int, decision: int) -> int:
    """Return the key of an episode's decision for `CounterNoise.draw`.

    Args:
        start: ID of the episode's start state; 0 on a robot, which has none.
        decision: index of the decision in its episode.
    """
    return (start & WORD) << 64 | decision & WORD


class KeyedNoise:
    """Random source for the rows of one batch, in place of a `torch.Generator`.

    Each draw gives the next numbers of every row's stream.

    Args:
        seed: 0 to 2**128 - 1.
        starts: (B,) start ID of each row.
        decisions: (B,) index of each row's decision in its episode.
        copies: number of additional rows with the first row's numbers.
    """

    def __init__(self, seed: int, starts: ArrayLike, decisions: ArrayLike, copies: int = 0) -> None:
        self._seed: Words = np.array([seed & WORD, seed >> 64], np.uint64)
        self._start = np.asarray(starts, np.int64).view(np.uint64)
        self._decision = np.asarray(decisions, np.int64).view(np.uint64)
        self._copies = copies
        self._draws = 0

    def __len__(self) -> int:
        return len(self._start) + self._copies

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Next standard normal numbers (B, *shape) of each row, float32 on the CPU."""
        size = math.prod(shape)
        pairs = (size + 1) // 2
        unit = _unit(self._words(2 * pairs))
        # whole arrays, as in `CounterNoise`, so that both use the same numpy loops
        radius = np.sqrt(-2.0 * np.log(np.ascontiguousarray(unit[:, :pairs])))
        angle = (2.0 * np.pi) * np.ascontiguousarray(unit[:, pairs:])
        normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
        return self._rows(normal[:, :size].astype(np.float32), shape)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Next uniform numbers (B, *shape) of each row, in (0, 1], float64 on the CPU."""
        return self._rows(_unit(self._words(math.prod(shape))), shape)

    def generators(self) -> list[torch.Generator]:
        """Return a generator per row, without copies, seeded by the next word of its stream."""
        return [torch.Generator().manual_seed(int(word)) for word in self._words(1)[:, 0] >> np.uint64(1)]

    def _rows(self, drawn: NDArray[Any], shape: Sequence[int]) -> Tensor:
        if self._copies:
            drawn = np.concatenate((drawn, drawn[:1].repeat(self._copies, axis=0)))
        return torch.from_numpy(drawn).view(len(self), *shape)

    def _words(self, count: int) -> Words:
        """First `count` raw words of each row's next draw, without copies."""
        blocks, rows = -(-count // 4), len(self._start)
        counter = np.empty((4, rows, blocks), np.uint64)
        # a counter is incremented before it is used
        counter[0] = np.arange(1, blocks + 1, dtype=np.uint64)
        counter[1] = self._draws
        counter[2], counter[3] = self._decision[:, None], self._start[:, None]
        self._draws += 1
        return _philox(counter, self._seed).transpose(1, 2, 0).reshape(rows, -1)[:, :count]


def _philox(counter: Words, key: Words) -> Words:
    """Philox4x64-10 of counters (4, ...), under one key (2,); returns an array of the same shape."""
    even, odd = counter[0::2], counter[1::2]
    with np.errstate(over="ignore"):
        for _ in range(_ROUNDS):
            high, low = _product(even)
            even, odd = high[::-1] ^ odd ^ key[:, None, None], low[::-1]
            key = key + _BUMPS
    return np.stack((even[0], odd[0], even[1], odd[1]))


def _product(x: Words) -> tuple[Words, Words]:
    """Upper and lower 64 bits of words (2, ...) times the two factors."""
    low, high = x & _LOW, x >> _HALF
    carried = _FACTORS_HIGH * low + ((_FACTORS_LOW * low) >> _HALF)
    middle = _FACTORS_LOW * high + (carried & _LOW)
    return _FACTORS_HIGH * high + (carried >> _HALF) + (middle >> _HALF), x * _FACTORS


def _unit(words: Words) -> NDArray[np.float64]:
    """53-bit uniform numbers in (0, 1], so that a logarithm is finite."""
    return ((words >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
