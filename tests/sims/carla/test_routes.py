"""Route files of CARLA's leaderboards and of Bench2Drive: what they say, and what is wrong with them."""

import math

import numpy as np
import pytest

from robotrl.errors import ConfigError, DataError
from robotrl.sims.carla.routes import CarlaScenario, CarlaWeather, parse_routes, read_routes

OLD = """<?xml version="1.0" encoding="UTF-8"?>
<routes>
  <route id="7" town="Town01">
    <weather id="rain" cloudiness="80" precipitation="30.5"/>
    <waypoint x="10" y="20" z="0.5" yaw="90" pitch="0" roll="360"/>
    <waypoint x="10" y="60" z="0.5" yaw="450" pitch="0" roll="0"/>
    <waypoint x="-30" y="60" z="0.5" yaw="-180" pitch="0" roll="0"/>
  </route>
  <route id="2" town="Town02">
    <waypoint x="0" y="0" z="0" yaw="0" pitch="0" roll="0"/>
    <waypoint x="50" y="0" z="0" yaw="0" pitch="0" roll="0"/>
  </route>
</routes>"""
NEW = """<routes>
  <!-- a comment -->
  <route id="31" road_id="5" town="Town12">
    <weathers>
      <weather route_percentage="0" cloudiness="5.0" sun_altitude_angle="90.0"/>
      <weather route_percentage="100" cloudiness="50" sun_altitude_angle="-10"/>
    </weathers>
    <waypoints>
      <position x="100.5" y="-3.5" z="370"/>
      <position x="102.5" y="-3.5" z="370"/>
      <position x="180" y="-3.5"/>
    </waypoints>
    <scenarios>
      <scenario name="Exit_1" type="ParkingExit">
        <trigger_point x="101" y="-3.5" z="370" yaw="30"/>
        <direction value="right"/>
        <interval from="10" to="60"/>
        <other_actor x="1" y="2" model="a"/>
        <other_actor x="3" y="4" model="b"/>
      </scenario>
      <scenario name="Loss_1" type="ControlLoss"><trigger_point x="0" y="0" yaw="0"/></scenario>
    </scenarios>
    <metrics><skip name="MinSpeed"/></metrics>
  </route>
</routes>"""


def test_old_files_have_headings_and_turn_into_our_frame():
    first, second = parse_routes(OLD, "old.xml")
    assert (first.id, first.town, second.id, second.town) == ("7", "Town01", "2", "Town02")
    assert first.waypoints.tolist() == [[10, -20, 0.5], [10, -60, 0.5], [-30, -60, 0.5]]
    assert first.yaws is not None
    np.testing.assert_allclose(first.yaws, [-math.pi / 2, -math.pi / 2, math.pi], atol=1e-9)
    assert first.weathers == (CarlaWeather(0.0, {"cloudiness": 80.0, "precipitation": 30.5}),)
    assert first.scenarios == () and second.weathers == ()


def test_new_files_have_positions_weathers_and_scenarios():
    (route,) = parse_routes(NEW, "new.xml")
    assert (route.id, route.town, route.yaws) == ("31", "Town12", None)
    assert route.waypoints.tolist() == [[100.5, 3.5, 370], [102.5, 3.5, 370], [180, 3.5, 0]]
    assert [(w.route_percentage, dict(w.parameters)) for w in route.weathers] == [
        (0.0, {"cloudiness": 5.0, "sun_altitude_angle": 90.0}),
        (100.0, {"cloudiness": 50.0, "sun_altitude_angle": -10.0}),
    ]
    assert route.scenarios == (
        CarlaScenario(
            "Exit_1",
            "ParkingExit",
            (101.0, 3.5),
            pytest.approx(-math.pi / 6),
            {
                "direction": {"value": "right"},
                "interval": {"from": "10", "to": "60"},
                "other_actor": {"x": "1", "y": "2", "model": "a"},
                "other_actor#2": {"x": "3", "y": "4", "model": "b"},
            },
        ),
        CarlaScenario("Loss_1", "ControlLoss", (0.0, 0.0), 0.0, {}),
    )


