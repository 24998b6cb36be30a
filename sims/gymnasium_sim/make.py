"""`gym/ID`: any environment that `gymnasium.make` opens; see docs/sims/gymnasium.md."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any, Literal, NamedTuple

from gymnasium import Space

from robotrl.errors import ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.sims.gymnasium_sim.action_codec import ACTIONS, ActionCodec, Actions, action_codec
from robotrl.sims.gymnasium_sim.base import REWARDS, GymnasiumSim, Parts, RewardSource
from robotrl.sims.gymnasium_sim.input_files import inputs_of
from robotrl.sims.gymnasium_sim.making import EnvRecipe, checked_kwargs, known_id, solved_return, wrappings
from robotrl.sims.gymnasium_sim.own_vector import OwnVectorEnv
from robotrl.sims.gymnasium_sim.probing import probe, stated_dt_s
from robotrl.sims.gymnasium_sim.processes import METHODS, Method
from robotrl.sims.gymnasium_sim.singles import sim_class
from robotrl.sims.gymnasium_sim.spaces import Leaf, leaves
from robotrl.sims.gymnasium_sim.success import Judge, Over, SuccessSignal, signal_of
from robotrl.sims.gymnasium_sim.telling import telling_of
from robotrl.sims.gymnasium_sim.vector import AnyVectorEnv, Vectorization, make_batch, make_own
from robotrl.spec import INSTRUCTION, declares


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
    actions: Actions = "index",
    success: str = "auto",
    success_over: Over = "last",
    reward: RewardSource = "env",
    end_at_success: bool = False,
    camera: bool | None = None,
    wrapper: str | Sequence[str] | None = None,
    instruction: str | None = None,
    vocabulary: str | Sequence[str] | None = None,
    longest: int | None = None,
) -> GymnasiumSim:
    """Make the batched sim of a registered Gymnasium environment.

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
            `render_fps`). Where nobody states it, it stays unknown.
        action_bound: stands in for infinite bounds of a continuous action.
        actions: the form of a categorical action (Discrete, MultiDiscrete, MultiBinary): "index" takes the number of a
            value for each element, "scores" a score for each value, the highest of which acts, for policies whose
            actions are continuous.
        success: the signal of success: "info:KEY" is a flag of `info`; "return>=X" a return of X or more, of the
            environment's own rewards; "survival" to reach the time limit; "termination" to end before it; "auto" takes
            `success` or `is_success` of `info` and, without them, "survival", which then counts as not stated.
        success_over: the rule over time: "last" asks for the signal at an episode's last step, "ever" at any of its
            steps.
        reward: "env" is the environment's own; "success" is 1 at each step at which there is success, else 0.
        end_at_success: an episode ends, terminated, at the first step at which there is success.
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
    if processes is not None and processes not in METHODS:
        raise unknown("processes", str(processes), METHODS)
    if limit_steps is not None:
        check_count("limit_steps", limit_steps, 1, 2**31 - 1)
    for name, value, highest in (("control_dt_s", control_dt_s, 3600.0), ("action_bound", action_bound, 1e30)):
        if value is not None:
            check_number(name, value, 1e-6, highest)
    _check_flag("end_at_success", end_at_success)
    _check_flag("camera", camera is not None and camera)
    if actions not in ACTIONS:
        raise unknown("actions", str(actions), ACTIONS)
    if reward not in REWARDS:
        raise unknown("reward", str(reward), REWARDS)
    signal = signal_of(success, success_over)
    if end_at_success and signal.kind in ("survival", "termination"):
        raise ConfigError(
            f"end_at_success is True and success is {success!r}: expected a signal that comes before the end, info:KEY"
            " or return>=X"
        )
    env_id, given = known_id(env_id), checked_kwargs(kwargs)
    asked = _Asked(env_id, num_envs, seed, given, limit_steps, control_dt_s, action_bound, actions, signal, reward)
    if vectorization == "vector":
        singly = {"wrapper": wrapper, "instruction": instruction, "vocabulary": vocabulary, "longest": longest}
        for name, value in singly.items():
            if value is not None:
                raise out_of_range(name, value, "None with vectorization 'vector', or vectorization 'sync' or 'async'")
        if camera:
            raise ConfigError("camera is True: expected None or False with vectorization 'vector'")
        if end_at_success:
            raise ConfigError("end_at_success is True: expected False with vectorization 'vector', which resets itself")
        if reward == "success" and signal.kind == "auto":
            raise ConfigError(
                "reward is 'success' and success is 'auto': expected success=info:KEY or return>=X with vectorization"
                " 'vector', of which no first steps are tried"
            )
        return _make_vector(asked)
    recipe = EnvRecipe(env_id, given, wrappings(wrapper), telling_of(instruction, vocabulary, longest), signal.keys)
    return _make_singles(asked, recipe, vectorization, processes, camera, end_at_success)


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise out_of_range(name, value, "true or false")


