"""Families that change the sim as an episode begins: places, mass and friction."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from robotrl.sims.families.variation import EpisodeDraws, Ids, Variation
from robotrl.spec import HasParams, HasPlaces

_PLACES, _PARAMS = 0x91ACE5, {"mass": 0x3A55, "friction": 0xF71C}


class MovedPlaces(Variation):
    """Each loose thing begins up to `most_m` meters away along x and y, uniformly drawn."""

    def __init__(self, sim: Any, most_m: float) -> None:
        super().__init__(sim)
        self._most_m = most_m

    def begin(self, envs: Tensor, keys: Ids, draws: EpisodeDraws) -> dict[str, Tensor]:
        """See `Variation.begin`."""
        things = len(self.sim.places)
        drawn = draws.signed(_PLACES, keys, 2 * things).reshape(len(keys), things, 2)
        return self.sim.displace(envs, self._most_m * drawn)


class ScaledParams(Variation):
    """The parameters of a family are multiplied by 1 plus or minus up to `most`, by one factor for all of them.

    They take the place of the sim's own randomization of these parameters.

    Raises:
        ConfigError: the sim accepts no such values.
    """

    def __init__(self, sim: Any, family: str, most: float) -> None:
        super().__init__(sim)
        self._stream, self._most = _PARAMS[family], most
        names = params_of(sim, family)
        self._nominal = {name: float(sim.get_params()[name][0]) for name in names}
        for name, value in self._nominal.items():
            # a range that the sim refuses is refused now, not in the first episode that draws it
            for factor in (1.0 - most, 1.0 + most, 1.0):
                sim.set_params([0], {name: np.array([value * factor])})

    def begin(self, envs: Tensor, keys: Ids, draws: EpisodeDraws) -> None:
        """See `Variation.begin`."""
        factor = 1.0 + self._most * draws.signed(self._stream, keys, 1)[:, 0]
        values = {name: value * factor for name, value in self._nominal.items()}
        self.sim.set_params(envs.cpu().numpy(), values)


def params_of(sim: Any, family: str) -> tuple[str, ...]:
    """Parameters of a sim whose names end in the family's ("mass", "trunk_mass"); none without `HasParams`."""
    names: tuple[str, ...] = tuple(sim.params) if isinstance(sim, HasParams) else ()
    return tuple(name for name in names if name.rpartition("_")[2] == family)


def places_of(sim: Any) -> tuple[str, ...]:
    """Loose things of a sim; none without `HasPlaces`."""
    return tuple(sim.places) if isinstance(sim, HasPlaces) else ()
