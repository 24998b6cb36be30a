"""Settings that all parts of the bench share."""

from __future__ import annotations

SIM = "bev/drive"
SEEDS = (0, 1, 2)
TRAINED = "moderate"
"""Population that planners are trained with."""
REVISION = 2
"""Of the cells: 1 were driven before cars kept behind those who turn off, and before `self-play` and `cloned`."""
