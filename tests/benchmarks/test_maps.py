"""The maps of each kind, and what is measured on them."""

import json

import numpy as np

from benchmarks.maps import bench, cell
from benchmarks.maps.cell import drive, overlap, recut
from benchmarks.maps.cuts import cut, mirrored
from benchmarks.maps.kinds import KINDS
from robotrl.errors import ConfigError
from robotrl.sims.driving import tables
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.traffic.heights import UNKNOWN
from tests.kits.refusals import raises_naming


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


def test_a_cell_drives_the_whole_map_and_the_cut_one(tmp_path):
    cell.main("short-sections", 1, tmp_path, episodes=8)
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["whole"]["episodes"] == found["cut"]["episodes"] == 8
    assert found["same"] == (found["whole"] == found["cut"])
    with raises_naming(ConfigError, "kind", "brigde", nearest="bridge"):
        cell.main("brigde", 0, tmp_path)


def test_figures_of_maps_by_hand():
    whole = {"episodes": 16, "ends": {"finished": 15, "vehicle": 1}, "completion": 1.0, "score": 98.0}
    whole |= {"reds": 0, "passed": 40, "overlaps": 0}
    other = {**whole, "reds": 1, "passed": 41, "overlaps": 2, "score": 96.0}
    rows = [
        {"method": "driver", "task": "lights", "seed": 0, "result": {"whole": whole, "cut": whole, "same": True}},
        {"method": "driver", "task": "lights", "seed": 1, "result": {"whole": whole, "cut": other, "same": False}},
    ]
    found = bench.aggregate(rows)
    values = {key.removeprefix("lights_"): figure.value for key, figure in found.items()}
    assert values == {
        "episodes": 32, "finished": 30, "score": 98.0, "reds": 1, "passed": 121, "overlaps": 2, "same": 1,
    }  # fmt: skip
    table = bench.table({"figures": {key: figure.to_json() for key, figure in found.items()}})
    assert table.splitlines()[-1] == "| `lights` | 30 of 32 | 98.0 | 1 of 121 | 2 | 1 of 2 |"
    assert {one.task for one in bench.cells(False)} == set(KINDS) and len(bench.cells(True)) == len(KINDS)
