"""Common evaluation for locomotion: Gymnasium's own environments, the same seeds for all methods."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

IDS = {
    "mujoco/halfcheetah": "HalfCheetah-v5",
    "mujoco/hopper": "Hopper-v5",
    "mujoco/walker2d": "Walker2d-v5",
    "mujoco/ant": "Ant-v5",
    "mujoco/humanoid": "Humanoid-v5",
}
"""Our task names to Gymnasium's ids."""

FIRST_SEED = 1_000_000
"""First evaluation seed, far from all training seeds."""


def returns(
    task: str, act: Callable[[NDArray[np.float64]], NDArray[np.floating]], episodes: int = 32
) -> NDArray[np.float64]:
    """Undiscounted returns (episodes,) of a policy in Gymnasium's environment, one episode per seed.

    Args:
        task: our name of the task.
        act: observations (n, D) to actions (n, A); actions are clipped to the bounds.
        episodes: number of episodes, with the seeds from `FIRST_SEED` on.
    """
    import gymnasium

    envs = [gymnasium.make(IDS[task]) for _ in range(episodes)]
    space = envs[0].action_space
    assert isinstance(space, gymnasium.spaces.Box)
    obs = [env.reset(seed=FIRST_SEED + i)[0] for i, env in enumerate(envs)]
    total = np.zeros(episodes)
    running = list(range(episodes))
    while running:
        actions = np.clip(act(np.stack([obs[i] for i in running])), space.low, space.high)
        for i, action in zip(list(running), actions, strict=True):
            obs[i], reward, terminated, truncated, _ = envs[i].step(action.astype(np.float32))
            total[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
    for env in envs:
        env.close()
    return total
