"""`gym/ID`: the factory; see docs/sims/gymnasium.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any

from robotrl.errors import ConfigError, out_of_range, unknown
from robotrl.sims.gymnasium_sim.base import GymnasiumSim, Parts, SuccessRule
from robotrl.sims.gymnasium_sim.declared import inputs_of
from robotrl.sims.gymnasium_sim.making import Recipe, known_id, wrappings
from robotrl.sims.gymnasium_sim.own_vector import OwnVectorEnv
from robotrl.sims.gymnasium_sim.processes import METHODS, Method
from robotrl.sims.gymnasium_sim.singles import sim_class
from robotrl.sims.gymnasium_sim.spaces import action_codec, leaves
from robotrl.sims.gymnasium_sim.telling import telling_of
from robotrl.sims.gymnasium_sim.vector import Vectorization, make_batch, make_own, probe
from robotrl.spec import INSTRUCTION, declares

DEFAULT_DT_S = 0.05
"""Seconds between two actions of an environment that says nothing of time."""


def make(
    env_id: str,
    num_envs: int,
    seed: int,
    *,
    vectorization: Vectorization = "sync",
    processes: Method | None = None,
    kwargs: Mapping[str, Any] | None = None,
    limit_steps: int | None = None,
    control_dt_s: float | None = None,
    action_bound: float | None = None,
    success: SuccessRule = "auto",
    camera: bool | None = None,
    wrapper: str | Sequence[str] | None = None,
    instruction: str | None = None,
    vocabulary: str | Sequence[str] | None = None,
    longest: int | None = None,
) -> GymnasiumSim:
    """The batched sim of a registered Gymnasium environment.

    Args:
        env_id: its id, "Hopper-v5"; "module:ID" imports the module first.
        num_envs: N, 1 or more.
        seed: seeds which training starts are drawn.
        vectorization: "sync" steps the environments in turn in this process, "async" in a process each, "vector" uses
            the environment's own vector class.
        processes: how the processes of "async" start: "fork", "forkserver" or "spawn"; None is Python's own way.
        kwargs: keyword arguments of the environment.
        limit_steps: time limit of an episode in steps; None takes the one that the environment was registered with.
        control_dt_s: seconds between two actions; None asks the environment (`dt`, `control_timestep`, then
            `render_fps`), else 0.05.
        action_bound: stands in for infinite bounds of a continuous action.
        success: "auto" takes `success` or `is_success` of `info` and, without them, the rule "survival"; "survival" is
            to reach the time limit; "termination" is to end before it.
        camera: pictures in the render mode "rgb_array"; None has them if a first one can be drawn on this machine.
        wrapper: "MODULE:CALLABLE", applied to each environment after `gymnasium.make`; several with commas between
            them or as a list, the first innermost.
        instruction: what each episode is told to do: a fixed text, "attribute:NAME" of the environment (a text, or a
            method without arguments that gives one) or "info:KEY" of what `reset` returns, read after each reset.
        vocabulary: the words that may occur, as a text, a list or "@FILE"; None takes those of a fixed instruction.
        longest: words of the longest instruction; None takes those of a fixed one without `vocabulary`, else 24.

    Raises:
        ConfigError: a value out of range, an id that is unknown, spaces that no policy here can use, or a package that
            the environment needs and that is not installed.
        EnvironmentFault: the environment raised, or gave what its spaces do not allow.
    """
    if vectorization not in ("sync", "async", "vector"):
        raise unknown("vectorization", str(vectorization), ("sync", "async", "vector"))
    if success not in ("auto", "survival", "termination"):
        raise unknown("success", str(success), ("auto", "survival", "termination"))
    if processes is not None and processes not in METHODS:
        raise unknown("processes", str(processes), METHODS)
    for name, value in (("limit_steps", limit_steps), ("control_dt_s", control_dt_s), ("action_bound", action_bound)):
        if value is not None and not value > 0:
            raise out_of_range(name, value, "above 0")
    given = dict(kwargs or {})
    known_id(env_id)
    if vectorization == "vector":
        singly = {"wrapper": wrapper, "instruction": instruction, "vocabulary": vocabulary, "longest": longest}
        for name, value in singly.items():
            if value is not None:
                raise out_of_range(name, value, "None with vectorization 'vector', or vectorization 'sync' or 'async'")
        return _make_vector(env_id, num_envs, seed, given, limit_steps, control_dt_s, action_bound, success, camera)
    recipe = Recipe(env_id, given, wrappings(wrapper), telling_of(instruction, vocabulary, longest))
    seen = probe(recipe, pictures=camera is not False)
    if camera and not seen.draws:
        raise ConfigError(f"camera is True: sim 'gym/{env_id}' draws nothing here: {seen.no_picture}")
    found = leaves(seen.observation_space, structure=seen.structure)
    codec = action_codec(seen.action_space, action_bound)
    env = make_batch(recipe, num_envs, vectorization, processes, "rgb_array" if seen.draws else None)
    limit = limit_steps if limit_steps is not None else seen.limit_steps
    parts = Parts(env_id, env, found, codec, control_dt_s or seen.dt_s or DEFAULT_DT_S, limit, success)
    told = any(leaf.key == INSTRUCTION and leaf.spec.words for leaf in found)
    return sim_class(seen.repeats, seen.draws, told)(parts, num_envs, seed)


def _make_vector(
    env_id: str,
    num_envs: int,
    seed: int,
    kwargs: dict[str, Any],
    limit_steps: int | None,
    control_dt_s: float | None,
    action_bound: float | None,
    success: SuccessRule,
    camera: bool | None,
) -> OwnVectorEnv:
    if camera:
        raise ConfigError("camera is True: expected None or False with vectorization 'vector'")
    if limit_steps is not None:
        kwargs["max_episode_steps"] = limit_steps
    env = make_own(env_id, num_envs, kwargs)
    found = leaves(env.single_observation_space)
    codec = action_codec(env.single_action_space, action_bound)
    fps = env.metadata.get("render_fps")
    dt_s = control_dt_s or (1.0 / float(fps) if fps else DEFAULT_DT_S)
    return OwnVectorEnv(Parts(env_id, env, found, codec, dt_s, None, success), num_envs, seed)


def family(env_id: str) -> Callable[..., GymnasiumSim]:
    """The factory `make(num_envs, seed, **options)` of one id.

    Raises:
        ConfigError: Gymnasium does not know the id; the nearest one is given.
    """
    return declares(partial(inputs_of, env_id), update_wrapper(partial(make, known_id(env_id)), make))
