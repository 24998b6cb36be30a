"""Projects the geoms of all envs for the raster camera: a pixel window and shape parameters per env and geom.

All code here is arithmetic on arrays (N, G, ...) of all envs and geoms; pixels are filled in `raster.c` or, with equal
results, in `raster_pixels.py`. Lengths are in pixels: x right, y down, z towards the camera.

`Sheet.params` has these columns: centre x, y, z; red, green, blue; then for each kind of shape

- round: inverse of the silhouette's quadratic form (xx, xy, yy); depth along x, along y and its bulge; narrowest half
  width
- box: for each pair of edges of the silhouette normal x, y and distance; for each face that may be seen depth at the
  centre, its slope in x and in y, and the face's light
- capsule, cylinder: direction of the axis in the picture (x, y), its share in the picture and towards the camera,
  half length, radius, 1 / radius, 1 / share in the picture, narrowest half width, bound of depth, 1 / share towards
  the camera
- floor: distance and depth (each: at the centre, slope in x, slope in y), light, contrast and size of tiles, two tile
  coordinates (each: at the centre, slope in x, slope in y)
- terrain: distance (at the centre, slope in y, negative factor of the height), depth (at the centre, factor of the
  height), contrast and size of tiles, column and row of the grid (each: at the centre, slope in x, slope in y), pixels
  per metre, slope for a height step of 1 m between columns and between rows, tiles per column and per row
"""

from __future__ import annotations

from typing import NamedTuple

import mujoco
import mujoco.batch
import numpy as np
from numpy.typing import NDArray

from robotrl.errors import CapabilityError
from robotrl.sims.mujoco.render.views import Frame, Raster, frame_of

F64 = NDArray[np.float64]

ROUND, BOX, CAPSULE, CYLINDER, FLOOR, TERRAIN = range(6)
COLUMNS = 27
TILE_CONTRAST = 0.15
GROUPS_SHOWN = 3
"""Number of geom groups drawn (0 to 2), as by default in MuJoCo's viewer."""
MATERIAL_RULES = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's default geom colour; geoms with it take the colour of their material."""
EDGE_ON = 1e-4
"""Cosines below this count as zero (surface seen edge-on)."""
NOWHERE = 1e9

_TYPE = mujoco.mjtGeom
_KIND = {
    int(_TYPE.mjGEOM_PLANE): FLOOR,
    int(_TYPE.mjGEOM_HFIELD): TERRAIN,
    int(_TYPE.mjGEOM_SPHERE): ROUND,
    int(_TYPE.mjGEOM_ELLIPSOID): ROUND,
    int(_TYPE.mjGEOM_CAPSULE): CAPSULE,
    int(_TYPE.mjGEOM_CYLINDER): CYLINDER,
}


class Sheet(NamedTuple):
    """Drawing parameters of N envs with G geoms each."""

    kind: NDArray[np.int32]
    """(G,) shape kinds."""
    window: NDArray[np.int32]
    """(N, G, 4) pixel window: start and stop in x, then in y; empty for an invisible geom."""
    order: NDArray[np.int32]
    """(N, G) geom indices from far to near."""
    params: NDArray[np.float32]
    """(N, G, 27) shape parameters; see the module for the columns."""
    grid: NDArray[np.int32]
    """(G, 3) for terrains: index of the first height in `heights`, rows along y, columns along x."""
    heights: NDArray[np.float32]
    """Heights of all terrains, in metres."""


