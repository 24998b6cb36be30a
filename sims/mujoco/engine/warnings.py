"""What MuJoCo has to say while it loads a model."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import mujoco


@contextmanager
def remarks() -> Generator[list[str]]:
    """Takes down what MuJoCo would print, and append to a file in the working directory."""
    said: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(said.append)
    try:
        yield said
    finally:
        mujoco.set_mju_user_warning(before)