def test_routes_are_chosen_by_id_in_the_order_asked_for(tmp_path):
    path = tmp_path / "old.xml"
    path.write_text(OLD)
    assert [route.id for route in read_routes(path)] == ["7", "2"]
    assert [route.id for route in read_routes(path, ["2", "7"])] == ["2", "7"]
    with pytest.raises(ConfigError, match=r"route_ids.*'77'.*did you mean '7'\?.*2, 7"):
        read_routes(path, ["77"])
    with pytest.raises(ConfigError, match=r"route_ids is \['2', '2'\]: expected each id once"):
        read_routes(path, ["2", "2"])


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (OLD, ' town="Town01"', "", r"f.xml: route '7': <route> town is missing: expected it"),
        (OLD, ' town="Town01"', ' town=" "', r"f.xml: route '7': <route> town is '': expected a name"),
        (OLD, ' id="7"', "", r"f.xml: route: <route> id is missing: expected it"),
        (OLD, 'id="2"', 'id="7"', r"f.xml: <route> id is '7' for the second time: expected another for each"),
        (OLD, 'x="50"', 'x="5O"', r"f.xml: route '2', waypoint 1: <waypoint> x is '5O': expected a number"),
        (OLD, 'x="50"', 'x="nan"', r"waypoint 1: <waypoint> x is 'nan': expected a number"),
        (OLD, 'x="50"', 'x="1e12"', r"waypoint 1: <waypoint> x is '1e12': expected a number from -1e\+09"),
        (
            OLD,
            'yaw="450" ',
            "",
            r"f.xml: route '7': <waypoint> yaw is missing at waypoint 1: expected it at all or none",
        ),
        (OLD, 'precipitation="', 'precipitaton="', r"<weather> has precipitaton: did you mean 'precipitation'\? exp"),
        (OLD, "routes>", "roads>", r"f.xml: its root element is <roads>: expected <routes>"),
        (OLD, "<route id", "<rout id", r"f.xml: is no XML .*: expected a route file"),
        (OLD, "<routes>", "<!DOCTYPE a><routes>", r"f.xml: has a document type declaration .*: expected a route file"),
        (NEW, "waypoints>", "waypoins>", r"<route> holds <waypoins>: did you mean <waypoints>\? expected one of"),
        (NEW, "position", "place", r"f.xml: route '31': <waypoints> holds <place>: expected <position>"),
        (NEW, "<metrics>", '<waypoint x="1" y="1"/><metrics>', r"holds both <waypoint> and <waypoints>"),
        (NEW, 'y="-3.5"/>', "/>", r"f.xml: route '31', waypoint 2: <position> y is missing: expected a number"),
        (NEW, 'type="ControlLoss"', "", r"route '31', scenario 'Loss_1': <scenario> type is missing"),
        (NEW, '<trigger_point x="0" y="0" yaw="0"/>', "", r"scenario 'Loss_1': has 0 <trigger_point>: expected one"),
        (NEW, ' yaw="30"', "", r"route '31', scenario 'Exit_1': <trigger_point> yaw is missing: expected a number"),
        (
            NEW,
            'route_percentage="100"',
            'route_percentage="101"',
            r"route_percentage is '101': expected a number from 0",
        ),
    ],
)
def test_what_is_wrong_is_named(text, old, new, message):
    assert old in text
    with pytest.raises(DataError, match=message) as caught:
        parse_routes(text.replace(old, new), "f.xml")
    assert "\n" not in str(caught.value)


def test_a_file_without_routes_or_with_too_short_ones_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"f.xml: <routes> holds no <route>: expected one or more"):
        parse_routes("<routes/>", "f.xml")
    with pytest.raises(DataError, match=r"f.xml: <routes> holds <waypoint>: expected <route>"):
        parse_routes("<routes><waypoint/></routes>", "f.xml")
    one = '<routes><route id="a" town="T"><waypoint x="0" y="0" yaw="0"/></route></routes>'
    with pytest.raises(DataError, match=r"f.xml: route 'a': has 1 waypoints: expected 2 or more"):
        parse_routes(one, "f.xml")
    with pytest.raises(DataError, match=r"none.xml: cannot be read \(No such file.*\): expected a route file"):
        read_routes(tmp_path / "none.xml")
    with pytest.raises(DataError, match=r"cannot be read"):
        read_routes(tmp_path)