class Scene:
    """Visible geoms of a model and their poses in each env.

    Args:
        batch: the simulations; derived fields must be up to date when `sheet` is called.
    """

    def __init__(self, batch: mujoco.batch.Batch) -> None:
        model = batch.model
        self._batch = batch
        self._xpos: F64 = batch.bind("geom_xpos")
        self._xmat: F64 = batch.bind("geom_xmat").reshape(batch.nsim, -1, 3, 3)
        self._body_pos: F64 = batch.bind("xpos")
        shown = (model.geom_group < GROUPS_SHOWN) & (geom_colors(model.geom_rgba, model)[:, 3] > 0)
        kind = np.array([_KIND.get(int(kind), BOX) for kind in model.geom_type], np.int32)
        # sorted by kind, so that slices suffice
        geoms = np.flatnonzero(shown)
        self._geoms = geoms[np.argsort(kind[geoms], kind="stable")]
        self.kind: NDArray[np.int32] = kind[self._geoms]
        cuts = np.searchsorted(self.kind, range(7))
        self._of_kind = [slice(int(cuts[k]), int(cuts[k + 1])) for k in range(6) if cuts[k] < cuts[k + 1]]
        types = model.geom_type[self._geoms]
        self._spheres = np.flatnonzero(types == int(_TYPE.mjGEOM_SPHERE))
        # non-primitive geoms (meshes) are drawn as their bounding boxes in the geom's frame
        self._others = np.flatnonzero(~np.isin(types, [*_KIND, int(_TYPE.mjGEOM_BOX)]))
        self._other_box: F64 = model.geom_aabb[self._geoms[self._others]]
        self._grid, self._heights, self._field_m = _terrains(model, self._geoms)
        self._size = self._sizes(model.geom_size[None, self._geoms])
        self._rgb = self._colors(model.geom_rgba[None, self._geoms])

    def sheet(self, view: Raster, width: int, height: int, env_ids: NDArray[np.int64]) -> Sheet:
        """Drawing parameters for images of the envs `env_ids`."""
        self._check(view)
        frame, geoms = frame_of(view), self._geoms
        scale = width / view.width_m
        # the image's y axis points down: the frame is mirrored, which does not affect the formulas here
        sign = frame.sign * (1.0, -1.0, 1.0)
        rows = env_ids[:, None]
        pos = self._xpos[rows, geoms]
        turn = self._xmat[rows[..., None], geoms[:, None], frame.axes]
        turn *= sign[:, None]
        _tilt(turn.swapaxes(-1, -2), frame)
        if len(self._others):
            mat = self._xmat[rows, geoms[self._others]]
            pos[:, self._others] += (mat * self._other_box[:, None, :3]).sum(axis=-1)
        pos -= self._centers(view, env_ids)[:, None]
        at = pos[..., frame.axes]
        at *= sign * scale
        _tilt(at, frame)
        at[..., :2] += (width / 2, height / 2)
        own_size, own_rgba = self._batch.expanded("geom_size"), self._batch.expanded("geom_rgba")
        size = (self._size if own_size is None else self._sizes(own_size[rows, geoms])) * scale

        params = np.zeros((*at.shape[:2], COLUMNS), np.float32)
        params[..., :3] = at
        params[..., 3:6] = self._rgb if own_rgba is None else self._colors(own_rgba[rows, geoms])
        reach = np.empty_like(at)
        for some in self._of_kind:
            kind = int(self.kind[some.start])
            part = params[:, some, 6:], turn[:, some]
            if kind == FLOOR:
                reach[:, some] = _floor(*part, view.tile_m * scale)
            elif kind == TERRAIN:
                reach[:, some] = _terrain(*part, at[:, some], self._grid[some], self._field_m[some], scale, view.tile_m)
            else:
                reach[:, some] = _SHAPES[kind](*part, size[:, some])
        window = _windows(at, reach, width, height)
        order = np.argsort(at[..., 2] + reach[..., 2], axis=1, kind="stable").astype(np.int32)
        return Sheet(self.kind, window, order, params, self._grid, self._heights)

    def _check(self, view: Raster) -> None:
        if view.tilt_deg and TERRAIN in self.kind:
            raise CapabilityError(
                f"a raster camera tilted by {view.tilt_deg:g} degrees cannot draw a height field: expected tilt_deg 0,"
                " or renderer 'ray'"
            )

    def _centers(self, view: Raster, env_ids: NDArray[np.int64]) -> F64:
        """World points (n or 1, 3) at the image centres."""
        center: F64 = np.array([view.center_w], np.float64)
        if view.track is not None:
            center = center.repeat(len(env_ids), axis=0)
            followed = 3 if view.track_height else 2
            center[:, :followed] += self._body_pos[env_ids, int(self._batch.model.body(view.track).id), :followed]
        return center

    def _sizes(self, size: F64) -> F64:
        """Half extents (n, G, 3), m, from the model's sizes: the radius three times for spheres, the box for meshes."""
        size = np.array(size)
        size[:, self._spheres, 1:] = size[:, self._spheres, :1]
        size[:, self._others] = self._other_box[:, 3:]
        return size

    def _colors(self, rgba: NDArray[np.floating]) -> NDArray[np.floating]:
        """Red, green and blue (n, G, 3) in [0, 1]."""
        return np.clip(geom_colors(rgba, self._batch.model, self._geoms)[..., :3], 0.0, 1.0)


