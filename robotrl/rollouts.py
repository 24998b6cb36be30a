"""Rollouts of two policies from the same starts, recorded as poses of the scene for the report's animation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.loop import PolicyActor, run_episodes
from robotrl.report import Animation, Camera, Rollout, geoms_from_mujoco, poses_from_mujoco

CAMERA = Camera((0.34, 0.0, 0.30), 1.75, 140.0, -20.0)


def record_animation(sim: Any, before: Any, after: Any, starts: list[int], seed: int) -> Animation:
    """Run both policies once from each start.

    Args:
        sim: a MuJoCo sim with exactly as many envs as starts.
        before: policy shown on the left.
        after: policy shown on the right.
        starts: start ids.
        seed: of both policies' noise.
    """
    model = sim.core.physics.model
    keep, geoms = geoms_from_mujoco(model.geom_type, model.geom_size, model.geom_rgba)
    return Animation(
        geoms,
        _record(sim, before, starts, seed, keep),
        _record(sim, after, starts, seed, keep),
        starts,
        sim.control_dt_s,
        CAMERA,
    )


def _record(sim: Any, policy: Any, starts: list[int], seed: int, keep: NDArray[np.int64]) -> list[Rollout]:
    batch = sim.core.physics.batch
    positions, rotations = batch.bind("geom_xpos"), batch.bind("geom_xmat")
    pos: list[NDArray[np.float64]] = []
    rot: list[NDArray[np.float64]] = []

    def look(step_index: int) -> None:
        del step_index
        pos.append(positions[:, keep].copy())
        rot.append(rotations[:, keep].copy())

    actor = PolicyActor(policy, sim.num_envs, sim.device, None, seed)
    episodes = run_episodes(actor, sim, starts, on_step=look, description="record rollouts")
    # env i starts with the i-th start; frame k is the state before step k, so an episode of length T has frames 0..T-1
    return [
        Rollout(
            episode.success,
            poses_from_mujoco(
                np.stack([p[env] for p in pos[: episode.length]]), np.stack([r[env] for r in rot[: episode.length]])
            ),
        )
        for env, episode in enumerate(episodes)
    ]
