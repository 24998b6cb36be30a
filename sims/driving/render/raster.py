"""Bird's-eye-view raster of CaRL (Jaeger et al. 2025): ten uint8 channels, the ego faces up.

Each pixel is drawn as bits of one 16-bit number: first the surface, sampled from the map's cells along the rows of the
view, then route, lights and road users on top. `expand` converts the bits to the ten channels, four pixels to five
64-bit words; a packed view takes a fifth of the memory. Speeds are drawn as lines on the boxes, lights as gray levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, check_count, check_number
from robotrl.sims.driving import tables
from robotrl.sims.driving.backends.backend import Zeros
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.render.localization import localized
from robotrl.sims.driving.roads.levels import LEVEL_M
from robotrl.sims.driving.traffic.heights import ego_height, hidden, hides, surface_at
from robotrl.sims.driving.traffic.right_of_way import light
from robotrl.sims.driving.world import Maps, WorldState
from robotrl.spec import Spec

ROAD, SOLID, BROKEN, SHOULDER, WALK = (
    tables.DRIVABLE,
    tables.SOLID,
    tables.BROKEN,
    tables.SHOULDER,
    tables.CROSSWALK,
)
ROUTE, VEHICLE, VULNERABLE, MOTION, GREEN, YELLOW, RED, STOP, LIMIT = (1 << i for i in range(5, 14))
"""Bits of a packed pixel; the surface bits equal those of the map's cells, so that cells are copied unchanged."""
BITS = 14
PIXELS, WORDS = 4, 5
"""The channels of 4 pixels fill 5 64-bit words."""
CHANNELS = (
    "road",
    "route",
    "solid_lines",
    "broken_lines",
    "shoulder",
    "vehicles",
    "vulnerable",
    "lights",
    "stop_signs",
    "speed_signs",
)
ROUTE_POINTS = 150
ROUTE_HALF_M = 1.5
MIN_HALF_M = 0.8
"""Minimum half extent of drawn boxes."""
MAX_BYTES = 1 << 34
"""Maximum memory of all envs' views."""


@dataclass(frozen=True)
class RasterCfg:
    """Size and resolution of the raster."""

    height: int = 96
    """Image height (driving direction), pixels."""
    width: int = 96
    """Image width, pixels."""
    pixels_per_m: float = 2.0
    """Resolution, pixels per metre."""
    behind: float = 100 / 256
    """Fraction of the image height behind the ego's centre."""


def raster_spec(cfg: RasterCfg, packed: bool, num_envs: int) -> Spec:
    """Spec of the raster: uint8 (height, width, 10), or packed (height, width, 2).

    Raises:
        ConfigError: a size out of range, or views too large for memory.
    """
    for value in (cfg.height, cfg.width):
        check_count("raster_pixels", value, 8, 4096, "pixels")
        if value % 2:
            raise ConfigError(f"raster_pixels is {value}: expected an even number, {value - 1} or {value + 1}")
    check_number("pixels_per_m", cfg.pixels_per_m, 0.1, 20.0)
    check_number("raster.behind", cfg.behind, 0.0, 1.0)
    size = num_envs * cfg.height * cfg.width * (2 if packed else 2 + len(CHANNELS))
    if size > MAX_BYTES:
        raise ConfigError(
            f"raster of {cfg.height} x {cfg.width} for {num_envs} envs would take {size / 2**30:.1f} GiB: expected"
            f" {MAX_BYTES / 2**30:.0f} or less; use fewer envs, fewer pixels or packed views"
        )
    names = ("bits_low", "bits_high") if packed else CHANNELS
    n = len(names)
    return Spec((cfg.height, cfg.width, n), names, ("1",) * n, (0.0,) * n, (255.0,) * n, "uint8")


def levels() -> NDArray[np.uint8]:
    """Channel values (1 << BITS, 10) of all packed pixel values."""
    bits = np.arange(1 << BITS)

    def has(bit: int) -> NDArray[np.bool_]:
        return bits & bit > 0

    out = np.zeros((len(bits), len(CHANNELS)), np.uint8)
    for channel, bit in enumerate((ROAD, ROUTE, SOLID, BROKEN, SHOULDER)):
        out[has(bit), channel] = 255
    # crosswalks are drawn in the line channel at half brightness
    out[has(WALK) & ~has(SOLID), 2] = 128
    for channel, box in ((5, VEHICLE), (6, VULNERABLE)):
        out[has(box), channel] = 255
        out[has(box) & has(MOTION), channel] = 128
    out[has(MOTION) & ~has(VEHICLE) & ~has(VULNERABLE), 5] = 64
    for bit, level in ((GREEN, 80), (YELLOW, 170), (RED, 255)):
        out[has(bit), 7] = level
    out[has(STOP), 8] = 255
    out[has(LIMIT), 9] = 255
    return out


