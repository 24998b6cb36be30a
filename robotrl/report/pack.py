"""Recorded rollouts as a compact JSON value for the page's viewer."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.report.data import Animation, RecordedEpisode

_FULL = 32767
_STILL_M = 1e-5
"""A geometry that moves less than this (and turns as little) within a rollout is stored once."""


def pack(animation: Animation) -> dict[str, Any]:
    """Pack all rollouts with 16-bit poses: positions relative to their bounding box, quaternions over -1 to 1.

    Each rollout is `{"ok", "n", "moving", "data"}`: `data` is base64 of little-endian int16, first the pose of every
    geom in the first frame (G, 7), then those of the `moving` geoms in all `n` frames (n, M, 7).
    """
    rollouts = [*animation.before, *animation.after]
    positions = np.concatenate([rollout.poses[..., :3].reshape(-1, 3) for rollout in rollouts])
    low, high = positions.min(0), positions.max(0)
    center, half = (low + high) / 2, max(float((high - low).max()) / 2, 1e-6)
    return {
        "dt": animation.frame_dt_s,
        "centre": [round(float(value), 6) for value in center],
        "half": half,
        "shadow": animation.shadow_z,
        "camera": list(animation.camera),
        "geoms": [[geom.kind, *(round(value, 5) for value in (*geom.size, *geom.rgba))] for geom in animation.geoms],
        "before": [_pack_rollout(rollout, center, half) for rollout in animation.before],
        "after": [_pack_rollout(rollout, center, half) for rollout in animation.after],
    }


def _pack_rollout(rollout: RecordedEpisode, center: NDArray[np.float32], half: float) -> dict[str, Any]:
    poses = rollout.poses.astype(np.float64)
    moving = np.flatnonzero(np.ptp(poses, axis=0).max(-1) > _STILL_M)
    poses[..., :3] = (poses[..., :3] - center) / half
    whole = np.round(np.clip(poses, -1, 1) * _FULL).astype("<i2")
    data = whole[0].tobytes() + whole[:, moving].tobytes()
    return {
        "ok": bool(rollout.success),
        "n": len(poses),
        "moving": moving.tolist(),
        "data": base64.b64encode(data).decode("ascii"),
    }
