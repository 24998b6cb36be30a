"""Data of a report as plain values, filled by the job and rendered by `robotrl.report.page`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robotrl.report.reward_truth import RewardTruth

GeomKind = Literal["box", "capsule", "cylinder", "sphere", "ellipsoid", "plane"]
Role = Literal["clone", "best_clone", "expert", "tuned", "deployed"]


class CurvePoint(NamedTuple):
    """One periodic evaluation during fine-tuning."""

    env_steps: int
    """Env steps of training before this evaluation."""
    value: float
    """Success rate, 0 to 1."""
    low: float
    high: float


class Level(NamedTuple):
    """A success rate with its interval: a table row and, except for `deployed`, a mark in the learning curve."""

    role: Role
    """Role of the policy; each role occurs at most once. `expert` is the demonstrator as it was used."""
    label: str
    """Display name, e.g. "clone", "same demos, trained to convergence"."""
    value: float
    low: float | None = None
    high: float | None = None
    episodes: int | None = None


class Geom(NamedTuple):
    """A primitive geometry of the scene, in its own frame."""

    kind: GeomKind
    size: tuple[float, float, float]
    """As in MuJoCo, meters: half sizes of a box; radius and half length of a capsule or cylinder; radius of a
    sphere."""
    rgba: tuple[float, float, float, float]
    """Red, green, blue and opacity, 0 to 1 each."""


class Camera(NamedTuple):
    """Initial view of the animation; the reader can rotate it."""

    lookat: tuple[float, float, float] = (0.0, 0.0, 0.2)
    """World point at the center of the view, meters."""
    distance: float = 1.6
    """Distance from `lookat`, meters."""
    azimuth_deg: float = 130.0
    """Viewing direction from the x axis, as in MuJoCo."""
    elevation_deg: float = -25.0
    """Negative values look down."""
    fovy_deg: float = 35.0


@dataclass(frozen=True)
class RecordedEpisode:
    """Geometry poses of one recorded episode.

    Args:
        success: whether it ended in success.
        poses: (F, G, 7) float: position (m, world) and quaternion (w, x, y, z) of every geom in every frame.
    """

    success: bool
    poses: NDArray[np.float32]


@dataclass(frozen=True)
class Animation:
    """Rollouts from the same held-out starts, before and after fine-tuning.

    Args:
        geoms: the scene's G primitives; a geom whose pose never changes within a rollout costs next to nothing.
        before: one rollout for each start.
        after: likewise, same order.
        starts: numbers of the starts within their split, shown under the pictures.
        frame_dt_s: seconds between frames.
        camera: first view.
        shadow_z: height of the surface on which shadows fall, meters; None for no shadows.
        before_label: title of the left view.
        after_label: title of the right view.
        note: how the starts were chosen, and both policies' results on all of them.
    """

    geoms: Sequence[Geom]
    before: Sequence[RecordedEpisode]
    after: Sequence[RecordedEpisode]
    starts: Sequence[int]
    frame_dt_s: float
    camera: Camera = field(default_factory=Camera)
    shadow_z: float | None = 0.0
    before_label: str = "clone"
    after_label: str = "fine-tuned"
    note: str = ""

    def __post_init__(self) -> None:
        if not len(self.before) == len(self.after) == len(self.starts):
            raise ValueError(
                f"Animation has {len(self.before)} rollouts before, {len(self.after)} after and {len(self.starts)} "
                "starts: expected as many of each"
            )
        for rollout in (*self.before, *self.after):
            if rollout.poses.ndim != 3 or rollout.poses.shape[1:] != (len(self.geoms), 7) or not len(rollout.poses):
                raise ValueError(f"Rollout.poses is {rollout.poses.shape}: expected (F > 0, {len(self.geoms)}, 7)")


@dataclass(frozen=True)
class ReportData:
    """Data of a fine-tuning report. Only `title`, `task`, `levels` and `summary` are required.

    Args:
        title: name of the job, e.g. "Peg insertion".
        task: one sentence: the robot's task and its success criterion.
        levels: success rates; the verdict compares `clone` and `tuned`.
        summary: content of `summary.json` (`bc.success`, `rl.success`, `env_steps`, `export`, `control`, `wall_s`,
            `peak_memory_mib`), nested; absent parts are left out of the page.
        curve: the initial policy, at 0 env steps, and periodic evaluations, in order of env steps.
        tuned_env_steps: env steps of fine-tuning up to the checkpoint behind `tuned`.
        curve_note: one line about those evaluations (starts and number of episodes).
        reward_truth: reward and truth of fine-tuning, if it learns from reward sources.
        animation: rollouts before and after.
        lateness_us: lateness of every control tick of the deployed bundle, microseconds.
        inference_us: inference time of every tick, microseconds.
        stages: (name, seconds) of each stage, in order.
        settings: resolved settings; nested mappings are shown with dotted names.
        versions: package name to version.
        machine: properties of the machine, name to value.
        seed: the seed of the whole job.
        command: the commands that reproduce this report and its headline, one per line.
    """

    title: str
    task: str
    levels: Sequence[Level]
    summary: Mapping[str, Any]
    curve: Sequence[CurvePoint] = ()
    tuned_env_steps: int | None = None
    curve_note: str = ""
    reward_truth: Sequence[RewardTruth] = ()
    animation: Animation | None = None
    lateness_us: Sequence[float] = ()
    inference_us: Sequence[float] = ()
    stages: Sequence[tuple[str, float]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int | None = None
    command: str = ""

    def __post_init__(self) -> None:
        roles = [level.role for level in self.levels]
        if len(set(roles)) != len(roles):
            raise ValueError(f"ReportData.levels repeats a role: {roles}")

    def level(self, role: Role) -> Level | None:
        """The level with a role; None if there is none."""
        return next((level for level in self.levels if level.role == role), None)


_MUJOCO_KINDS: dict[int, GeomKind] = {0: "plane", 2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box"}


def geoms_from_mujoco(
    geom_type: ArrayLike, geom_size: ArrayLike, geom_rgba: ArrayLike
) -> tuple[NDArray[np.int64], list[Geom]]:
    """Drawable primitives of a MuJoCo model, from its arrays (no simulator is imported).

    Args:
        geom_type: (n,) `model.geom_type`.
        geom_size: (n, 3) `model.geom_size`.
        geom_rgba: (n, 4) `model.geom_rgba`; fully transparent geoms are left out, as are meshes and height fields.

    Returns:
        Indices (G,) of the kept geoms in the model, and the `Geom` of each.
    """
    types, sizes, colors = np.asarray(geom_type), np.asarray(geom_size), np.asarray(geom_rgba)
    keep = [i for i in range(len(types)) if int(types[i]) in _MUJOCO_KINDS and colors[i, 3] > 0]
    geoms = [
        Geom(
            _MUJOCO_KINDS[int(types[i])],
            (float(sizes[i, 0]), float(sizes[i, 1]), float(sizes[i, 2])),
            (float(colors[i, 0]), float(colors[i, 1]), float(colors[i, 2]), float(colors[i, 3])),
        )
        for i in keep
    ]
    return np.asarray(keep, dtype=np.int64), geoms


def poses_from_mujoco(geom_xpos: ArrayLike, geom_xmat: ArrayLike) -> NDArray[np.float32]:
    """Poses for `RecordedEpisode` from recorded `data.geom_xpos` and `data.geom_xmat`.

    Args:
        geom_xpos: (F, G, 3) positions, meters.
        geom_xmat: (F, G, 9) or (F, G, 3, 3) rotation matrices, row by row.

    Returns:
        (F, G, 7) float32.
    """
    pos = np.asarray(geom_xpos, dtype=np.float64)
    m = np.asarray(geom_xmat, dtype=np.float64).reshape(*pos.shape[:-1], 3, 3)
    # Each row is the quaternion times four times one of its components; the largest row is the best conditioned.
    xx, yy, zz = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
    a, b, c = m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]
    d, e, f = m[..., 1, 0] + m[..., 0, 1], m[..., 0, 2] + m[..., 2, 0], m[..., 2, 1] + m[..., 1, 2]
    candidates = np.stack(
        [
            np.stack([1 + xx + yy + zz, a, b, c], -1),
            np.stack([a, 1 + xx - yy - zz, d, e], -1),
            np.stack([b, d, 1 - xx + yy - zz, f], -1),
            np.stack([c, e, f, 1 - xx - yy + zz], -1),
        ],
        -2,
    )
    norms = np.linalg.norm(candidates, axis=-1)
    best = norms.argmax(-1)[..., None, None]
    quat = np.take_along_axis(candidates, best, axis=-2)[..., 0, :]
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    return np.concatenate([pos, quat], -1).astype(np.float32)
