"""`RemoteSim`: environments in worker processes as one `VecSim`, over shared memory.

A step is one byte to each worker and one back. What a worker loses when it dies are its running episodes: they are
reported as lost and begin again from their starts in a new worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, unknown
from robotrl.sims import starts
from robotrl.sims.actions import ActionBounds
from robotrl.sims.remote import worker as protocol
from robotrl.sims.remote.description import EnvDescription
from robotrl.sims.remote.faults import WorkerLost
from robotrl.sims.remote.memory import arrays_of, layout_of
from robotrl.sims.remote.pool import WorkerPool
from robotrl.sims.remote.start_window import StartWindow
from robotrl.spec import Spec, Step
from robotrl.utils.devices import CPU

if TYPE_CHECKING:
    import gymnasium

Ids = NDArray[np.int64]
Obs = dict[str, NDArray[Any]]
RESET_OPTIONS = ("state_ids", "stagger")


class RemoteSim:
    """Sim whose envs are stepped by other processes; its capabilities are those of `capabilities.sim_class`.

    Tensors are views of the shared memory, which the next step overwrites.

    Args:
        name: name of the sim, for messages.
        pool: workers that have described their environment.
        description: the description, of which all are equal.
        num_envs: N.
        seed: seed of the training starts.
    """

    device = CPU
    buffers_are_reused = True

    def __init__(self, name: str, pool: WorkerPool, description: EnvDescription, num_envs: int, seed: int) -> None:
        self.name, self.num_envs = name, num_envs
        self.observation_spec: dict[str, Spec] = description.observation_spec
        self.action_spec: Spec = description.action_spec
        self.control_dt_s: float | None = description.control_dt_s
        self.pool = pool
        """The workers; `pool.lost` counts those lost so far."""
        self._description = description
        self._numbered = description.starts != "own"
        self._ahead = self._numbered and len(pool.rows) == 1
        """True if the only worker begins episodes by itself, with the ids of the window; several workers are told
        who begins with what once all have stepped, because envs take ids in their order."""
        self._bounds = ActionBounds(self.action_spec, num_envs, name)
        self._window = StartWindow(seed, 2 * num_envs)
        self._seed = seed
        self._all_workers = list(range(len(pool.rows)))
        self._all_envs: Ids = np.arange(num_envs)
        self._no_envs: Ids = self._all_envs[:0]
        self._worker_of = np.repeat(self._all_workers, [end - first for first, end in pool.rows])
        self._steps: Ids = np.zeros(num_envs, np.int64)
        self._running: Ids = np.full(num_envs, -1, np.int64)
        self.set_before: dict[str, NDArray[np.float64]] = {}
        """Parameters (N,) that were set, by name; NaN where none was set."""
        self._lost_before: dict[int, Obs] = {}
        """Workers that were lost and replaced between two steps, with the observations before."""
        layout = layout_of(num_envs, len(pool.rows), self.observation_spec, self.action_spec, description.info_spec)
        self._view(arrays_of(pool.memory, layout))
        pool.share(layout)

    def _view(self, memory: dict[str, NDArray[Any]]) -> None:
        """Set the views of the shared memory, and their tensors."""
        keys = tuple(self.observation_spec)
        self._order, self._ids, self._envs = memory["order"], memory["ids"], memory["envs"]
        self._actions, self._reward = memory["actions"], memory["reward"]
        self._terminated, self._truncated = memory["terminated"], memory["truncated"]
        self._info_arrays = {key: memory[f"info/{key}"] for key in self._description.info_spec}
        self._banks: list[Obs] = [{key: memory[f"obs{bank}/{key}"] for key in keys} for bank in (0, 1)]
        self._final: Obs = {key: memory[f"final/{key}"] for key in keys}
        self._bank = 0
        self._state_id: Ids = np.full(self.num_envs, -1, np.int64)
        # a sim that loses episodes by itself says so in the same array
        self._lost: NDArray[np.bool_] = self._info_arrays.get("lost", np.zeros(self.num_envs, bool))
        self._tensor_banks = [tensors(bank) for bank in self._banks]
        self._tensor_final = tensors(self._final)
        self._tensor_reward = torch.from_numpy(self._reward)
        self._tensor_terminated, self._tensor_truncated = map(torch.from_numpy, (self._terminated, self._truncated))
        own = {"state_id": self._state_id, "lost": self._lost}
        self._tensor_info = tensors(self._info_arrays | own)
        self._first_finals = first_rows(self._tensor_final)
        self._no_obs = self._first_finals(0)
        self._no_ids = torch.zeros(0, dtype=torch.int64)

    # episodes

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs.

        Args:
            seed: restarts the random training starts and clears the queue; None continues both.
            options: "state_ids": (N,) start ids; "stagger": True spreads the step counters over the time limit, where
                the environment can do that.

        Raises:
            ConfigError: unknown option, or ids that do not exist.
            RobotrlError: an environment raised.
        """
        given = dict(options or {})
        self._window.restart(seed)
        if "state_ids" in given:
            if not self._numbered:
                raise CapabilityError(f"sim {self.name!r} lacks HasStateIds: its environment starts by itself")
            self._window.put(starts.queue_for_all(given.pop("state_ids"), self.num_envs))
        stagger = bool(given.pop("stagger", False))
        for name in given:
            raise unknown("reset option", name, RESET_OPTIONS)
        self._lost_before.clear()
        self._steps[:] = 0
        if self._numbered:
            self._running[:] = self._window.take(self.num_envs)
            for number in self._begin(self._all_envs):
                self._revive(number)
        else:
            for number, (first, _) in enumerate(self.pool.rows):
                self.ask_worker(number, "reset", {"seed": None if seed is None else seed + first})
        if stagger and "stagger" in self._description.methods:
            share = np.arange(self.num_envs) / self.num_envs
            for number, (first, end) in enumerate(self.pool.rows):
                self.ask_worker(number, "stagger", {}, {"share": share[first:end]})
        return dict(self._tensor_banks[self._bank])

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step; those that end restart before this returns.

        Args:
            actions: (N, A), clipped to the bounds of `action_spec`, with one warning.

        Raises:
            ConfigError: wrong shape.
            NumericsError: an action, an observation or a reward is not finite; env and element are named.
            RemoteFault: an environment raised, or gave what it may not give; or a worker was lost too often.
        """
        np.copyto(self._actions, self._bounds.checked(actions.detach().cpu().numpy(), self._steps))
        before, self._bank = self._banks[self._bank], 1 - self._bank
        self._order_step()
        self._lost[:] = False
        # what was lost between two steps is told now; those workers stand at the beginning of the next episodes
        replaced = self._replaced(before) if self._lost_before else {}
        numbers = [n for n in self._all_workers if n not in replaced] if replaced else self._all_workers
        asked = self.pool.ask(protocol.STEP, numbers)
        # while the workers step
        self._steps += 1
        np.copyto(self._state_id, self._running)
        obs, info = dict(self._tensor_banks[self._bank]), dict(self._tensor_info)
        lost = self.pool.answers(asked)
        finals = {number: self._write_off(number, before) for number in lost} | replaced
        ids = self._no_envs
        # counts are quicker than the search, and in most steps no episode ends
        if np.count_nonzero(self._terminated) or np.count_nonzero(self._truncated):
            ids = self._restart_ended(self._ended(), before, finals, lost)
        return Step(
            obs=obs,
            reward=self._tensor_reward,
            terminated=self._tensor_terminated,
            truncated=self._tensor_truncated,
            final_obs=self._final_obs(ids, before, finals) if len(ids) else dict(self._no_obs),
            final_ids=torch.from_numpy(ids) if len(ids) else self._no_ids,
            info=info,
        )

    def _order_step(self) -> None:
        self._order[:, 0] = self._bank
        self._order[:, 1] = len(self._ids) if self._ahead else 0
        if self._ahead:
            self._window.show(self._ids)
            self._order[:, 2] = self._window.generation

    def _ended(self) -> Ids:
        """Envs whose episodes ended in this step."""
        return (self._terminated | self._truncated).nonzero()[0]

    def _restart_ended(self, ids: Ids, before: Obs, finals: dict[int, Obs], lost: list[int]) -> Ids:
        """Begin the next episodes of ended envs; returns all ended envs, also of workers lost meanwhile."""
        fresh = ids[~self._lost[ids]]
        if self._numbered:
            self._running[fresh] = self._window.take(len(fresh))
        self._steps[ids] = 0
        if self._numbered and not self._ahead and len(fresh):
            more = self._begin(fresh)
            for number in more:
                first, end = self.pool.rows[number]
                mine = fresh[(fresh >= first) & (fresh < end)]
                finals[number] = self._write_off(number, before, but=mine)
                for key, value in finals[number].items():
                    value[mine - first] = self._final[key][first : first + len(mine)]
            lost = lost + more
            ids = self._ended()
            self._steps[ids] = 0
        for first, end in (self.pool.rows[number] for number in lost):
            self._steps[first:end] = 0
        for number in lost:
            self._revive(number)
        for number in self._workers_of(fresh):
            if number not in lost:
                self.pool.succeeded(number)
        return ids

    def _workers_of(self, envs: Ids) -> list[int]:
        """Workers of some envs."""
        if len(self.pool.rows) == 1:
            return [0] if len(envs) else []
        return np.unique(self._worker_of[envs]).tolist()

    def _begin(self, envs: Ids) -> list[int]:
        """Begin the episodes `self._running[envs]`; returns the workers lost on the way."""
        asked: list[int] = []
        for number, (first, end) in enumerate(self.pool.rows):
            mine = envs[(envs >= first) & (envs < end)]
            if len(mine):
                self._envs[first : first + len(mine)] = mine - first
                self._ids[2 * first : 2 * first + len(mine)] = self._running[mine]
                self._order[number] = self._bank, len(mine), 0
                asked.append(number)
        if self._ahead:
            self._window.hidden()
        return self.pool.answers(self.pool.ask(protocol.BEGIN, asked))

    # losses

    def _write_off(self, number: int, before: Obs, but: Ids | None = None) -> Obs:
        """Report the episodes of a lost worker as lost; returns its last observations.

        Args:
            number: the worker.
            before: observations before the step.
            but: its envs whose episodes had ended before it was lost.
        """
        first, end = self.pool.rows[number]
        rows = np.arange(first, end)
        if but is not None:
            rows = np.setdiff1d(rows, but)
        self._reward[rows], self._terminated[rows], self._truncated[rows] = 0, False, True
        for value in self._info_arrays.values():
            value[rows] = 0
        self._lost[rows] = True
        return {key: value[first:end].copy() for key, value in before.items()}

    def _revive(self, number: int) -> None:
        """Replace a lost worker, and begin the running episodes of all of its envs."""
        while True:
            self.pool.replace(number)
            try:
                self._renewed(number)
                if self._begun_again(number):
                    return
            except WorkerLost:
                continue

    def _begun_again(self, number: int) -> bool:
        """Begin the running episodes of all envs of a new worker; False if it was lost."""
        first, end = self.pool.rows[number]
        if self._numbered:
            return not self._begin(self._all_envs[first:end])
        self._order[number] = self._bank, 0, 0
        self.pool.call(number, "reset", {"seed": self._seed + first + self.num_envs * self.pool.lost})
        return True

    def _renewed(self, number: int) -> None:
        """Tell a new worker what was set in the one whose place it takes."""

    def _restored(self) -> None:
        """Note what the environments hold after `set_state`."""

    def _replaced(self, before: Obs) -> dict[int, Obs]:
        """Report the losses since the last step; returns the last observations of those workers."""
        found: dict[int, Obs] = {}
        for number, last in self._lost_before.items():
            first, end = self.pool.rows[number]
            for key, value in self._banks[self._bank].items():
                value[first:end] = before[key][first:end]
            self._write_off(number, before)
            found[number] = last
        self._lost_before.clear()
        return found

    def ask_worker(
        self,
        number: int,
        name: str,
        named: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        expert: Callable[[], int] | None = None,
        revived: Callable[[], None] | None = None,
    ) -> Any:
        """Call a method of a worker's environment; of another worker if that one is gone.

        Args:
            number: the worker.
            name: the method.
            named: JSON arguments.
            arrays: arguments that are arrays.
            expert: gives the number of an expert; None for the environment.
            revived: called after a replacement, for what the new worker must be told.
        """
        while True:
            self._order[number, 0] = self._bank
            try:
                return self.pool.call(number, name, named, arrays, None if expert is None else expert())
            except WorkerLost:
                first, end = self.pool.rows[number]
                last = {key: value[first:end].copy() for key, value in self._banks[self._bank].items()}
                self._revive(number)
                self._steps[first:end] = 0
                self._lost_before.setdefault(number, last)
                if revived is not None:
                    revived()

    # records

    def _final_obs(self, ids: Ids, before: Obs, finals: Mapping[int, Obs]) -> dict[str, Tensor]:
        """Last observations of the episodes that ended in the envs `ids`, compact."""
        if not self._description.final_obs:
            return {key: torch.from_numpy(value[ids]) for key, value in before.items()}
        if not finals and len(self.pool.rows) == 1:
            return dict(self._first_finals(len(ids)))
        parts: list[Obs] = []
        for number, (first, end) in enumerate(self.pool.rows):
            mine = ids[(ids >= first) & (ids < end)]
            if number in finals:
                parts.append({key: value[mine - first] for key, value in finals[number].items()})
            else:
                parts.append({key: value[first : first + len(mine)] for key, value in self._final.items()})
        return {key: torch.from_numpy(np.concatenate([part[key] for part in parts])) for key in self._final}

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Wrap the sim as a numpy `gymnasium.vector.VectorEnv` with same-step autoreset."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """End the workers; safe to call twice."""
        self.pool.close()


def tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Tensors that share the memory of arrays."""
    return {key: torch.from_numpy(value) for key, value in arrays.items()}


def first_rows(whole: Mapping[str, Tensor]) -> Callable[[int], dict[str, Tensor]]:
    """Function from a count to views of the first rows of tensors; those made last are kept."""

    @lru_cache(maxsize=64)
    def rows(count: int) -> dict[str, Tensor]:
        return {key: value[:count] for key, value in whole.items()}

    return rows


def check_split(name: str, description: EnvDescription, workers: int) -> None:
    """Check that the envs can be dealt to several workers.

    Raises:
        ConfigError: the environment cannot start single envs.
    """
    if workers > 1 and description.starts != "own" and not description.single_start:
        raise ConfigError(f"{name}: workers is {workers}: expected 1, its environment starts all envs at once only")
