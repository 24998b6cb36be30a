"""Wrapper of any sim that knows the start of each episode as it begins, and applies perturbation families by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, DataError
from robotrl.fn.random import counter_rng
from robotrl.sims.families.variation import EpisodeDraws, Ids, Variation, is_numbered
from robotrl.sims.starts import queue_for_all
from robotrl.sims.wrapper import State, WrappedSim, declared
from robotrl.spec import HasPrivileged, Step, lost


def varied(sim: Any, variations: Sequence[Variation], seed: int) -> Any:
    """Wrap a sim with perturbation families.

    Args:
        sim: any sim; the wrapped one has its capabilities.
        variations: the families, in the order in which they are applied; none only names the episodes.
        seed: seed of the sim.
    """
    return declared(VariedSim, sim)(sim, variations, seed)


class VariedSim(WrappedSim):
    """A sim whose episodes are perturbed by families; made by `varied`.

    A sim tells the start of an episode after the first step only. So the wrapper draws the starts itself, the same ones
    as the sim would by its seed, and queues them.
    """

    prefix = "varied/"

    def __init__(self, sim: Any, variations: Sequence[Variation], seed: int) -> None:
        super().__init__(sim)
        self._variations = tuple(variations)
        self._numbered = is_numbered(sim)
        self._hidden = tuple(sim.privileged) if isinstance(sim, HasPrivileged) else ()
        self._reseed(seed)
        self.episode_keys: Ids = np.full(self.num_envs, -1)
        """(N,) key of each env's episode: its start id, or the number of the episode where starts have none."""
        self._steps: Ids = np.zeros(self.num_envs, np.int64)
        self._episodes: Ids = np.zeros(self.num_envs, np.int64)
        self._fresh = np.ones(self.num_envs, np.bool_)
        """(N,) envs that have begun an episode outside of `step`."""

    def _reseed(self, seed: int) -> None:
        self._seed, self._drawn = seed, 0
        self._asked: list[int] = []
        """Start ids that the user queued, and that no episode has begun from."""
        self._queued = 0
        """Number of start ids in the sim's queue."""
        self.draws = EpisodeDraws(seed, self._numbered)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see the sim's own `reset`."""
        if seed is not None:
            # the sim reseeds first, since that clears its queue
            self.sim.reset(seed=seed, options=options)
            self._reseed(seed)
            self._episodes[:] = 0
        given = dict(options or {})
        if self._numbered and "state_ids" in given:
            self._asked = queue_for_all(given.pop("state_ids"), self.num_envs)
            self._queued = 0
        self._top_up()
        obs = self.sim.reset(options=given or None)
        self._fresh[:] = True
        return self.present(obs)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs; see the sim's own `step`."""
        self._top_up()
        step: Step = self.sim.step(actions)
        self._check_starts(step)
        self._steps += 1
        ended = step.final_ids.cpu().numpy()
        final = self._observed(step.final_obs, ended) if len(ended) and step.final_obs else step.final_obs
        gone = lost(step).cpu().numpy()
        obs = self._begin(ended, step.obs, gone[ended])
        return step._replace(obs=self._observed(obs, np.arange(self.num_envs)), final_obs=final)

    def present(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Begin the episodes of restarted envs; after a restored state nothing begins."""
        envs = np.flatnonzero(self._fresh)
        self._fresh[:] = False
        return self._observed(self._begin(envs, obs, np.zeros(len(envs), np.bool_)), np.arange(self.num_envs))

    def on_queue(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """See `WrappedSim.on_queue`."""
        self._asked = [int(i) for i in ids]
        self._queued = len(self._asked)

    def on_restart(self, envs: Tensor) -> None:
        """See `WrappedSim.on_restart`."""
        del envs
        self._top_up()

    def on_restarted(self, envs: Tensor) -> None:
        """See `WrappedSim.on_restarted`."""
        self._fresh[envs.cpu().numpy()] = True

    def instructions_of(self, instructions: list[str]) -> list[str]:
        """See `WrappedSim.instructions_of`."""
        for one in self._variations:
            instructions = one.said(instructions, self.episode_keys, self.draws)
        return instructions

    def own_state(self) -> State:
        """Keys and steps of the running episodes, and the starts that come next."""
        return {
            "keys": self.episode_keys.copy(),
            "steps": self._steps.copy(),
            "episodes": self._episodes.copy(),
            "asked": np.array(self._asked, np.int64),
            "counts": np.array([self._seed, self._drawn, self._queued], np.int64),
        }

    def load_own(self, state: State) -> None:
        """Restore what `own_state` gave.

        Raises:
            DataError: an array is missing, or of another number of envs.
        """
        for key, value in self.own_state().items():
            shape = state[key].shape if key in state else None
            if shape is None or (key != "asked" and shape != value.shape):
                raise DataError(
                    f"state {self.prefix}{key} has {'no place' if shape is None else f'shape {shape}'}: expected"
                    f" {value.shape}, from a sim with {self.num_envs} envs and the same perturbations"
                )
        seed, drawn, queued = (int(number) for number in state["counts"])
        self._reseed(seed)
        self._drawn, self._queued = drawn, queued
        self._asked = [int(i) for i in state["asked"]]
        self.episode_keys[:], self._steps[:], self._episodes[:] = state["keys"], state["steps"], state["episodes"]
        self._fresh[:] = False

    def _next(self, count: int) -> list[int]:
        """Next start ids (count,): those that were queued, then random training ids, as the sim would draw them."""
        asked = self._asked[:count]
        index = np.arange(self._drawn, self._drawn + count - len(asked))
        return [*asked, *counter_rng.among(self._seed, index, self.sim.state_ids("train")).tolist()]

    def _top_up(self) -> None:
        """Queue starts in the sim, so that each env can begin an episode from one that is known here."""
        if self._numbered and self._queued < self.num_envs:
            ids = self._next(max(4 * self.num_envs, len(self._asked)))
            self.sim.queue_states(ids)
            self._queued = len(ids)

    def _check_starts(self, step: Step) -> None:
        """Check that the episodes are those that were queued."""
        if not self._numbered:
            return
        actual = step.info["state_id"].cpu().numpy()
        for env in np.flatnonzero((actual != self.episode_keys) & (actual >= 0)).tolist():
            raise CapabilityError(
                f"sim {type(self.sim).__name__}: env {env} ran start {actual[env]}, expected {self.episode_keys[env]}:"
                " perturbations by the start need a sim whose envs take queued starts in their order"
            )

    def _begin(self, envs: Ids, obs: dict[str, Tensor], again: NDArray[np.bool_]) -> dict[str, Tensor]:
        """Begin episodes in the envs (n,); those of `again` (n,) were lost and begin from the same start.

        Returns:
            The sim's observation of all envs.
        """
        if not len(envs):
            return obs
        self._steps[envs] = 0
        self._episodes[envs] += 1
        if self._numbered:
            new = envs[~again]
            self.episode_keys[new] = self._next(len(new))
            self._drawn += max(0, len(new) - len(self._asked))
            self._queued -= len(new)
            del self._asked[: len(new)]
        else:
            self.episode_keys[envs] = self._episodes[envs] * self.num_envs + envs
        rows, keys = torch.from_numpy(envs).to(self.device), self.episode_keys[envs]
        for one in self._variations:
            changed = one.begin(rows, keys, self.draws)
            obs = obs if changed is None else changed
        return obs

    def _observed(self, obs: dict[str, Tensor], envs: Ids) -> dict[str, Tensor]:
        """Observations (n, ...) that the user is given of the envs (n,); those for a critic alone are the sim's."""
        given = {key: x for key, x in obs.items() if key not in self._hidden}
        for one in self._variations:
            given = one.seen(given, self.episode_keys[envs], self._steps[envs], self.draws)
        return {key: given.get(key, x) for key, x in obs.items()}
