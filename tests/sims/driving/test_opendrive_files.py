"""OpenDRIVE files that are broken, altered, hostile or large."""

import random
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.xodr_kit as kit
from robotrl.errors import DataError, RobotrlError
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads.lanes import Control
from robotrl.sims.driving.roads.routes import pick_routes
from tests.kits.call_count import calls_of
from tests.kits.refusals import raises_naming

SPIRAL = kit.tag("spiral", curvStart=0.0, curvEnd=0.05)


def test_links_to_nothing_are_skipped_with_one_warning():
    lanes = [kit.lane(-1, after=-7), kit.lane(-2, after=-8), kit.lane(-3, after=-1)]
    link = kit.joint("successor", "road", 2, "start") + kit.joint("predecessor", "road", 2)
    first = kit.road(1, 100, kit.piece(0, 0, 0, 0, 100), kit.section(0, right=[*lanes]), link)
    second = kit.road(2, 50, kit.piece(0, 100, 0, 0, 50), kit.section(0, right=[kit.lane(-1, before=2)]))
    reference = kit.signals(kit.signal("lost", 5, name="signalReference"))
    third = kit.road(
        3, 50, kit.piece(0, 0, 50, 0, 50), kit.section(0, [kit.lane(1)]), inside=reference + kit.crosswalk()
    )
    builder, message = kit.told(kit.document(first, second, third))
    assert [lane.next for lane in builder.lanes] == [[], [], [3], [], []]
    assert "2 links skipped to lanes that do not exist (first: road '1', lane -1, to lane -7 of road '2')" in message
    assert "1 lanes begin over 1 m from the end" in message and "7.0 m" in message
    assert "1 references skipped to signals that do not exist (first: road '3', 'lost')" in message
    assert "1 crosswalks skipped" in message and "road '3', object 'z'" in message
    assert message.startswith("test: ")


def test_links_against_traffic_and_without_a_contact_point_are_skipped():
    link = kit.joint("successor", "road", 2, "start") + kit.joint("predecessor", "road", 2)
    first = kit.straight(1, right=[kit.lane(-1, before=-1, after=1)], link=link)
    second = kit.road(2, 50, kit.piece(0, 100, 0, 0, 50), kit.section(0, [kit.lane(1)], [kit.lane(-1)]))
    incomplete = kit.tag("junction", kit.tag("connection", id=0, incomingRoad=1), id=4)
    builder, message = kit.told(kit.document(first, second, incomplete))
    assert all(lane.next == [] for lane in builder.lanes)
    assert "1 links skipped between lanes that run against each other (first: road '1', lane -1)" in message
    assert "1 links skipped to roads without contactPoint" in message
    assert "1 junction connections skipped" in message and "junction '4'" in message


def test_a_link_to_a_junction_that_the_file_does_not_have_is_a_dead_end():
    link = kit.joint("predecessor", "junction", 7) + kit.joint("successor", "junction", 8)
    builder, message = kit.told(kit.document(kit.straight(1, link=link)))
    assert [lane.next for lane in builder.lanes] == [[]]
    assert "2 road links skipped to junctions that do not exist (first: road '1', to junction '7')" in message


def test_links_to_roads_that_the_file_does_not_have_are_left_out():
    """Files cut out of larger maps have them: the map can be driven up to there."""
    link = kit.joint("predecessor", "road", 98, "end") + kit.joint("successor", "road", 99, "start")
    connections = [
        kit.tag("connection", kit.tag("laneLink", **{"from": -1, "to": -1}), id=0, contactPoint="start", **roads)
        for roads in ({"incomingRoad": 5, "connectingRoad": 1}, {"incomingRoad": 1, "connectingRoad": 6})
    ]
    junction = kit.tag("junction", *connections, id="j")
    lanes = [kit.lane(-1, before=-1, after=-1)]
    builder, message = kit.told(kit.document(kit.straight(1, 300.0, right=lanes, link=link), junction))
    assert [(lane.length_m, lane.next) for lane in builder.lanes] == [(pytest.approx(300), [])]
    assert "2 road links skipped to roads that do not exist (first: road '1', to road '98')" in message
    assert "2 junction connections skipped of roads that do not exist (first: junction 'j', road '5')" in message
    pick_routes(builder, 1, 0, 290.0)


