"""Division of OpenDRIVE roads into sections and roads: how a file is cut says nothing about where cars drive."""

import itertools
import math
import random
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.xodr_kit as kit
from benchmarks.maps.cuts import cut
from robotrl.errors import DataError
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads.lanes import NONE, Control, JunctionTurn, RoadBuilder

MARKS = kit.tag("roadMark", sOffset=0, type="broken") + kit.tag("roadMark", sOffset=60, type="solid")
LIMITS = kit.tag("speed", sOffset=0, max=12) + kit.tag("speed", sOffset=35, max=8)


def busy() -> str:
    """A bend with two lanes each way: marks, limits and widths that change, signs, a light and a crosswalk."""
    grows = kit.cubic("width", 0, 3.5) + kit.cubic("width", 20, 3.5, 0, 0.002, -1e-5)
    opens = kit.cubic("width", 0, 0, 0, 0.004)
    right = [
        kit.lane(-1, inside=MARKS + LIMITS),
        kit.lane(-2, grows),
        kit.lane(-3, 1.5, "sidewalk"),
        kit.lane(-4, opens),
    ]
    kinds = [kit.tag("type", kit.tag("speed", max=v), s=s, type="town") for s, v in ((0, 10), (50, 15))]
    inside = kit.signals(kit.signal("a", 90), kit.signal("b", 20, "-", "206")) + kit.crosswalk(
        hdg=0, length=4, width=14
    )
    shapes: kit.Shapes = [(("line", ()), 40.0), (("arc", (0.01,)), 40.0), (("line", ()), 20.0)]
    line, text = kit.chained(shapes, 3.0, -5.0, 0.3)
    section = kit.section(0, [kit.lane(1), kit.lane(2, grows)], right)
    offset = kit.cubic("laneOffset", 0, 0.2, 0.001)
    return kit.document(kit.road(1, line.length, text, section, offset=offset, inside="".join(kinds) + inside))


def same(one: RoadBuilder, other: RoadBuilder) -> None:
    assert len(one.lanes) == len(other.lanes)
    for a, b in zip(one.lanes, other.lanes, strict=True):
        np.testing.assert_allclose(a.points, b.points, atol=1e-6)
        assert (a.widths_m is None) == (b.widths_m is None)
        if a.widths_m is not None and b.widths_m is not None:
            np.testing.assert_allclose(a.widths_m, b.widths_m, atol=1e-6)
        for key in ("next", "left", "right", "beside_left", "beside_right", "left_solid", "right_solid", "control",
                    "group", "junction", "turn"):  # fmt: skip
            assert getattr(a, key) == getattr(b, key), key
        for key in ("speed_mps", "width_m", "stop_s", "bend_rad"):
            assert getattr(a, key) == pytest.approx(getattr(b, key), abs=1e-6), key
    assert one.crosswalks == other.crosswalks and one.signals == other.signals


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from(["busy", "crossroads", "curves"]))
def test_a_road_cut_anywhere_is_the_same_map(seed, name):
    lights = {a: kit.signals(kit.signal(f"s{a}", 57 if a % 2 == 0 else 3, "+-"[a % 2])) for a in range(4)}
    text = {"busy": busy, "crossroads": lambda: kit.crossroads(lights), "curves": kit.cornu_and_more}[name]()
    draw = random.Random(seed)
    same(
        kit.parse(text),
        kit.parse(cut(text, lambda length: [draw.uniform(0, length) for _ in range(draw.randint(0, 6))])),
    )


def test_a_road_cut_into_sections_shorter_than_a_lane_may_be_is_whole():
    text = kit.document(kit.straight(length=3.0, inside=kit.signals(kit.signal("s", 2.5))))
    same(kit.parse(text), kit.parse(cut(text, lambda length: np.arange(0.04, length, 0.04).tolist())))


# roads of no length


