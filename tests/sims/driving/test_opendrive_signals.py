"""Stop lines, the times of lights, and crosswalks of OpenDRIVE files."""

import math
import re

import numpy as np
import pytest

import tests.kits.xodr_kit as kit
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads.lanes import NONE, Control, RoadBuilder


def two_way(*inside: str) -> RoadBuilder:
    """Lanes: 0 and 1 against s (ids 1, 2), 2 and 3 along s (ids -1, -2); 100 m."""
    lanes = kit.section(0, [kit.lane(1), kit.lane(2)], [kit.lane(-1), kit.lane(-2)])
    return kit.parse(kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), lanes, inside=kit.signals(*inside))))


@pytest.mark.parametrize(
    ("orientation", "inside", "ruled"),
    [
        ("+", "", {2: 70, 3: 70}),
        ("-", "", {0: 30, 1: 30}),
        ("none", "", {0: 30, 1: 30, 2: 70, 3: 70}),
        ("+", kit.valid(-2, -2), {3: 70}),
        ("+", kit.valid(-1, -2), {2: 70, 3: 70}),
        ("none", kit.valid(-1, 1), {0: 30, 2: 70}),
        ("+", kit.valid(-1, -1) + kit.valid(-2, -2), {2: 70, 3: 70}),
        ("-", kit.valid(-2, -2), {3: 70}),
        ("+", kit.valid(0, 0), {}),
    ],
)
def test_a_signal_rules_the_lanes_that_it_is_valid_for(orientation, inside, ruled):
    for kind, control in (("206", Control.STOP), ("205", Control.YIELD), ("1000001", Control.LIGHT), ("274", None)):
        builder = two_way(kit.signal("s", 70, orientation, kind, inside))
        found = {i: lane.stop_s for i, lane in enumerate(builder.lanes) if lane.control != Control.NONE}
        assert found == pytest.approx(ruled if control is not None else {}, abs=1e-6)
        assert {lane.control for lane in builder.lanes} <= {Control.NONE, control}
        assert all((lane.group != NONE) == (lane.control == Control.LIGHT) for lane in builder.lanes)
        assert bool(builder.signals) == (control == Control.LIGHT and bool(ruled))


def test_a_stop_line_keeps_off_the_end_of_its_lane():
    assert [lane.stop_s for lane in two_way(kit.signal("s", 100, "none", "206")).lanes] == pytest.approx(
        [0.5, 0.5, 99, 99]
    )
    assert two_way(kit.signal("s", 100.4, "+", "206")).lanes[3].stop_s == pytest.approx(99)
    assert two_way(kit.signal("s", -0.1, "-", "206")).lanes[0].stop_s == pytest.approx(99)


def test_other_dynamic_signals_are_lights_unless_for_people_or_of_a_sign():
    for kind, light in (("1000009", True), ("-1", True), ("1000002", False), ("1000013", False), ("274", False)):
        text = kit.signal("s", 70, "+", kind).replace('dynamic="no"', 'dynamic="yes"')
        assert (two_way(text).lanes[2].control == Control.LIGHT) == light


def test_a_light_goes_before_a_stop_sign_and_that_before_a_yield_sign():
    signs = [kit.signal("a", 60, "+", "205"), kit.signal("b", 70, "+", "206"), kit.signal("c", 80, "+")]
    for chosen in (signs, signs[::-1]):
        assert two_way(*chosen).lanes[2].control == Control.LIGHT
        assert two_way(*(s for s in chosen if "1000001" not in s)).lanes[2].stop_s == pytest.approx(70)


def approach_lights(kind: str = "1000001", **rest) -> RoadBuilder:
    """The crossroads with one signal before the junction on each road; id: s0 to s3."""
    arms = rest.get("arms", 4)
    at = {a: (kit.ARM - 3, "+") if a % 2 == 0 else (3, "-") for a in range(arms)}
    return kit.parse(kit.crossroads({a: kit.signals(kit.signal(f"s{a}", *at[a], kind)) for a in at}, **rest))


def green(builder: RoadBuilder, lane: int, t: float) -> bool:
    """Green or yellow."""
    light = builder.signals[builder.lanes[lane].group]
    return (t - light.start_s) % builder.cycle_s < light.green_s + light.yellow_s


def approaches(builder: RoadBuilder) -> list[int]:
    """By arm."""
    found = [i for i, lane in enumerate(builder.lanes) if lane.next and not lane.junction]
    return sorted(found, key=lambda i: math.atan2(*builder.lanes[i].points[0][::-1]) % (2 * math.pi) + 1e-3 * i)