GOOD = kit.document(
    kit.road(
        1,
        60,
        [kit.piece(0, 0, 0, 0, 30, SPIRAL), kit.piece(30, 28.338, 7.115, 0.75, 30)],
        kit.section(0, right=[kit.lane(-1)]),
        inside=kit.tag("type", kit.tag("speed", max=10, unit="m/s"), s=0, type="town"),
    )
)


TWICE = "</road><road id='1' length='0'><planView>" + kit.piece(0, 0, 0, 0, 1) + "</planView></road>"


def linked(*joint: object) -> str:
    return kit.tag("link", kit.joint("successor", *joint))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("OpenDRIVE", "osm", r"test: its root element is <osm>: expected <OpenDRIVE>"),
        ('revMajor="1"', 'revMajor="2"', r"<header> revMajor is '2': expected '1' \(or '0'\)"),
        ("<planView>.*</planView>", "", r"road '1': its <planView> has no <geometry>: expected one or more"),
        ("<spiral .*?/>", "<spirale/>", r"road '1': <geometry> at s = 0 holds spirale: did you mean 'spiral'\?"),
        ("<spiral .*?/>", "", r"road '1': <geometry> at s = 0 holds nothing: expected one of line, arc, spiral"),
        ('curvEnd="0.05"', "", r"road '1': <geometry> at s = 0: <spiral> curvEnd is missing: expected a number"),
        ('curvEnd="0.05"', 'curvEnd="9"', r"<spiral> of 30 m has curvature 9: expected a turn of 100 rad at most"),
        ('hdg="0"', 'hdg="nan"', r"road '1': <geometry> hdg is 'nan': expected a number from -1e\+09 to 1e\+09"),
        ('x="0"', 'x="1e999"', r"<geometry> x is '1e999': expected a number"),
        ('y="0"', 'y="0,5"', r"<geometry> y is '0,5': expected a number"),
        ('length="30"', 'length="-30"', r"road '1': <geometry> length is '-30': expected a number from 0 to 100000"),
        ('length="60"', 'length="inf"', r"road '1': <road> length is 'inf': expected a number from 0 to 100000"),
        ('length="60"', 'length="1e8"', r"<road> length is '1e8': expected"),
        ('length="60" id="1"', 'length="60"', r"test: road: <road> id is missing: expected it"),
        ('x="28.338"', 'x="2833800"', r"road '1': <lane> -1 is .* m long where its section is 60 m: expected"),
        ('a="3.5" b="0.0"', 'a="3.5" b="1000"', r"road '1': <lane> -1 is .* m long where its section is 60 m"),
        ('<width .*?/>', "", r"road '1': <lane> -1 in the section at s = 0 is 'driving' and has no <width>"),
        ('lane id="-1"', 'lane id="1"', r"road '1': <laneSection> at s = 0: <lane> id is 1 in <right>: expected"),
        ('lane id="-1"', 'lane id="a"', r"road '1': <laneSection> at s = 0: <lane> id is 'a': expected a whole number"),
        ('type="driving"', 'type="tram"', r"test: has 1 roads, none with a driving lane: expected one or more"),
        ("<road .*</road>", "", r"test: has 0 roads, none with a driving lane: expected one or more"),
        ('a="3.5"', 'a="0.2"', r"test: no driving lane is 0.05 m long and 2 m wide: expected one or more"),
        ('unit="m/s"', 'unit="kn"', r"road '1': <speed> unit is 'kn': expected one of m/s, km/h, mph"),
        ('max="10"', 'max="-10"', r"road '1': <speed> max is '-10': expected a number from 0 to 1000"),
        ('junction="-1"', 'junction="-1" rule="UK"', r"road '1': <road> rule is 'UK': expected 'RHT' or 'LHT'"),
        ("<link/>", linked("rod", 1), r"<successor> elementType is 'rod': expected"),
        ("<link/>", linked("road", 1, "mid"), r"<successor> contactPoint is 'mid'"),
        ("</road>", TWICE, r"second time"),
        ("</road>", "</road><junction/>", r"test: junction: <junction> id is missing"),
        ("</road>", "</road><controller/>", r"test: controller: <controller> id is missing"),
        ("</road>", "", r"test: is no XML \(mismatched tag"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_by_field_value_and_expectation(old, new, expected):
    kit.parse(GOOD)
    text = re.sub(old, new.replace("\\", r"\\"), GOOD, count=0 if old == "OpenDRIVE" else 1, flags=re.DOTALL)
    assert text != GOOD
    with pytest.raises(DataError, match=expected) as caught:
        kit.parse(text)
    assert "\n" not in str(caught.value)


def test_a_pieces_parameter_range_is_checked_and_normalized_by_default():
    cubic = kit.tag("paramPoly3", aU=0, bU=50, cU=0, dU=0, aV=0, bV=0, cV=0, dV=0)
    text = kit.document(kit.road(1, 50, kit.piece(0, 0, 0, 0, 50, cubic), kit.section(0, right=[kit.lane(-1)])))
    assert kit.parse(text).lanes[0].length_m == pytest.approx(50)
    with raises_naming(DataError, "pRange", "arclength", "arcLength", "normalized"):
        kit.parse(text.replace("<paramPoly3", '<paramPoly3 pRange="arclength"'))


def test_two_rules_of_traffic_in_one_file_are_refused():
    text = kit.document(kit.straight(1), kit.straight(2, rule="LHT"))
    with pytest.raises(DataError, match="road '2': <road> rule is 'LHT', that of road '1' 'RHT': expected one rule"):
        kit.parse(text)


@pytest.mark.parametrize("text", ["", "   ", "no", "<", "<a", "{}", "\x00", "<?xml version='1.0'?>", "\ud800"])
def test_what_is_no_xml_is_refused(text):
    with pytest.raises(DataError, match=r"test: is no XML .*: expected an OpenDRIVE file"):
        kit.parse(text)


@pytest.mark.timeout(20)
def test_entities_are_refused_before_they_expand(tmp_path):
    layers = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))
    bomb = f'<?xml version="1.0"?><!DOCTYPE OpenDRIVE [<!ENTITY a0 "ha">{layers}]><OpenDRIVE><b c="&a9;"/></OpenDRIVE>'
    outside = '<!DOCTYPE OpenDRIVE SYSTEM "file:///etc/hostname"><OpenDRIVE/>'
    for text in (bomb, outside, bomb.replace("<!DOCTYPE", " " * 250 + "<!DOCTYPE")):
        with pytest.raises(DataError, match="document type declaration"):
            kit.parse(text.replace('<?xml version="1.0"?>', "").lstrip() if "    " not in text else text)
        path = tmp_path / "a.xodr"
        path.write_bytes(text.encode("utf-16"))
        with pytest.raises(DataError, match="document type declaration"):
            reader.read(path)


