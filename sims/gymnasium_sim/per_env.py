"""Adapter for batches of single Gymnasium environments: the sim resets each row with its own seed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, check_at_least, out_of_range, unknown
from robotrl.sims import starts
from robotrl.sims.gymnasium_sim.base import GymnasiumSim, Obs, Parts, step_of, tensors
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault
from robotrl.sims.gymnasium_sim.pictures import fault_of, scaled
from robotrl.sims.gymnasium_sim.success import Flags
from robotrl.sims.gymnasium_sim.words import said
from robotrl.spec import INSTRUCTION, Split, Step, why_lacking

RESET_OPTIONS = ("state_ids", "stagger")


class SingleEnvs(GymnasiumSim):
    """Batch of single environments; the sim resets each row with its own seed.

    Start ids are the seeds passed to `reset`, drawn from a random sequence of the sim's seed. This class does not
    report them, since the environment may not be deterministic; see `NumberedEnvs`.
    """

    def __init__(self, parts: Parts, num_envs: int, seed: int) -> None:
        super().__init__(parts, num_envs, seed)
        self._starts = starts.StartQueue(seed)
        self._ids: NDArray[np.int64] = np.full(num_envs, -1)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs.

        Args:
            seed: restarts the random start ids and clears the queue; None continues both.
            options: "stagger": True starts the step counters spread over the time limit, so that the envs do not all
                time out together; "state_ids": (N,) start ids, where starts are numbered.

        Raises:
            ConfigError: unknown option, or ids of the wrong shape or range.
            EnvironmentFault: an environment raised an exception or returned a value outside its spaces.
        """
        given = dict(options or {})
        self._starts.restart(seed)
        if "state_ids" in given:
            self._starts.put(self._checked_ids(given.pop("state_ids")))
        stagger = bool(given.pop("stagger", False))
        for name in given:
            raise unknown("reset option", name, RESET_OPTIONS)
        self._steps[:] = 0
        self._judge.restart()
        self._ids[:] = self._starts.take(self.num_envs)
        observation, _ = self._call(self.env.reset, seed=self._ids.tolist())
        if stagger and self.limit_steps is not None:
            self._steps[:] = np.arange(self.num_envs) * self.limit_steps // self.num_envs
        return tensors(self._converted(observation))

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; rows that end restart before this returns.

        Args:
            actions: (N, A), clipped to the bounds of `action_spec`, with one warning.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action, observation or reward is not finite; env, step and field are named.
            EnvironmentFault: an environment raised an exception or returned a value outside its spaces; `reset`
                restarts all episodes.
        """
        commands = self._commands(actions)
        self._steps += 1
        observation, reward, ended, cut, infos = self._call(self.env.step, commands)
        obs = self._converted(observation)
        reward = np.asarray(reward, np.float32)
        self._finite(reward, "reward")
        terminated, truncated = ended.copy(), cut.copy()
        if self.limit_steps is not None:
            truncated |= (self._steps >= self.limit_steps) & ~terminated
        none = np.zeros(self.num_envs, bool)
        lost = np.asarray(infos.get("lost", none), bool)
        said, given = (np.asarray(infos.get(key, none), bool) for key in ("success", "_success"))
        success = self._judge.succeeded(said, given, reward, terminated, truncated, lost)
        reward = self._rewarded(reward, success)
        if self._end_at_success:
            # both flags at once would mean failure
            terminated |= success
            truncated &= ~success
        state_id = self._reported_ids()
        done = terminated | truncated
        final_ids = np.flatnonzero(done)
        final = {key: value[final_ids] for key, value in obs.items()}
        if len(final_ids):
            obs = self._restart(done, lost)
        return step_of(obs, reward, terminated, truncated, final, final_ids, success, state_id, lost)

    def _restart(self, done: Flags, lost: Flags) -> Obs:
        """Start new episodes in the rows that are done; a lost episode is repeated from the same start."""
        fresh = done & ~lost
        self._ids[fresh] = self._starts.take(int(fresh.sum()))
        self._steps[done] = 0
        self._judge.restart(done)
        observation, _ = self._call(self.env.reset, seed=self._ids.tolist(), options={"reset_mask": done})
        return self._converted(observation)

    def _reported_ids(self) -> NDArray[np.int64]:
        return np.full(self.num_envs, -1)

    def _checked_ids(self, ids: Any) -> list[int]:
        raise CapabilityError(f"sim 'gym/{self.env_id}' lacks HasStateIds{why_lacking(self, 'HasStateIds')}")


class NumberedEnvs(SingleEnvs):
    """Deterministic single environments with numbered starts: a start id is the seed passed to `reset`."""

    def state_ids(self, split: Split) -> range:
        """Start ids of a split.

        Raises:
            ConfigError: unknown split.
        """
        return starts.ids_of(split)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Queue start ids for the next restarts, in order; after the last one, training ids are drawn again.

        Raises:
            ConfigError: an id outside all splits.
        """
        self._starts.put(starts.queue_of(ids))

    def _checked_ids(self, ids: Any) -> list[int]:
        return starts.queue_for_all(ids, self.num_envs)

    def _reported_ids(self) -> NDArray[np.int64]:
        return self._ids.copy()


