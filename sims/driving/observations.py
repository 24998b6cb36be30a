"""Observations of the driving sims: their specs, and the arrays that kernels write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from robotrl.errors import check_count, unknown
from robotrl.sims.driving.backends.backend import Zeros
from robotrl.sims.driving.render import raster, vectors
from robotrl.sims.driving.roads.maps import NEAREST
from robotrl.spec import Spec

Observed = Literal["vector", "raster", "both", "none"]
OBSERVED = ("vector", "raster", "both", "none")


class DrivingObservations(NamedTuple):
    """Observations of N envs."""

    specs: dict[str, Spec]
    """Specs of one env's observations, by key."""
    vectors: vectors.Vectors
    views: raster.RasterViews | None
    """Rasters; None without."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays (N, ...) of the observations, by key."""
        every: dict[str, NDArray[Any]] = dict(self.vectors._asdict())
        if self.views is not None:
            every["bev"] = raster.shown(self.views)
        return {key: every[key] for key in self.specs}

    def into(self, arrays: Mapping[str, NDArray[Any]]) -> DrivingObservations:
        """The same observations, to be written into other arrays, of the shapes and types of `arrays()`."""
        own = {key: value for key, value in arrays.items() if key in self.vectors._fields}
        views = None if self.views is None else raster.views_into(self.views, arrays["bev"])
        return self._replace(vectors=self.vectors._replace(**own), views=views)


def make_observations(
    zeros: Zeros, obs: str, num_envs: int, nearest: int, polylines: int, cfg: raster.RasterCfg, packed: bool
) -> DrivingObservations:
    """Specs and empty arrays of the observations.

    Args:
        zeros: allocates the arrays.
        obs: "vector", "raster", "both" or "none".
        num_envs: N.
        nearest: road users observed, 0 to 32.
        polylines: lane segments observed, 0 to 16.
        cfg: size and resolution of the raster.
        packed: give the raster as two bytes of bits for each pixel.

    Raises:
        ConfigError: unknown kind of observation, or a number out of range.
    """
    check_count("nearest", nearest, 0, 32)
    check_count("polylines", polylines, 0, NEAREST)
    if obs not in OBSERVED:
        raise unknown("obs", str(obs), OBSERVED)
    specs: dict[str, Spec] = {}
    views = None
    if obs in ("raster", "both"):
        specs["bev"] = raster.raster_spec(cfg, packed, num_envs)
        views = raster.make_views(zeros, cfg, num_envs, packed)
    if obs == "raster":
        specs["ego"] = vectors.ego_spec()
    if obs in ("vector", "both"):
        specs |= vectors.vector_specs(nearest, polylines)
    if obs != "none":
        specs["privileged"] = vectors.privileged_spec()
    drawn = vectors.make_vectors(zeros, num_envs, nearest, polylines, obs in ("vector", "both"), obs != "none")
    return DrivingObservations(specs, drawn, views)
