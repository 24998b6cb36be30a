"""A scripted expert in the workers, as an expert in the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.sims.exact_state import check_state

if TYPE_CHECKING:
    from robotrl.sims.remote.sim import RemoteSim

State = dict[str, NDArray[Any]]


class RemoteExpert:
    """Expert of all envs, one in each worker; satisfies `robotrl.spec.Expert`.

    Args:
        sim: the sim.
        given: arguments of `make_expert`; the seed of each worker's expert is that of its first env.
    """

    def __init__(self, sim: RemoteSim, given: dict[str, Any]) -> None:
        self._sim, self._given = sim, given
        self._numbers = [0] * len(sim.pool.rows)
        for worker in range(len(sim.pool.rows)):
            self._make(worker)
        self.mode: Tensor = torch.zeros(sim.num_envs, dtype=torch.int64)

    def _make(self, worker: int) -> None:
        first = self._sim.pool.rows[worker][0]
        named = {**self._given, "seed": self._given["seed"] + first}
        self._numbers[worker], modes, self.has_state = self._sim.ask_worker(worker, "make_expert", named)
        self.modes: tuple[str, ...] = tuple(modes)

    def _ask(self, worker: int, name: str, arrays: State) -> Any:
        # a worker that takes the place of a lost one has no expert yet
        return self._sim.ask_worker(worker, name, {}, arrays, lambda: self._numbers[worker], lambda: self._make(worker))

    def act(self, started: Tensor) -> Tensor:
        """Actions (N, A); `started` (N,) bool marks envs at the first step of an episode."""
        flags: NDArray[np.bool_] = started.cpu().numpy()
        found = [self._ask(k, "act", {"started": flags[a:b]}) for k, (a, b) in enumerate(self._sim.pool.rows)]
        self.mode[:] = torch.from_numpy(np.concatenate([x["mode"] for x in found]))
        return torch.from_numpy(np.concatenate([x["action"] for x in found]))


class StatefulExpert(RemoteExpert):
    """An expert with exact state (`robotrl.spec.HasExpertState`)."""

    def get_state(self) -> State:
        """Exact state of all workers' experts."""
        out: State = {"mode": self.mode.numpy().copy()}
        for worker in range(len(self._numbers)):
            out |= {f"worker{worker}/{key}": value for key, value in self._ask(worker, "get_state", {}).items()}
        return out

    def set_state(self, state: State) -> None:
        """Restore exact state.

        Raises:
            ConfigError: it is of another expert or number of envs.
        """
        check_state(state, {"mode": self.mode.numpy()})
        for worker in range(len(self._numbers)):
            prefix = f"worker{worker}/"
            mine = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            self._ask(worker, "set_state", mine)
        self.mode[:] = torch.from_numpy(state["mode"])
