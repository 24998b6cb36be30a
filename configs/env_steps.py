"""Presets whose evaluations and checkpoints follow env steps, whatever the number of envs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from robotrl import config
from robotrl.config import TrainCfg

P = ParamSpec("P")
A = TypeVar("A")
C = TypeVar("C")


def in_env_steps(preset: Callable[P, TrainCfg[A, C]]) -> Callable[P, TrainCfg[A, C]]:
    """Decorator of a preset that states its schedule in iterations; see `robotrl.config.in_env_steps`."""

    @wraps(preset)
    def converted(*args: P.args, **kwargs: P.kwargs) -> TrainCfg[A, C]:
        return config.in_env_steps(preset(*args, **kwargs))

    return converted
