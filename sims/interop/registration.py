"""Our sims in Gymnasium's registry: `gymnasium.make("robotrl/peg-insert-v0")` and `gymnasium.make_vec`.

Gymnasium finds them once `robotrl.sims.interop` is imported, or by itself under
`"robotrl.sims.interop:robotrl/peg-insert-v0"`.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym

from robotrl.registry import SIMS, make_sim
from robotrl.sims.interop.views import GymnasiumEnv, GymnasiumVectorEnv

VERSION = 0
"""Rises when a sim changes so that results before and after do not compare."""
HERE = "robotrl.sims.interop.registration"


def gymnasium_id(sim: str) -> str:
    """The id of a sim of ours in Gymnasium's registry: "robotrl/peg-insert-v0" for "mujoco/peg-insert"."""
    return f"robotrl/{sim.rpartition('/')[2]}-v{VERSION}"


def register_all() -> None:
    """Register every row of `robotrl list sims` that is not registered yet."""
    for sim in SIMS.names():
        if gymnasium_id(sim) not in gym.registry:
            gym.register(
                gymnasium_id(sim),
                entry_point=f"{HERE}:make_single",
                vector_entry_point=f"{HERE}:make_vector",
                kwargs={"sim": sim},
            )


def make_single(sim: str, seed: int = 0, **options: Any) -> GymnasiumEnv:
    """One environment; the entry point of `gymnasium.make`.

    Args:
        sim: name of the sim.
        seed: of the sim, until `reset` gets another.
        options: those of `GymnasiumEnv` (render_mode, camera, width, height), and those of the sim.

    Raises:
        ConfigError: an option that neither takes, or a value out of range.
    """
    view, rest = _split(GymnasiumEnv, options)
    return GymnasiumEnv(make_sim(sim, 1, seed, **rest), **view)


def make_vector(sim: str, num_envs: int = 1, seed: int = 0, **options: Any) -> GymnasiumVectorEnv:
    """A vector environment with same-step autoreset; the vector entry point of `gymnasium.make_vec`.

    Args:
        sim: name of the sim.
        num_envs: N.
        seed: of the sim, until `reset` gets another.
        options: those of `GymnasiumVectorEnv`, and those of the sim.

    Raises:
        ConfigError: an option that neither takes, or a value out of range.
    """
    view, rest = _split(GymnasiumVectorEnv, options)
    return GymnasiumVectorEnv(make_sim(sim, num_envs, seed, **rest), **view)


def _split(view: type, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a view, and all others."""
    names = set(inspect.signature(view).parameters) - {"sim"}
    return (
        {name: value for name, value in options.items() if name in names},
        {name: value for name, value in options.items() if name not in names},
    )