def test_a_file_is_read_in_its_encoding_and_named_after_itself(tmp_path):
    text = GOOD.replace('id="1"', 'id="Straße"')
    for encoding in ("utf-8", "utf-16", "latin-1"):
        path = tmp_path / f"town.{encoding}.xodr"
        path.write_bytes(text.replace("1.0", f'1.0" encoding="{encoding}', 1).encode(encoding))
        assert reader.read(path).name == f"town.{encoding}"
        assert reader.read(str(path), "mine").name == "mine"
    path.write_bytes(text.replace('length="60"', "").encode())
    with pytest.raises(DataError, match=r"town.latin-1.xodr: road 'Straße': <road> length is missing"):
        reader.read(path)
    path.write_bytes(text.replace("1.0", '1.0" encoding="klingon', 1).encode())
    with pytest.raises(DataError, match="is no XML"):
        reader.read(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path / "none.xodr", tmp_path, "\0"):
        with pytest.raises(DataError, match=r"cannot be read \(.*\): expected an OpenDRIVE file"):
            reader.read(path)


def everything() -> str:
    lights = {a: kit.signals(kit.signal(f"s{a}", 57 if a % 2 == 0 else 3, "none")) for a in range(3)}
    lights[3] = kit.signals(kit.signal("s3", 3, "-", "206", kit.valid(1, 1))) + kit.crosswalk(
        hdg=0.1, length=4, width=9
    )
    controller = kit.tag("controller", kit.tag("control", signalId="s0"), id="c", sequence=1)
    text = kit.crossroads(lights, controller)
    widening = kit.cubic("width", 0, 3) + kit.cubic("width", 5, 3, 0.01, 0.001, -1e-5)
    return text.replace(kit.cubic("width", 0.0, kit.WIDTH), widening, 1).replace("<line/>", SPIRAL, 1)


