"""Named scenarios: road family and event of each, start states, and scripts of the events."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

from robotrl.sims.bev.traffic.lane_changes import HOLD_S
from robotrl.sims.bev.traffic.placing import clear, stoppable
from robotrl.sims.bev.traffic.surroundings import LANES_M, PER_WALK, nearest_walk, reach_of, spots_within, take_spot
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform
from robotrl.sims.driving.judge import begin_judging
from robotrl.sims.driving.roads.spots import SPOT_M
from robotrl.sims.driving.traffic.ego import on_road, put_ego
from robotrl.sims.driving.traffic.following import choose_next, empty, pose
from robotrl.sims.driving.world import Maps, WorldState


class ScenarioEvent(IntEnum):
    """Event that a scenario adds to normal traffic."""

    NONE = 0
    CUT_IN = 1
    OCCLUDED_PEDESTRIAN = 2
    UNPROTECTED_LEFT = 3
    STALLED_CAR = 4
    RED_LIGHT_RUNNER = 5


class Scenario(NamedTuple):
    """Scenario: name, road family and event."""

    name: str
    family: str
    event: ScenarioEvent


SCENARIOS = (
    Scenario("straight", "straight", ScenarioEvent.NONE),
    Scenario("curve", "curve", ScenarioEvent.NONE),
    Scenario("lane-change", "lane-change", ScenarioEvent.NONE),
    Scenario("merge", "merge", ScenarioEvent.NONE),
    Scenario("roundabout", "roundabout", ScenarioEvent.NONE),
    Scenario("signal", "signal", ScenarioEvent.NONE),
    Scenario("crossing", "crossing", ScenarioEvent.NONE),
    Scenario("cut-in", "lane-change", ScenarioEvent.CUT_IN),
    Scenario("occluded-pedestrian", "straight", ScenarioEvent.OCCLUDED_PEDESTRIAN),
    Scenario("unprotected-left", "signal", ScenarioEvent.UNPROTECTED_LEFT),
    Scenario("stalled-car", "lane-change", ScenarioEvent.STALLED_CAR),
    Scenario("red-light-runner", "signal", ScenarioEvent.RED_LIGHT_RUNNER),
)
"""All scenarios; a start's scenario is its id modulo the number of scenarios in use."""

CUT_IN, OCCLUDED, LEFT, STALLED, RUNNER = (int(event) for event in list(ScenarioEvent)[1:])

ROOM_M = 22.0
"""Road length outside junctions per car at the highest density, m."""
TRIES = 12
"""Number of positions tried for a car before it is left out."""
EGO_LENGTH_M, EGO_WIDTH_M = 4.7, 1.9
ASIDE_M, ASKEW_RAD = 0.4, 0.05
"""Largest lateral and heading offset of the ego from its route at the start."""
BESIDE = 0.4
"""Fraction of starts on multi-lane roads that are on a lane beside the route's, if there is one on both sides."""
KERB_M = 2.0
"""Distance beyond the road's edge at which a pedestrian stands after crossing."""


@kernel
def bend_of(maps: Maps, route: int) -> float:
    """Total turn, rad, of a route inside junctions, left positive."""
    row = maps.routes[route]
    total = 0.0
    for i in range(row.first, row.first + row.count):
        if maps.route_points[i].inside == 1:
            total += maps.route_points[i].curvature
    return total


@kernel
def choose_route(maps: Maps, first: int, count: int, event: int, seed: int) -> int:
    """Choose one of the routes from `first` on that suits the event."""
    chosen = first
    for k in range(24):
        chosen = first + min(int(uniform(seed, 10 + k) * count), count - 1)
        turn = bend_of(maps, chosen)
        if event == LEFT and turn < 0.6:
            continue
        if event == RUNNER and abs(turn) > 0.6:
            continue
        break
    return chosen


@kernel
def make_car(world: WorldState, e: int, me: Any, seed: int, slot: int) -> None:
    """Draw size of a car or truck, and speed and headway of its driver from the episode's population."""
    style = world.populations[world.episodes[e].population]
    me.kind = tables.CAR
    me.seed = seed * 64 + slot
    truck = uniform(seed, 100 + slot) < 0.07
    u = uniform(seed, 200 + slot)
    me.length = 8.0 if truck else 4.0 + u
    me.width = 2.3 if truck else 1.7 + 0.3 * u
    me.desire = style.desired_speed_low + style.desired_speed_width * uniform(seed, 300 + slot)
    me.headway = style.headway_s_low + style.headway_s_width * uniform(seed, 400 + slot)


