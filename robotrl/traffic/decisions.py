"""Decisions of a sim's own traffic, recorded for cloning: a car's input, its line, and its acceleration over 4 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.sims.bev.sim import DriveSim
from robotrl.sims.bev.traffic.lane_changes import HOLD_S
from robotrl.sims.bev.traffic.learned import layout
from robotrl.sims.bev.traffic.learned.cars import Cars
from robotrl.sims.bev.traffic.learned.driving import DECIDE_EVERY
from robotrl.sims.driving.sim import DT_S

HORIZON = layout.PIECES * DECIDE_EVERY
"""Steps that a profile covers."""


class Decisions(NamedTuple):
    """Decisions of cars."""

    inputs: NDArray[np.float32]
    """(D, layout.INPUT)."""
    line: NDArray[np.int64]
    """(D,) line taken: 0 own, 1 left, 2 right."""
    profile: NDArray[np.float32]
    """(D, layout.PIECES) mean acceleration in each half second after it, m/s^2."""


class CarFrame(NamedTuple):
    """State (N, A) of the road users before a step, and steps (N,) of the episodes."""

    v: NDArray[np.float32]
    lane: NDArray[np.int32]
    d: NDArray[np.float32]
    hold: NDArray[np.float32]
    seed: NDArray[np.int32]
    steps: NDArray[np.int32]


def record_decisions(
    sim: DriveSim, count: int, seed: int, progress: Callable[[int], None] = lambda count: None
) -> Decisions:
    """Record decisions of the cars while the rule-based driver drives the ego.

    Cars that leave, enter again or whose episode ends within the horizon are left out, and so are lane changes that a
    car whom a network drives could not make.

    Args:
        sim: the sim.
        count: least number of decisions.
        seed: seed of starts and driver.
        progress: called with the number of new decisions.
    """
    cars, expert = Cars(sim.core), sim.make_expert(seed=seed)
    sim.reset(seed=seed, options={"stagger": True})
    started = torch.ones(sim.num_envs, dtype=torch.bool)
    frames = list[CarFrame]()
    waiting = list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]()
    parts = list[Decisions]()
    found = 0
    while found < count:
        frames.append(_frame(sim))
        deciding = cars.deciding()
        waiting.append((deciding.env, deciding.slot, deciding.inputs))
        step = sim.step(expert.act(started))
        started = step.terminated | step.truncated
        if len(frames) > HORIZON:
            part = labeled(frames, *waiting.pop(0))
            frames.pop(0)
            parts.append(part)
            found += len(part.line)
            progress(len(part.line))
    return Decisions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def labeled(
    frames: list[CarFrame], env: NDArray[np.int64], slot: NDArray[np.int64], inputs: NDArray[np.float32]
) -> Decisions:
    """Decisions at the first of `HORIZON` + 1 frames, labeled with what the cars did; see `record_decisions`.

    Args:
        frames: states before each step.
        env: (C,) env of each car that decides at the first frame.
        slot: (C,) its slot.
        inputs: (C, layout.INPUT).
    """
    first, after = frames[0], frames[1]
    stays = np.ones(len(env), bool)
    for k, frame in enumerate(frames):
        stays &= (frame.lane[env, slot] >= 0) & (frame.seed[env, slot] == first.seed[env, slot])
        stays &= frame.steps[env] == first.steps[env] + k
    changes = (after.hold[env, slot] == np.float32(HOLD_S)) & (first.hold[env, slot] < 1.0)
    # on the lane on the left a car begins on the right
    line = np.where(changes, np.where(after.d[env, slot] < first.d[env, slot], 1, 2), 0)
    stays &= inputs[np.arange(len(env)), layout.MASK_AT + line] > 0
    v = np.stack([frame.v[env, slot] for frame in frames[::DECIDE_EVERY]], axis=1)
    profile = np.diff(v, axis=1) / (DT_S * DECIDE_EVERY)
    return Decisions(inputs[stays], line[stays].astype(np.int64), profile[stays].astype(np.float32))


def _frame(sim: DriveSim) -> CarFrame:
    agents, episodes = sim.core.world.agents, sim.core.world.episodes
    columns = {name: agents[name].copy() for name in ("v", "lane", "d", "hold", "seed")}
    return CarFrame(**columns, steps=episodes["steps"].copy())
