"""Supported layouts of policies of other libraries: directories, and model files of Stable-Baselines3."""

from __future__ import annotations

from typing import Literal, get_args

Layout = Literal["openvla", "openvla-oft", "lerobot", "openpi", "vlm", "vlm-oft", "sb3"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
BACKBONES: tuple[Layout, ...] = ("vlm", "vlm-oft")
"""Layouts of vision-language models that are not yet trained on actions."""
NETWORKS: tuple[Layout, ...] = ("sb3",)
"""Layouts of small networks in one file: no pictures, no words."""
