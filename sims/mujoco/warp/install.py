"""Imports MuJoCo Warp, or says what to install."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

from robotrl.errors import ConfigError
from robotrl.utils.installation import install_line

EXTRA = "warp"
"""Extra of pyproject.toml that installs the packages."""


class Packages(NamedTuple):
    """Modules of MuJoCo Warp."""

    warp: Any
    """Kernels, streams and graphs."""
    mujoco_warp: Any
    """MuJoCo's physics as such kernels."""
    torch_arrays: Any
    """`array_api_compat.torch`: torch's functions under the names of the array API standard."""


def packages() -> Packages:
    """Import the packages, quietly.

    Raises:
        ConfigError: one is not installed.
    """
    first = "warp" not in sys.modules
    found: list[Any] = []
    for name in ("warp", "mujoco_warp", "array_api_compat.torch"):
        try:
            found.append(importlib.import_module(name))
        except ImportError as error:
            raise ConfigError(
                f"engine 'warp' needs the package {name.split('.')[0]!r} ({error}): {install_line(EXTRA)}"
            ) from error
        if name == "warp" and first:
            # it prints a line for each kernel that it loads
            found[0].config.log_level = found[0].LOG_WARNING
    return Packages(*found)
