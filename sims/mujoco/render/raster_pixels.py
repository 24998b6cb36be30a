"""Numpy pixel loops of the raster camera: same float32 operations as `raster.c`, hence bit-identical images.

Used without a C compiler, and as the reference in tests of the compiled loops. Pixels of all envs lie in one flat
array: for each depth rank from far to near, all envs' geoms of that rank and of one kind are drawn together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.render.raster_scene import BOX, CAPSULE, CYLINDER, FLOOR, ROUND, TERRAIN, Sheet

F32 = NDArray[np.float32]

BACK = np.float32(-1e30)
DARKEST = np.float32(0.5)
TINY = np.float32(1e-12)
HALF, ONE, TWO, ZERO = np.float32(0.5), np.float32(1.0), np.float32(2.0), np.float32(0.0)


class _Drawn(NamedTuple):
    cover: F32
    depth: F32
    light: F32


def draw(sheet: Sheet, background: F32, rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Render env i of the sheet into `out[rows[i]]`.

    Args:
        sheet: geometry to draw in N envs.
        background: (3,) red, green, blue in [0, 1].
        rows: (N,) rows of `out`, no duplicates.
        out: (..., height, width, 3) images.
    """
    envs, (height, width) = len(rows), out.shape[1:3]
    depth = np.full(envs * height * width, BACK)
    color = np.broadcast_to(background, (envs * height * width, 3)).copy()
    env = np.arange(envs)
    x0, x1, y0, y1 = np.moveaxis(sheet.window, -1, 0)
    pixels = np.maximum(x1 - x0, 0) * np.maximum(y1 - y0, 0)
    for rank in range(len(sheet.kind)):
        geom = sheet.order[:, rank]
        kind = np.where(pixels[env, geom] > 0, sheet.kind[geom], -1)
        for one in np.unique(kind[kind >= 0]):
            some = np.flatnonzero(kind == one)
            which = some, geom[some]
            counts = pixels[which]
            owner = np.repeat(np.arange(len(some)), counts)
            place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
            wide = (x1 - x0)[which][owner]
            x, y = x0[which][owner] + place % wide, y0[which][owner] + place // wide
            p = sheet.params[which].T[:, owner]
            dx, dy = (x.astype(np.float32) + HALF) - p[0], (y.astype(np.float32) + HALF) - p[1]
            at = (some[owner] * height + y) * width + x
            if one == TERRAIN:
                drawn = _terrain(p, dx, dy, sheet.grid[which[1]][owner].T, sheet.heights)
            else:
                drawn = _SHAPES[int(one)](p, dx, dy)
            _put(drawn, p, at, depth, color)
    out[rows] = (color * np.float32(255.0) + HALF).astype(np.uint8).reshape(envs, height, width, 3)


def _put(drawn: _Drawn, p: F32, at: NDArray[np.int64], depth: F32, color: F32) -> None:
    before = depth[at]
    share = np.where(drawn.depth >= before, drawn.cover, ZERO)
    light = DARKEST + (ONE - DARKEST) * drawn.light
    for channel in range(3):
        old = color[at, channel]
        color[at, channel] = old + share * (p[3 + channel] * light - old)
    depth[at] = np.where(share >= HALF, drawn.depth, before)


def _strip(x: F32, s: F32) -> F32:
    return np.maximum(np.minimum(x + HALF, s) - np.maximum(x - HALF, -s), ZERO)


def _edge(d: F32, s: F32) -> F32:
    return np.minimum(_strip(np.maximum(d + s, ZERO), s), ONE)


def _bulge(x: F32) -> F32:
    return np.sqrt(np.maximum(x, ZERO))


def _round(p: F32, dx: F32, dy: F32) -> _Drawn:
    q = p[6:]
    gx, gy = q[0] * dx + q[1] * dy, q[1] * dx + q[2] * dy
    k2 = gx * dx + gy * dy
    k0 = np.sqrt(np.maximum(k2, ZERO))
    k1 = np.sqrt(np.maximum(gx * gx + gy * gy, TINY * TINY))
    d = np.where(k2 > np.float32(1e-6), k0 * (k0 - ONE) / k1, -q[6])
    up = _bulge(ONE - k2)
    return _Drawn(_edge(d, q[6]), p[2] + q[3] * dx + q[4] * dy + q[5] * up, up)


def _box(p: F32, dx: F32, dy: F32) -> _Drawn:
    q = p[6:]
    c0 = np.minimum(_strip(np.abs(q[0] * dx + q[1] * dy), q[2]), ONE)
    c1 = np.minimum(_strip(np.abs(q[3] * dx + q[4] * dy), q[5]), ONE)
    c2 = np.minimum(_strip(np.abs(q[6] * dx + q[7] * dy), q[8]), ONE)
    f = q[9:]
    w0 = f[0] + f[1] * dx + f[2] * dy
    w1 = f[4] + f[5] * dx + f[6] * dy
    w2 = f[8] + f[9] * dx + f[10] * dy
    w01, l01 = np.minimum(w0, w1), np.where(w1 < w0, f[7], f[3])
    return _Drawn(c0 * c1 * c2, p[2] + np.minimum(w01, w2), np.where(w2 < w01, f[11], l01))


