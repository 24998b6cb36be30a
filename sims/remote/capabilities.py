"""Capabilities of remote sims: a class has exactly those that its environment declares in the handshake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import check_at_least, out_of_range, unknown
from robotrl.sims import starts
from robotrl.sims.exact_state import check_state
from robotrl.sims.remote.description import EnvDescription
from robotrl.sims.remote.expert import RemoteExpert, StatefulExpert
from robotrl.sims.remote.pool import WorkerPool
from robotrl.sims.remote.sim import Ids, RemoteSim, check_split
from robotrl.spec import Split

State = dict[str, NDArray[Any]]


class _Asks(RemoteSim):
    def constant(self, name: str) -> Any:
        """An attribute that the environment stated in the handshake."""
        return self._description.constants[name]

    def gathered(self, name: str) -> NDArray[Any]:
        """Array (N, ...) of all workers."""
        return np.concatenate([np.asarray(self.ask_worker(number, name)) for number in self._all_workers])

    def dealt(self, ids: Sequence[int] | Ids) -> Iterator[tuple[int, Ids, NDArray[np.bool_]]]:
        """Workers that have some of the envs `ids`: number, their own env numbers, and where they are in `ids`."""
        wanted = np.asarray(ids, np.int64).reshape(-1)
        if ((wanted < 0) | (wanted >= self.num_envs)).any():
            raise out_of_range("ids", wanted.tolist(), f"env numbers from 0 to {self.num_envs - 1}")
        for number, (first, end) in enumerate(self.pool.rows):
            here = (wanted >= first) & (wanted < end)
            if here.any():
                yield number, wanted[here] - first, here


class _FinalObs(_Asks):
    has_final_obs: Literal[True] = True


class _StateIds(_Asks):
    def state_ids(self, split: Split) -> range:
        """Start ids of a split.

        Raises:
            ConfigError: unknown split.
        """
        return starts.ids_of(split)

    def queue_states(self, ids: Sequence[int] | Ids) -> None:
        """Queue start ids for the next restarts, in order; after the last one, training ids are drawn again.

        Raises:
            ConfigError: an id outside all splits.
        """
        self._window.put(starts.queue_of(ids))


class _Restart(_Asks):
    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) between two steps; returns the observations of all envs."""
        chosen = np.sort(envs.cpu().numpy().astype(np.int64))
        self._running[chosen] = self._window.take(len(chosen))
        self._steps[chosen] = 0
        for number in self._begin(chosen):
            first, end = self.pool.rows[number]
            last = {key: value[first:end].copy() for key, value in self._banks[self._bank].items()}
            self._revive(number)
            self._lost_before.setdefault(number, last)
        return dict(self._tensor_banks[self._bank])


class _State(_Asks):
    def get_state(self) -> State:
        """Exact state: of the workers' environments, and of the starts, which the trainer deals out."""
        parts = {
            f"worker{number}/{key}": value
            for number in self._all_workers
            for key, value in self.ask_worker(number, "get_state").items()
        }
        return self._own_state() | parts

    def _own_state(self) -> State:
        own = {"running": self._running.copy(), "steps": self._steps.copy(), **self._window.state()}
        return {f"remote/{key}": value for key, value in own.items()}

    def set_state(self, state: State) -> dict[str, Tensor]:
        """Restore what `get_state` returned.

        Raises:
            ConfigError: it is of another sim, number of envs or number of workers.
        """
        check_state(state, self.get_state())
        self._lost_before.clear()
        own = {key.removeprefix("remote/"): value for key, value in state.items() if key.startswith("remote/")}
        self._running[:], self._steps[:] = own["running"], own["steps"]
        self._window.load(own)
        for number in self._all_workers:
            prefix = f"worker{number}/"
            mine = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            self.ask_worker(number, "set_state", arrays=mine)
        self._restored()
        return dict(self._tensor_banks[self._bank])


