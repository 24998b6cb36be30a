"""Lane changes of cars: MOBIL (Kesting, Treiber and Helbing 2007), and passing standing obstacles."""

from __future__ import annotations

from typing import Any

from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.traffic.following import ACCEL, VIEW_M, ahead_on, behind_on, choose_next, style_of, styled_idm
from robotrl.sims.driving.world import Maps, WorldState

ROOM_M = 2.0
"""Room that a lane change needs to those ahead and behind, besides a time headway."""
CHANGE_EVERY = 10
"""Steps between two lane-change decisions of a car."""
BEHIND_M = 20.0
"""Length of a lane behind a junction to which nobody changes: who comes out of the junction is not seen there."""
END_M = 1.0
"""Distance from the end of its lane at which a car waits that has to change lanes."""
HOLD_S = 4.0
"""Minimum time between two lane changes."""
SIDEWAYS_MPS = 1.2
"""Lateral speed of a lane change."""
UNDERWAY_MPS = 3.0
"""Speed below which the lateral speed decreases in proportion, since a car cannot move sideways."""


@kernel
def can_pull_out(me: Any, ahead: Any, gap: float) -> bool:
    """True if a car that changes lanes now clears the side of the one ahead before it reaches it."""
    duration = (0.5 * (me.width + ahead.width) + 0.2) / SIDEWAYS_MPS
    return (max(me.v, UNDERWAY_MPS) - ahead.v) * duration + 0.5 * ACCEL * duration * duration < gap - 0.3


@kernel
def consider_change(maps: Maps, world: WorldState, e: int, slot: int, style: Any, accel: float, side: int) -> bool:
    """Change lanes if MOBIL decides so, or as soon as there is room from a lane that ends; true if the car changed.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the car.
        style: its driving style, `tables.POPULATION`.
        accel: its acceleration on the present lane, m/s^2.
        side: 0 left, 1 right.
    """
    agents = world.agents[e]
    me = agents[slot]
    lane = maps.lanes[me.lane]
    target = lane.left if side == 0 else lane.right
    if target < 0 or (lane.ends > 0 and lane.ends != 1 + side):
        return False
    there = maps.lanes[target]
    s = me.s * there.length / lane.length
    if lane.ends == 0 and s < BEHIND_M and there.before < 0 and there.entry == 0:
        return False
    wanted = max(there.speed * me.desire, 0.5)
    gain = styled_idm(me.v, wanted, VIEW_M, 0.0, me.headway, style) - accel
    k, far = ahead_on(maps, world, e, target, s)
    if k >= 0:
        ahead = agents[k]
        gap = far - 0.5 * (me.length + ahead.length)
        if gap < ROOM_M + style.change_headway_s * me.v:
            return False
        gain = styled_idm(me.v, wanted, gap, me.v - ahead.v, me.headway, style) - accel
    loss = 0.0
    k, far = behind_on(maps, world, e, target, s, slot)
    if k >= 0:
        behind = agents[k]
        gap = far - 0.5 * (me.length + behind.length)
        if gap < ROOM_M + style.change_headway_s * behind.v:
            return False
        wanted_there = max(there.speed * behind.desire, 0.5)
        forced = styled_idm(behind.v, wanted_there, gap, behind.v - me.v, behind.headway, style_of(world, e, k))
        if forced < -style.safe_brake_mps2:
            return False
        loss = max(behind.a - forced, 0.0)
    if lane.ends == 0 and gain - style.politeness * loss < style.change_gain_mps2:
        return False
    if meets_another(world, e, slot, target, s, style):
        return False
    change_to(maps, me, target, side)
    return True


@kernel
def meets_another(world: WorldState, e: int, slot: int, target: int, s: float, style: Any) -> bool:
    """True if another car has decided in this step to change to the same place, as from the lane on the other side."""
    agents = world.agents[e]
    me = agents[slot]
    for k in range(1, len(agents)):
        other = agents[k]
        if k != slot and other.lane == target and other.hold == HOLD_S:
            room = ROOM_M + style.change_headway_s * max(me.v, other.v)
            if abs(other.s - s) - 0.5 * (me.length + other.length) < room:
                return True
    return False


@kernel
def change_to(maps: Maps, me: Any, target: int, side: int) -> None:
    """Put a car on the neighboring lane `target`, on its left (side 0) or right (1), at the place where it is."""
    lane, there = maps.lanes[me.lane], maps.lanes[target]
    width = 0.5 * (lane.width + there.width)
    me.lane, me.s, me.hold = target, me.s * there.length / lane.length, HOLD_S
    me.d += -width if side == 0 else width
    choose_next(maps, me)