def _capsule(p: F32, dx: F32, dy: F32) -> _Drawn:
    q = p[6:]
    flat, steep, half, radius = q[2], q[3], q[4], q[5]
    end, top, square = half * flat, half * steep, radius * radius
    s, h = q[0] * dx + q[1] * dy, q[0] * dy - q[1] * dx
    beyond = s - np.minimum(np.maximum(s, -end), end)
    cover = _edge(np.sqrt(h * h + beyond * beyond) - radius, radius)
    up = _bulge(square - h * h)
    body = (s * steep + up) * q[7]
    along = s * flat + body * steep
    above = _bulge(square - h * h - (s - end) * (s - end))
    below = _bulge(square - h * h - (s + end) * (s + end))
    bent = np.where(along > half, top + above, np.where(along < -half, below - top, body))
    light = np.where(along > half, above * q[6], np.where(along < -half, below * q[6], up * q[6] * flat))
    return _Drawn(cover, p[2] + np.minimum(np.maximum(bent, -q[9]), q[9]), light)


def _cylinder(p: F32, dx: F32, dy: F32) -> _Drawn:
    q = p[6:]
    flat, steep, half, radius = q[2], q[3], q[4], q[5]
    end, top, square = half * flat, half * steep, radius * radius
    minor = np.maximum(radius * steep, np.float32(1e-3))
    s, h = q[0] * dx + q[1] * dy, q[0] * dy - q[1] * dx
    over, width_left = np.abs(s) - end, np.abs(h) - radius
    root = _bulge(square - h * h)
    u, v = over / minor, h * q[6]
    k0 = np.sqrt(u * u + v * v)
    ku, kv = u / minor, v * q[6]
    k1 = np.sqrt(np.maximum(ku * ku + kv * kv, TINY * TINY))
    bent_edge = np.where(k0 > np.float32(1e-3), k0 * (k0 - ONE) / k1, -radius)
    outer = np.where(over > ZERO, np.maximum(bent_edge, width_left), width_left)
    d = np.where(outer < ZERO, np.maximum(outer, over - steep * root), outer)
    cap = top - (s - end) * flat * q[10]
    body = (s * steep + root) * q[7]
    # beyond the lid's centre only the lid and its antialiased edge remain
    lid = (s > end) | ((s - end) * (s - end) <= steep * steep * (square - h * h))
    light = np.where(lid, steep, root * q[6] * flat)
    depth = p[2] + np.minimum(np.maximum(np.where(lid, cap, body), -q[9]), q[9])
    return _Drawn(_edge(d, q[8]), depth, light)


def _floor(p: F32, dx: F32, dy: F32) -> _Drawn:
    q = p[6:]
    cover = np.maximum(np.minimum(HALF - (q[0] + q[1] * dx + q[2] * dy), ONE), ZERO)
    depth = p[2] + q[3] + q[4] * dx + q[5] * dy
    p[3:6] *= _tiles(q[7:], q[9] + q[10] * dx + q[11] * dy, q[12] + q[13] * dx + q[14] * dy)
    return _Drawn(cover, depth, q[6])


def _terrain(p: F32, dx: F32, dy: F32, grid: NDArray[np.int32], heights: F32) -> _Drawn:
    q, (first, rows, columns) = p[6:], grid
    last_u, last_v = (columns - 1).astype(np.float32), (rows - 1).astype(np.float32)
    u, v = q[7] + q[8] * dx + q[9] * dy, q[10] + q[11] * dx + q[12] * dy
    inside = (u >= ZERO) & (u <= last_u) & (v >= ZERO) & (v <= last_v)
    i = np.floor(np.minimum(np.maximum(u, ZERO), last_u - ONE))
    j = np.floor(np.minimum(np.maximum(v, ZERO), last_v - ONE))
    a, b = np.minimum(np.maximum(u - i, ZERO), ONE), np.minimum(np.maximum(v - j, ZERO), ONE)
    cell = first + j.astype(np.int32) * columns + i.astype(np.int32)
    h00, h01, h10, h11 = heights[cell], heights[cell + 1], heights[cell + columns], heights[cell + columns + 1]
    low, high = h00 + a * (h01 - h00), h10 + a * (h11 - h10)
    h = (low + b * (high - low)) * q[13]
    rise_u = ((h01 - h00) + b * ((h11 - h10) - (h01 - h00))) * q[14]
    rise_v = (high - low) * q[15]
    light = ONE / np.sqrt(ONE + (rise_u * rise_u + rise_v * rise_v))
    section = np.maximum(np.minimum(HALF - (q[0] + q[1] * dy - q[2] * h), ONE), ZERO)
    p[3:6] *= _tiles(q[5:], u * q[16], v * q[17])
    return _Drawn(np.where(inside, section, ZERO), p[2] + q[3] + q[4] * h, light)


def _tiles(q: F32, u: F32, v: F32) -> F32:
    a, b = _tile(u, q[1]), _tile(v, q[1])
    return ONE - q[0] * (a * (ONE - b) + b * (ONE - a))


def _tile(u: F32, px: F32) -> F32:
    t = u * HALF
    t = t - np.floor(t)
    wave = np.abs(t * TWO - ONE)
    return np.minimum(np.maximum(HALF + (wave - HALF) * px, ZERO), ONE)


_SHAPES = {ROUND: _round, BOX: _box, CAPSULE: _capsule, CYLINDER: _cylinder, FLOOR: _floor}
