"""`gym/ID`: any environment that `gymnasium.make` opens; see docs/sims/gymnasium.md."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import tyro
from gymnasium import Space

from robotrl.errors import ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.sims.gymnasium_sim.action_codec import ACTIONS, ActionCodec, Actions, action_codec
from robotrl.sims.gymnasium_sim.base import REWARDS, GymnasiumSim, Parts, RewardSource
from robotrl.sims.gymnasium_sim.env_factory import EnvRecipe, checked_kwargs, known_id, solved_return, wrappings
from robotrl.sims.gymnasium_sim.input_files import inputs_of
from robotrl.sims.gymnasium_sim.instructions import instruction_source
from robotrl.sims.gymnasium_sim.own_vector import OwnVectorEnv
from robotrl.sims.gymnasium_sim.per_env import sim_class
from robotrl.sims.gymnasium_sim.probing import probe, stated_dt_s
from robotrl.sims.gymnasium_sim.processes import METHODS, Method
from robotrl.sims.gymnasium_sim.spaces import Leaf, leaves
from robotrl.sims.gymnasium_sim.success import Judge, Over, SuccessSignal, signal_of
from robotrl.sims.gymnasium_sim.vector import AnyVectorEnv, Vectorization, make_batch, make_own
from robotrl.spec import INSTRUCTION, Input, TrainDefaults
from robotrl.spec.json_flag import JSON_FLAG
from robotrl.spec.sim_options import NOT_LOG_ONLY, UNPERTURBED, LogOnlyCfg, PerturbCfg


@dataclass(frozen=True)
class GymnasiumCfg:
    """Options of `gym/ID`."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {
            "sim.num_envs": 16,
            "policy.horizon": 1,
            "algo.critic_warmup_env_steps": 0,
            "algo.minibatch": 256,
            "algo.normalize_reward": True,
            "evaluation.score": "return",
            "evaluation.episodes": 32,
            "evaluation.num_envs": 16,
            "evaluation.animation": 0,
        }
    )
    env_id: Annotated[str, tyro.conf.Fixed]
    """Registered id, "Hopper-v5"; "module:ID" imports the module first."""
    vectorization: Vectorization = "sync"
    """Vectorization: "sync" steps the environments in turn in this process, "async" in a process each, "vector" uses
    the environment's own vector class."""
    processes: Method | None = None
    """Start method of the processes of "async"; None takes Python's default."""
    kwargs: Annotated[Mapping[str, Any] | None, JSON_FLAG] = None
    """Keyword arguments of the environment, as a JSON object."""
    limit_steps: int | None = None
    """Time limit of an episode in steps; None takes the one that the environment was registered with."""
    control_dt_s: float | None = None
    """Seconds between two actions; None asks the environment (`dt`, `control_timestep`, then `render_fps`). Where
    nobody states it, it stays unknown."""
    action_bound: float | None = None
    """Bound that replaces infinite bounds of a continuous action."""
    actions: Actions = "index"
    """Form of a categorical action (Discrete, MultiDiscrete, MultiBinary): "index" takes the number of a value
    for each element, "scores" a score for each value, the highest of which acts, for policies whose actions are
    continuous."""
    success: str = "auto"
    """Signal of success: "info:KEY" is a flag of `info`; "return>=X" a return of X or more, of the
    environment's own rewards; "survival" to reach the time limit; "termination" to end before it; "auto" takes
    `success` or `is_success` of `info` and, without them, "survival", which then counts as not stated."""
    success_over: Over = "last"
    """Rule over time: "last" asks for the signal at an episode's last step, "ever" at any of its steps."""
    reward: RewardSource = "env"
    """Reward: "env" is the environment's own; "success" is 1 at each step at which there is success, else 0."""
    end_at_success: bool = False
    """End an episode, terminated, at the first step at which there is success."""
    camera: bool | None = None
    """Pictures in the render mode "rgb_array"; None has them if a first one can be drawn on this machine."""
    wrapper: tuple[str, ...] | None = None
    """Wrappers "MODULE:CALLABLE", applied to each environment after `gymnasium.make`, the first innermost."""
    instruction: str | None = None
    """Instruction of each episode: a fixed text, "attribute:NAME" of the environment (a text, or a method
    without arguments that gives one) or "info:KEY" of what `reset` returns, read after each reset."""
    vocabulary: tuple[str, ...] | None = None
    """Words that may occur in instructions, or "@FILE"; None takes those of a fixed instruction."""
    longest: int | None = None
    """Number of words of the longest instruction; None takes those of a fixed one without `vocabulary`, else 24."""
    perturb: PerturbCfg = UNPERTURBED
    """Perturbations: places, looks, words, delay, noise, mass and friction; see docs/perturbations.md."""
    history: int = 1
    """Control steps whose observations a policy is given, the present one last, 1 to 100; see docs/history.md."""
    log_only: LogOnlyCfg = NOT_LOG_ONLY
    """Log-only mode: a budget of episodes from starts that nobody chooses; see docs/log-only.md."""

    def build(self, num_envs: int, seed: int) -> GymnasiumSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, an id that is unknown, spaces that no policy here can use, or a package
                that the environment needs and that is not installed.
            EnvironmentFault: the environment raised, or gave what its spaces do not allow.
        """
        signal = self._checked_signal()
        env_id, given = known_id(self.env_id), checked_kwargs(self.kwargs)
        asked = _Asked(
            env_id,
            num_envs,
            seed,
            given,
            self.limit_steps,
            self.control_dt_s,
            self.action_bound,
            self.actions,
            signal,
            self.reward,
        )
        if self.vectorization == "vector":
            self._check_own_vector(signal)
            return _make_vector(asked)
        instructions = instruction_source(self.instruction, self.vocabulary, self.longest)
        recipe = EnvRecipe(env_id, given, wrappings(self.wrapper), instructions, signal.keys)
        return _make_singles(asked, recipe, self.vectorization, self.processes, self.camera, self.end_at_success)

    def _checked_signal(self) -> SuccessSignal:
        """Check the options, and parse the success signal."""
        if self.vectorization not in ("sync", "async", "vector"):
            raise unknown("vectorization", str(self.vectorization), ("sync", "async", "vector"))
        if self.processes is not None and self.processes not in METHODS:
            raise unknown("processes", str(self.processes), METHODS)
        if self.limit_steps is not None:
            check_count("limit_steps", self.limit_steps, 1, 2**31 - 1)
        if self.control_dt_s is not None:
            check_number("control_dt_s", self.control_dt_s, 1e-6, 3600.0)
        if self.action_bound is not None:
            check_number("action_bound", self.action_bound, 1e-6, 1e30)
        _check_flag("end_at_success", self.end_at_success)
        _check_flag("camera", self.camera is not None and self.camera)
        if self.actions not in ACTIONS:
            raise unknown("actions", str(self.actions), ACTIONS)
        if self.reward not in REWARDS:
            raise unknown("reward", str(self.reward), REWARDS)
        signal = signal_of(self.success, self.success_over)
        if self.end_at_success and signal.kind in ("survival", "termination"):
            raise ConfigError(
                f"end_at_success is True and success is {self.success!r}: expected a signal that comes before the end,"
                " info:KEY or return>=X"
            )
        return signal

    def _check_own_vector(self, signal: SuccessSignal) -> None:
        """Check the options against vectorization "vector", which steps the environment's own vector class."""
        for name in ("wrapper", "instruction", "vocabulary", "longest"):
            value = vars(self)[name]
            if value is not None:
                raise out_of_range(name, value, "None with vectorization 'vector', or vectorization 'sync' or 'async'")
        if self.camera:
            raise ConfigError("camera is True: expected None or False with vectorization 'vector'")
        if self.end_at_success:
            raise ConfigError("end_at_success is True: expected False with vectorization 'vector', which resets itself")
        if self.reward == "success" and signal.kind == "auto":
            raise ConfigError(
                "reward is 'success' and success is 'auto': expected success=info:KEY or return>=X with vectorization"
                " 'vector', of which no first steps are tried"
            )

    def inputs(self) -> list[Input]:
        """Modules and files that the environment reads; see `HasInputs`."""
        return inputs_of(self.env_id, self.wrapper or (), self.vocabulary or (), self.kwargs)


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
    has_instruction = any(leaf.key == INSTRUCTION and leaf.spec.words for leaf in found)
    return sim_class(not seen.differs, seen.draws, has_instruction)(parts, asked.num_envs, asked.seed)


def _make_vector(asked: _Asked) -> OwnVectorEnv:
    limit = {} if asked.limit_steps is None else {"max_episode_steps": asked.limit_steps}
    env = make_own(asked.env_id, asked.num_envs, {**asked.kwargs, **limit})
    found, codec = asked.read(env.single_observation_space, env.single_action_space)
    reasons = {"HasStateIds": "starts are not numbered with vectorization 'vector'"}
    parts = asked.parts(env, found, codec, stated_dt_s(env), None, False, False, reasons=reasons)
    return OwnVectorEnv(parts, asked.num_envs, asked.seed)


def family(env_id: str) -> GymnasiumCfg:
    """`gym/ID`: any environment that `gymnasium.make` opens; the default options of one id.

    Raises:
        ConfigError: Gymnasium does not know the id; the message suggests the nearest one.
    """
    return GymnasiumCfg(known_id(env_id))
