"""Rollouts of two policies from the same starts, recorded as geometry poses for the report's animation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.report import Animation, Camera, RecordedEpisode, geoms_from_mujoco, poses_from_mujoco
from robotrl.rollout.evaluate import PolicyActor, run_episodes

CAMERA = Camera((0.50, 0.0, 0.11), 0.78, 140.0, -24.0)
SHOWN = 6
"""Number of starts shown."""


def informative_starts(before: NDArray[np.bool_], after: NDArray[np.bool_], count: int = SHOWN) -> list[int]:
    """Indices of the starts to show: first those on which the two policies differ, then the others.

    Args:
        before: (n,) success of the first policy.
        after: (n,) success of the second policy on the same starts.
        count: number of starts.
    """
    differ = before != after
    order = [*np.flatnonzero(differ), *np.flatnonzero(~differ)]
    return [int(place) for place in order[:count]]


def record_animation(
    sim: Any, before: Any, after: Any, starts: Sequence[int], seed: int, numbers: Sequence[int], note: str
) -> Animation:
    """Run both policies once from each start.

    Args:
        sim: a MuJoCo sim with exactly as many envs as starts.
        before: policy shown on the left.
        after: policy shown on the right.
        starts: start ids.
        seed: seed of both policies' noise.
        numbers: numbers of the starts within the split.
        note: how the starts were chosen.
    """
    model = sim.core.physics.model
    keep, geoms = geoms_from_mujoco(model.geom_type, model.geom_size, model.geom_rgba)
    poses = _Poses(sim.core.physics, keep)
    sim.core.see(poses)
    return Animation(
        geoms,
        _record(sim, poses, before, starts, seed),
        _record(sim, poses, after, starts, seed),
        numbers,
        sim.control_dt_s,
        CAMERA,
        note=note,
    )


class _Poses:
    """Records the poses of the scene's geometries at each observation: after each step, before ended envs reset.

    It is installed as the sim's image renderer, and adds no observations.
    """

    specs: Mapping[str, Any] = {}

    def __init__(self, physics: Any, keep: NDArray[np.int64]) -> None:
        self._physics, self._keep = physics, keep
        self._positions, self._rotations = physics.batch.bind("geom_xpos"), physics.batch.bind("geom_xmat")
        self._wanted = False
        self.pos: list[NDArray[np.float64]] = []
        """(N, G, 3) for each frame."""
        self.rot: list[NDArray[np.float64]] = []
        """(N, G, 9)."""

    def before_step(self, step_index: int) -> None:
        """Record the next observation of all envs, the state after a step; step 0 begins a new recording."""
        if step_index == 0:
            self.pos.clear()
            self.rot.clear()
            self._write()
        self._wanted = True

    def observe(self, out: Mapping[str, NDArray[Any]], env_ids: NDArray[np.int64]) -> None:
        """Called by the sim for each observation; the first call after a step covers all envs."""
        del out, env_ids
        if self._wanted:
            self._write()
            self._wanted = False

    def _write(self) -> None:
        self._physics.poses()
        self.pos.append(self._positions[:, self._keep].copy())
        self.rot.append(self._rotations[:, self._keep].copy())


def _record(sim: Any, poses: _Poses, policy: Any, starts: Sequence[int], seed: int) -> list[RecordedEpisode]:
    actor = PolicyActor(policy, sim.num_envs, sim.device, None, seed)
    episodes = run_episodes(actor, sim, starts, on_step=poses.before_step, description="record rollouts")
    # env i begins with the i-th start; frame k is the state after k steps, so an episode of length T has frames 0..T
    return [
        RecordedEpisode(
            episode.success,
            poses_from_mujoco(
                np.stack([p[env] for p in poses.pos[: episode.length + 1]]),
                np.stack([r[env] for r in poses.rot[: episode.length + 1]]),
            ),
        )
        for env, episode in enumerate(episodes)
    ]
