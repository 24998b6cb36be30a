"""Suppresses MuJoCo's deprecation messages for peers that load their own copy of a model."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def quiet_mujoco() -> Generator[None]:
    """Suppress what MuJoCo would print, and append to a file in the working directory, while models load."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
