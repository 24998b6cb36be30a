"""Captures MuJoCo's warnings while it loads a model."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import mujoco


@contextmanager
def remarks() -> Generator[list[str]]:
    """Context manager that collects MuJoCo's warnings in a list instead of printing and logging them to a file."""
    said: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(said.append)
    try:
        yield said
    finally:
        mujoco.set_mju_user_warning(before)
