"""Record types (numpy structured dtypes) of maps and world state, as read and written by kernels.

Records instead of one array per field: a step reads most fields of an agent or lane at once, and kernels take eleven
arrays instead of ninety. Floats have 32 bits, a resolution of 1 mm at 10 km.
"""

from __future__ import annotations

import numpy as np

F, D, J = np.float32, np.float64, np.int32

LANE = np.dtype(
    [
        ("first", J),  # its first point
        ("count", J),  # points
        ("spacing", F),  # m between points
        ("per_m", F),  # points for each metre
        ("length", F),  # m
        ("speed", F),  # limit, m/s
        ("width", F),  # m
        ("left", J),  # lane to change to, -1 without
        ("right", J),
        ("beside_left", J),  # lane of the same direction there, whether or not one may change to it; -1 without
        ("beside_right", J),
        ("next", J, (6,)),  # successors, -1 without
        ("nexts", J),  # how many
        ("stop", F),  # m along, of the stop line; -1 without
        ("control", J),  # lanes.Control
        ("group", J),  # light, -1 without
        ("junction", J),  # index among the map's junction lanes, -1 outside junctions
        ("conflict", J),  # its first conflict
        ("conflicts", J),
        ("crossing", J),  # its first crossing of a crosswalk
        ("crossings", J),
        ("origin", J),  # predecessor of a junction lane; -1 without
        ("part", F),  # m along it up to which it overlaps the other lanes from the same origin
        ("before", J),  # the only lane that leads into it, if neither of them is in a junction; -1 without
        ("ends", J),  # 1: cars must change to the left before its end, 2: to the right; 0: it goes on, or all end
        ("entry", J),  # 1: nothing leads into it, so traffic may appear at its beginning
    ],
    align=True,
)

POINT = np.dtype([("x", F), ("y", F), ("cos", F), ("sin", F)], align=True)

CONFLICT = np.dtype(
    [
        ("begin", F),  # m along the own lane
        ("end", F),
        ("other", J),  # the other lane
        ("other_begin", F),
        ("other_end", F),
        ("yields", J),  # 1: the own lane gives way
        ("merges", J),  # 1: both lead into the same lane
    ],
    align=True,
)

CROSSING = np.dtype([("walk", J), ("begin", F), ("end", F)], align=True)
"""Section of a lane on a crosswalk."""

WALK = np.dtype([("x0", F), ("y0", F), ("x1", F), ("y1", F), ("width", F), ("z", F)], align=True)

SIGNAL = np.dtype([("start", F), ("green", F), ("yellow", F), ("cycle", F)], align=True)

ROUTE_POINT = np.dtype(
    [
        ("x", F),
        ("y", F),
        ("cos", F),
        ("sin", F),
        ("curvature", F),  # 1/m, left positive
        ("left", F),  # m to the left edge of the lanes of this direction
        ("right", F),
        ("speed", F),  # limit, m/s
        ("lane", J),
        ("lane_s", F),  # m along that lane
        ("lane_left", F),  # m by which the route lies left of that lane's centre
        ("stop", F),  # m along the route of the next stop line at or after this point; FAR without
        ("control", J),
        ("group", J),
        ("conflict", F),  # m along the route to where the next lane in a junction begins; FAR without
        ("inside", J),  # 1 in a junction
    ],
    align=True,
)

MAP = np.dtype(
    [
        ("lane", J),  # its first lane
        ("lanes", J),
        ("entry", J),  # its first entry lane among the entries
        ("entries", J),
        ("signal", J),
        ("signals", J),
        ("walk", J),
        ("walks", J),
        ("parked", J),
        ("parkeds", J),
        ("route", J),
        ("routes", J),
        ("tile", np.int64),  # first cell
        ("rows", J),
        ("columns", J),
        ("x0", F),  # of the tile's first cell's corner
        ("y0", F),
        ("cell", F),  # m
        ("grid", J),  # first entry of its grid of nearest segments
        ("grid_rows", J),
        ("grid_columns", J),
        ("grid_cell", F),
        ("family", J),
        ("spot", J),  # first of its spots
        ("spots", J),  # none on a small map
        ("cell_spot", J),  # where the first spots of its grid's cells are listed
        ("levels", J),  # 1: lanes lie above one another, so heights are compared
        ("block", J),  # its first block of the surface in levels
        ("block_columns", J),
        ("layer", np.int64),  # first layer of its blocks
        ("lowest", F),  # m, height 0 of the layers
        ("grade", F),  # steepest, m for each metre
    ],
    align=True,
)

