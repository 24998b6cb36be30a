"""Traffic network in torch, for training: scores and profiles of candidates; kernels run the same in the sim."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robotrl.fn.planner.candidates import MASKED
from robotrl.sims.bev.traffic.learned import layout
from robotrl.sims.bev.traffic.learned.stored import Flat, flat, named


class TrafficNet(nn.Module):
    """Scores (B, G) and profiles (B, MODES, PIECES) of cars' candidates; see `layout`.

    A trunk reads the car's state and its neighbors, an encoder each line; profiles are anchors plus what the trunk
    adds, and the head scores every mode on every line.
    """

    anchors: Tensor
    temperature: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(layout.SEEN, layout.TRUNK), nn.ReLU(), nn.Linear(layout.TRUNK, layout.TRUNK), nn.ReLU()
        )
        lines = len(layout.LINE)
        self.line = nn.Sequential(
            nn.Linear(lines, layout.LINE_WIDTH), nn.ReLU(), nn.Linear(layout.LINE_WIDTH, layout.LINE_WIDTH), nn.ReLU()
        )
        self.profile = nn.Linear(layout.TRUNK, layout.MODES * layout.PIECES)
        nn.init.zeros_(self.profile.weight)
        nn.init.zeros_(self.profile.bias)
        self.head = ScoringHead()
        self.register_buffer("anchors", torch.zeros(layout.MODES, layout.PIECES))
        self.register_buffer("temperature", torch.ones(1))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and profiles, m/s^2, of inputs (B, INPUT); candidates of masked lines have the score `MASKED`."""
        trunk, lines = self.encode(inputs)
        profiles = self.anchors + layout.RESIDUAL_MPS2 * torch.tanh(self.profile(trunk)).view(
            -1, layout.MODES, layout.PIECES
        )
        return self.head(trunk, lines).masked_fill(~usable(inputs), MASKED), profiles

    def encode(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Trunk (B, TRUNK) and lines (B, LINES, LINE_WIDTH) of inputs (B, INPUT): what RIFT does not train."""
        lines = inputs[:, layout.LINES_AT : layout.MASK_AT].view(-1, layout.LINES, len(layout.LINE))
        return self.trunk(inputs[:, : layout.SEEN]), self.line(lines)

    def to_flat(self) -> Flat:
        """Flat parameters as kernels read them."""
        own = {name: value.detach().cpu() for name, value in self.state_dict().items()}
        return flat({name: _stored(name, own[key]).numpy() for name, key in NAMES.items()}, "traffic network")

    def load_flat(self, weights: Flat) -> None:
        """Load flat parameters."""
        parameters = named(weights)
        found = {key: _stored(name, torch.from_numpy(parameters[name].copy())) for name, key in NAMES.items()}
        self.load_state_dict(found)


class ScoringHead(nn.Module):
    """Scores (B, G) of all modes on all lines from trunk and lines: one hidden layer over their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(layout.TRUNK, layout.HEAD)
        self.line = nn.Linear(layout.LINE_WIDTH, layout.HEAD, bias=False)
        self.mode = nn.Parameter(0.1 * torch.randn(layout.MODES, layout.HEAD))
        self.out = nn.Parameter(torch.randn(layout.HEAD) / layout.HEAD**0.5)

    def forward(self, trunk: Tensor, lines: Tensor) -> Tensor:
        """Scores, line by line; see `layout.CANDIDATES`."""
        hidden = self.trunk(trunk)[:, None, None] + self.line(lines)[:, :, None] + self.mode
        return (torch.relu(hidden) @ self.out).flatten(1)


def usable(inputs: Tensor) -> Tensor:
    """(B, G) bool: candidates on lines that the cars with these inputs (B, INPUT) may take."""
    return (inputs[:, layout.MASK_AT :] > 0).repeat_interleave(layout.MODES, dim=1)


NAMES = {
    "trunk.0.weight": "trunk.0.weight",
    "trunk.0.bias": "trunk.0.bias",
    "trunk.1.weight": "trunk.2.weight",
    "trunk.1.bias": "trunk.2.bias",
    "line.0.weight": "line.0.weight",
    "line.0.bias": "line.0.bias",
    "line.1.weight": "line.2.weight",
    "line.1.bias": "line.2.bias",
    "anchors": "anchors",
    "profile.weight": "profile.weight",
    "profile.bias": "profile.bias",
    "score.trunk.weight": "head.trunk.weight",
    "score.trunk.bias": "head.trunk.bias",
    "score.line.weight": "head.line.weight",
    "score.mode.weight": "head.mode",
    "score.out.weight": "head.out",
    "temperature": "temperature",
}
"""Stored name to name in `TrafficNet`."""
TRANSPOSED = {name for name in NAMES if name.endswith(".weight")} - {"score.mode.weight", "score.out.weight"}
"""Weights of torch's linear layers, (out, in) there."""


def _stored(name: str, value: Tensor) -> Tensor:
    return value.T.contiguous() if name in TRANSPOSED else value
