"""Adapter for environments with their own vector class, in any autoreset mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import unknown
from robotrl.sims.gymnasium_sim.base import GymnasiumSim, Obs, Parts, step_of, tensors
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault, Foreign
from robotrl.sims.gymnasium_sim.spaces import pick
from robotrl.sims.gymnasium_sim.success import Flags, flag_of
from robotrl.spec import Step


class OwnVectorEnv(GymnasiumSim):
    """`VecSim` with same-step resets around an environment's own vector class, in any autoreset mode.

    Same-step autoreset is used as it is. With autoreset disabled, ended rows are reset by mask. Next-step autoreset
    provides the next first observation one step late, so the end of an episode is reported one step later: until then
    the row shows its last observation, ignores its action, and gets reward 0.
    """

    def __init__(self, parts: Parts, num_envs: int, seed: int) -> None:
        super().__init__(parts, num_envs, seed)
        self._mode: AutoresetMode = parts.env.metadata["autoreset_mode"]
        self._held: Obs = {}
        self._waiting: Flags = np.zeros(num_envs, bool)
        self._late: dict[str, Flags] = {}
        self._seeded = False
        self._resetting, self._stepping = Foreign("reset", self._fault), Foreign("step", self._fault)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs.

        Args:
            seed: seeds the environment; None continues its random stream (the first reset uses the sim's seed).
            options: "stagger" is accepted but has no effect: the environment counts its own steps.

        Raises:
            ConfigError: unknown option.
            EnvironmentFault: the environment raised an exception or returned a value outside its spaces.
        """
        for name in options or {}:
            if name != "stagger":
                raise unknown("reset option", name, ("stagger",))
        if seed is None and not self._seeded:
            seed = self._seed
        self._seeded = True
        self._steps[:] = 0
        self._waiting[:] = False
        self._judge.restart()
        with self._resetting:
            out = self.env.reset(seed=seed)
        observation, _ = out
        return tensors(self._batch(observation))

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; see `SingleEnvs.step`."""
        commands = self._commands(actions)
        self._steps += 1
        with self._stepping:
            out = self.env.step(commands)
        observation, rewards, ended, cut, infos = out
        obs = self._batch(observation)
        reward = self._vector("reward", rewards).astype(np.float32)
        self._finite(reward, "reward")
        terminated, truncated = (
            self._vector(name, value).astype(bool) for name, value in (("terminated", ended), ("truncated", cut))
        )
        said, given = self._instruction_in(infos)
        lost = np.zeros(self.num_envs, bool)
        success = self._judge.succeeded(said, given, reward, terminated, truncated, lost)
        reward = self._rewarded(reward, success)
        if self._mode is AutoresetMode.NEXT_STEP:
            return self._one_step_late(obs, reward, terminated, truncated, success)
        done = terminated | truncated
        final_ids = np.flatnonzero(done)
        final = {key: value[final_ids] for key, value in obs.items()}
        if len(final_ids):
            if self._mode is AutoresetMode.SAME_STEP:
                final = self._final_of(infos, final_ids)
            else:
                with self._resetting:
                    out = self.env.reset(options={"reset_mask": done})
                observation, _ = out
                obs = self._batch(observation)
            self._steps[final_ids] = 0
            self._judge.restart(final_ids)
        return step_of(obs, reward, terminated, truncated, final, final_ids, success, np.full(self.num_envs, -1))

    def _one_step_late(self, obs: Obs, reward: Any, terminated: Flags, truncated: Flags, success: Flags) -> Step:
        """Report episode ends of the previous step; store those of this step for the next."""
        reported = self._waiting.copy()
        late = self._late
        final_ids = np.flatnonzero(reported)
        final = {key: value[final_ids] for key, value in (self._held if len(final_ids) else obs).items()}
        self._waiting = (terminated | truncated) & ~reported
        self._late = {"terminated": terminated, "truncated": truncated, "success": success}
        self._held = {key: value.copy() for key, value in obs.items()}
        self._steps[final_ids] = 0
        self._judge.restart(final_ids)
        none = np.zeros(self.num_envs, bool)
        shown = {name: late.get(name, none) & reported for name in self._late}
        # success reported in the middle of an episode is not delayed
        succeeded = np.where(reported, shown["success"], success & ~self._waiting)
        ids = np.full(self.num_envs, -1)
        reward = np.where(reported, np.float32(0), reward)
        return step_of(obs, reward, shown["terminated"], shown["truncated"], final, final_ids, succeeded, ids)

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"gym/{self.env_id}: step {int(self._steps.max())}: {what}")

    def _batch(self, observation: Any) -> Obs:
        for leaf in self._leaves:
            try:
                shape = np.shape(pick(observation, leaf.path))
            except (KeyError, IndexError, TypeError):
                raise EnvironmentFault(f"gym/{self.env_id}: the observation lacks {leaf.key!r}") from None
            if shape != (self.num_envs, *leaf.raw_shape):
                expected = (self.num_envs, *leaf.raw_shape)
                raise self._fault(f"observation {leaf.key!r} has shape {shape}: expected {expected}")
        return self._converted(observation)

    def _vector(self, name: str, values: Any) -> NDArray[Any]:
        array = np.array(values)
        if array.shape != (self.num_envs,):
            raise self._fault(f"{name} has shape {array.shape}: expected {(self.num_envs,)}")
        return array

    def _instruction_in(self, infos: Mapping[str, Any]) -> tuple[Flags, Flags]:
        """Success flags (N,) from `infos` (from `final_info` for ended episodes), and a mask of where one was given."""
        said, given = self._flags_in(infos)
        final: Any = infos.get("final_info") if self._mode is AutoresetMode.SAME_STEP else None
        if final is None:
            return said, given
        last, there = self._flags_in(final) if isinstance(final, Mapping) else self._flags_of_rows(final)
        return np.where(there, last, said), given | there

    def _flags_in(self, infos: Mapping[str, Any]) -> tuple[Flags, Flags]:
        """Success flags (N,) of infos with one array per key, and a mask of where one was given (from "_KEY")."""
        said, given = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for key in self._judge.signal.keys:
            if key not in infos:
                continue
            values, mask = np.asarray(infos[key]), np.asarray(infos.get(f"_{key}", True), bool)
            if values.shape[:1] != (self.num_envs,):
                raise self._fault(f"info[{key!r}] has shape {values.shape}: expected {(self.num_envs,)}")
            for row in np.flatnonzero(np.broadcast_to(mask, self.num_envs) & ~given):
                self._note(said, given, row, values[row], key)
        return said, given

    def _flags_of_rows(self, rows: Any) -> tuple[Flags, Flags]:
        """Same as `_flags_in` for infos given as a list of one dict (or None) per row."""
        said, given = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for row, info in enumerate(rows):
            for key in self._judge.signal.keys:
                if isinstance(info, Mapping) and key in info and not given[row]:
                    self._note(said, given, row, info[key], key)
        return said, given

    def _note(self, said: Flags, given: Flags, row: Any, value: Any, key: str) -> None:
        try:
            flag = flag_of(value, f"env {row}: info[{key!r}]")
        except ValueError as error:
            raise self._fault(str(error)) from error
        if flag is not None:
            said[row], given[row] = flag, True

    def _final_of(self, infos: Mapping[str, Any], rows: NDArray[np.int64]) -> Obs:
        found = infos.get("final_obs")
        if found is None:
            raise self._fault("infos lacks 'final_obs', which same-step autoreset promises")
        if isinstance(found, np.ndarray) and found.dtype == object:
            parts = [np.stack([np.asarray(pick(found[i], leaf.path)) for i in rows]) for leaf in self._leaves]
        else:
            parts = [np.asarray(pick(found, leaf.path))[rows] for leaf in self._leaves]
        out: Obs = {}
        for leaf, values in zip(self._leaves, parts, strict=True):
            out[leaf.key] = leaf.convert(values)
            self._finite(out[leaf.key], f"final observation {leaf.key!r}", rows, leaf.spec.names)
        return out
