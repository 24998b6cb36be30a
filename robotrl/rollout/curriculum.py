"""Curriculum over a sim's scenarios: training episodes start more often in scenarios that fail more often.

Episodes are counted as they end; code that draws starts itself (`CurriculumSim.draw`) reports its episodes (`book`).
A scenario is drawn with a weight of exp((0.5 - success) / temperature), as in VLA-RL (Lu et al. 2025, 2505.18719);
`success` is a running mean over the scenario's last episodes. Splits and episodes are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_number
from robotrl.fn.random import counter_rng
from robotrl.sims.wrapper import State, WrappedSim, declared
from robotrl.spec import HasScenarios, HasStateIds, Step, VecSim, cut, lost

WINDOW = 200
"""Number of episodes that a scenario's running mean covers."""
AHEAD = 4
"""Starts per env queued at a time."""
TRIED_AT_ONCE = 1024
_STREAM = 0xC0221


def weights(success: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Sampling weights (S,) of scenarios from success rates (S,); they sum to 1."""
    found = np.exp((0.5 - success) / temperature)
    return found / found.sum()


class CurriculumSim(WrappedSim):
    """A sim that samples training starts by the failure rate of their scenarios; made by `with_curriculum`."""

    prefix = "curriculum/"

    def __init__(self, sim: Any, temperature: float, seed: int) -> None:
        super().__init__(sim)
        self.temperature = temperature
        self._seed, self._draws = seed, 0
        self._number = {name: i for i, name in enumerate(sim.scenarios)}
        self.success: NDArray[np.float64] = np.full(len(self._number), 0.5)
        """(S,) running mean of each scenario's success, 0.5 before its first episode."""
        self.episodes: NDArray[np.int64] = np.zeros(len(self._number), np.int64)
        """(S,) number of finished episodes of each scenario."""
        self._left = 0
        self._least = 0
        # `draw` sets this again before each reset, so it is not part of the saved state
        self._drawn_elsewhere = False
        self._short: NDArray[np.bool_] = np.zeros(sim.num_envs, bool)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs, sampled by the sim itself; later episodes follow the curriculum."""
        obs = self.sim.reset(seed=seed, options=options)
        self._left = self._least = 0
        # a staggered episode starts midway, so its result says nothing about its start
        self._short[:] = bool((options or {}).get("stagger", False))
        return obs

    def step(self, actions: Tensor) -> Step:
        """Advance all envs; first queues the starts that this step may need."""
        if self._drawn_elsewhere:
            return self.sim.step(actions)
        if self._left < self._least or not self._least:
            self._queue()
        step: Step = self.sim.step(actions)
        # a lost episode is run again, and takes no start from the queue
        ended = step.final_ids[~lost(step)[step.final_ids]].tolist()
        if ended:
            self._left -= len(ended)
            off = cut(step)
            whole = [env for env in ended if not self._short[env] and not off[env]]
            self._short[ended] = False
            self.book(step.info["state_id"][whole], step.info["success"][whole])
        return step

    def book(self, ids: Tensor, success: Tensor) -> None:
        """Count episodes (n,) by their start ids and success."""
        for state_id, succeeded in zip(ids.tolist(), success.tolist(), strict=True):
            k = self._number[self.sim.scenario_of(int(state_id))]
            self.episodes[k] += 1
            self.success[k] += (float(succeeded) - self.success[k]) / min(self.episodes[k], WINDOW)

    def draw(self, count: int) -> NDArray[np.int64]:
        """The next training starts (count,), for a caller that queues them and reports their results with `book`."""
        self._drawn_elsewhere = True
        return self._draw(count)

    def _draw(self, count: int) -> NDArray[np.int64]:
        """Starts (count,) by rejection sampling: uniform draws are accepted in proportion to the weights."""
        share = weights(self.success, self.temperature)
        keep = share / share.max()
        train = self.sim.state_ids("train")
        found: list[int] = []
        while len(found) < count:
            draws = np.arange(self._draws, self._draws + TRIED_AT_ONCE)
            self._draws += TRIED_AT_ONCE
            ids = counter_rng.among(self._seed ^ _STREAM, draws, train).tolist()
            lots = counter_rng.uniform(self._seed ^ _STREAM, draws, 2)[:, 1]
            chance = keep[[self._number[self.sim.scenario_of(i)] for i in ids]]
            found += [i for i, kept in zip(ids, lots < chance, strict=True) if kept]
        return np.array(found[:count], np.int64)

    def _queue(self) -> None:
        self._left, self._least = AHEAD * self.num_envs, self.num_envs
        self.sim.queue_states(self._draw(self._left))

    def on_queue(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Starts queued by a caller are used first."""
        self._left, self._least = len(ids), 1

    def on_restart(self, envs: Tensor) -> None:
        """A restart also takes a start from the queue."""
        self._left -= len(envs)

    def own_state(self) -> State:
        """Success rates, the position of the random stream, and which episodes started midway."""
        counts = np.array([self._seed, self._draws, self._left, self._least], np.int64)
        rates = {"success": self.success.copy(), "episodes": self.episodes.copy()}
        return {**rates, "counts": counts, "short": self._short.copy()}

    def load_own(self, state: State) -> None:
        """Restore what `own_state` gave.

        Raises:
            ConfigError: the state was made without a curriculum, or with other scenarios.
        """
        if "success" not in state or state["success"].shape != self.success.shape:
            raise ConfigError(
                f"the saved state has no curriculum over the {len(self.success)} scenarios of this sim: expected one"
            )
        self.success[:], self.episodes[:] = state["success"], state["episodes"]
        self._seed, self._draws, self._left, self._least = (int(x) for x in state["counts"])
        self._short[:] = state.get("short", False)  # absent in states from earlier versions

    def follow(self, state: State) -> None:
        """Take over the success rates in another process's full state (see `get_state`), and nothing else."""
        self.success[:], self.episodes[:] = (state[self.prefix + key] for key in ("success", "episodes"))


def with_curriculum(sim: VecSim, temperature: float, seed: int) -> CurriculumSim:
    """Wrap a sim so that it samples training starts by the failure rate of their scenarios.

    Args:
        sim: the sim.
        temperature: 0.01 to 100; smaller values favor the worst scenario more.
        seed: seed of the sampling.

    Raises:
        CapabilityError: the sim has no numbered starts, or no scenarios.
        ConfigError: the temperature is out of range.
    """
    for capability in (HasStateIds, HasScenarios):
        if not isinstance(sim, capability):
            raise CapabilityError(
                f"sim {type(sim).__name__} lacks {capability.__name__}: a curriculum (sim.curriculum) draws starts by"
                " their scenarios"
            )
    check_number("sim.curriculum", temperature, 0.01, 100.0)
    return declared(CurriculumSim, sim)(sim, temperature, seed)