@kernel
def make_cyclist(me: Any, seed: int, slot: int, limit: float) -> None:
    """Draw a cyclist, who rides on the right side of the lane."""
    me.kind = tables.CYCLIST
    me.seed = seed * 64 + slot
    me.length, me.width = 1.8, 0.6
    me.desire = (3.5 + 2.0 * uniform(seed, 300 + slot)) / limit
    me.headway = 1.2
    me.rest = me.d = -1.4


@kernel
def take_place(maps: Maps, row: Any, me: Any, at: float) -> None:
    """Put a car `at` m along all lanes outside junctions, one after another."""
    me.lane = row.lane
    for lane in range(row.lane, row.lane + row.lanes):
        if maps.lanes[lane].junction < 0:
            me.lane = lane
            if at < maps.lanes[lane].length:
                break
            at -= maps.lanes[lane].length
    me.s = at


@kernel
def populate(maps: Maps, world: WorldState, e: int, first: int, people: int, seed: int) -> None:
    """Place cars and cyclists in the slots from `first` on, and pedestrians at crosswalks in the last slots."""
    agents, episode = world.agents[e], world.episodes[e]
    row = maps.maps[episode.map]
    total = 0.0
    for lane in range(row.lane, row.lane + row.lanes):
        if maps.lanes[lane].junction < 0:
            total += maps.lanes[lane].length
    room = len(agents) - people - first
    nearby = row.spots > 0
    if nearby:
        episode.reach = reach_of(maps, row, world.egos[e].x, world.egos[e].y)
        total = SPOT_M * spots_within(maps, row, world.egos[e].x, world.egos[e].y, episode.reach)
        room = int(room * min(total / LANES_M, 1.0))
    count = min(int(episode.density * room + 0.5), int(total / ROOM_M))
    draw = 1000
    for k in range(count):
        slot = first + k
        me = agents[slot]
        for _ in range(TRIES):
            empty(me)
            share, far = uniform(seed, draw), 0.0
            draw += 1
            if nearby:
                far = take_spot(maps, world, e, me, share)
            else:
                take_place(maps, row, me, share * total)
            lane, lane_number, at = maps.lanes[me.lane], me.lane, me.s
            if uniform(seed, 500 + slot) < 0.08 and lane.right < 0 and lane.speed < 14.0:
                make_cyclist(me, seed, slot, lane.speed)
            else:
                make_car(world, e, me, seed, slot)
            me.lane = lane_number
            half = 0.5 * me.length + 0.5
            me.s = min(max(at, half), lane.length - half) if lane.length > 2.0 * half else min(at, lane.length)
            choose_next(maps, me)
            # slow enough to stop at a red light
            me.v = stoppable(maps, world, e, slot, lane.speed * me.desire * (0.5 + 0.5 * uniform(seed, 600 + slot)))
            pose(maps, me)
            if (not nearby or far < episode.reach) and clear(maps, world, e, slot, slot):
                break
            empty(me)
    walk_number, beyond = -1, -1.0
    for k in range(people):
        me = agents[len(agents) - 1 - k]
        empty(me)
        if not nearby:
            walk_number = k // PER_WALK
        elif k % PER_WALK == 0:
            walk_number, beyond = nearest_walk(maps, world, e, beyond)
        if walk_number < 0:
            continue
        me.kind, me.walk = tables.PEDESTRIAN, walk_number
        me.seed = seed * 64 + 63 - k
        me.length = me.width = 0.6
        me.desire = 1.0 + 0.6 * uniform(seed, 700 + k)
        me.wait = 0.5 + 12.0 * uniform(seed, 800 + k)
        me.turns = k % 2
        me.d = -0.9 if k % 2 == 0 else 0.9
        walk = maps.walks[row.walk + me.walk]
        length = math.hypot(walk.x1 - walk.x0, walk.y1 - walk.y0)
        sign = 1.0 if k % 2 == 0 else -1.0
        me.cos, me.sin = sign * (walk.x1 - walk.x0) / length, sign * (walk.y1 - walk.y0) / length
        x, y = (walk.x0, walk.y0) if k % 2 == 0 else (walk.x1, walk.y1)
        # each pedestrian keeps to one side of the strip in both directions
        me.x = x - me.d * (walk.y1 - walk.y0) / length
        me.y = y + me.d * (walk.x1 - walk.x0) / length
        if not clear(maps, world, e, len(agents) - 1 - k, first):
            empty(me)


@kernel
def place_cut_in(maps: Maps, world: WorldState, e: int, seed: int) -> None:
    """Cut-in event: place slot 1 beside the ego, slightly ahead."""
    ego, me = world.egos[e], world.agents[e, 1]
    lane = maps.lanes[ego.lane]
    target = lane.left if lane.right < 0 or (lane.left >= 0 and uniform(seed, 31) < 0.5) else lane.right
    if target < 0:
        return
    make_car(world, e, me, seed, 1)
    me.length, me.width = 4.6, 1.9
    me.lane, me.s, me.v, me.hold = target, ego.lane_s + 10.0, ego.v, 1.0e6
    choose_next(maps, me)
    pose(maps, me)
    world.episodes[e].target = 1