def row(*lengths: float, junctions: dict[int, int] | None = None, lanes: int = 1, back: bool = False) -> str:
    """Roads in a row along x, linked."""
    x, parts, between = 0.0, [], junctions or {}
    ids = [*range(1, lanes + 1)] if back else [*range(-1, -lanes - 1, -1)]
    for i, long in enumerate(lengths):
        link = kit.joint("predecessor", "road", i - 1, "end") if i else ""
        link += kit.joint("successor", "road", i + 1, "start") if i + 1 < len(lengths) else ""
        made = [kit.lane(k, before=k if i else None, after=k if i + 1 < len(lengths) else None) for k in ids]
        section = kit.section(0, made) if back else kit.section(0, right=made)
        parts.append(kit.road(i, long, kit.piece(0, x, 0, 0, long), section, link, junction=between.get(i, -1)))
        x += long
    return kit.document(*parts, *(kit.tag("junction", id=j, name="") for j in set(between.values())))


@pytest.mark.parametrize("tiny", [0.0, 2e-7, 1e-6, 1e-3, 0.04])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    ("lengths", "followers"),
    [
        ((150, None, 150), 1),
        ((150, None, None, 150), 1),
        ((None, 150, 150), 1),
        ((150, 150, None), 1),
        ((None, None, 150), 0),
    ],
)
def test_links_lead_through_roads_of_almost_no_length(lengths, followers, lanes, back, tiny):
    text = row(*(tiny if long is None else long for long in lengths), lanes=lanes, back=back)
    builder = kit.parse(text)
    assert [lane.length_m for lane in builder.lanes] == pytest.approx([150] * lanes * (followers + 1))
    assert sum(len(lane.next) for lane in builder.lanes) == lanes * followers
    for i, lane in enumerate(builder.lanes):
        for after in lane.next:
            assert after == i + (-lanes if back else lanes)
            assert np.linalg.norm(builder.lanes[after].points[0] - lane.points[-1]) < 0.1


def test_links_lead_through_a_road_of_no_length_in_a_junction():
    builder = kit.parse(row(100, 2e-7, 20, 2e-7, 100, junctions={1: 7, 2: 7, 3: 7}))
    assert [(lane.length_m, lane.junction, lane.next) for lane in builder.lanes] == [
        (pytest.approx(100), False, [1]),
        (pytest.approx(20), True, [2]),
        (pytest.approx(100), False, []),
    ]


@pytest.mark.parametrize("at", [0.0, 30.0, 60.0])
@pytest.mark.parametrize("shape", ["<line/>", kit.tag("arc", curvature=0.1), kit.tag("spiral", curvStart=0, curvEnd=1)])
def test_pieces_of_almost_no_length_do_not_bend_a_road(at, shape):
    pieces = [kit.piece(0, 0, 0, 0, 30), kit.piece(30, 30, 0, 0, 30), kit.piece(at, at, 0, 1.0, 1e-7, shape)]
    (lane,) = kit.parse(kit.document(kit.road(1, 60, pieces, kit.section(0, right=[kit.lane(-1)])))).lanes
    assert lane.length_m == pytest.approx(60) and np.ptp(lane.points[:, 1]) < 1e-9


# borders


def borders(right: list[float], left: list[float]) -> str:
    lanes = [
        [kit.lane(side * (i + 1), kit.cubic("border", 0, at)) for i, at in enumerate(row)]
        for side, row in ((1, left), (-1, right))
    ]
    return kit.document(kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), kit.section(0, *lanes)))