def phases_of(builder: RoadBuilder) -> list[set[int]]:
    """The arms that are green or yellow together, in order."""
    found = []
    lanes = {round(math.atan2(*builder.lanes[i].points[0][::-1]) / (math.pi / 2)) % 4: i for i in approaches(builder)}
    for t in np.arange(0.0, builder.cycle_s, 0.5):
        now = {arm for arm, i in lanes.items() if builder.lanes[i].group != NONE and green(builder, i, t)}
        if now and (not found or found[-1] != now):
            found.append(now)
    return found


def test_without_controllers_opposite_approaches_are_green_together_and_no_others():
    builder = approach_lights()
    assert builder.cycle_s == 30 and [s.green_s for s in builder.signals] == [10, 10]
    assert phases_of(builder) == [{0, 2}, {1, 3}]
    for i in approaches(builder):
        assert builder.lanes[i].stop_s == pytest.approx(kit.ARM - 3)


def test_the_stem_of_a_t_has_a_phase_of_its_own():
    assert phases_of(approach_lights(arms=3)) == [{0, 2}, {1}]


def test_controllers_are_phases_in_the_order_of_the_junction():
    def ruled(own: str, *lights: str) -> str:
        return kit.tag("controller", *(kit.tag("control", signalId=i, type="") for i in lights), id=own, name="")

    def sequence(**order: int) -> str:
        return "".join(kit.tag("controller", id=own, sequence=n) for own, n in order.items())

    controllers = ruled("c0", "s0") + ruled("c1", "s1", "s3") + ruled("c2", "s2")

    def of(inside: str) -> list[set[int]]:
        lights = {a: kit.signals(kit.signal(f"s{a}", *((57, "+") if a % 2 == 0 else (3, "-")))) for a in range(4)}
        text = kit.crossroads(lights, inside).replace("</OpenDRIVE>", controllers + "</OpenDRIVE>")
        return phases_of(kit.parse(text))

    assert of("") == [{0}, {1, 3}, {2}]
    assert of(sequence(c0=2, c1=1, c2=0)) == [{2}, {1, 3}, {0}]
    # one controller for all lights says nothing about phases, one that leaves lights out no more
    controllers = ruled("c0", "s0", "s1", "s2", "s3")
    assert of("") == [{0, 2}, {1, 3}]
    controllers = ruled("c0", "s0", "s2")
    assert of("") == [{0, 2}, {1, 3}]


def test_each_signal_may_be_a_light_of_its_own_and_lights_know_their_signals():
    lights = {a: kit.signals(kit.signal(f"s{a}", 57 if a % 2 == 0 else 3, "+-"[a % 2])) for a in range(4)}
    # a second signal for the same lane, behind the first, has no lane
    lights[1] += kit.signals(kit.signal("t1", 2, "-"))
    text = kit.crossroads(lights)
    phases, own = reader.parse(text, "x"), reader.parse(text, "x", own_lights=True)
    assert phases.signal_ids == [("s0", "s2"), ("s1", "s3")]
    assert own.signal_ids == [("s0",), ("s1",), ("s2",), ("s3",)] and len(own.signals) == 4
    for a, b in zip(phases.lanes, own.lanes, strict=True):
        assert (a.control, a.stop_s) == (b.control, b.stop_s)
        if a.control == Control.LIGHT:
            assert own.signal_ids[b.group][0] in phases.signal_ids[a.group]
    assert sorted(lane.group for lane in own.lanes if lane.control == Control.LIGHT) == [0, 1, 2, 3]
    assert all(0 < light.green_s < own.cycle_s for light in own.signals)


def test_a_full_light_goes_before_an_arrow():
    arrow = kit.signal("a0", 57, "+", "1000011").replace('dynamic="no"', 'dynamic="yes"')
    lights = {0: kit.signals(arrow, kit.signal("s0", 57)), 1: kit.signals(kit.signal("s1", 3, "-"))}
    rules = {"c0": ("s0",), "c1": ("a0", "s1")}
    ruled = [kit.tag("controller", *(kit.tag("control", signalId=i) for i in of), id=own) for own, of in rules.items()]
    order = kit.tag("controller", id="c0", sequence=2) + kit.tag("controller", id="c1", sequence=1)
    text = kit.crossroads(lights, order).replace("</OpenDRIVE>", "".join(ruled) + "</OpenDRIVE>")
    assert phases_of(kit.parse(text)) == [{1}, {0}]


def test_signals_on_the_roads_of_a_junction_rule_the_lanes_that_lead_in():
    text = kit.crossroads(ways_inside=kit.signals(kit.signal("own", 5)))
    own = iter(range(12))
    text = re.sub(r'id="own"', lambda _: f'id="own{next(own)}"', text)
    builder = kit.parse(text)
    assert phases_of(builder) == [{0, 2}, {1, 3}]
    assert {i for i, lane in enumerate(builder.lanes) if lane.control != Control.NONE} == set(approaches(builder))
    assert all(builder.lanes[i].stop_s == pytest.approx(kit.ARM - 1) for i in approaches(builder))