ROUTE = np.dtype([("first", J), ("count", J), ("length", F)], align=True)

PARKED = np.dtype([("x", F), ("y", F), ("cos", F), ("sin", F), ("length", F), ("width", F)], align=True)

SEGMENT = np.dtype([("x0", F), ("y0", F), ("x1", F), ("y1", F), ("speed", F), ("inside", F), ("z", F)], align=True)
"""Segment of about 8 m of a lane's centre line, for vector observations."""

SPOT = np.dtype([("lane", J), ("s", F)], align=True)
"""Place on a lane where traffic may appear."""

FAR = 1000.0
"""Distance, m, that means 'none ahead'."""

DRIVABLE, SOLID, BROKEN, SHOULDER, CROSSWALK = 1, 2, 4, 8, 16
"""Bits of a tile's cell."""

CAR, CYCLIST, PEDESTRIAN, OBSTACLE = 1, 2, 3, 4
"""Kinds of agents; 0 is an empty slot."""

AGENT = np.dtype(
    [
        ("kind", J),
        ("lane", J),
        ("s", F),  # m along the lane
        ("d", F),  # m left of its centre; a lane change brings it back to `rest`
        ("rest", F),  # its lateral position in the lane: 0, or aside for a cyclist
        ("v", F),  # m/s along
        ("a", F),  # m/s^2
        ("x", F),
        ("y", F),
        ("cos", F),
        ("sin", F),
        ("length", F),
        ("width", F),
        ("desire", F),  # desired speed as a fraction of the limit; for a pedestrian in m/s
        ("headway", F),  # s
        ("next", J),  # the successor it will take, -1 at an end
        ("seed", J),
        ("turns", J),  # draws made
        ("wait", F),  # s: time a car has stood at a sign or before others' path; time until a pedestrian walks
        ("hold", F),  # s until it may change lanes again; s that a pedestrian has waited in vain
        ("reckless", J),  # 1: ignores lights and yields to nobody
        ("walk", J),  # crosswalk of a pedestrian
        ("plan", F),  # m/s^2 that the traffic network has chosen until its next decision
        ("hit", J),  # 1: has been in a collision
    ],
    align=True,
)

EGO = np.dtype(
    [
        ("x", F),
        ("y", F),
        ("yaw", F),
        ("cos", F),
        ("sin", F),
        ("v", F),
        ("a", F),  # m/s^2 of the last step
        ("steer", F),  # last action
        ("accel", F),  # last action
        ("yaw_rate", F),
        ("index", J),  # route point behind
        ("progress", F),  # m along the route
        ("best", F),  # furthest so far
        ("d", F),  # m left of the route
        ("psi", F),  # heading less the route's, rad
        ("lane", J),
        ("lane_s", F),
        ("lane_d", F),
        ("leader", J),  # slot of the road user ahead, -1 none
        ("gap", F),  # m to it, bumper to bumper; FAR without
        ("leader_v", F),
        ("off", F),  # share of the box off the drivable surface
        ("outside", J),  # 1: outside the lanes of its direction
        ("stopped", F),  # m along the route of the stop line at which it has stood; -1 none
    ],
    align=True,
)

EPISODE = np.dtype(
    [
        ("map", J),
        ("route", J),
        ("seed", np.int64),  # the start id
        ("scenario", J),
        ("event", J),  # scenarios.Event
        ("time", F),  # s since the start
        ("offset", F),  # s by which the light cycle is advanced
        ("limit", J),  # steps
        ("steps", J),
        ("phase", J),  # of the named scenario's event: 0 waits, 1 runs
        ("target", J),  # slot of the scenario's main actor, -1 none
        ("density", F),
        ("population", J),  # driving style of the cars, a row of the world's populations
        ("reach", F),  # m from the ego within which road users are, on a map with spots; else 0
        ("traffic_v", F),  # mean speed of the cars that the ego meets, m/s; -1 without
        ("map_v", F),  # mean speed of all cars on the map, m/s; -1 without
        ("blocked", F),  # s that the ego has stood
        ("events", J),  # bits of what has happened in this step
        ("clamped", J),  # number of non-finite actions so far
    ],
    align=True,
)