def test_borders_without_a_sign_are_distances_on_their_own_side():
    signed = kit.parse(borders([-3.5, -6.5], [3.0]))
    for right, left, count in (([3.5, 6.5], [3.0], 2), ([3.5, 6.5], [-3.0], 3), ([-3.5, 6.5], [3.0], 1)):
        builder, message = kit.told(borders(right, left))
        assert (
            f"{count} borders on the other side taken for distances on the lane's own side (first: road '1'" in message
        )
        same(builder, signed)
    assert [lane.points[0, 1] for lane in signed.lanes] == [1.5, -1.75, -5.0]


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=4), st.lists(st.floats(-9, 9), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_lanes_of_a_section_never_overlap_whatever_their_borders(right, left):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            lanes = reader.parse(borders(right, left), "test").lanes
        except DataError as error:
            assert "m wide" in str(error)
            return
    edges = sorted((lane.points[0, 1] - lane.width_m / 2, lane.points[0, 1] + lane.width_m / 2) for lane in lanes)
    assert all(low[1] <= high[0] + 1e-9 for low, high in itertools.pairwise(edges))
    for lane in lanes:  # right ones along x
        assert (lane.points[0, 1] < 0) == (lane.points[-1, 0] > lane.points[0, 0])


# revisions


@pytest.mark.parametrize("revision", [(0, 8), (1, 0), (1, 1), (1, 4), (1, 6), (1, 7), (1, 8)])
def test_all_revisions_in_use_are_read(revision):
    text = kit.crossroads().replace('revMajor="1" revMinor="6"', f'revMajor="{revision[0]}" revMinor="{revision[1]}"')
    assert f'revMinor="{revision[1]}"' in text
    same(kit.parse(text), kit.parse(kit.crossroads()))


def test_a_reversed_lane_is_driven_against_its_side():
    """The attribute `direction` came with revision 1.8."""
    lanes = [kit.lane(-1), kit.lane(-2).replace("<lane ", '<lane direction="reversed" '), kit.lane(-3)]
    first, second, third = kit.parse(kit.document(kit.straight(right=lanes))).lanes
    assert first.points[0, 0] == third.points[0, 0] == 0.0 and second.points[0, 0] == 100.0
    assert all((lane.left, lane.right) == (NONE, NONE) for lane in (first, second, third))


def test_reversed_lanes_side_by_side_have_their_left_and_right_in_driving_direction():
    lanes = [kit.lane(-i).replace("<lane ", '<lane direction="reversed" ') for i in (1, 2)]
    inner, outer = kit.parse(kit.document(kit.straight(right=lanes))).lanes
    assert (inner.left, inner.right, outer.left, outer.right) == (1, NONE, NONE, 0)


# junctions


def test_lanes_side_by_side_in_a_junction_are_lanes_of_the_ego_without_lane_changes():
    builder = kit.parse(row(100, 20, 100, junctions={1: 7}, lanes=3))
    inside = [i for i, lane in enumerate(builder.lanes) if lane.junction]
    assert [(builder.lanes[i].left, builder.lanes[i].right) for i in inside] == [(NONE, NONE)] * 3
    beside = [(builder.lanes[i].beside_left, builder.lanes[i].beside_right) for i in inside]
    assert beside == [(NONE, inside[1]), (inside[0], inside[2]), (inside[1], NONE)]


def test_a_road_that_goes_on_in_its_bend_does_not_turn():
    radius, angle = 20.0, 0.7
    arc = kit.tag("arc", curvature=1 / radius)

    def ring_piece(own: int, start: float, link: str, junction: int) -> str:
        x, y = radius * math.cos(start), radius * math.sin(start)
        plan = kit.piece(0, x, y, start + math.pi / 2, radius * angle, arc)
        lanes = kit.section(0, right=[kit.lane(-1, before=-1, after=-1)])
        return kit.road(own, radius * angle, plan, lanes, link, junction=junction)

    parts = [
        ring_piece(1, 0.0, kit.joint("successor", "road", 2, "start"), -1),
        ring_piece(
            2, angle, kit.joint("predecessor", "road", 1, "end") + kit.joint("successor", "road", 3, "start"), 9
        ),
        ring_piece(3, 2 * angle, kit.joint("predecessor", "road", 2, "end"), -1),
    ]
    text = kit.document(*parts, kit.tag("junction", id=9))
    assert [(lane.turn, lane.bend_rad) for lane in kit.parse(text).lanes][1] == (
        JunctionTurn.STRAIGHT,
        pytest.approx(0.0, abs=1e-3),
    )


def test_control_of_a_cut_road_is_on_its_one_lane():
    text = kit.document(kit.straight(length=200.0, inside=kit.signals(kit.signal("s", 199, "+", "206"))))
    (lane,) = kit.parse(cut(text, lambda _: [150.0, 195.0, 198.9])).lanes
    assert (lane.control, lane.stop_s) == (Control.STOP, pytest.approx(199.0))
