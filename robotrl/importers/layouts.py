"""Layouts in which others publish policies."""

from __future__ import annotations

from typing import Literal, get_args

Layout = Literal["openvla", "openvla-oft", "lerobot", "openpi", "vlm", "vlm-oft"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
BACKBONES: tuple[Layout, ...] = ("vlm", "vlm-oft")
"""Those of models that say no actions yet."""