@kernel
def across(maps: Maps, world: WorldState, e: int, person: Any) -> float:
    """Distance, m, straight across all carriageways from a pedestrian at the kerb to the opposite sidewalk."""
    row = maps.maps[world.episodes[e].map]
    last = 0.0
    for k in range(80):
        way = 0.5 * k
        if on_road(maps, row, person.x + way * person.cos, person.y + way * person.sin):
            last = way
    return last + KERB_M


@kernel
def place_occluded(maps: Maps, world: WorldState, e: int, seed: int) -> None:
    """Occluded-pedestrian event: slot 1 is a pedestrian behind a van (slot 2) at the kerb on the ego's side."""
    agents, episode = world.agents[e], world.episodes[e]
    route = maps.routes[episode.route]
    person, van = agents[1], agents[2]
    for k in range(TRIES):
        at = int(45.0 + 0.5 * (route.count - 90) * uniform(seed, 40 + k))
        p = maps.route_points[route.first + at]
        van.kind, van.length, van.width = tables.OBSTACLE, 5.2, 2.0
        aside = -(p.right + 1.2)
        van.x, van.y, van.cos, van.sin = p.x - aside * p.sin, p.y + aside * p.cos, p.cos, p.sin
        person.kind, person.length, person.width = tables.PEDESTRIAN, 0.6, 0.6
        person.x, person.y = van.x + 3.4 * p.cos, van.y + 3.4 * p.sin
        person.cos, person.sin = -p.sin, p.cos
        person.walk, person.s, person.v = -1, 0.0, 0.0
        person.rest = across(maps, world, e, person)
        person.desire = 1.2 + 0.8 * uniform(seed, 60)
        episode.target, episode.phase = 1, 0
        # position of the event along the route
        person.wait = float(at) + 3.4
        if clear(maps, world, e, 2, 1) and clear(maps, world, e, 1, 1):
            return
        empty(van)
        empty(person)
    episode.target = -1


@kernel
def place_stalled(maps: Maps, world: WorldState, e: int, seed: int) -> None:
    """Stalled-car event: slot 1 stands on the lane on which the route begins."""
    ego, me = world.egos[e], world.agents[e, 1]
    lane = maps.route_points[maps.routes[world.episodes[e].route].first].lane
    make_car(world, e, me, seed, 1)
    me.kind, me.length, me.width, me.v, me.desire = tables.OBSTACLE, 4.6, 1.9, 0.0, 0.0
    me.lane = lane
    me.s = min(ego.lane_s + 60.0 + 60.0 * uniform(seed, 50), maps.lanes[lane].length - 40.0)
    pose(maps, me)
    world.episodes[e].target = 1


@kernel
def place_runner(maps: Maps, world: WorldState, e: int, seed: int) -> None:
    """Red-light-runner event: slot 1 comes from the side and does not stop; the ego arrives at a green light."""
    ego, episode, me = world.egos[e], world.episodes[e], world.agents[e, 1]
    row = maps.maps[episode.map]
    route = maps.routes[episode.route]
    start = maps.route_points[route.first + ego.index]
    own = start.lane
    through = maps.route_points[route.first + min(int(start.conflict) + 1, route.count - 1)].lane
    group = maps.lanes[own].group
    crossing = maps.lanes[through]
    draw = 70
    for _ in range(TRIES):
        if crossing.conflicts == 0:
            return
        conflict = maps.conflicts[
            crossing.conflict + min(int(uniform(seed, draw) * crossing.conflicts), crossing.conflicts - 1)
        ]
        draw += 1
        for lane in range(row.lane, row.lane + row.lanes):
            approach = maps.lanes[lane]
            if approach.junction >= 0 or approach.group == group or conflict.merges == 1:
                continue
            for k in range(approach.nexts):
                if approach.next[k] == conflict.other:
                    make_car(world, e, me, seed, 1)
                    me.length, me.width, me.reckless, me.hold = 4.6, 1.9, 1, 1.0e6
                    me.lane, me.next = lane, conflict.other
                    me.s, me.v = max(approach.length - 70.0, 5.0), 0.7 * approach.speed
                    me.desire = 1.0
                    pose(maps, me)
                    signal = maps.signals[row.signal + group]
                    arrival = start.conflict / max(0.75 * start.speed, 1.0)
                    episode.offset = (signal.start + 0.35 * signal.green - arrival) % signal.cycle
                    episode.target = 1
                    return


