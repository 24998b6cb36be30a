"""Settings as JSON holds them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def settings_from_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a frozen dataclass, as JSON gave them: JSON has no tuples, and settings have no lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
