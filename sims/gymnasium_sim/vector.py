"""Creates vector environments: batches of single environments, or an environment's own vector class.

Batches of single environments (`make_batch`) run with Gymnasium's autoreset disabled: the sim resets each row with its
own seed. An environment's own vector class (`make_own`) keeps its autoreset mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from robotrl.errors import ConfigError
from robotrl.sims.gymnasium_sim.env_factory import EnvRecipe, bare, make_single, making
from robotrl.sims.gymnasium_sim.processes import Method, make_processes
from robotrl.sims.gymnasium_sim.validation import Spaces, ValidatedEnv

AnyVectorEnv = VectorEnv[Any, Any, Any]
Vectorization = Literal["sync", "async", "vector"]


def make_batch(
    recipe: EnvRecipe,
    spaces: Spaces,
    num_envs: int,
    vectorization: Literal["sync", "async"],
    method: Method | None,
    render_mode: str | None,
) -> AnyVectorEnv:
    """Make a Gymnasium vector environment of `num_envs` single environments, in this process or one process each.

    Ended rows wait for `reset(options={"reset_mask": ...})`. All rows must have the spaces `spaces`; `method` is the
    start method of the processes.
    """

    def one(row: int) -> gym.Env[Any, Any]:
        return ValidatedEnv(make_single(recipe, render_mode), recipe, row, spaces)

    makers = [partial(one, row) for row in range(num_envs)]
    if vectorization == "sync":
        return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
    return make_processes(recipe.env_id, makers, method)


def make_own(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> AnyVectorEnv:
    """Make an environment with its own vector class.

    Raises:
        ConfigError: it has none, a package is missing, or its autoreset mode is unknown.
        EnvironmentFault: creating it raised any other exception.
    """
    if gym.spec(bare(env_id)).vector_entry_point is None:
        raise ConfigError(
            f"sim 'gym/{env_id}' has no vector class of its own: expected vectorization 'sync' or 'async'"
        )
    with making(env_id, kwargs):
        env = gym.make_vec(env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    if not isinstance(env.metadata.get("autoreset_mode"), AutoresetMode):
        raise ConfigError(
            f"sim 'gym/{env_id}': its vector class does not say its autoreset mode (metadata['autoreset_mode']):"
            " expected vectorization 'sync' or 'async'"
        )
    return env
