"""Town of the benches: a grid of streets as OpenStreetMap data of our own, converted by CARLA's library."""

from __future__ import annotations

import importlib

ACROSS, BLOCK_DEG = 4, 0.0011
"""Streets each way, and the size of a block, degrees (some 120 m)."""


def town() -> str:
    """OpenDRIVE text: four by four streets, two of them of two lanes each way, with traffic lights at the corners."""
    carla = importlib.import_module("carla")
    settings = carla.Osm2OdrSettings()
    settings.use_offsets = False
    settings.center_map = False
    settings.generate_traffic_lights = True
    settings.all_junctions_with_traffic_lights = True
    return str(carla.Osm2Odr.convert(_streets(), settings))


def _streets() -> str:
    nodes: list[str] = []
    for row in range(ACROSS):
        for column in range(ACROSS):
            place = f'id="{1 + row * ACROSS + column}" lat="{row * BLOCK_DEG:.6f}" lon="{column * BLOCK_DEG:.6f}"'
            corner = 0 < row < ACROSS - 1 and 0 < column < ACROSS - 1
            light = '<tag k="highway" v="traffic_signals"/>' if corner else ""
            nodes.append(f"<node {place}>{light}</node>")
    ways: list[str] = []
    for k in range(ACROSS):
        for along in (True, False):
            ids = [1 + (k * ACROSS + i if along else i * ACROSS + k) for i in range(ACROSS)]
            lanes, speed = (4, 50) if k == 1 else (2, 30)
            tags = f'<tag k="highway" v="primary"/><tag k="lanes" v="{lanes}"/><tag k="maxspeed" v="{speed}"/>'
            inside = "".join(f'<nd ref="{one}"/>' for one in ids)
            ways.append(f'<way id="{100 + 2 * k + along}">{inside}{tags}</way>')
    return f'<osm version="0.6">{"".join(nodes)}{"".join(ways)}</osm>'