@pytest.mark.parametrize("orientation", ["+", "-", "none"])
def test_a_signal_inside_a_junction_rules_whatever_its_orientation(orientation):
    signal = kit.signals(kit.signal("s", 0, orientation))
    builder = kit.parse(kit.crossroads(ways_inside=signal))
    ruled = [lane for lane in builder.lanes if lane.control == Control.LIGHT]
    assert len(ruled) == 4 and not any(lane.junction for lane in ruled)


def test_a_signal_reference_rules_like_the_signal():
    light = kit.signal("x", 50, "+", inside=kit.valid(0, 0))
    reference = kit.signal("x", 60, "-", inside=kit.valid(2, 2), name="signalReference")
    builder = two_way(light, reference)
    assert [lane.control for lane in builder.lanes] == [Control.NONE, Control.LIGHT, Control.NONE, Control.NONE]
    assert builder.lanes[1].stop_s == pytest.approx(40)


def test_a_sign_in_the_section_before_the_last_moves_to_the_junction():
    text = kit.crossroads({0: kit.signals(kit.signal("s", 50, "+", "206"))})
    slow = kit.tag("speed", sOffset=0, max=5)
    cut = kit.section(0, [kit.lane(1)], [kit.lane(-1, after=-1)]) + kit.section(
        55, [kit.lane(1, after=1)], [kit.lane(-1, before=-1, inside=slow)]
    )
    builder = kit.parse(text.replace(kit.section(0, [kit.lane(1)], [kit.lane(-1)]), cut, 1))
    ruled = [lane for lane in builder.lanes if lane.control == Control.STOP]
    assert len(ruled) == 1 and len(ruled[0].next) == 3
    assert ruled[0].stop_s == pytest.approx(4)


def test_a_light_without_a_junction_is_green_for_half_of_the_cycle():
    builder = two_way(kit.signal("s", 50, "none"))
    assert builder.cycle_s == 30 and len(builder.signals) == 1
    assert builder.signals[0].green_s == 10
    assert {lane.group for lane in builder.lanes} == {0}


# crosswalks


@pytest.mark.parametrize(
    "more",
    [
        {"hdg": 0, "length": 4, "width": 10},
        {"hdg": math.pi / 2, "length": 10, "width": 4},
        {"hdg": -math.pi / 2, "length": 10, "width": 4, "orientation": "-"},
    ],
)
def test_a_crosswalk_by_its_size_is_walked_across_the_road(more):
    ends, width = kit.walk(kit.parse(kit.document(kit.straight(inside=kit.crosswalk(**more)))))
    assert width == pytest.approx(4)
    assert sorted([tuple(np.round(ends[:2], 6)), tuple(np.round(ends[2:], 6))]) == [(40, -6), (40, 4)]


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("of_road", [True, False])
def test_a_crosswalk_by_its_corners(wrapped, closed, of_road):
    corners = [(-1.5, -4), (1.5, -4), (1.5, 5), (-1.5, 5)]
    corners += corners[:1] if closed else []
    hdg = 0.0 if of_road else math.pi / 2
    rows = [
        kit.tag("cornerRoad", s=40 + u, t=-1 + v) if of_road else kit.tag("cornerLocal", u=v, v=-u) for u, v in corners
    ]
    outline = kit.tag("outline", *rows)
    inside = kit.crosswalk(kit.tag("outlines", outline) if wrapped else outline, hdg=hdg)
    ends, width = kit.walk(kit.parse(kit.document(kit.straight(inside=inside))))
    assert width == pytest.approx(3)
    assert sorted([tuple(np.round(ends[:2], 6)), tuple(np.round(ends[2:], 6))]) == [(40, -5), (40, 4)]


def test_a_crosswalk_far_longer_along_its_road_is_walked_along_it():
    ends, width = kit.walk(kit.parse(kit.document(kit.straight(inside=kit.crosswalk(hdg=0, length=12, width=3)))))
    assert width == pytest.approx(3)
    assert sorted([tuple(np.round(ends[:2], 6)), tuple(np.round(ends[2:], 6))]) == [(34, -1), (46, -1)]


def test_a_crosswalk_on_a_bend_lies_where_the_road_is():
    text = kit.document(
        kit.road(
            1,
            78.5,
            kit.piece(0, 0, 0, 0, 78.5, kit.tag("arc", curvature=0.02)),
            kit.section(0, right=[kit.lane(-1)]),
            inside=kit.crosswalk(hdg=0, length=4, width=10),
        )
    )
    ends, _ = kit.walk(kit.parse(text))
    middle = 51 * np.array([math.sin(0.8), -math.cos(0.8)]) + [0, 50]
    assert (np.array(ends[:2]) + ends[2:]) / 2 == pytest.approx(middle)
