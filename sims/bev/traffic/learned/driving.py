"""Decisions of cars that a network drives: one candidate every half second, at times that are spread over the cars."""

from __future__ import annotations

from robotrl.sims.bev.traffic.lane_changes import END_M, change_to
from robotrl.sims.bev.traffic.learned.features import beside_of, observe_car
from robotrl.sims.bev.traffic.learned.layout import MODES
from robotrl.sims.bev.traffic.learned.network import choose, evaluate, piece
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.traffic.following import HARDEST, halt
from robotrl.sims.driving.world import Maps, WorldState

DECIDE_EVERY = 5
"""Steps between two decisions of a car; a piece of a profile is as long."""
CHOICE = 5 << 24
"""First stream of random numbers of choices, beyond those of whims."""
STREAMS = 32
"""Streams that a choice may take, no fewer than there are candidates."""


@kernel
def decide_by_network(
    maps: Maps,
    world: WorldState,
    e: int,
    slot: int,
    network: int,
    ahead: int,
    gap: float,
    joining: float,
    joining_v: float,
    closed: float,
    dt: float,
) -> None:
    """Choose a car's acceleration for this step, and at the times of its decisions a candidate and its line.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        slot: slot of the car.
        network: row of the world's networks.
        ahead: slot of its leader, -1 without.
        gap: gap to it, m; FAR without.
        joining: gap to a car on a lane that merges or parts, m; FAR without.
        joining_v: its speed, m/s.
        closed: distance from its front to where its way is closed, m; FAR if it is open.
        dt: s.
    """
    me, episode = world.agents[e, slot], world.episodes[e]
    me.hold = max(me.hold - dt, 0.0)
    if (episode.steps + slot) % DECIDE_EVERY == 0:
        weights, x, scratch = world.networks[network], world.car_input[e], world.car_scratch[e]
        observe_car(maps, world, e, slot, ahead, gap, joining, joining_v, closed, x)
        evaluate(weights, x, scratch)
        candidate = choose(weights, scratch, me.seed, CHOICE + STREAMS * episode.steps)
        line = candidate // MODES
        me.plan = max(piece(weights, scratch, candidate % MODES, 0), -HARDEST)
        if line > 0:
            change_to(maps, me, beside_of(maps, me, line), line - 1)
    lane = maps.lanes[me.lane]
    me.a = me.plan
    if lane.ends > 0:
        # there is no road beyond
        me.a = min(me.a, halt(me.v, lane.speed, lane.length - me.s - 0.5 * me.length - END_M, me.headway))
