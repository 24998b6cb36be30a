"""Symmetry augmentation: change demonstrations by a mirror or another symmetry of the sim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, unknown
from robotrl.fn.symmetry import changed, combinations, sayable, signed
from robotrl.spec import HasSymmetries, Spec, VecSim
from robotrl.spec.symmetry import Symmetry

PREFIXES = ("obs/", "privileged/", "grounding/")
"""Prefixes of rows that hold arrays of the sim's observation."""
Changes = Sequence[Symmetry | None]


def changes_of(kinds: Sequence[str], sim: VecSim) -> Changes:
    """Return all combinations of a sim's symmetries of these kinds; the first one is the identity.

    Raises:
        CapabilityError: the sim declares no symmetries.
        ConfigError: the sim has no symmetry of that kind.
    """
    if not kinds:
        return (None,)
    if not isinstance(sim, HasSymmetries):
        raise CapabilityError(
            f"sim {type(sim).__name__} lacks HasSymmetries: algo.symmetries is {tuple(kinds)}, expected ()"
        )
    found = sim.symmetries
    for kind in kinds:
        if kind not in found:
            raise unknown("algo.symmetries", kind, found)
    return combinations([found[kind] for kind in kinds])


class Symmetric:
    """Random symmetry augmentation: each change that a frame's instruction allows is equally likely.

    Args:
        changes: from `changes_of`.
        obs: (F, ...) all observations of the dataset.
        specs: their specs.
    """

    def __init__(self, changes: Changes, obs: Mapping[str, Tensor], specs: Mapping[str, Spec]) -> None:
        self._changes = changes
        frames = len(next(iter(obs.values())))
        self._sentence = torch.zeros(frames, dtype=torch.int64)
        """(F,) index of each frame's instruction."""
        self._allowed = torch.ones(1, len(changes))
        """(W, C) 1 where instruction w allows change c."""
        for key in (key for key in obs if specs[key].words):
            sentences, self._sentence = torch.unique(obs[key], dim=0, return_inverse=True)
            self._allowed = sayable(sentences, changes, key).float()

    def change(self, rows: dict[str, Tensor], frames: Tensor, generator: torch.Generator) -> None:
        """Change rows in place, each by one randomly drawn change, which may be the identity.

        Args:
            rows: (B, ...) observations "obs/KEY", privileged ones "privileged/KEY" and "grounding/KEY", and
                "chunk" (B, H, A) in the sim's units; any of them may be missing.
            frames: (B,) indices of the dataset's frames that the rows come from.
            generator: random generator of the draw.
        """
        symmetry_ids = torch.multinomial(self._allowed[self._sentence[frames]], 1, generator=generator)[:, 0]
        for number, symmetry in enumerate(self._changes):
            if symmetry is None:
                continue
            at = (symmetry_ids == number).nonzero()[:, 0]
            for prefix in PREFIXES:
                old = {key.removeprefix(prefix): x[at] for key, x in rows.items() if key.startswith(prefix)}
                for key, new in changed(old, symmetry).items():
                    rows[prefix + key][at] = new
            if "chunk" in rows:
                rows["chunk"][at] = signed(rows["chunk"][at], symmetry.action)