EVERYTHING = everything()
PLACES = [m.span(1) for m in re.finditer(r'"([^"]*)"', EVERYTHING)]
VALUES = ["", "0", "-1", "1", "2", "9", "nan", "-inf", "1e308", "-1e9", "1e-9", "99999", "0.3", "x", "end", "true"]


@pytest.mark.timeout(60)
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32))
def test_an_altered_file_gives_a_map_or_an_error_of_ours(seed):
    draw, text = random.Random(seed), EVERYTHING
    for _ in range(draw.randint(1, 3)):
        kind = draw.randrange(6)
        if kind == 0:
            text = text[: draw.randrange(len(text))]
        elif kind == 1 and text:
            at = draw.randrange(len(text))
            text = text[:at] + draw.choice('<>/"&x0 ') + text[at + 1 :]
        elif kind == 2:
            tags = list(re.finditer(r"<[^<>]*/>", text)) or [re.compile("").match(text)]
            low, high = draw.choice(tags).span()
            text = text[:low] + text[low:high] * draw.choice([0, 0, 2]) + text[high:]
        else:
            places = [m.span(1) for m in re.finditer(r'"([^"]*)"', text)] or [(0, 0)]
            low, high = draw.choice(places)
            text = text[:low] + draw.choice(VALUES) + text[high:]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", RuntimeWarning)
            builder = reader.parse(text, "test")
    except RobotrlError as error:
        assert len(str(error)) < 400
    else:
        assert builder.lanes
        for lane in builder.lanes:
            assert np.isfinite(lane.points).all() and lane.speed_mps > 0 and lane.width_m > 0
            assert all(0 <= n < len(builder.lanes) for n in lane.next)
            assert lane.control != Control.LIGHT or 0 <= lane.group < len(builder.signals)
            assert lane.control == Control.NONE or 0 < lane.stop_s < lane.length_m


def test_the_work_for_a_file_grows_in_proportion_to_it():
    def chain(count: int) -> str:
        return kit.document(
            *(
                kit.road(
                    i,
                    20,
                    kit.piece(0, 20 * i, 0, 0, 20),
                    kit.section(0, [kit.lane(1, before=1, after=1)], [kit.lane(-1, before=-1, after=-1)]),
                    (kit.joint("predecessor", "road", i - 1, "end") if i else "")
                    + (kit.joint("successor", "road", i + 1, "start") if i + 1 < count else ""),
                    inside=kit.signals(kit.signal(f"s{i}", 15)),
                )
                for i in range(count)
            )
        )

    def work(count: int) -> int:
        text = chain(count)
        return calls_of(lambda: reader.parse(text, "test"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the ends of the chain
        assert len(reader.parse(chain(100), "test").lanes) == 200
        assert work(1000) < 11 * work(100)
