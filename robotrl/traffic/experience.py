"""Experience of all cars of a running sim: decisions, what they earned, and the decision that followed each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.sims.bev.sim import DriveSim
from robotrl.sims.bev.traffic.lane_changes import HOLD_S
from robotrl.sims.bev.traffic.learned import layout
from robotrl.sims.bev.traffic.learned.cars import Cars
from robotrl.sims.bev.traffic.learned.driving import DECIDE_EVERY
from robotrl.sims.bev.traffic.learned.features import SPEED
from robotrl.sims.driving import tables
from robotrl.sims.driving.geometry import boxes_overlap
from robotrl.sims.driving.sim import DT_S
from robotrl.sims.driving.traffic.following import VIEW_M
from robotrl.traffic.self_play import ACCELS_MPS2, SelfPlayCfg, cannot_stop, step_reward

Ints = NDArray[np.int64]
CLOSED_INPUT = layout.OWN.index("way_closed_distance")
SPEED_INPUT = layout.OWN.index("speed")
TOUCHES_M = 0.3
"""Gap up to which a car counts as the one that the ego collided with: the last poses are those after the collision."""


class Experience(NamedTuple):
    """Decisions in the order of time, (D,) each but the inputs."""

    inputs: NDArray[np.float32]
    """(D, layout.INPUT)."""
    candidate: Ints
    """Candidate that the car took."""
    reward: NDArray[np.float32]
    """Reward until the next decision, or until the collision."""
    after: Ints
    """Row of the car's next decision; -1 without."""
    crashed: NDArray[np.bool_]
    """The car collided before its next decision."""
    car_steps: int
    """Steps of cars that were driven."""


def taken_candidate(before: Any, after: Any) -> Ints:
    """Candidate (C,) that cars took in a step, from what they did; see `self_play.ACCELS_MPS2` for the modes.

    Args:
        before: (C,) road users before it.
        after: (C,) after it.
    """
    mode = np.abs(after["plan"][:, None] - np.array(ACCELS_MPS2)).argmin(axis=1)
    changes = (after["hold"] == np.float32(HOLD_S)) & (before["hold"] < 1.0)
    # on the lane on the left a car begins on the right
    line = np.where(changes, np.where(after["d"] < before["d"], 1, 2), 0)
    return (line * layout.MODES + mode).astype(np.int64)


class Tally:
    """Decisions of the cars of N envs with A slots, linked car by car.

    Args:
        shape: (N, A).
        capacity: largest number of decisions.
    """

    def __init__(self, shape: tuple[int, ...], capacity: int) -> None:
        self.count = 0
        self.reward = np.zeros(capacity, np.float32)
        self.after = np.full(capacity, -1, np.int64)
        self.crashed = np.zeros(capacity, np.bool_)
        self._last = np.full(shape, -1, np.int64)
        """(N, A) row of each car's last decision; -1 while it has none that could earn more."""

    @property
    def earning(self) -> NDArray[np.bool_]:
        """(N, A) cars with a decision that may earn more."""
        return self._last >= 0

    def begin(self, env: Ints, slot: Ints, reward: NDArray[np.float32]) -> None:
        """Add decisions, (C,) each, with what they earn at once; each follows the car's last one."""
        rows, before = self.count + np.arange(len(env)), self._last[env, slot]
        self.after[before[before >= 0]] = rows[before >= 0]
        self.reward[rows] = reward
        self._last[env, slot] = rows
        self.count += len(rows)

    def add(self, reward: NDArray[np.float32]) -> None:
        """Add rewards (N, A) of a step to the cars' last decisions."""
        there = self.earning
        self.reward[self._last[there]] += reward[there]

    def crash(self, cars: NDArray[np.bool_], cost: float) -> None:
        """End the decisions of cars (N, A) that collided."""
        rows = self._last[cars & self.earning]
        self.reward[rows] -= cost
        self.crashed[rows] = True
        self.forget(cars)

    def forget(self, cars: NDArray[np.bool_]) -> None:
        """Leave the last decisions of cars (N, A) without a result."""
        self._last[cars] = -1