class RasterViews(NamedTuple):
    """Rasters of all envs; arrays with the same content share memory."""

    packed: NDArray[np.uint16]
    """(N, height, width) packed pixels."""
    pixels: NDArray[np.uint16]
    """(N, height * width) view of `packed`."""
    words: NDArray[np.uint64]
    """(N, height * width * 10 / 8) channels as 64-bit words; no rows if views stay packed."""
    pixels_per_m: float
    behind: float
    """Fraction of the image height behind the ego's centre."""


def make_views(zeros: Zeros, cfg: RasterCfg, num_envs: int, packed: bool) -> RasterViews:
    """Allocate empty views of `num_envs` envs; packed views have no channel array."""
    pixels = zeros((num_envs, cfg.height * cfg.width), np.uint16)
    words = zeros((0 if packed else num_envs, pixels.shape[1] // PIXELS * WORDS), np.uint64)
    return RasterViews(pixels.reshape(-1, cfg.height, cfg.width), pixels, words, cfg.pixels_per_m, cfg.behind)


def views_into(views: RasterViews, out: NDArray[np.uint8]) -> RasterViews:
    """The same views, to be written into an array of the shape that `shown` gives."""
    n, height, width, _ = out.shape
    if len(views.words):
        return views._replace(words=out.reshape(n, -1).view(np.uint64))
    pixels = out.reshape(n, -1).view(np.uint16)
    return views._replace(pixels=pixels, packed=pixels.reshape(n, height, width))


def shown(views: RasterViews) -> NDArray[np.uint8]:
    """Observation array, sharing the views' memory: channels (N, height, width, 10) or bits (N, height, width, 2)."""
    shape = views.packed.shape
    if len(views.words):
        return views.words.view(np.uint8).reshape(*shape, len(CHANNELS))
    return views.packed.view(np.uint8).reshape(*shape, 2)


class ChannelTable(NamedTuple):
    """Lookup table from packed pixels to channels, as little-endian words; see `expand`."""

    first: NDArray[np.uint64]
    """(1 << BITS,) channels 0 to 7, the first in the lowest byte."""
    rest: NDArray[np.uint64]
    """(1 << BITS,) channels 8 and 9."""


@cache
def channel_table() -> ChannelTable:
    """Lookup table of `expand`, from `levels`; shared."""
    rows = np.zeros((1 << BITS, 16), np.uint8)
    rows[:, : len(CHANNELS)] = levels()
    words = rows.view("<u8")
    return ChannelTable(words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64))


@kernel
def paint(packed: Any, colors: Any, out: Any) -> None:
    """Give packed pixels (height, width) uint16 the colors (1 << BITS, 3) of a table, in out (height, width, 3)."""
    height, width = packed.shape
    for r in range(height):
        for c in range(width):
            color = colors[packed[r, c]]
            out[r, c, 0], out[r, c, 1], out[r, c, 2] = color[0], color[1], color[2]


@kernel
def draw_surface(maps: Maps, row: Any, ego: Any, out: Any, ppm: float, ahead: float) -> None:
    """Draw the surface: nearest-cell sampling along the rows of the view, in fixed point."""
    height, width = out.shape
    scale = 65536.0 / row.cell
    step = scale / ppm
    # one column is 1 / ppm m to the right: direction (sin, -cos)
    dx, dy = int(ego.sin * step), int(-ego.cos * step)
    tiles, tile = maps.tiles, row.tile
    columns, rows = np.int64(row.columns), np.int64(row.rows)
    for r in range(height):
        forward = ahead - (r + 0.5) / ppm
        left = (0.5 * width - 0.5) / ppm
        x = int((ego.x + forward * ego.cos - left * ego.sin - row.x0) * scale)
        y = int((ego.y + forward * ego.sin + left * ego.cos - row.y0) * scale)
        last_x, last_y = (x + (width - 1) * dx) >> 16, (y + (width - 1) * dy) >> 16
        line = out[r]
        if (
            x >= 0
            and y >= 0
            and last_x >= 0
            and last_y >= 0
            and x >> 16 < columns
            and last_x < columns
            and y >> 16 < rows
            and last_y < rows
        ):
            for c in range(width):
                # an unsigned index avoids the check for negative indices
                line[c] = tiles[np.uint64(tile + (y >> 16) * columns + (x >> 16))]
                x += dx
                y += dy
        else:
            for c in range(width):
                column, cell_row = x >> 16, y >> 16
                if 0 <= column < columns and 0 <= cell_row < rows:
                    line[c] = tiles[np.uint64(tile + cell_row * columns + column)]
                else:
                    line[c] = 0
                x += dx
                y += dy


@kernel
def draw_level(maps: Maps, world: WorldState, e: int, row: Any, ego: Any, out: Any, ppm: float, ahead: float) -> None:
    """Draw the surface of the ego's level, on a map with levels."""
    height, width = out.shape
    for r in range(height):
        forward = ahead - (r + 0.5) / ppm
        z = ego_height(maps, world, e, forward)
        for c in range(width):
            left = (0.5 * width - 0.5 - c) / ppm
            x = ego.x + forward * ego.cos - left * ego.sin
            y = ego.y + forward * ego.sin + left * ego.cos
            # in CUDA math.floor returns a float
            cell_row, column = (
                np.int64(math.floor((y - row.y0) / row.cell)),
                np.int64(math.floor((x - row.x0) / row.cell)),
            )
            out[r, c] = 0
            if 0 <= column < row.columns and 0 <= cell_row < row.rows:
                out[r, c] = surface_at(maps, row, int(cell_row), int(column), z, LEVEL_M + row.grade * abs(left))


@kernel
def draw_box(
    out: Any,
    ppm: float,
    ahead: float,
    f: float,
    left: float,
    cos: float,
    sin: float,
    half: float,
    wide: float,
    bit: int,
) -> None:
    """Set a bit in the pixels of an oriented box, centre `f` m ahead and `left` m left, heading relative to the ego."""
    height, width = out.shape
    reach_f, reach_l = half * abs(cos) + wide * abs(sin), half * abs(sin) + wide * abs(cos)
    # in CUDA math.floor returns a float
    row0, row1 = np.int64(math.floor((ahead - f - reach_f) * ppm)), np.int64(math.ceil((ahead - f + reach_f) * ppm))
    middle = 0.5 * width
    col0 = np.int64(math.floor(middle - (left + reach_l) * ppm))
    col1 = np.int64(math.ceil(middle - (left - reach_l) * ppm))
    for r in range(max(row0, 0), min(row1, height - 1) + 1):
        u = ahead - (r + 0.5) / ppm - f
        for c in range(max(col0, 0), min(col1, width - 1) + 1):
            w = (middle - (c + 0.5)) / ppm - left
            if abs(u * cos + w * sin) <= half and abs(w * cos - u * sin) <= wide:
                out[r, c] |= bit


@kernel
def draw_agents(maps: Maps, world: WorldState, e: int, out: Any, ppm: float, ahead: float) -> None:
    """Draw boxes of all road users including the ego, with lines for the distance travelled in one second."""
    ego, agents = world.egos[e], world.agents[e]
    height, width = out.shape
    far = (height + width) / ppm
    for slot in range(len(agents)):
        other = agents[slot]
        if other.kind == 0:
            continue
        dx, dy = other.x - ego.x, other.y - ego.y
        if dx * dx + dy * dy > far * far or hides(maps, world, e, other):
            continue
        f, left = dx * ego.cos + dy * ego.sin, dy * ego.cos - dx * ego.sin
        cos, sin = other.cos * ego.cos + other.sin * ego.sin, other.sin * ego.cos - other.cos * ego.sin
        half, wide = max(0.5 * other.length, MIN_HALF_M), max(0.5 * other.width, MIN_HALF_M)
        bit = VEHICLE
        if other.kind == tables.PEDESTRIAN or other.kind == tables.CYCLIST:
            bit = VULNERABLE
        draw_box(out, ppm, ahead, f, left, cos, sin, half, wide, bit)
        if other.v > 0.5:
            reach = 0.5 * other.v
            draw_box(out, ppm, ahead, f + reach * cos, left + reach * sin, cos, sin, reach, 0.3, MOTION)


@kernel
def draw_road_things(maps: Maps, world: WorldState, e: int, out: Any, ppm: float, ahead: float) -> None:
    """Draw the route, changes of its speed limit, lights, stop signs and parked cars."""
    ego, seen, episode = world.egos[e], localized(world, e), world.episodes[e]
    row = maps.maps[episode.map]
    route = maps.routes[episode.route]
    height, width = out.shape
    far = (height + width) / ppm
    for i in range(seen.index, min(seen.index + ROUTE_POINTS, route.count)):
        p = maps.route_points[route.first + i]
        dx, dy = p.x - seen.x, p.y - seen.y
        f, left = dx * seen.cos + dy * seen.sin, dy * seen.cos - dx * seen.sin
        if f > ahead + 1.0 or abs(left) * ppm > 0.5 * width + 4.0:
            continue
        cos, sin = p.cos * seen.cos + p.sin * seen.sin, p.sin * seen.cos - p.cos * seen.sin
        draw_box(out, ppm, ahead, f, left, cos, sin, 0.6, ROUTE_HALF_M, ROUTE)
        if i > 0 and maps.route_points[route.first + i - 1].speed != p.speed:
            draw_box(out, ppm, ahead, f, left, cos, sin, 0.6, ROUTE_HALF_M, LIMIT)
    for number in range(row.lane, row.lane + row.lanes):
        lane = maps.lanes[number]
        if lane.control != 1 and lane.control != 2:
            continue
        at = lane.first + min(int(lane.stop / lane.spacing), lane.count - 1)
        p = maps.points[at]
        dx, dy = p.x - seen.x, p.y - seen.y
        if dx * dx + dy * dy > far * far:
            continue
        bit = STOP
        if lane.control == 1:
            state, _ = light(maps, world, e, lane.group)
            bit = GREEN if state == 0 else YELLOW if state == 1 else RED
        f, left = dx * seen.cos + dy * seen.sin, dy * seen.cos - dx * seen.sin
        if hidden(maps, world, e, float(maps.heights[at]), f, left):
            continue
        cos, sin = p.cos * seen.cos + p.sin * seen.sin, p.sin * seen.cos - p.cos * seen.sin
        draw_box(out, ppm, ahead, f, left, cos, sin, 0.75, 0.5 * lane.width, bit)
    for k in range(row.parked, row.parked + row.parkeds):
        box = maps.parked[k]
        dx, dy = box.x - ego.x, box.y - ego.y
        if dx * dx + dy * dy > far * far:
            continue
        f, left = dx * ego.cos + dy * ego.sin, dy * ego.cos - dx * ego.sin
        cos, sin = box.cos * ego.cos + box.sin * ego.sin, box.sin * ego.cos - box.cos * ego.sin
        draw_box(out, ppm, ahead, f, left, cos, sin, 0.5 * box.length, 0.5 * box.width, VEHICLE)


@kernel
def draw(maps: Maps, world: WorldState, e: int, out: Any, ppm: float, behind: float) -> None:
    """Draw env `e` into packed pixels (height, width) uint16.

    Args:
        maps: all maps.
        world: all envs.
        e: env.
        out: (height, width) output.
        ppm: pixels per metre.
        behind: fraction of the height behind the ego's centre.
    """
    ego = localized(world, e)
    ahead = out.shape[0] * (1.0 - behind) / ppm
    row = maps.maps[world.episodes[e].map]
    if row.levels == 1:
        draw_level(maps, world, e, row, ego, out, ppm, ahead)
    else:
        draw_surface(maps, row, ego, out, ppm, ahead)
    draw_road_things(maps, world, e, out, ppm, ahead)
    draw_agents(maps, world, e, out, ppm, ahead)


@kernel
def expand(packed: Any, table: ChannelTable, out: Any) -> None:
    """Expand packed pixels (4 n,) uint16 to channels, 10 bytes per pixel, as words (5 n,) uint64."""
    first, rest = table.first, table.rest
    for i in range(len(packed) // PIXELS):
        a, b, c, d = packed[PIXELS * i], packed[PIXELS * i + 1], packed[PIXELS * i + 2], packed[PIXELS * i + 3]
        k = WORDS * i
        out[k] = first[a]
        out[k + 1] = rest[a] | first[b] << np.uint64(16)
        out[k + 2] = first[b] >> np.uint64(48) | rest[b] << np.uint64(16) | first[c] << np.uint64(32)
        out[k + 3] = first[c] >> np.uint64(32) | rest[c] << np.uint64(32) | first[d] << np.uint64(48)
        out[k + 4] = first[d] >> np.uint64(16) | rest[d] << np.uint64(48)
