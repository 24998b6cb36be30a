"""Layouts in which others publish policies."""

from __future__ import annotations

from typing import Literal, get_args

Layout = Literal["openvla", "openvla-oft", "lerobot", "openpi"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
