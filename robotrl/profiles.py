"""Profiles: what to change in a preset for a kind of machine, so that a published policy fits there.

A profile says nothing about a method. Its settings come before those of the command line, which may change them again.
The sizes were chosen by `robotrl memory`, for OpenVLA, pi0 and SmolVLA at published size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from robotrl.errors import ConfigError, unknown

_ADAPTED = {
    "device": "cuda",
    "recompute": True,
    "lora.rank": 32,
    "lora.bf16_base": True,
    "algo.bf16": True,
}
PROFILES: dict[str, Mapping[str, Any]] = {
    "cpu": {"device": "cpu"},
    "card-24": {**_ADAPTED, "algo.microbatch": 4, "sim.num_envs": 8},
    "card-80": {**_ADAPTED, "algo.microbatch": 16, "sim.num_envs": 32},
    "cards-8x80": {
        "device": "cuda",
        "recompute": True,
        "shard": True,
        "algo.bf16": True,
        "algo.microbatch": 2,
        "algo.ema": 0.0,
        "algo.muon": 0.0,
    },
}
OPTIONAL = {"algo.ema", "algo.muon"}
"""Settings that are left out where an algorithm has no such thing."""
ABOUT = {
    "cpu": "as the preset is: small policies",
    "card-24": "one card of 24 GB: adapters on a frozen base in 16 bits, blocks recomputed, 4 rows at once, 8 envs",
    "card-80": "one card of 80 GB: the same with 16 rows at once and 32 envs",
    "cards-8x80": "eight cards of 80 GB (torchrun --nproc-per-node 8): all weights learn by Adam, moments in parts",
}


def with_profile(cfg: Any, name: str) -> Any:
    """A preset's config for a kind of machine. Fewer envs take more rollouts to draw as many groups of episodes.

    Args:
        cfg: the config.
        name: a key of `PROFILES`.

    Raises:
        ConfigError: no such profile, or the preset's algorithm lacks one of its settings.
    """
    if name not in PROFILES:
        raise unknown("--profile", name, PROFILES)
    envs = cfg.sim.num_envs
    for path, value in PROFILES[name].items():
        if path in OPTIONAL and not hasattr(cfg.algo, path.removeprefix("algo.")):
            continue
        cfg = _with(cfg, path.split("."), value, f"profile {name!r} sets {path}")
    if hasattr(cfg.algo, "tries"):
        cfg = replace(cfg, algo=replace(cfg.algo, tries=math.ceil(cfg.algo.tries * envs / cfg.sim.num_envs)))
    return cfg


def _with(part: Any, path: list[str], value: Any, what: str) -> Any:
    first, *rest = path
    if not is_dataclass(part) or not hasattr(part, first):
        raise ConfigError(
            f"{what}, which {type(part).__name__} lacks: expected a preset that fine-tunes a large policy"
        )
    inner = _with(getattr(part, first), rest, value, what) if rest else value
    changed: Any = replace(part, **{first: inner})  # pyright: ignore[reportArgumentType]
    return changed