@kernel
def start(
    maps: Maps,
    world: WorldState,
    e: int,
    e_map: int,
    first_route: int,
    routes: int,
    scenario: int,
    event: int,
    population: int,
    seed: int,
    limit: int,
) -> None:
    """Start an episode in env `e`, determined by map, routes in use, scenario, population and start id `seed`."""
    episode, agents = world.episodes[e], world.agents[e]
    for slot in range(len(agents)):
        empty(agents[slot])
        world.order[e, slot] = slot
    episode.map, episode.scenario, episode.event, episode.seed = e_map, scenario, event, seed
    episode.population = population
    episode.route = choose_route(maps, maps.maps[e_map].route + first_route, routes, event, seed)
    episode.time, episode.steps, episode.limit = 0.0, 0, limit
    episode.offset = 60.0 * uniform(seed, 1)
    episode.phase, episode.target, episode.blocked, episode.events, episode.reach = 0, -1, 0.0, 0, 0.0
    low = 0.6 if event == LEFT else 0.15
    episode.density = low + (1.0 - low) * uniform(seed, 2)
    route = maps.routes[episode.route]
    p = maps.route_points[route.first]
    # off the line, and sometimes on the lane beside: a policy that always starts on the line never learns to return
    aside, lane = 2.0 * ASIDE_M * (uniform(seed, 4) - 0.5), maps.lanes[p.lane]
    u = uniform(seed, 5)
    if u < 0.5 * BESIDE and lane.left >= 0:
        aside += 0.5 * (lane.width + maps.lanes[lane.left].width)
    elif u > 1.0 - 0.5 * BESIDE and lane.right >= 0:
        aside -= 0.5 * (lane.width + maps.lanes[lane.right].width)
    x, y = p.x - aside * p.sin, p.y + aside * p.cos
    yaw = math.atan2(p.sin, p.cos) + 2.0 * ASKEW_RAD * (uniform(seed, 6) - 0.5)
    agents[0].seed = seed * 64
    put_ego(maps, world, e, x, y, yaw, p.speed * (0.3 + 0.5 * uniform(seed, 3)), EGO_LENGTH_M, EGO_WIDTH_M)
    begin_judging(world, e)
    first = 1
    if event == CUT_IN:
        place_cut_in(maps, world, e, seed)
        first = 2
    elif event == OCCLUDED:
        place_occluded(maps, world, e, seed)
        first = 3
    elif event == STALLED:
        place_stalled(maps, world, e, seed)
        first = 2
    elif event == RUNNER:
        place_runner(maps, world, e, seed)
        first = 2
    people = min(maps.maps[e_map].walks * PER_WALK, (len(agents) - first) // 3)
    populate(maps, world, e, first, max(people, 0), seed)


@kernel
def act(maps: Maps, world: WorldState, e: int) -> None:
    """Run the script of env `e`'s event, before the road users move."""
    episode = world.episodes[e]
    if episode.target < 0:
        return
    ego, me = world.egos[e], world.agents[e, episode.target]
    if episode.event == OCCLUDED:
        ahead = me.wait - ego.progress - 0.5 * EGO_LENGTH_M
        if episode.phase == 0 and ahead < 4.0 + 0.6 * ego.v + ego.v * ego.v / (2.0 * 3.5):
            episode.phase = 1
    elif episode.event == CUT_IN and me.lane >= 0 and episode.phase == 0:
        gap = me.s - ego.lane_s - 0.5 * (me.length + EGO_LENGTH_M)
        limit = maps.lanes[me.lane].speed
        me.desire = min(max((ego.v + 0.4 * (9.0 - gap)) / limit, 0.3), 1.3)
        lane = maps.lanes[ego.lane]
        if episode.time > 2.0 and 5.0 < gap < 12.0 and (lane.left == me.lane or lane.right == me.lane):
            width = 0.5 * (lane.width + maps.lanes[me.lane].width)
            me.d = width if lane.left == me.lane else -width
            me.s *= lane.length / maps.lanes[me.lane].length
            me.lane = ego.lane
            choose_next(maps, me)
            me.desire, me.hold = 0.7, HOLD_S
            episode.phase = 1
    elif episode.event == RUNNER and me.lane >= 0 and episode.phase == 0:
        lane = maps.lanes[me.lane]
        if lane.junction >= 0:
            episode.phase, me.desire = 1, 1.1
            return
        route = maps.routes[episode.route]
        mine = maps.route_points[route.first + ego.index].conflict - ego.progress
        # arrive at the same time as the ego
        if mine < tables.FAR / 2:
            speed = (lane.length - me.s) * max(ego.v, 3.0) / max(mine, 1.0)
            me.desire = min(max(speed / lane.speed, 0.2), 1.4)
