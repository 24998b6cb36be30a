"""Records the episodes of a loop of one's own as a dataset."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

import robotrl
from robotrl.datasets.writer import DatasetWriter, PictureStorage
from robotrl.errors import ConfigError, NumericsError, nearest
from robotrl.rollout.demos import integer_rate_hz
from robotrl.spec import Spec, VecSim

if TYPE_CHECKING:
    import gymnasium

Row = dict[str, NDArray[Any]]


@runtime_checkable
class HasSpecs(Protocol):
    """A sim or robot that states its observations and actions."""

    observation_spec: Mapping[str, Spec]
    action_spec: Spec


class Specs(NamedTuple):
    """Observations and actions of a robot or simulator that is neither a sim nor a Gymnasium environment."""

    observation_spec: Mapping[str, Spec]
    action_spec: Spec


class Recorder:
    """Records the episodes of your own loop as a dataset in the LeRobot v3 layout.

        with robotrl.Recorder("demos", env) as recorder:
            for episode in range(20):
                recorder.start()
                ...
                recorder.step(obs, action, reward)  # the observation that the action answers, before env.step
                ...
                recorder.end(success=True)

    The dataset is written when the block ends, with every episode that was ended, whatever ended the block; an episode
    under way is dropped, with a warning. Without an ended episode nothing is written.

    Args:
        path: the dataset's directory; absent or empty.
        env: a `gymnasium.Env`, whose arrays get the names that the sim `gym/ID` gives them, or a sim, or `Specs`.
        fps: control rate in Hz, a whole number; None takes what the environment states.
        task: the instruction as text, for episodes that `start` names none for; by default the environment's name.
        pictures: storage of image observations; see `DatasetWriter`.
        provenance: further JSON values on the data's origin.

    Raises:
        ConfigError: `path` is not empty, spaces that are not supported, or a rate that is unknown or not whole.
    """

    def __init__(
        self,
        path: Path | str,
        env: gymnasium.Env[Any, Any] | HasSpecs | Specs,
        fps: int | None = None,
        *,
        task: str | None = None,
        pictures: PictureStorage = "numbers",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        source = _source_of(env)
        self._observed, self._acted = source.observed, source.acted
        self._specs = source.specs
        self._task = task or source.name.split("/")[-1].replace("-", " ")
        self._writer = DatasetWriter(
            path,
            fps=integer_rate_hz(source.dt_s, "fps, in Hz") if fps is None else fps,
            observation_spec=source.specs.observation_spec,
            action_spec=source.specs.action_spec,
            robot_type=source.name,
            provenance={
                "sim": source.name,
                "recorded_by": "robotrl.Recorder",
                "robotrl": robotrl.__version__,
                **(provenance or {}),
            },
            pictures=pictures,
        )
        self.path = self._writer.root
        self._episode: _Tape | None = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not self.num_episodes:
            self._drop()
            self._writer.abort()
            return
        self.close()
        if kind is not None:
            print(f"{self.path}: the {self.num_episodes} episodes that were ended are written", file=sys.stderr)

    @property
    def num_episodes(self) -> int:
        """Episodes ended so far."""
        return self._writer.num_episodes

    def start(self, task: str | None = None) -> None:
        """Begin an episode.

        Args:
            task: its instruction; None takes the recorder's.

        Raises:
            ConfigError: the last episode was not ended.
        """
        if self._episode is not None:
            raise ConfigError(
                f"start() in an episode of {len(self._episode.actions)} steps: expected end(success=...) or discard()"
                " first"
            )
        self._episode = _Tape(task or self._task, [], [], [])

    def step(self, obs: Any, action: Any, reward: float = 0.0) -> None:
        """Record one step; everything is copied.

        Args:
            obs: observation that the action answers, i.e. the one before `env.step(action)`, as the environment gave
                it, or arrays by key.
            action: as the environment takes it.
            reward: that the action led to.

        Raises:
            ConfigError: no episode was begun, or an array of another shape.
            NumericsError: a number is not finite.
        """
        tape = self._running("step")
        where = f"step {len(tape.actions)} of episode {self.num_episodes}"
        specs = self._specs
        try:
            given, acted = self._observed(obs), self._acted(action)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            raise ConfigError(
                f"{where}: obs or action does not fit the environment's spaces: {type(error).__name__}: {text}"
            ) from error
        for key in given:
            if key not in specs.observation_spec:
                close = nearest(key, specs.observation_spec)
                hint = f"did you mean {close!r}? " if close else ""
                raise ConfigError(f"{where}: obs {key!r} is unknown: {hint}known: {', '.join(specs.observation_spec)}")
        for key, spec in specs.observation_spec.items():
            if key not in given:
                raise ConfigError(f"{where}: obs {key!r} is missing: expected {', '.join(specs.observation_spec)}")
            given[key] = _checked(f"{where}: obs {key!r}", given[key], spec)
        acted = _checked(f"{where}: action", acted, specs.action_spec)
        if not np.isfinite(reward):
            raise NumericsError(f"{where}: reward is {reward}: expected a finite number")
        tape.obs.append(given)
        tape.actions.append(acted)
        tape.rewards.append(float(reward))

    def end(self, *, success: bool, truncated: bool = False) -> None:
        """End the episode and add it to the dataset.

        Args:
            success: whether its last action solved the task.
            truncated: whether a time limit cut it.

        Raises:
            ConfigError: no episode was begun, or it has no steps.
            DataError: the disk is full; nothing is left of the dataset.
        """
        tape = self._running("end")
        if not tape.actions:
            raise ConfigError("end() in an episode of 0 steps: expected step(obs, action, reward) first")
        self._episode = None
        self._writer.add_episode(
            {key: np.stack([row[key] for row in tape.obs]) for key in self._specs.observation_spec},
            np.stack(tape.actions),
            np.array(tape.rewards, np.float32),
            success=bool(success),
            truncated=bool(truncated),
            task=tape.task,
        )

    def discard(self) -> None:
        """Drop the episode under way, if there is one."""
        self._episode = None

    def close(self) -> Path:
        """Write the dataset; the end of the `with` block calls it.

        Raises:
            ConfigError: no episode was ended.
            DataError: the disk is full; nothing is left of the dataset.
        """
        self._drop()
        try:
            return self._writer.finish()
        finally:
            self._writer.abort()

    def _running(self, method: str) -> _Tape:
        if self._episode is None:
            raise ConfigError(f"{method}() without an episode: expected start() first")
        return self._episode

    def _drop(self) -> None:
        if self._episode is not None and self._episode.actions:
            warnings.warn(
                f"recorder {self.path}: the episode under way was not ended: its {len(self._episode.actions)} steps are"
                " dropped",
                stacklevel=3,
            )
        self._episode = None


class _Tape(NamedTuple):
    task: str
    obs: list[Row]
    actions: list[NDArray[np.float32]]
    rewards: list[float]


class _Source(NamedTuple):
    """Specs of what is recorded, and the way to them from what the user's loop holds."""

    name: str
    specs: Specs
    dt_s: float | None
    observed: Callable[[Any], Row]
    acted: Callable[[Any], NDArray[Any]]


