"""Sims on MuJoCo Warp on the processor, beside the same on the native engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import robotrl
from robotrl.testing import sims
from robotrl.testing.sims import CHECKS

_SLOW = (
    sims.shapes_types_and_bounds,
    sims.same_seed_same_trajectory,
    sims.buffer_reuse_is_declared_truthfully,
)
QUICK_CHECKS = tuple(check for check in CHECKS if check not in _SLOW)
"""Checks of a sim but those that step for long on Warp's one thread; one sim on Warp passes these for all."""


def warp(name: str, num_envs: int = 3, seed: int = 0, **options: Any) -> Any:
    """The sim on Warp."""
    return robotrl.make_sim(name, num_envs=num_envs, seed=seed, engine="warp", **options)


def pair(name: str, num_envs: int, **options: Any) -> tuple[Any, Any]:
    """The sim on Warp and on the native engine."""
    return warp(name, num_envs, **options), robotrl.make_sim(name, num_envs=num_envs, seed=0, threads=1, **options)


def compare_steps(on_warp: Any, native: Any, actions: Tensor, reward: float, obs: float) -> dict[str, int]:
    """Assert that both give the same flags, start ids and numbers of steps, and nearly the same numbers.

    Args:
        on_warp: one sim.
        native: the other, at the same state.
        actions: (T, N, A).
        reward: tolerance of rewards and of their terms.
        obs: tolerance of observations.

    Returns:
        How many episodes ended, by flag.
    """
    ended = {"terminated": 0, "truncated": 0}
    for action in actions:
        found, expected = on_warp.step(action), native.step(action)
        assert found.final_ids.tolist() == expected.final_ids.tolist()
        assert torch.equal(on_warp.elapsed_steps(), native.elapsed_steps())
        for flags in ended:
            assert torch.equal(getattr(found, flags), getattr(expected, flags))
            ended[flags] += int(getattr(found, flags).sum())
        assert found.info.keys() == expected.info.keys()
        for key, value in found.info.items():
            if value.is_floating_point():
                torch.testing.assert_close(value, expected.info[key].float(), atol=reward, rtol=reward, msg=key)
            else:
                assert torch.equal(value, expected.info[key]), key
        torch.testing.assert_close(found.reward, expected.reward, atol=reward, rtol=reward)
        for key in expected.obs:
            torch.testing.assert_close(found.final_obs[key], expected.final_obs[key], atol=obs, rtol=obs)
            torch.testing.assert_close(found.obs[key], expected.obs[key], atol=obs, rtol=obs)
    return ended
