"""Batches of Gymnasium environments whose rows are restarted by the caller, and whose faults are named.

Rows of single environments (`make_batch`) run with Gymnasium's autoreset off: the sim above restarts the rows that it
chooses, each with a seed of its own. An environment's own vector class (`make_own`) keeps its autoreset.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from robotrl.errors import ConfigError
from robotrl.sims.gymnasium_sim.making import EnvRecipe, bare, make_single, making
from robotrl.sims.gymnasium_sim.processes import Method, make_processes
from robotrl.sims.gymnasium_sim.watched import Spaces, Watched

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
    """`num_envs` single environments as Gymnasium's vector environment, in this process or in one process each.

    Rows that ended wait for `reset(options={"reset_mask": ...})`. `spaces` are those that every row must have, and
    `method` is how processes start.
    """

    def one(row: int) -> gym.Env[Any, Any]:
        return Watched(make_single(recipe, render_mode), recipe, row, spaces)

    makers = [partial(one, row) for row in range(num_envs)]
    if vectorization == "sync":
        return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
    return make_processes(recipe.env_id, makers, method)


def make_own(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> AnyVectorEnv:
    """The environment's own vector class.

    Raises:
        ConfigError: it has none, it needs a missing package, or its autoreset mode is unknown.
        EnvironmentFault: making it raised anything else.
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