class _Pictures(SingleEnvs):
    """Mixin that renders envs (`HasCamera`)."""

    cameras: tuple[str, ...] = ("rgb_array",)

    def render(self, ids: Sequence[int], camera: str, width: int, height: int) -> NDArray[np.uint8]:
        """Images (n, height, width, 3) of some envs, resized from the environment's own size.

        Raises:
            ConfigError: unknown camera, an env that does not exist, or a size below 1.
            EnvironmentFault: rendering failed.
        """
        if camera not in self.cameras:
            raise unknown("camera", camera, self.cameras)
        if any(not 0 <= int(i) < self.num_envs for i in ids):
            raise out_of_range("ids", list(ids), f"env numbers from 0 to {self.num_envs - 1}")
        for name, value in (("width", width), ("height", height)):
            check_at_least(name, value, 1)
        env: Any = self.env  # both vector classes that run single environments can `call`
        drawn = self._call(env.call, "render") if len(ids) else ()
        out = np.zeros((len(ids), height, width, 3), np.uint8)
        for row, i in enumerate(ids):
            out[row] = scaled(self._checked_picture(drawn[int(i)], int(i)), width, height)
        return out

    def picture_size(self, camera: str) -> tuple[int, int]:
        """Width and height, pixels, of the first environment's own images.

        Raises:
            ConfigError: unknown camera.
            EnvironmentFault: rendering failed.
        """
        if camera not in self.cameras:
            raise unknown("camera", camera, self.cameras)
        env: Any = self.env
        height, width = self._checked_picture(self._call(env.call, "render")[0], 0).shape[:2]
        return width, height

    def _checked_picture(self, picture: Any, row: int) -> NDArray[np.uint8]:
        if fault := fault_of(picture):
            raise EnvironmentFault(f"gym/{self.env_id}: env {row}, episode step {self._steps[row]}: {fault}")
        return picture


class _Told(SingleEnvs):
    """Mixin for language-conditioned envs (`HasInstructions`)."""

    def __init__(self, parts: Parts, num_envs: int, seed: int) -> None:
        super().__init__(parts, num_envs, seed)
        spec = self.observation_spec[INSTRUCTION]
        self.vocabulary: tuple[str, ...] = spec.words
        self._numbers: NDArray[np.int32] = np.zeros((num_envs, *spec.shape), np.int32)

    def instructions(self) -> list[str]:
        """Instruction of each env's running episode, N texts; "" before the first reset."""
        return [said(self.vocabulary, row) for row in self._numbers]

    def _converted(self, observation: Any, rows: NDArray[np.int64] | None = None) -> Obs:
        out = super()._converted(observation, rows)
        self._numbers[:] = out[INSTRUCTION]
        return out


@functools.cache
def sim_class(numbered: bool, draws: bool, has_instruction: bool) -> type[SingleEnvs]:
    """Subclass of `SingleEnvs` with numbered starts, images and instructions as requested."""
    wanted: tuple[tuple[type[SingleEnvs], bool], ...] = (
        (_Told, has_instruction),
        (_Pictures, draws),
        (NumberedEnvs, numbered),
    )
    parts = tuple(part for part, has in wanted if has)
    return type(SingleEnvs.__name__, (*parts, SingleEnvs), {})
