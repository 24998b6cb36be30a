"""Sizes of the traffic network and of its input, and the places of its parameters in one flat vector.

A car's candidates are lines times modes: its own lane and the two beside it, and on each of them several profiles of
acceleration. Kernels read the parameters from a flat vector, so that a network is exchanged by one copy.
"""

from __future__ import annotations

from typing import NamedTuple

OWN = (
    "speed",
    "accel",
    "wanted_speed",
    "headway",
    "aside",
    "in_junction",
    "way_closed_distance",
    "leader_gap",
    "leader_speed",
    "leader_closing",
    "leader_stands",
    "joining_gap",
    "joining_speed",
    "length",
    "waited",
    "lane_end_distance",
    "braking_to_stop",
    "leader_time",
    "braking_for_leader",
)
"""Inputs of a car about itself, its leader and its right of way, scaled to about 1."""
NEAREST = 6
"""Road users in a car's input, nearest first."""
NEIGHBOR = ("x", "y", "heading_cos", "heading_sin", "speed", "length")
LINE = (
    "aside",
    "wanted_speed",
    "ahead_gap",
    "ahead_closing",
    "behind_gap",
    "behind_closing",
    "curvature_near",
    "curvature_far",
    "end_distance",
    "obstacle",
)
"""Inputs of a line; zeros where the car cannot take it."""
LINES, MODES, PIECES = 3, 8, 8
"""Lines (own lane, left, right), profiles of acceleration on each, and pieces of a profile."""
PIECE_S = 0.5
"""Duration of a piece of a profile; a profile has constant acceleration in each."""
CANDIDATES = LINES * MODES
"""G: candidate LINE * MODES + MODE."""
TRUNK, LINE_WIDTH, HEAD = 64, 24, 32
"""Widths of the hidden layers: of the trunk, of a line's encoder and of the scoring head."""
RESIDUAL_MPS2 = 1.0
"""Largest correction of a mode's profile by the network."""

SEEN = len(OWN) + NEAREST * len(NEIGHBOR)
"""Inputs of the trunk."""
LINES_AT = SEEN
MASK_AT = LINES_AT + LINES * len(LINE)
INPUT = MASK_AT + LINES
"""A car's whole input: what the trunk reads, the lines, and 1 for each line that the car may take."""


class Parameter(NamedTuple):
    """A parameter of the network."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        size = 1
        for count in self.shape:
            size *= count
        return size


PARAMETERS = (
    Parameter("trunk.0.weight", (SEEN, TRUNK)),
    Parameter("trunk.0.bias", (TRUNK,)),
    Parameter("trunk.1.weight", (TRUNK, TRUNK)),
    Parameter("trunk.1.bias", (TRUNK,)),
    Parameter("line.0.weight", (len(LINE), LINE_WIDTH)),
    Parameter("line.0.bias", (LINE_WIDTH,)),
    Parameter("line.1.weight", (LINE_WIDTH, LINE_WIDTH)),
    Parameter("line.1.bias", (LINE_WIDTH,)),
    Parameter("anchors", (MODES, PIECES)),
    Parameter("profile.weight", (TRUNK, MODES * PIECES)),
    Parameter("profile.bias", (MODES * PIECES,)),
    Parameter("score.trunk.weight", (TRUNK, HEAD)),
    Parameter("score.trunk.bias", (HEAD,)),
    Parameter("score.line.weight", (LINE_WIDTH, HEAD)),
    Parameter("score.mode.weight", (MODES, HEAD)),
    Parameter("score.out.weight", (HEAD,)),
    Parameter("temperature", (1,)),
)
"""All parameters, in the order of the flat vector. Weights are (in, out); each layer's bias follows its weights. The
scoring head adds what it makes of trunk, line and mode before its only hidden layer, so that each is computed once."""
SCORED = ("score.trunk.weight", "score.trunk.bias", "score.line.weight", "score.mode.weight", "score.out.weight")
"""Parameters of the scoring head: those that RIFT fine-tunes."""


def places() -> dict[str, int]:
    """First index of each parameter in the flat vector."""
    found, at = dict[str, int](), 0
    for parameter in PARAMETERS:
        found[parameter.name] = at
        at += parameter.size
    return found


PLACES = places()
SIZE = sum(parameter.size for parameter in PARAMETERS)
"""Length of the flat vector."""
