"""The maps of each kind, and what is measured on them."""

import numpy as np

from benchmarks.maps.cuts import cut, mirrored
from benchmarks.maps.drive import drive, overlap, recut
from benchmarks.maps.kinds import KINDS
from robotrl.sims.driving import tables
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.traffic.heights import UNKNOWN


def test_twenty_kinds_are_there_and_a_cut_one_has_more_sections():
    assert len(KINDS) >= 20
    text = KINDS["lights"]()
    assert recut(text, 1).count("<laneSection") > text.count("<laneSection")
    assert recut(text, 1) == recut(text, 1) != recut(text, 2)
    assert cut(text, lambda _: ()).count("<laneSection") == text.count("<laneSection")


def test_a_mirrored_file_is_the_same_map_for_who_keeps_left():
    one, other = (reader.parse(text, "x") for text in (KINDS["lights"](), mirrored(KINDS["lights"]())))
    # left-hand traffic is mirrored back when it is read; its sides come in another order
    ends = [sorted((*lane.points[0].round(3), *lane.points[-1].round(3)) for lane in b.lanes) for b in (one, other)]
    np.testing.assert_allclose(ends[0], ends[1], atol=2e-3)
    controls = [sorted(lane.control for lane in b.lanes) for b in (one, other)]
    assert controls[0] == controls[1]


def test_cars_that_overlap_are_found():
    agents = np.zeros(4, tables.AGENT)
    agents["cos"], agents["length"], agents["width"], agents["kind"] = 1.0, 4.0, 2.0, tables.CAR
    agents["x"] = 0.0, 10.0, 14.5, 30.0
    flat = np.zeros(4)
    assert not overlap(agents, flat)
    agents["x"][2] = 13.5
    assert overlap(agents, flat)
    # a bridge of 8 m, and a car off the lanes, whose height is not known
    assert not overlap(agents, np.array([0.0, 0.0, 8.0, 0.0]))
    assert overlap(agents, np.array([0.0, 0.0, UNKNOWN, 0.0]))


def test_a_street_is_driven_to_its_end():
    found = drive(KINDS["short-sections"](), 8, routes=2, length_m=140.0)
    assert found.episodes == 8 and sum(found.ends.values()) == 8
    assert found == drive(KINDS["lights"](), 8, routes=2, length_m=140.0)
    assert found.reds == 0