class _Asked(NamedTuple):
    """Validated options of `make` that do not depend on the vectorization."""

    env_id: str
    num_envs: int
    seed: int
    kwargs: dict[str, Any]
    limit_steps: int | None
    control_dt_s: float | None
    action_bound: float | None
    actions: Actions
    signal: SuccessSignal
    reward: RewardSource

    def parts(
        self,
        env: AnyVectorEnv,
        found: tuple[Leaf, ...],
        codec: ActionCodec,
        dt_s: float | None,
        limit_steps: int | None,
        end_at_success: bool,
        stated: bool,
        info_keys: Sequence[str] = (),
        reasons: Mapping[str, str] | None = None,
    ) -> Parts:
        judge = Judge(self.signal, self.num_envs, f"gym/{self.env_id}", stated, info_keys)
        dt_s = self.control_dt_s or dt_s
        return Parts(
            self.env_id, env, found, codec, dt_s, limit_steps, judge, self.reward, end_at_success, reasons or {}
        )

    def read(
        self, observation: Space[Any], action: Space[Any], structure: Mapping[str, int] | None = None
    ) -> tuple[tuple[Leaf, ...], ActionCodec]:
        """Convert the spaces to array specs, with a warning for each lossy conversion.

        Raises:
            ConfigError: an unsupported space; the message names the sim.
        """
        try:
            found = leaves(observation, structure=structure)
            codec = action_codec(action, self.action_bound, self.actions)
        except ConfigError as error:
            raise ConfigError(f"sim 'gym/{self.env_id}': {error}") from error
        for note in (*(leaf.note for leaf in found), codec.note):
            if note:
                warnings.warn(f"sim 'gym/{self.env_id}': {note}", stacklevel=5)
        return found, codec


def _make_singles(
    asked: _Asked,
    recipe: EnvRecipe,
    vectorization: Literal["sync", "async"],
    processes: Method | None,
    camera: bool | None,
    end_at_success: bool,
) -> GymnasiumSim:
    env_id, signal = asked.env_id, asked.signal
    seen = probe(recipe, pictures=camera is not False)
    if camera and not seen.draws:
        raise ConfigError(f"sim 'gym/{env_id}' draws nothing here (camera is True): {seen.no_picture}")
    if signal.kind == "auto" and not seen.states_success and (asked.reward == "success" or end_at_success):
        what = "end_at_success is True" if end_at_success else "reward is 'success'"
        raise ConfigError(
            f"{what} and success is 'auto': sim 'gym/{env_id}' states no success in the first steps of an episode (info"
            f" has {', '.join(seen.info_keys) or 'nothing'}): expected success=info:KEY or return>=X"
        )
    found, codec = asked.read(seen.observation_space, seen.spaces.action, seen.structure)
    env = make_batch(recipe, seen.spaces, asked.num_envs, vectorization, processes, "rgb_array" if seen.draws else None)
    limit = asked.limit_steps if asked.limit_steps is not None else seen.limit_steps
    reasons = {}
    if seen.differs:
        reasons["HasStateIds"] = (
            f"gym/{env_id} was run twice from one seed under the same actions and differed: {seen.differs}"
        )
    parts = asked.parts(
        env, found, codec, seen.dt_s, limit, end_at_success, seen.states_success, seen.info_keys, reasons
    )
    # the registered threshold holds for the unmodified environment only: same length, settings, wrappers and reward
    if asked.limit_steps is None and not asked.kwargs and not recipe.wrappers and asked.reward == "env":
        parts = parts._replace(solved_return=None if end_at_success else solved_return(env_id))
    told = any(leaf.key == INSTRUCTION and leaf.spec.words for leaf in found)
    return sim_class(not seen.differs, seen.draws, told)(parts, asked.num_envs, asked.seed)


def _make_vector(asked: _Asked) -> OwnVectorEnv:
    limit = {} if asked.limit_steps is None else {"max_episode_steps": asked.limit_steps}
    env = make_own(asked.env_id, asked.num_envs, {**asked.kwargs, **limit})
    found, codec = asked.read(env.single_observation_space, env.single_action_space)
    reasons = {"HasStateIds": "starts are not numbered with vectorization 'vector'"}
    parts = asked.parts(env, found, codec, stated_dt_s(env), None, False, False, reasons=reasons)
    return OwnVectorEnv(parts, asked.num_envs, asked.seed)


def family(env_id: str) -> Callable[..., GymnasiumSim]:
    """Factory `make(num_envs, seed, **options)` for one environment id.

    Raises:
        ConfigError: Gymnasium does not know the id; the message suggests the nearest one.
    """
    return declares(partial(inputs_of, env_id), update_wrapper(partial(make, known_id(env_id)), make))