def _tilt(x: F64, frame: Frame) -> None:
    """Rotate vectors (..., 3) with components right, down and near by the frame's tilt, in place."""
    if frame.sin:
        down, near = x[..., 1].copy(), x[..., 2].copy()
        x[..., 1] = frame.cos * down + frame.sin * near
        x[..., 2] = frame.cos * near - frame.sin * down


def geom_colors(
    rgba: NDArray[np.floating], model: mujoco.MjModel, geoms: NDArray[np.int64] | slice = slice(None)
) -> NDArray[np.floating]:
    """Displayed colours (..., G, 4) of geoms with colours `rgba`: the material's, unless the geom has its own."""
    material = np.asarray(model.geom_matid)[geoms]
    if not (material >= 0).any():
        return rgba
    plain = (material >= 0) & (rgba == np.asarray(MATERIAL_RULES, rgba.dtype)).all(axis=-1)
    return np.where(plain[..., None], model.mat_rgba[np.maximum(material, 0)], rgba)


def _round(out: NDArray[np.float32], turn: F64, size: F64) -> F64:
    """Write the parameters of spheres and ellipsoids and return the half extents of their bounding boxes."""
    half = turn * size[..., None, :]
    x, y, z = half[..., 0, :], half[..., 1, :], half[..., 2, :]
    xx, xy, yy = (x * x).sum(axis=-1), (x * y).sum(axis=-1), (y * y).sum(axis=-1)
    zx, zy, zz = (z * x).sum(axis=-1), (z * y).sum(axis=-1), (z * z).sum(axis=-1)
    inverse = 1.0 / (xx * yy - xy * xy)
    ixx, ixy, iyy = yy * inverse, -xy * inverse, xx * inverse
    along_x, along_y = zx * ixx + zy * ixy, zx * ixy + zy * iyy
    mean, apart = (xx + yy) / 2, (xx - yy) / 2
    out[..., 0], out[..., 1], out[..., 2] = ixx, ixy, iyy
    out[..., 3], out[..., 4] = along_x, along_y
    out[..., 5] = np.sqrt(np.maximum(zz - along_x * zx - along_y * zy, 0.0))
    out[..., 6] = np.sqrt(np.maximum(mean - np.sqrt(apart * apart + xy * xy), 0.0))
    return np.sqrt(np.stack([xx, yy, zz], axis=-1))