class Driving:
    """Closed loop of the sim with the cars that learn, and the rule-based driver as its ego.

    Args:
        sim: the sim, all of whose populations the network drives.
        cfg: settings.
    """

    def __init__(self, sim: DriveSim, cfg: SelfPlayCfg) -> None:
        self.sim, self._cfg = sim, cfg
        self.cars, self._expert = Cars(sim.core), sim.make_expert(seed=cfg.seed)
        self._started = torch.ones(sim.num_envs, dtype=torch.bool)
        sim.reset(seed=cfg.seed, options={"stagger": True})

    def state(self) -> dict[str, Any]:
        """Exact state between two calls of `drive`."""
        return {"sim": self.sim.get_state(), "expert": self._expert.get_state(), "started": self._started.clone()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a result of `state`.

        Raises:
            ConfigError: it is of another sim or number of envs.
        """
        self.sim.set_state(state["sim"])
        self._expert.set_state(state["expert"])
        self._started = state["started"]

    def drive(self, steps: int) -> Experience:
        """Drive all envs, and return the decisions of their cars.

        A car that leaves, or whose episode ends, keeps its last decision as one without a result; so do all cars at the
        end. A collision ends a car's decisions until it is free again.
        """
        core = self.sim.core
        shape = core.world.agents.shape
        # a car decides once in every 5 steps
        tally = Tally(shape, (steps // DECIDE_EVERY + 1) * shape[0] * shape[1])
        inputs, candidates, car_steps = list[NDArray[np.float32]](), list[Ints](), 0
        overlapping = self.cars.measured_in_place().overlaps > 0
        for _ in range(steps):
            deciding = self.cars.deciding()
            free = ~overlapping[deciding.env, deciding.slot]
            env, slot, seen = deciding.env[free], deciding.slot[free], deciding.inputs[free]
            closed, v = seen[:, CLOSED_INPUT] * VIEW_M, seen[:, SPEED_INPUT] * SPEED
            tally.begin(env, slot, (-self._cfg.passed_closed * cannot_stop(closed, v)).astype(np.float32))
            before = core.world.agents.copy()
            step = self.sim.step(self._expert.act(self._started))
            self._started = step.terminated | step.truncated
            ended, now = self._started.numpy(), core.world.agents
            inputs.append(seen)
            candidates.append(taken_candidate(before[env, slot], self._as_left(ended)[env, slot]))
            measured = self.cars.measured_in_place()
            overlaps = measured.overlaps > 0
            struck = overlaps & ~overlapping
            struck[ended] = self._struck_the_ego(ended)
            tally.crash(struck, self._cfg.collision)
            stays = (before["lane"] >= 0) & (now["lane"] >= 0) & (now["seed"] == before["seed"]) & ~ended[:, None]
            tally.forget(~stays)
            car_steps += int(tally.earning.sum())
            wanted = measured.limit * now["desire"]
            tally.add(step_reward(now["v"], wanted, now["a"], measured.gap, now["headway"], DT_S, self._cfg))
            overlapping = overlaps
        kept = slice(tally.count)
        found = tally.reward[kept], tally.after[kept], tally.crashed[kept]
        return Experience(np.concatenate(inputs), np.concatenate(candidates), *found, car_steps)

    def _as_left(self, ended: NDArray[np.bool_]) -> Any:
        """(N, A) road users after the last step, before the next episodes began."""
        core = self.sim.core
        if not ended.any():
            return core.world.agents
        agents = core.world.agents.copy()
        agents[core.ended_ids] = core.ended.agents
        return agents

    def _struck_the_ego(self, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(episodes that ended in the last step, A) cars that the ego collided with."""
        if not ended.any():
            return np.zeros((0, self.sim.core.world.agents.shape[1]), np.bool_)
        agents = self.sim.core.ended.agents
        found = np.zeros(agents.shape, np.bool_)
        for row, event in enumerate(self.sim.core.events[ended]):
            if event & tables.VEHICLE:
                found[row] = touching(agents[row])
        return found


def touching(agents: Any) -> NDArray[np.bool_]:
    """(A,) cars within `TOUCHES_M` of the ego, which is the first of the road users."""
    ego, found = agents[0], np.zeros(len(agents), np.bool_)
    for slot in np.flatnonzero((agents["kind"] == tables.CAR) & (agents["lane"] >= 0)):
        other = agents[slot]
        found[slot] = slot > 0 and boxes_overlap(
            other["x"] - ego["x"],
            other["y"] - ego["y"],
            ego["cos"],
            ego["sin"],
            0.5 * ego["length"] + TOUCHES_M,
            0.5 * ego["width"] + TOUCHES_M,
            other["cos"],
            other["sin"],
            0.5 * other["length"],
            0.5 * other["width"],
        )
    return found