class _Camera(_Asks):
    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of views."""
        return self.constant("cameras")

    def render(self, ids: Sequence[int], camera: str, width: int, height: int, **options: Any) -> NDArray[np.uint8]:
        """Pictures (n, height, width, 3) of some envs.

        Raises:
            ConfigError: unknown camera, an env that does not exist, or a size below 1.
        """
        if camera not in self.cameras:
            raise unknown("camera", camera, self.cameras)
        for name, value in (("width", width), ("height", height)):
            check_at_least(name, value, 1)
        out = np.zeros((len(ids), height, width, 3), np.uint8)
        given = {"camera": camera, "width": width, "height": height, **options}
        for number, mine, here in self.dealt(ids):
            found = self.ask_worker(number, "render", {"ids": mine.tolist(), **given})
            if found.shape != (len(mine), *out.shape[1:]) or found.dtype != np.uint8:
                raise out_of_range(
                    f"{self.name}: a picture of camera {camera!r}",
                    f"{found.dtype} {found.shape}",
                    f"uint8 {(len(mine), *out.shape[1:])}",
                )
            out[here] = found
        return out


class _PictureSize(_Asks):
    def picture_size(self, camera: str) -> tuple[int, int]:
        """Native width and height, pixels.

        Raises:
            ConfigError: unknown camera.
        """
        if camera not in self.constant("cameras"):
            raise unknown("camera", camera, self.constant("cameras"))
        width, height = self.ask_worker(0, "picture_size", {"camera": camera})
        return int(width), int(height)


class _Params(_Asks):
    @property
    def params(self) -> tuple[str, ...]:
        """Names of parameters."""
        return self.constant("params")

    def get_params(self) -> State:
        """Values (N,) in force."""
        found = [self.ask_worker(number, "get_params") for number in self._all_workers]
        return {key: np.concatenate([part[key] for part in found]) for key in self.params}

    def set_params(self, ids: Sequence[int] | Ids, values: Mapping[str, NDArray[Any]]) -> None:
        """Set parameters of the envs `ids`; a worker that takes the place of a lost one is told them again.

        Raises:
            ConfigError: an unknown name, an impossible value, or an env that does not exist.
        """
        for name in values:
            if name not in self.params:
                raise unknown("parameter", name, self.params)
        columns = {name: np.broadcast_to(np.asarray(value), (len(ids),)) for name, value in values.items()}
        for number, mine, here in self.dealt(ids):
            arrays = {name: column[here] for name, column in columns.items()}
            self.ask_worker(number, "set_params", {"ids": mine.tolist()}, arrays)
        for name, column in columns.items():
            known = self.set_before.setdefault(name, np.full(self.num_envs, np.nan))
            known[np.asarray(ids, np.int64)] = column

    def _restored(self) -> None:
        self.set_before = {name: value.astype(np.float64) for name, value in self.get_params().items()}

    def _renewed(self, number: int) -> None:
        first, end = self.pool.rows[number]
        for name, known in self.set_before.items():
            (mine,) = np.isfinite(known[first:end]).nonzero()
            if len(mine):
                self.pool.call(number, "set_params", {"ids": mine.tolist()}, {name: known[first:end][mine]})


class _Distance(_Asks):
    def distance(self) -> Tensor:
        """Distance (N,) from success."""
        return torch.from_numpy(self.gathered("distance"))


class _Instructions(_Asks):
    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Words by number."""
        return self.constant("vocabulary")

    def instructions(self) -> list[str]:
        """Instruction (N) of each env's running episode."""
        return [text for number in self._all_workers for text in self.ask_worker(number, "instructions")]