POPULATION = np.dtype(
    [
        ("desired_speed_low", D),  # fraction of the limit
        ("desired_speed_width", D),
        ("headway_s_low", D),
        ("headway_s_width", D),
        ("accel_mps2", D),
        ("brake_mps2", D),
        ("standstill_gap_m", D),
        ("politeness", D),
        ("change_gain_mps2", D),
        ("safe_brake_mps2", D),
        ("change_headway_s", D),
        ("accepted_gap", D),
        ("yellow_brake_mps2", D),
        ("speed_noise", D),
        ("sudden_brakes_per_min", D),
        ("weave_m", D),
        ("distracted", D),
        ("network", np.int64),  # row of the world's networks that drives; -1: rules do
    ]
)
"""Driving style; see `traffic.populations.Population`. In double precision, as constants of kernels are."""

CLAIM = np.dtype(
    [
        ("rear", F),  # m along the lane of the last car on it, -1 if it is empty
        ("rear_v", F),
        ("rear_length", F),
        ("front", F),  # likewise of the first car
        ("front_v", F),
        ("front_length", F),
        ("front_a", F),
        ("distance", F),  # distance, m, of the next car to arrive; FAR without
        ("v", F),
        ("a", F),
        ("slot", J),
        ("waited", F),  # s that the first car at its stop sign has stood, FAR if it sets off; -1 without
    ],
    align=True,
)

COMFORT = ("accel", "accel_lat", "jerk", "jerk_lon", "yaw_rate", "yaw_accel")
"""Comfort limits, in the order of their timers."""
WINDOW = 5
"""Number of samples of the derivative filter."""

JUDGE = np.dtype(
    [
        ("ttc", F),  # remaining time, s, of the near-collision penalty
        ("comfort", F, (6,)),  # likewise for each comfort limit
        ("offset", F),  # s for which the ego has been off its lane's centre
        ("speeds", F, (WINDOW,)),  # the last ones, latest last
        ("yaws", F, (WINDOW,)),  # unwrapped
        ("accels", F, (WINDOW,)),
        ("accels_lat", F, (WINDOW,)),
        ("yaw_rates", F, (WINDOW,)),
        ("seen", J),  # samples so far
        ("steer", F),  # of the step before
        ("outside_m", F),  # driven outside the lanes of its direction
        ("ego_speed", F, (4,)),  # summed over the steps in each quarter of the route
        ("traffic_speed", F, (4,)),
        ("map_speed", F, (4,)),
        ("quarter_steps", F, (4,)),
        ("at_fault", J),
    ],
    align=True,
)

VEHICLE, PERSON, STATIC, RED_LIGHT, STOP_SIGN, OFF_ROAD, OFF_ROUTE, BLOCKED, FINISHED, TIMED_OUT = (
    1 << i for i in range(10)
)
"""Bits of an episode's events."""
DEVIATION, LOG_ENDED = 1 << 10, 1 << 11
"""Bits of events that only a replayed log has: the ego left what was logged, or the log ended."""
EVENTS = {
    "vehicle": VEHICLE,
    "pedestrian": PERSON,
    "static": STATIC,
    "red_light": RED_LIGHT,
    "stop_sign": STOP_SIGN,
    "off_road": OFF_ROAD,
    "off_route": OFF_ROUTE,
    "blocked": BLOCKED,
    "finished": FINISHED,
    "timed_out": TIMED_OUT,
    "deviation": DEVIATION,
    "log_ended": LOG_ENDED,
}
"""Event names, in the order of their bits; every event ends the episode."""
JUDGE_EVENTS = tuple(EVENTS)[:10]
"""Events that `judge` finds; a reward may have a term for ending with one of them."""
TERMS = (
    "progress",
    "outside",
    "speeding",
    "ttc",
    "comfort",
    "centre",
    "speed",
    "lateral",
    "heading",
    "steering",
    "end",
)
"""Names of the reward terms; see `rewards`."""
