"""Shapes and body poses of a MuJoCo scene (`robotrl.spec.geometry`), for viewers that draw it themselves."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.physics import Physics
from robotrl.sims.mujoco.render.raster_scene import GROUPS_SHOWN, geom_colors
from robotrl.spec.geometry import BodyPoses, SceneShape, ShapeKind

_TYPE = mujoco.mjtGeom
_KINDS: dict[int, ShapeKind] = {
    int(_TYPE.mjGEOM_PLANE): "plane",
    int(_TYPE.mjGEOM_SPHERE): "sphere",
    int(_TYPE.mjGEOM_CAPSULE): "capsule",
    int(_TYPE.mjGEOM_ELLIPSOID): "ellipsoid",
    int(_TYPE.mjGEOM_CYLINDER): "cylinder",
    int(_TYPE.mjGEOM_BOX): "box",
    int(_TYPE.mjGEOM_MESH): "mesh",
    int(_TYPE.mjGEOM_HFIELD): "mesh",
}


class SceneGeometry:
    """Reads shapes and poses of single envs of a batch.

    Args:
        physics: the simulations.
    """

    def __init__(self, physics: Physics) -> None:
        self._physics, self._model = physics, physics.model
        self._xpos: NDArray[np.float64] = physics.batch.bind("xpos")
        self._xquat: NDArray[np.float64] = physics.batch.bind("xquat")

    def shapes(self, env: int) -> list[SceneShape]:
        """Visible shapes of an env, with its own sizes and colors where envs differ."""
        model, batch = self._model, self._physics.batch
        own_size, own_rgba = batch.expanded("geom_size"), batch.expanded("geom_rgba")
        size = model.geom_size if own_size is None else own_size[env]
        rgba = geom_colors(model.geom_rgba if own_rgba is None else own_rgba[env], model)
        out: list[SceneShape] = []
        for geom in range(model.ngeom):
            kind = _KINDS.get(int(model.geom_type[geom]))
            if kind is None or model.geom_group[geom] >= GROUPS_SHOWN or rgba[geom, 3] <= 0:
                continue
            vertices, faces = _mesh(model, geom) if kind == "mesh" else (None, None)
            name = mujoco.mj_id2name(model, int(mujoco.mjtObj.mjOBJ_GEOM), geom) or "geom"
            sx, sy, sz = size[geom].tolist()
            red, green, blue, alpha = rgba[geom].tolist()
            x, y, z = model.geom_pos[geom].tolist()
            qw, qx, qy, qz = model.geom_quat[geom].tolist()
            out.append(
                SceneShape(
                    f"{name}-{geom}",
                    int(model.geom_bodyid[geom]),
                    kind,
                    (sx, sy, sz),
                    (red, green, blue, alpha),
                    (x, y, z),
                    (qw, qx, qy, qz),
                    vertices,
                    faces,
                )
            )
        return out

    def poses(self, env: int) -> BodyPoses:
        """World poses of an env's bodies at its present state."""
        self._physics.poses(np.array([env]))
        return BodyPoses(self._xpos[env].copy(), self._xquat[env].copy())


def body_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Names of all bodies; nameless ones are numbered."""
    named = (mujoco.mj_id2name(model, int(mujoco.mjtObj.mjOBJ_BODY), body) for body in range(model.nbody))
    return tuple(name or f"body-{body}" for body, name in enumerate(named))


def tracked_body(model: mujoco.MjModel) -> int:
    """The body that a camera follows: the first that moves freely or slides, else the world, as for a fixed arm."""
    moving = (int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    joint = int(model.body_jntadr[1]) if model.nbody > 1 else -1
    return 1 if joint >= 0 and int(model.jnt_type[joint]) in moving else 0


def _mesh(model: mujoco.MjModel, geom: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Vertices (V, 3) and faces (F, 3) of a mesh or height field, in its geom's frame."""
    data = int(model.geom_dataid[geom])
    if int(model.geom_type[geom]) == int(_TYPE.mjGEOM_MESH):
        first, count = int(model.mesh_vertadr[data]), int(model.mesh_vertnum[data])
        start, faces = int(model.mesh_faceadr[data]), int(model.mesh_facenum[data])
        vertices = np.asarray(model.mesh_vert[first : first + count], np.float32)
        return vertices, np.asarray(model.mesh_face[start : start + faces], np.int32)
    rows, columns, first = int(model.hfield_nrow[data]), int(model.hfield_ncol[data]), int(model.hfield_adr[data])
    half_x, half_y, height_m, _ = model.hfield_size[data].tolist()
    z = np.asarray(model.hfield_data[first : first + rows * columns], np.float32) * height_m
    x, y = np.meshgrid(np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows))
    grid = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    corners = [part.ravel() for part in (grid[:-1, :-1], grid[:-1, 1:], grid[1:, 1:], grid[1:, :-1])]
    faces = np.concatenate([np.stack(corners[:3], 1), np.stack([corners[0], corners[2], corners[3]], 1)])
    return np.stack([x.ravel(), y.ravel(), z], 1).astype(np.float32), faces
