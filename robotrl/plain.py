"""Settings as JSON holds them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def settings_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a frozen dataclass, as JSON gave them: JSON has no tuples, and settings have no lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


REVISION = 2
"""Of what a stored config means; 1, under which categorical actions of `gym/` sims were scores, was not written."""


def brought_up(data: Mapping[str, Any]) -> dict[str, Any]:
    """A stored config of any revision as one of this revision that means the same; what is no config is left alone."""
    sim: Any = data.get("sim")
    if "revision" in data or not isinstance(sim, Mapping) or not str(sim.get("name")).startswith("gym/"):
        return dict(data)
    options: Any = sim.get("options", ())
    if not isinstance(options, Sequence) or any(str(option).startswith("actions=") for option in options):
        return dict(data)
    return {**data, "revision": REVISION, "sim": {**sim, "options": [*options, "actions=scores"]}}
