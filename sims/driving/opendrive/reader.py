"""Reads road networks from OpenDRIVE files (.xodr, ASAM OpenDRIVE, revisions 0.8 to 1.8).

Written from the public standard. Conversion rules:

- Driving lanes have the types driving, bidirectional (driven in the direction of its side only), entry, exit, onRamp,
  offRamp, connectingRamp, slipLane and the older mwyEntry and mwyExit. All other lanes, and what is under 2 m wide,
  only take up space. A lane's width is its mean; the drawn surface follows a width that varies.
- How a file divides a road into sections changes nothing: sections are cut where a limit, the permission to change
  lanes or room for a car changes (`cuts`), and driving lanes are joined where nothing does (`joining`).
- A lane follows another if either of them, their roads, or a junction links them. Lanes on roads of a junction are
  junction lanes; they count as turns if their road turns by more than 30 degrees more than the roads that it joins.
- Lane changes are allowed by the road mark: by its laneChange, or else by its type (broken or none: allowed). Without a
  mark they are allowed.
- The speed limit is the lane's, else the road's, else in a junction the lowest of the joined lanes, else 50 km/h.
- A junction's priorities order who gives way, after signs and before turns.
- Left-hand traffic is mirrored (y is negated) to right-hand traffic.
- Signals and crosswalks: see `signals` and `crosswalks`.
- Heights tell roads on different levels apart (see `roads.levels`); speeds and ways are those of a flat map.
- Superelevation, surfaces, railways and all other objects are ignored.

Missing or unusable required elements raise an error that names the road and the field. What files from older tools
often have wrong (links to nothing, borders without a sign) is left out or mended, and one warning counts it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robotrl.errors import DataError
from robotrl.sims.driving.opendrive.crosswalks import add_crosswalks
from robotrl.sims.driving.opendrive.cuts import divided
from robotrl.sims.driving.opendrive.joining import add_lanes, limit_junctions
from robotrl.sims.driving.opendrive.lanes import NARROW_M, SHORTEST_M, Network, add_pieces, has_driving
from robotrl.sims.driving.opendrive.links import drop_dangling, successors
from robotrl.sims.driving.opendrive.roads import roads
from robotrl.sims.driving.opendrive.signals import add_signals
from robotrl.sims.driving.opendrive.turns import add_priorities
from robotrl.sims.driving.opendrive.xml import shown, tree
from robotrl.sims.driving.roads.lanes import RoadBuilder
from robotrl.utils.files import read_plain

REVISIONS = ("0", "1")
"""Major revisions that are read; files with revision 0.8 and the like are from before the first release."""


def read(source: Path | str, name: str | None = None, own_lights: bool = False) -> RoadBuilder:
    """Read the road network of a file, without routes (`routes.pick_routes` adds some).

    Args:
        source: path of the .xodr file.
        name: name of the map; by default the file name without its suffix.
        own_lights: make each signal a light (group) of its own instead of phases, for a world that sets the lights'
            states. In both modes `RoadBuilder.signal_ids` names the signals of each light.

    Raises:
        DataError: the file cannot be read, or is no usable OpenDRIVE file.
    """
    path = Path(source)
    try:
        content = read_plain(path, "it")
    except (OSError, DataError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read ({reason}): expected an OpenDRIVE file") from None
    return _network(content, str(path), path.stem if name is None else name, own_lights)


def parse(text: str, name: str, own_lights: bool = False, mirror: bool = True) -> RoadBuilder:
    """Read the road network from a file's text; see `read`.

    Args:
        text: the file's text.
        name: name of the map.
        own_lights: see `read`.
        mirror: mirror left-hand traffic; False refuses it, for worlds whose actors have coordinates of their own.

    Raises:
        DataError: see `read`.
    """
    return _network(text, name, name, own_lights, mirror)


def _network(content: bytes | str, source: str, name: str, own_lights: bool, mirror: bool = True) -> RoadBuilder:
    root = tree(content, source)
    if root.tag != "OpenDRIVE":
        raise DataError(f"{source}: its root element is <{root.tag}>: expected <OpenDRIVE>")
    header = root.find("header")
    if header is not None and header.get("revMajor", "1").strip() not in REVISIONS:
        raise DataError(f"{source}: <header> revMajor is {shown(header.get('revMajor'))}: expected '1' (or '0')")
    # valid numbers may still overflow in a polynomial; non-finite results are refused later
    with np.errstate(all="ignore"):
        found = {own: divided(road) for own, road in roads(root, source).items()}
        hands = {road.left_hand: road for road in found.values() if any(map(has_driving, road.sides.values()))}
        if not hands:
            raise DataError(f"{source}: has {len(found)} roads, none with a driving lane: expected one or more")
        if len(hands) > 1:
            raise DataError(
                f"{hands[True].where}: <road> rule is 'LHT', that of road {shown(hands[False].id)} 'RHT': expected one"
                " rule for all"
            )
        if True in hands and not mirror:
            raise DataError(
                f"{hands[True].where}: <road> rule is 'LHT', left-hand traffic: expected 'RHT', since this map would be"
                " mirrored and its world is not"
            )
        net = Network(source, root, found, True in hands, RoadBuilder(name))
        drop_dangling(net)
        add_pieces(net)
        add_lanes(net, successors(net))
        if not net.strips:
            raise DataError(
                f"{source}: no driving lane is {SHORTEST_M:g} m long and {NARROW_M:g} m wide: expected one or more"
            )
        limit_junctions(net)
        add_priorities(net)
        add_signals(net, own_lights)
        add_crosswalks(net)
    net.notes.warn(source)
    return net.builder
