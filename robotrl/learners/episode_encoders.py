"""Encoders that embed episodes for SRPO's progress reward.

An encoder is a frozen module from raw observations (B, ...) of the sim to features (B, F). It is made by
`make(policy, observation_spec)`; packages add theirs through the entry-point group `robotrl.encoders`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, ConfigError, unknown
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasVisionEncoder, Spec

OF_RUN = "run:"
"""Prefix of encoder names that use the vision encoder of a stored policy."""
Make = Callable[[Any, dict[str, Spec]], Any]
_COORDINATE = re.compile(r"(?P<place>.+)_(?P<axis>[xyz])_(?P<frame>[^_]+)")
"""Pattern of a coordinate's name: "peg_pos_x_w" is the x coordinate of "peg_pos" in frame w."""


def own(policy: Any, observation_spec: dict[str, Spec]) -> Any:
    """Vision encoder of the policy in training, as it is at the start of the run."""
    del observation_spec
    return _vision_encoder(policy, "policy")


def of_run(path: str) -> Make:
    """Vision encoder of another policy: that of a run or a checkpoint."""

    def make(policy: Any, observation_spec: dict[str, Spec]) -> Any:
        del policy
        other = load_policy(path)
        for key, spec in other.observation_spec.items():
            found = observation_spec.get(key)
            if found is None or (found.shape, found.dtype) != (spec.shape, spec.dtype):
                has = "no such array" if found is None else f"{found.dtype} {found.shape}"
                raise ConfigError(
                    f"algo.encoder 'run:{path}' reads {key!r}, {spec.dtype} {spec.shape}: the sim has {has}"
                )
        return _vision_encoder(other, f"run:{path}")

    return make


class Pair(NamedTuple):
    """One coordinate of a place minus the same coordinate of another place: key and column of each."""

    key: str
    column: int
    other_key: str
    other_column: int


def of_places(keys: str) -> Make:
    """Encoder of relative positions, m, between the places in some of the sim's arrays (privileged ones included).

    A place has columns NAME_x_FRAME, NAME_y_FRAME, ... in metres. Every two places of one frame are compared along all
    axes that both have.
    """
    wanted = keys.split(",")

    def make(policy: Any, observation_spec: dict[str, Spec]) -> Any:
        del policy
        for key in wanted:
            if key not in observation_spec:
                raise unknown(f"algo.encoder 'places:{keys}': array", key, observation_spec)
        pairs = pairs_of({key: observation_spec[key] for key in wanted})
        if not pairs:
            raise ConfigError(
                f"algo.encoder 'places:{keys}' finds no two places: expected arrays with columns such as tip_pos_x_w"
                " and peg_pos_x_w, in metres and of one frame"
            )
        return RelativePositionEncoder(pairs)

    return make


def pairs_of(specs: dict[str, Spec]) -> list[Pair]:
    """Return the coordinate pairs of all two places of one frame, along all axes that both have."""
    places: dict[tuple[str, str, str], dict[str, int]] = {}
    for key, spec in specs.items():
        for column, (name, unit) in enumerate(zip(spec.names, spec.units, strict=True)):
            found = _COORDINATE.fullmatch(name) if len(spec.shape) == 1 and unit == "m" else None
            if found is not None:
                places.setdefault((found["frame"], key, found["place"]), {})[found["axis"]] = column
    return [
        Pair(key, axes[axis], other_key, others[axis])
        for ((frame, key, _), axes), ((other_frame, other_key, _), others) in combinations(places.items(), 2)
        for axis in axes
        if frame == other_frame and axis in others
    ]


class RelativePositionEncoder(nn.Module):
    """Encoder from observations (B, ...) to differences (B, F) of coordinates, m."""

    def __init__(self, pairs: list[Pair]) -> None:
        super().__init__()
        self.pairs = pairs

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """See the class."""
        return torch.stack([obs[p.key][:, p.column] - obs[p.other_key][:, p.other_column] for p in self.pairs], dim=1)


def _vision_encoder(policy: Any, name: str) -> Any:
    if not isinstance(policy, HasVisionEncoder):
        raise CapabilityError(
            f"policy {type(policy).__name__} lacks HasVisionEncoder: algo.encoder {name!r} needs one; expected a policy"
            " that says tokens, run:PATH of one, or a row of `robotrl list encoders`"
        )
    return policy.vision_encoder()
