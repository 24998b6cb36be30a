"""Pictures of cameras: sky, ground, and a rectangle for each actor, nearer ones over farther ones."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.carla.stub.simulation.actors import Actors
from robotrl.sims.carla.stub.simulation.town import Pose

_SKY, _GROUND = (235, 206, 135), (90, 90, 90)
_SKY_TAG, _GROUND_TAG = 11, 1
_NEAR_M, _FAR_M = 0.3, 150.0
_CORNERS = np.array([(i, j, k) for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], float)


class Lens(NamedTuple):
    """Size of pictures, and the horizontal field of view in degrees."""

    width: int
    height: int
    fov_deg: float


def draw(actors: Actors, pose: Pose, lens: Lens, own: int, labels: bool) -> NDArray[np.uint8]:
    """Picture (height, width, 4) in blue, green, red and alpha.

    Args:
        actors: what may be seen.
        pose: of the camera.
        lens: its size and field of view.
        own: actor that carries the camera, which it does not see.
        labels: draw semantic labels, in the red channel, and no colors.
    """
    focal = 0.5 * lens.width / math.tan(math.radians(lens.fov_deg) / 2)
    horizon = round(0.5 * lens.height + focal * math.tan(math.radians(max(min(pose[3], 89.0), -89.0))))
    horizon = min(max(horizon, 0), lens.height)
    picture = np.empty((lens.height, lens.width, 4), np.uint8)
    picture[..., 3] = 255
    picture[:horizon, :, :3] = (0, 0, _SKY_TAG) if labels else _SKY
    picture[horizon:, :, :3] = (0, 0, _GROUND_TAG) if labels else _GROUND
    for row, (left, right, top, bottom) in _boxes(actors, pose, lens, focal, own):
        picture[top:bottom, left:right, :3] = _paint(actors, row, labels)
    return picture


def _paint(actors: Actors, row: int, labels: bool) -> tuple[int, int, int]:
    actor = actors.list[row]
    if labels:
        return (0, 0, actor.blueprint.tag)
    try:
        red, green, blue = (int(part) % 256 for part in actor.attributes.get("color", "200,120,40").split(","))
    except ValueError:
        return (40, 120, 200)
    return (blue, green, red)


def _boxes(
    actors: Actors, pose: Pose, lens: Lens, focal: float, own: int
) -> list[tuple[int, tuple[int, int, int, int]]]:
    """Rows of the actors in view, farthest first, and left, right, top and bottom of each, px."""
    body = actors.body
    rows = np.flatnonzero(body["solid"])
    rows = rows[[actors.list[row].id != own for row in rows]]
    if not len(rows):
        return []
    corners = _CORNERS * body["extent"][rows, None]
    yaw = np.radians(body["rotation"][rows, 1])[:, None]
    cos, sin = np.cos(yaw), np.sin(yaw)
    x = cos * corners[..., 0] - sin * corners[..., 1] + body["location"][rows, 0, None] - pose[0]
    y = sin * corners[..., 0] + cos * corners[..., 1] + body["location"][rows, 1, None] - pose[1]
    z = corners[..., 2] + (body["location"][rows, 2] + body["center_z"][rows])[:, None] - pose[2]
    heading, pitch = math.radians(pose[4]), math.radians(pose[3])
    ahead = math.cos(heading) * x + math.sin(heading) * y
    right = math.cos(heading) * y - math.sin(heading) * x
    depth, up = math.cos(pitch) * ahead + math.sin(pitch) * z, math.cos(pitch) * z - math.sin(pitch) * ahead
    middle = depth.mean(1)
    near = np.maximum(depth, _NEAR_M)
    u, v = 0.5 * lens.width + focal * right / near, 0.5 * lens.height - focal * up / near
    u, v = np.clip(u, 0, lens.width).round().astype(int), np.clip(v, 0, lens.height).round().astype(int)
    found: list[tuple[int, tuple[int, int, int, int]]] = []
    for i in np.argsort(-middle, kind="stable"):
        if _NEAR_M < middle[i] < _FAR_M:
            found.append((int(rows[i]), (int(u[i].min()), int(u[i].max()), int(v[i].min()), int(v[i].max()))))
    return found