def _box(out: NDArray[np.float32], turn: F64, size: F64) -> F64:
    half = turn * size[..., None, :]
    x, y, z = turn[..., 0, :], turn[..., 1, :], turn[..., 2, :]
    flat, steep = np.sqrt(x * x + y * y), np.abs(z)
    seen, facing = flat > EDGE_ON, steep > EDGE_ON
    inverse = seen / np.where(seen, flat, 1.0)
    nx, ny = -y * inverse, x * inverse
    # the silhouette's extent along each normal: sum of the projections of all three half axes
    on = np.abs(nx[..., :, None] * half[..., None, 0, :] + ny[..., :, None] * half[..., None, 1, :]).sum(axis=-1)
    edges = out[..., :9].reshape(*out.shape[:2], 3, 3)
    faces = out[..., 9:21].reshape(*out.shape[:2], 3, 4)
    edges[..., 0], edges[..., 1], edges[..., 2] = nx, ny, np.where(seen, on, NOWHERE)
    slope = facing / np.where(facing, z, 1.0)
    faces[..., 0] = np.where(facing, size * np.abs(slope), NOWHERE)
    faces[..., 1], faces[..., 2] = -x * slope, -y * slope
    faces[..., 3] = steep * facing
    out[..., :9], out[..., 9:21] = edges.reshape(*out.shape[:2], 9), faces.reshape(*out.shape[:2], 12)
    return np.abs(half).sum(axis=-1)


def _capsule(out: NDArray[np.float32], turn: F64, size: F64) -> F64:
    radius, half = size[..., 0], size[..., 1]
    axis = _rod(out, turn, radius, half)
    out[..., 8], out[..., 9] = radius, half * np.abs(axis[..., 2]) + radius
    return half[..., None] * np.abs(axis) + radius[..., None]


def _cylinder(out: NDArray[np.float32], turn: F64, size: F64) -> F64:
    radius, half = size[..., 0], size[..., 1]
    axis = _rod(out, turn, radius, half)
    flat, steep = out[..., 2], out[..., 3]
    out[..., 8] = np.minimum(radius, half * flat + radius * steep)
    out[..., 9] = half * steep + radius * flat
    return half[..., None] * np.abs(axis) + radius[..., None] * np.sqrt(np.maximum(1.0 - axis * axis, 0.0))


def _rod(out: NDArray[np.float32], turn: F64, radius: F64, half: F64) -> F64:
    """Write the parameters common to capsules and cylinders; return axes (N, G, 3), oriented towards the camera."""
    axis = turn[..., :, 2]
    axis = np.where(axis[..., 2:] < 0, -axis, axis)
    x, y, steep = axis[..., 0], axis[..., 1], axis[..., 2]
    flat = np.sqrt(x * x + y * y)
    lying = flat > EDGE_ON
    inverse = lying / np.where(lying, flat, 1.0)
    out[..., 0], out[..., 1] = np.where(lying, x * inverse, 1.0), y * inverse
    out[..., 2], out[..., 3], out[..., 4], out[..., 5] = flat, steep, half, radius
    out[..., 6], out[..., 7], out[..., 10] = (
        1.0 / radius,
        1.0 / np.maximum(flat, EDGE_ON),
        1.0 / np.maximum(steep, EDGE_ON),
    )
    return axis


_SHAPES = (_round, _box, _capsule, _cylinder)


def _floor(out: NDArray[np.float32], turn: F64, tile: float) -> F64:
    """Write a plane: fully visible from above, the half space below it when edge-on, invisible from below."""
    x, y, z = turn[..., 0, 2], turn[..., 1, 2], turn[..., 2, 2]
    facing, section = z > EDGE_ON, np.abs(z) <= EDGE_ON
    slope = facing / np.where(facing, z, 1.0)
    slope_x, slope_y = -x * slope, -y * slope
    out[..., 0] = np.where(section, 0.0, -NOWHERE)
    out[..., 1], out[..., 2] = x * section, y * section
    out[..., 3] = np.where(section, -NOWHERE, 0.0)
    out[..., 4], out[..., 5] = slope_x, slope_y
    out[..., 6] = np.where(facing, z, 1.0)
    if tile:
        out[..., 7], out[..., 8] = TILE_CONTRAST, tile
        for local, column in ((0, 9), (1, 12)):
            along_x = (turn[..., 0, local] + turn[..., 2, local] * slope_x) / tile
            along_y = (turn[..., 1, local] + turn[..., 2, local] * slope_y) / tile
            # tile borders are at integers, except along a direction that the image does not show
            out[..., column] = np.where(np.abs(along_x) + np.abs(along_y) > 1e-9, 0.5, 0.0)
            out[..., column + 1], out[..., column + 2] = along_x, along_y
    reach = np.where(facing | section, NOWHERE, -NOWHERE)
    return np.stack([reach, reach, np.full_like(reach, -NOWHERE)], axis=-1)


