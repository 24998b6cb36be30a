"""Supported directory layouts of published policies."""

from __future__ import annotations

from typing import Literal, get_args

Layout = Literal["openvla", "openvla-oft", "lerobot", "openpi", "vlm", "vlm-oft"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
BACKBONES: tuple[Layout, ...] = ("vlm", "vlm-oft")
"""Layouts of vision-language models that are not yet trained on actions."""