def _source_of(env: Any) -> _Source:
    if isinstance(env, HasSpecs):
        specs = Specs(dict(env.observation_spec), env.action_spec)
        dt_s = env.control_dt_s if isinstance(env, VecSim) else None
        return _Source(type(env).__name__, specs, dt_s, lambda obs: _by_key(obs, specs), _array)
    from robotrl.sims.gymnasium_sim.probing import interface_of, is_env

    if not is_env(env):
        raise ConfigError(
            f"env is a {type(env).__name__}: expected a gymnasium.Env, a sim, or Specs(observation_spec, action_spec)"
        )
    interface = interface_of(env)
    specs = Specs({leaf.key: leaf.spec for leaf in interface.leaves}, interface.codec.spec)
    return _Source(interface.name, specs, interface.dt_s, interface.observed, interface.acted)


def _by_key(obs: Any, specs: Specs) -> Row:
    """Arrays by key; an array alone is the only observation that there is."""
    if isinstance(obs, Mapping):
        given: Any = obs
        return {str(key): _array(value) for key, value in given.items()}
    if len(specs.observation_spec) > 1:
        raise TypeError(f"a {type(obs).__name__}, expected arrays by key: {', '.join(specs.observation_spec)}")
    return {next(iter(specs.observation_spec)): _array(obs)}


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value)


def _checked(what: str, value: NDArray[Any], spec: Spec) -> NDArray[Any]:
    """A copy of an array, without a batch axis of one env, after a check of its shape and numbers."""
    row = value[0] if value.shape == (1, *spec.shape) else value
    if row.shape != spec.shape or row.dtype.kind not in "fiub":
        raise ConfigError(f"{what} is {row.dtype} of shape {row.shape}: expected numbers of shape {spec.shape}")
    if not np.isfinite(row).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(row))[0])
        name = spec.names[place[-1]] if place else spec.names[0]
        raise NumericsError(f"{what}: {name!r} is {row[place]}: expected a finite number")
    return row.astype(spec.dtype)
