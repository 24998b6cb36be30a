"""Registers robotrl's sims with Gymnasium, for `gymnasium.make("robotrl/peg-insert-v0")` and `gymnasium.make_vec`.

Gymnasium knows the ids once `robotrl.sims.interop` is imported; the id
`"robotrl.sims.interop:robotrl/peg-insert-v0"` makes Gymnasium import it.
"""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym

from robotrl.registry import SIMS, make_sim
from robotrl.sims.interop.views import GymnasiumEnv, GymnasiumVectorEnv

VERSION = 0
"""Version suffix of the ids; increased when a sim changes so that results are no longer comparable."""
HERE = "robotrl.sims.interop.registration"


def gymnasium_id(sim: str) -> str:
    """Gymnasium id of a robotrl sim: "robotrl/peg-insert-v0" for "mujoco/peg-insert"."""
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
    """Make a single environment; entry point of `gymnasium.make`.

    Args:
        sim: name of the sim.
        seed: seed of the sim until `reset` sets another.
        options: options of `GymnasiumEnv` (render_mode, camera, width, height) and of the sim.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """
    view, rest = _split(GymnasiumEnv, options)
    return GymnasiumEnv(make_sim(sim, 1, seed, **rest), **view)


def make_vector(sim: str, num_envs: int = 1, seed: int = 0, **options: Any) -> GymnasiumVectorEnv:
    """Make a vector environment with same-step autoreset; vector entry point of `gymnasium.make_vec`.

    Args:
        sim: name of the sim.
        num_envs: number of envs N.
        seed: seed of the sim until `reset` sets another.
        options: options of `GymnasiumVectorEnv` and of the sim.

    Raises:
        ConfigError: an unknown option, or a value out of range.
    """
    view, rest = _split(GymnasiumVectorEnv, options)
    return GymnasiumVectorEnv(make_sim(sim, num_envs, seed, **rest), **view)


def _split(view: type, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of the Gymnasium wrapper class and those of the sim."""
    names = set(inspect.signature(view).parameters) - {"sim"}
    return (
        {name: value for name, value in options.items() if name in names},
        {name: value for name, value in options.items() if name not in names},
    )