class _Scenarios(_Asks):
    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of scenarios."""
        return self.constant("scenarios")

    def scenario_of(self, state_id: int) -> str:
        """Scenario of a start id."""
        return str(self.ask_worker(0, "scenario_of", {"state_id": int(state_id)}))


class _Expert(_Asks):
    def make_expert(
        self, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> RemoteExpert:
        """Make a scripted expert in each worker.

        Raises:
            ConfigError: a value out of range, or an unknown mode.
        """
        given = {"noise": noise, "episode_noise": episode_noise, "mode": mode, "seed": seed}
        expert = RemoteExpert(self, given)
        return StatefulExpert(self, given) if expert.has_state else expert


class _Captions(_Asks):
    @property
    def caption_topics(self) -> Any:
        """Topics of captions."""
        return self.constant("caption_topics")

    @property
    def caption_camera(self) -> str:
        """Camera on whose pictures captions can be read."""
        return self.constant("caption_camera")

    def caption_classes(self) -> NDArray[Any]:
        """Class numbers (N, topics) of the present scenes."""
        return self.gathered("caption_classes")


class _ActionCaptions(_Asks):
    @property
    def action_captions(self) -> Any:
        """Anchor actions in words."""
        return self.constant("action_captions")

    def action_contexts(self) -> NDArray[Any]:
        """Numbers (N, contexts) that the context of an action depends on."""
        return self.gathered("action_contexts")


class _TimeLimit(_Asks):
    @property
    def limit_steps(self) -> int | None:
        """Time limit of an episode, control steps."""
        return self.constant("limit_steps")

    def elapsed_steps(self) -> Tensor:
        """Steps (N,) int64 of each running episode."""
        return torch.from_numpy(self.gathered("elapsed_steps").astype(np.int64))


class _TimeToCollision(_Asks):
    def time_to_collision_s(self) -> NDArray[Any]:
        """Time (N,) to the ego's next collision, s."""
        return self.gathered("time_to_collision_s")


class _TimeToCollisionAhead(_Asks):
    def time_to_collision_ahead_s(self) -> NDArray[Any]:
        """Time (N,) to the ego's next collision with somebody who is not behind it, s."""
        return self.gathered("time_to_collision_ahead_s")


class _PlanFrame(_Asks):
    def plan_frame(self) -> NDArray[Any]:
        """Pose and speed (N, 4) of the egos."""
        return self.gathered("plan_frame")


class _ProgressRatio(_Asks):
    def progress_ratio(self) -> NDArray[Any]:
        """Progress (N,) over the reference's."""
        return self.gathered("progress_ratio")


def _constant_part(name: str) -> type[_Asks]:
    return type(f"_{name}", (_Asks,), {name: property(lambda self: self.constant(name))})


def _parts(found: EnvDescription) -> Iterator[type[_Asks]]:
    """Parts of the class for a description."""
    methods, constants = found.methods, found.constants
    wanted: dict[type[_Asks], bool] = {
        _FinalObs: found.final_obs,
        _StateIds: found.starts != "own",
        _Restart: found.starts != "own" and found.single_start,
        _State: {"get_state", "set_state"} <= methods,
        _Camera: "render" in methods and "cameras" in constants,
        _PictureSize: "picture_size" in methods and "cameras" in constants,
        _Params: {"get_params", "set_params"} <= methods and "params" in constants,
        _Distance: "distance" in methods,
        _Instructions: "instructions" in methods and "vocabulary" in constants,
        _Scenarios: "scenario_of" in methods and "scenarios" in constants,
        _Expert: "make_expert" in methods,
        _Captions: "caption_classes" in methods and {"caption_topics", "caption_camera"} <= set(constants),
        _ActionCaptions: "action_contexts" in methods and "action_captions" in constants,
        _TimeLimit: "elapsed_steps" in methods and "limit_steps" in constants,
        _TimeToCollision: "time_to_collision_s" in methods,
        _TimeToCollisionAhead: "time_to_collision_ahead_s" in methods,
        _PlanFrame: "plan_frame" in methods,
        _ProgressRatio: "progress_ratio" in methods,
    }
    yield from (part for part, has in wanted.items() if has)
    for name in (
        "privileged",
        "grounding_keys",
        "success_rule",
        "solved_return",
        "vehicle_obs",
        "trajectory_dt_s",
        "reasons",
    ):
        if name in constants:
            yield _constant_part(name)


def sim_of(name: str, pool: WorkerPool, found: EnvDescription, num_envs: int, seed: int) -> RemoteSim:
    """Make the sim of a pool of workers, with the capabilities that their environment declares.

    Raises:
        RobotrlError: the environment cannot be dealt to several workers, or a worker was lost.
    """
    check_split(name, found, len(pool.rows))
    cls = type(RemoteSim.__name__, (*_parts(found), RemoteSim), {})
    return cls(name, pool, found, num_envs, seed)
