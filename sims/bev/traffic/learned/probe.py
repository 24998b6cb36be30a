"""Kernels over many envs that tell of the traffic: inputs of cars, returns of candidates, measurements."""

from __future__ import annotations

from typing import Any

from robotrl.sims.bev.traffic.learned.driving import DECIDE_EVERY
from robotrl.sims.bev.traffic.learned.features import beside_of, observe_car
from robotrl.sims.bev.traffic.learned.forward import forecast, near_slots, roll
from robotrl.sims.bev.traffic.learned.layout import LINES, MASK_AT, MODES, PIECES
from robotrl.sims.bev.traffic.learned.network import evaluate, piece
from robotrl.sims.bev.traffic.pedestrians import runs_into_street
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import boxes_overlap
from robotrl.sims.driving.traffic.following import leader, style_of
from robotrl.sims.driving.traffic.heights import are_apart
from robotrl.sims.driving.traffic.right_of_way import barrier, merging, parting
from robotrl.sims.driving.world import Maps, WorldState

MEASURES = ("speed", "accel", "gap", "closing", "limit", "overlaps")
"""Measurements of a car: speed, m/s, acceleration, m/s^2, gap to its leader, m, or FAR, own speed minus the leader's,
m/s, speed limit, m/s, and 1 if it overlaps another road user."""


@kernel
def is_driven(world: WorldState, e: int, slot: int) -> bool:
    """True for a car of the traffic on a lane that no script drives."""
    me, episode = world.agents[e, slot], world.episodes[e]
    return slot > 0 and me.kind == tables.CAR and me.lane >= 0 and slot != episode.target


@kernel
def closed_way(maps: Maps, world: WorldState, e: int, slot: int) -> float:
    """Distance from a car's front to where its way is closed, m; FAR if it is open."""
    return min(barrier(maps, world, e, slot, 0.0), runs_into_street(world, e, world.agents[e, slot]))


@kernel
def joined(maps: Maps, world: WorldState, e: int, slot: int) -> tuple[float, float]:
    """Gap to and speed of the nearer of the cars on lanes that merge with a car's way or part from it; FAR without."""
    gap, v = parting(maps, world, e, slot)
    if maps.lanes[world.agents[e, slot].lane].junction >= 0:
        merged, merged_v = merging(maps, world, e, slot)
        if merged < gap:
            gap, v = merged, merged_v
    return gap, v


@kernel
def observe_cars(maps: Maps, world: WorldState, inputs: Any, due: Any, low: int, high: int) -> None:
    """Write the inputs (N, A, INPUT) of the cars that decide in the next step, and which these are, (N, A)."""
    for e in range(low, high):
        order = world.order[e]
        for at in range(len(order)):
            slot = order[at]
            decides = (world.episodes[e].steps + slot) % DECIDE_EVERY == 0 and is_driven(world, e, slot)
            due[e, slot] = 1 if decides else 0
            if decides:
                ahead, gap = leader(maps, world, e, slot, at)
                joining, v = joined(maps, world, e, slot)
                closed = closed_way(maps, world, e, slot)
                observe_car(maps, world, e, slot, ahead, gap, joining, v, closed, inputs[e, slot])


@kernel
def roll_candidates(
    maps: Maps,
    world: WorldState,
    inputs: Any,
    due: Any,
    forecasts: Any,
    near: Any,
    profile: Any,
    terms: Any,
    low: int,
    high: int,
) -> None:
    """Drive every candidate of the cars that decide in the next step, and that a network drives.

    Args:
        maps: all maps.
        world: all envs.
        inputs: (N, A, INPUT) from `observe_cars`.
        due: (N, A) from `observe_cars`; becomes 0 for cars that rules drive.
        forecasts: (N, A, STEPS, 4) scratch.
        near: (N, A) scratch.
        profile: (N, PIECES) scratch.
        terms: (N, A, CANDIDATES, len(TERMS)) sums of the reward's terms; those of masked candidates are not written.
        low: first env.
        high: last env, excluded.
    """
    for e in range(low, high):
        forecast(maps, world, e, forecasts[e])
        for slot in range(1, len(world.agents[e])):
            if due[e, slot] == 0:
                continue
            network = int(style_of(world, e, slot).network)
            if network < 0:
                due[e, slot] = 0
                continue
            weights, x, scratch = world.networks[network], inputs[e, slot], world.car_scratch[e]
            evaluate(weights, x, scratch)
            closed, count = closed_way(maps, world, e, slot), near_slots(maps, world, e, slot, near[e])
            for mode in range(MODES):
                for k in range(PIECES):
                    profile[e, k] = piece(weights, scratch, mode, k)
                for line in range(LINES):
                    if x[MASK_AT + line] > 0.0:
                        target = beside_of(maps, world.agents[e, slot], line)
                        out = terms[e, slot, line * MODES + mode]
                        seen = forecasts[e], near[e], count
                        roll(maps, world, e, slot, line, target, profile[e], closed, *seen, out)


@kernel
def overlaps(maps: Maps, world: WorldState, e: int, slot: int) -> bool:
    """True if a car overlaps another road user."""
    agents = world.agents[e]
    me = agents[slot]
    for k in range(len(agents)):
        other = agents[k]
        dx, dy = other.x - me.x, other.y - me.y
        if (
            other.kind > 0
            and k != slot
            and dx * dx + dy * dy < 400.0
            and boxes_overlap(
                dx,
                dy,
                me.cos,
                me.sin,
                0.5 * me.length,
                0.5 * me.width,
                other.cos,
                other.sin,
                0.5 * other.length,
                0.5 * other.width,
            )
            and not are_apart(maps, world, e, me, other)
        ):
            return True
    return False


@kernel
def measure_cars(maps: Maps, world: WorldState, out: Any, there: Any, low: int, high: int) -> None:
    """Write the measurements (N, A, len(MEASURES)) of the cars, and which are there, (N, A)."""
    for e in range(low, high):
        order = world.order[e]
        for at in range(len(order)):
            slot = order[at]
            me = world.agents[e, slot]
            there[e, slot] = 1 if is_driven(world, e, slot) else 0
            if there[e, slot] == 0:
                continue
            ahead, gap = leader(maps, world, e, slot, at)
            out[e, slot, 0], out[e, slot, 1], out[e, slot, 2] = me.v, me.a, gap
            out[e, slot, 3] = me.v - world.agents[e, ahead].v if ahead >= 0 else 0.0
            out[e, slot, 4] = maps.lanes[me.lane].speed
            out[e, slot, 5] = 1.0 if overlaps(maps, world, e, slot) else 0.0
