"""Tape of the driving sim: recorded control steps, so that all routes do exactly the same work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.stepping.tape import SEED, Route, random_actions
from robotrl.errors import RobotrlError

TASK = "bev/drive"
State = Mapping[str, NDArray[Any]]


class Tape(NamedTuple):
    """T control steps of N envs at all stages of their episodes, and the number of road users."""

    actions: NDArray[np.float32]
    """(T, N, 2)."""
    first: State
    """Exact state before the first step."""
    last: State
    """Exact state after the last step."""
    users: float
    """Mean number of road users in an env, including the ego; those that have left the map do not count."""
    cars: float
    """Mean number of cars in an env, including the ego."""
    ended: float
    """Fraction of env steps that ended an episode."""


def make(num_envs: int, agents: int, threads: int, obs: str, bank: Any = None, packed: bool = False) -> Any:
    """Make the driving sim with a shared map pool, so that building maps takes no time."""
    from robotrl.registry import make_sim

    sim = make_sim(TASK, num_envs=num_envs, seed=SEED, agents=agents, threads=threads, obs=obs, packed=packed)
    if bank is not None:
        sim.core.bank = bank
    return sim


def record(sim: Any, kind: str, before: int, steps: int) -> Tape:
    """Record `steps` control steps for replay.

    Args:
        sim: the driving sim.
        kind: source of the actions, "expert" or "random"; episodes of an untrained policy are as short as random ones.
        before: steps before the recording, so that episodes are at all stages.
        steps: T.
    """
    import torch

    drawn = random_actions(sim, before + steps) if kind == "random" else None
    expert = sim.make_expert(seed=SEED)
    sim.reset(SEED)
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    first: State = sim.get_state()
    actions: list[NDArray[np.float32]] = []
    users, cars, ended = [0.0], [0.0], 0
    for t in range(before + steps):
        if t == before:
            first, users, cars, ended = sim.get_state(), [], [], 0
        action = expert.act(started).numpy().copy() if drawn is None else drawn[t]
        actions.append(action)
        step = sim.step(torch.from_numpy(action))
        started = step.terminated | step.truncated
        counted = present(sim.core.world.agents)
        users.append(counted[0])
        cars.append(counted[1])
        ended += len(step.final_ids)
    share = ended / (steps * sim.num_envs)
    played = np.stack(actions[before:])
    return Tape(played, first, sim.get_state(), float(np.mean(users)), float(np.mean(cars)), share)


def present(agents: NDArray[Any]) -> tuple[float, float]:
    """Mean number of road users, and of cars, in an env; those waiting to enter the map are not counted.

    Args:
        agents: (N, A) records of the sim.
    """
    from robotrl.sims.driving import tables

    kind = agents["kind"]
    # the ego, in slot 0, always counts, whatever its lane
    here = (agents["lane"] >= 0) | (kind == tables.PEDESTRIAN)
    here[:, 0] = True
    cars = here & (kind == tables.CAR)
    users = cars | (here & ((kind == tables.CYCLIST) | (kind == tables.PEDESTRIAN)))
    return float(users.sum(1).mean()), float(cars.sum(1).mean())


def route(sim: Any, tape: Tape) -> Route:
    """Env steps per second of the sim on the tape, one call per control step, including restarts.

    The route raises `RobotrlError` if its final state is not that of the tape.
    """
    import torch

    actions = [torch.from_numpy(action) for action in tape.actions]

    def run() -> float:
        sim.set_state(tape.first)
        begun = time.perf_counter()
        for action in actions:
            sim.step(action)
        taken = time.perf_counter() - begun
        check_end(sim.get_state(), tape.last)
        return len(actions) * sim.num_envs / taken

    return run


def check_end(found: State, expected: State) -> None:
    """Check that a measurement did the recorded work.

    Raises:
        RobotrlError: an array of the states differs.
    """
    for key, value in expected.items():
        if not np.array_equal(found[key], value):
            raise RobotrlError(f"bench bev: the sim left the recorded states: {key!r} differs at the end")
