"""Changes of OpenDRIVE files that change nothing for who drives: further lane sections, and a mirror image."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from xml.etree import ElementTree as ET

RECORDS = ("width", "border", "roadMark", "speed")


def cut(text: str, places: Callable[[float], Sequence[float]]) -> str:
    """The file with each road cut at further places.

    Args:
        text: the file's text.
        places: positions, m along a road of the given length, at which its sections are cut.
    """
    root = ET.fromstring(text)
    for road in root.findall("road"):
        lanes = road.find("lanes")
        assert lanes is not None
        length = float(road.get("length", "0"))
        at = sorted(places(length))
        found = lanes.findall("laneSection")
        ends = [float(section.get("s", "0")) for section in found[1:]] + [length]
        for section, end in zip(found, ends, strict=True):
            start = float(section.get("s", "0"))
            inside = [s for s in at if start + 1e-3 < s < end - 1e-3]
            where = list(lanes).index(section)
            lanes.remove(section)
            edges = [start, *inside]
            for k, low in enumerate(edges):
                lanes.insert(where + k, _part(section, low - start, low, k > 0, k + 1 < len(edges)))
    return '<?xml version="1.0"?>' + ET.tostring(root, encoding="unicode")


def _part(section: ET.Element, offset: float, s: float, cut_before: bool, cut_after: bool) -> ET.Element:
    """The section from `offset` m on: its records count from there, its lanes go on into themselves at a cut."""
    part = copy.deepcopy(section)
    part.set("s", repr(s))
    for side in ("left", "right"):
        for lane in part.findall(f"{side}/lane"):
            link = lane.find("link")
            if link is None:
                link = ET.SubElement(lane, "link")
                lane.remove(link)
                lane.insert(0, link)
            for tag, here in (("predecessor", cut_before), ("successor", cut_after)):
                if here:
                    for old in link.findall(tag):
                        link.remove(old)
                    ET.SubElement(link, tag, id=lane.get("id", ""))
            for name in RECORDS:
                _shift(lane, name, offset)
    return part


def _shift(lane: ET.Element, name: str, offset: float) -> None:
    """Let the records of a lane count from `offset`; of those before it the last one goes on from there."""
    records = sorted(lane.findall(name), key=lambda e: float(e.get("sOffset", "0")))
    last = max((k for k, e in enumerate(records) if float(e.get("sOffset", "0")) <= offset), default=-1)
    for k, record in enumerate(records):
        at = float(record.get("sOffset", "0")) - offset
        if k < last:
            lane.remove(record)
        elif k == last:
            if name in ("width", "border"):
                a, b, c, d = (float(record.get(key, "0")) for key in "abcd")
                x = -at
                moved = (a + x * (b + x * (c + x * d)), b + x * (2 * c + 3 * d * x), c + 3 * d * x, d)
                for key, value in zip("abcd", moved, strict=True):
                    record.set(key, repr(value))
            record.set("sOffset", "0.0")
        else:
            record.set("sOffset", repr(at))


def mirrored(text: str) -> str:
    """The file seen in a mirror: what keeps to the right there keeps to the left here."""
    root = ET.fromstring(text)
    for element in root.iter():
        turned = {
            "road": ("",),
            "geometry": ("y", "hdg"),
            "arc": ("curvature",),
            "spiral": ("curvStart", "curvEnd"),
            "paramPoly3": ("aV", "bV", "cV", "dV"),
            "laneOffset": tuple("abcd"),
            "border": tuple("abcd"),
            "signal": ("t",),
            "object": ("t", "hdg"),
            "laneLink": ("from", "to"),
            "validity": ("fromLane", "toLane"),
        }
        for key in turned.get(element.tag, ()):
            if element.get(key) is not None:
                element.set(key, _negative(element.get(key, "0")))
        if element.tag == "road":
            element.set("rule", "LHT")
        if element.tag == "lane":
            for numbered in (element, *element.findall("link/predecessor"), *element.findall("link/successor")):
                numbered.set("id", _negative(numbered.get("id", "0")))
        if element.tag in ("left", "right"):
            element.tag = "right" if element.tag == "left" else "left"
    return '<?xml version="1.0"?>' + ET.tostring(root, encoding="unicode")


def _negative(number: str) -> str:
    return number[1:] if number.startswith("-") else number if float(number) == 0 else f"-{number}"
