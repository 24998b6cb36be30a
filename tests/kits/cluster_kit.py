"""Learners on the walk whose envs are divided into shards."""

from __future__ import annotations

from functools import partial
from typing import Any

from robotrl.cluster.factory import ClusterCollectors
from robotrl.config import ClusterCfg
from robotrl.learners.learner import Setup
from robotrl.utils.devices import CPU
from tests.kits.learner_kit import setup
from tests.kits.walk_sim import BareWalk, Walk

ENVS = 32
TWO = ClusterCfg("local", workers=2)


def walk(envs: int, number: int, seed: int) -> Walk:
    """The sim of a shard."""
    return Walk(envs, seed + number)


def bare(envs: int, number: int, seed: int) -> BareWalk:
    """One without a state to restore."""
    return BareWalk(envs, seed + number)


def collectors(cfg: ClusterCfg, make_sim: Any = walk) -> ClusterCollectors:
    return ClusterCollectors(cfg, partial(make_sim, ENVS // cfg.workers), 1, CPU)


def clustered(cfg: ClusterCfg, init_policy: Any = None, policy_cfg: Any = None, make_sim: Any = walk) -> Setup:
    return setup(init_policy, policy_cfg, num_envs=ENVS)._replace(collectors=collectors(cfg, make_sim))