def _terrains(model: mujoco.MjModel, geoms: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32], F64]:
    """Grids (G, 3), heights in metres and half sides (G, 2) in metres of the height fields among the geoms."""
    grid, field_m = np.zeros((len(geoms), 3), np.int32), np.ones((len(geoms), 2))
    heights: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
    for row, geom in enumerate(geoms):
        if model.geom_type[geom] == int(_TYPE.mjGEOM_HFIELD):
            field = int(model.geom_dataid[geom])
            rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
            first = int(model.hfield_adr[field])
            grid[row] = sum(map(len, heights)), rows, columns
            field_m[row] = model.hfield_size[field, :2]
            share = np.asarray(model.hfield_data[first : first + rows * columns], np.float32)
            heights.append(share * np.float32(model.hfield_size[field, 2]))
    return grid, np.concatenate(heights), field_m


def _terrain(
    out: NDArray[np.float32],
    turn: F64,
    at: F64,
    grid: NDArray[np.int32],
    field_m: F64,
    scale: float,
    tile_m: float,
) -> F64:
    """Write an upright height field: its surface from above, its cross-section in the image plane from the side."""
    z = turn[..., 2, 2]
    above = z > 1.0 - EDGE_ON
    upright = turn[..., 1, 2] < -1.0 + EDGE_ON
    out[..., 0] = np.where(above, -NOWHERE, 0.0)
    out[..., 1], out[..., 2] = np.where(above, 0.0, -1.0), np.where(above, 0.0, 1.0)
    out[..., 3], out[..., 4] = np.where(above, 0.0, -NOWHERE), np.where(above, 1.0, 0.0)
    cell_m = 2 * field_m / (grid[:, :0:-1] - 1)
    for local, column in ((0, 7), (1, 10)):
        cell = cell_m[:, local] * scale
        # distance from the field's centre at which the image plane (depth 0) cuts the field
        behind = np.where(above, 0.0, -turn[..., 2, local] * at[..., 2])
        out[..., column] = field_m[:, local] / cell_m[:, local] + behind / cell
        out[..., column + 1] = turn[..., 0, local] / cell
        out[..., column + 2] = np.where(above, turn[..., 1, local] / cell, 0.0)
    out[..., 13] = scale
    out[..., 14], out[..., 15] = np.where(above, 1.0 / cell_m[:, 0], 0.0), np.where(above, 1.0 / cell_m[:, 1], 0.0)
    if tile_m:
        out[..., 5], out[..., 6] = TILE_CONTRAST, tile_m * scale
        out[..., 16], out[..., 17] = cell_m[:, 0] / tile_m, cell_m[:, 1] / tile_m
    reach = np.where(above | upright, NOWHERE, -NOWHERE)
    return np.stack([reach, reach, np.full_like(reach, -NOWHERE)], axis=-1)


def _windows(at: F64, reach: F64, width: int, height: int) -> NDArray[np.int32]:
    """Pixel windows of bounding boxes, with a margin for antialiased edges."""
    limits = np.array([width, height])
    out = np.empty((*at.shape[:2], 2, 2), np.int32)
    out[..., 0] = np.minimum(np.maximum(np.floor(at[..., :2] - reach[..., :2] - 1.0), 0), limits)
    out[..., 1] = np.minimum(np.maximum(np.ceil(at[..., :2] + reach[..., :2] + 1.0), 0), limits)
    return out.reshape(*at.shape[:2], 4)
