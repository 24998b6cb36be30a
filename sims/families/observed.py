"""Families that change what a policy observes: looks, words and noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.sims.families.variation import EpisodeDraws, Ids, Variation
from robotrl.spec import INSTRUCTION, Spec, is_picture, measured, visible

_GAIN, _SHIFT, _WORDS, _NOISE = 0x10065, 0x5817, 0x3035, 0x20153
_STEP_BITS = 20
"""Bits of a step's number in the key of its random numbers."""


class ChangedLooks(Variation):
    """Pictures with another gain of each color channel, shifted; the same change throughout an episode.

    Args:
        sim: the sim.
        gain: largest relative change of a channel.
        shift_px: largest shift along both axes; the border is repeated.
    """

    def __init__(self, sim: Any, gain: float, shift_px: int) -> None:
        super().__init__(sim)
        self._gain, self._shift_px = gain, shift_px
        self._keys = pictures_of(sim)

    def seen(self, obs: dict[str, Tensor], keys: Ids, steps: Ids, draws: EpisodeDraws) -> dict[str, Tensor]:
        """See `Variation.seen`."""
        del steps
        gains = torch.from_numpy(1.0 + self._gain * draws.signed(_GAIN, keys, 3)).float()
        shifts = torch.from_numpy(np.rint(self._shift_px * draws.signed(_SHIFT, keys, 2)).astype(np.int64))
        return obs | {key: _pictured(obs[key], gains, shifts) for key in self._keys if key in obs}


def _pictured(pictures: Tensor, gains: Tensor, shifts: Tensor) -> Tensor:
    """Pictures (n, h, w, 3) uint8 with gains (n, 3), moved down and to the right by shifts (n, 2) pixels."""
    count, height, width, _ = pictures.shape
    gains, shifts = gains.to(pictures.device), shifts.to(pictures.device)
    row = (torch.arange(height, device=pictures.device) - shifts[:, :1]).clamp(0, height - 1)
    column = (torch.arange(width, device=pictures.device) - shifts[:, 1:]).clamp(0, width - 1)
    moved = pictures[torch.arange(count, device=pictures.device)[:, None, None], row[:, :, None], column[:, None, :]]
    return (moved.float() * gains[:, None, None]).round().clamp(0, 255).to(torch.uint8)


class LostWords(Variation):
    """Instructions of which some words, the same throughout an episode, are left out; the last ones move up.

    Args:
        sim: the sim.
        count: number of words; one always stays.
    """

    def __init__(self, sim: Any, count: int) -> None:
        super().__init__(sim)
        self._count = count

    def seen(self, obs: dict[str, Tensor], keys: Ids, steps: Ids, draws: EpisodeDraws) -> dict[str, Tensor]:
        """See `Variation.seen`."""
        del steps
        if INSTRUCTION not in obs:
            return obs
        words = obs[INSTRUCTION].cpu().numpy()
        heard = np.zeros_like(words)
        for row, (said, key) in enumerate(zip(words, keys, strict=True)):
            ids = said[said != 0]
            kept = self._kept(len(ids), key, draws)
            heard[row, : len(kept)] = ids[kept]
        return obs | {INSTRUCTION: torch.from_numpy(heard).to(obs[INSTRUCTION].device)}

    def said(self, instructions: list[str], keys: Ids, draws: EpisodeDraws) -> list[str]:
        """See `Variation.said`."""
        split = [text.split() for text in instructions]
        return [
            " ".join(words[place] for place in self._kept(len(words), key, draws))
            for words, key in zip(split, keys, strict=True)
        ]

    def _kept(self, words: int, key: np.int64, draws: EpisodeDraws) -> list[int]:
        """Places of the words that stay, of an instruction of so many."""
        drawn = draws.uniform(_WORDS, np.array([key]), max(words, 1))[0, :words]
        kept = max(words - self._count, min(words, 1))
        return sorted(np.argsort(drawn, kind="stable")[:kept].tolist())


class AddedNoise(Variation):
    """Normal errors of the observed numbers, independent in each step and element, within the bounds of the specs.

    Args:
        sim: the sim.
        deviations: unit to standard deviation in that unit.
    """

    def __init__(self, sim: Any, deviations: Mapping[str, float]) -> None:
        super().__init__(sim)
        self._columns: dict[str, tuple[list[int], Tensor, Tensor, Tensor]] = {}
        for key, spec in numbers_of(sim).items():
            at = [place for place, unit in enumerate(spec.units) if deviations.get(unit)]
            if at:
                numbers = [[deviations[spec.units[place]] for place in at]]
                numbers += [[bounds[place] for place in at] for bounds in (spec.low, spec.high)]
                sigma, low, high = (torch.tensor(row, dtype=torch.float64) for row in numbers)
                self._columns[key] = at, sigma, low, high

    def seen(self, obs: dict[str, Tensor], keys: Ids, steps: Ids, draws: EpisodeDraws) -> dict[str, Tensor]:
        """See `Variation.seen`."""
        out = dict(obs)
        index = (keys << _STEP_BITS) + steps
        for number, (key, (at, sigma, low, high)) in enumerate(self._columns.items()):
            if key not in obs:
                continue
            noisy = obs[key].clone()
            shape = noisy[..., at].shape
            size = int(np.prod(shape[1:]))
            # two uniform numbers give a normal one (Box and Muller 1958)
            drawn = torch.from_numpy(draws.uniform(_NOISE + number, index, 2 * size)).view(-1, 2, size)
            normal = torch.sqrt(-2.0 * torch.log1p(-drawn[:, 0])) * torch.cos(2.0 * np.pi * drawn[:, 1])
            errors = (normal.view(shape) * sigma).to(noisy.device)
            values = noisy[..., at].double() + errors
            noisy[..., at] = torch.clamp(values, low.to(noisy.device), high.to(noisy.device)).to(noisy.dtype)
            out[key] = noisy
        return out


def pictures_of(sim: Any) -> tuple[str, ...]:
    """Keys of the observed color pictures of a sim."""
    return tuple(key for key, spec in visible(sim).items() if is_picture(spec) and spec.shape[-1] == 3)


def numbers_of(sim: Any) -> dict[str, Spec]:
    """Specs of the observed real numbers of a sim."""
    specs = visible(sim)
    return {key: specs[key] for key in measured(specs) if specs[key].dtype.startswith("float")}


def units_of(sim: Any) -> tuple[str, ...]:
    """Units of the observed real numbers of a sim."""
    return tuple(sorted({unit for spec in numbers_of(sim).values() for unit in spec.units}))
