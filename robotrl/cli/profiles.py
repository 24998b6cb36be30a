"""Profiles: changes of a preset by which a published policy fits a kind of machine.

A profile does not change the method. Command-line settings override it. The sizes were chosen with `robotrl memory`,
for OpenVLA, pi0 and SmolVLA at published size.
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
        "fsdp": True,
        "algo.bf16": True,
        "algo.microbatch": 2,
        "algo.ema": 0.0,
        "algo.muon": 0.0,
    },
}
OPTIONAL = {"algo.ema", "algo.muon"}
"""Settings that are skipped if the algorithm does not have them."""
CHUNK = 8
"""Env steps per decision that rollout lengths assume."""
ABOUT = {
    "cpu": "as the preset is: small policies",
    "card-24": "one card of 24 GB: adapters on a frozen base in 16 bits, blocks recomputed, 4 rows at once, 8 envs",
    "card-80": "one card of 80 GB: the same with 16 rows at once and 32 envs",
    "cards-8x80": "eight cards of 80 GB (torchrun --nproc-per-node 8): all weights learn by Adam, moments in parts",
}


def with_profile(cfg: Any, name: str) -> Any:
    """Apply a profile to a preset's config; with fewer envs, iterations still fill a minibatch.

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
    return replace(cfg, algo=_filled(cfg.algo, envs, cfg.sim.num_envs))


def _filled(algo: Any, before: int, now: int) -> Any:
    """Algorithm settings for another number of envs, so that no minibatch is padded with repeated rows.

    Groups of episodes are drawn more often; rollouts with a number of steps become longer, as far as a minibatch needs;
    if an iteration is one episode in each env, the minibatch is scaled.

    Args:
        algo: the settings.
        before: number of envs that they were made for.
        now: actual number of envs.
    """
    if before == now:
        return algo
    if hasattr(algo, "tries"):
        return replace(algo, tries=math.ceil(algo.tries * before / now))
    if hasattr(algo, "num_steps"):
        enough = math.ceil(CHUNK * algo.minibatch / now)
        as_many = math.ceil(algo.num_steps * before / now)
        return replace(algo, num_steps=max(algo.num_steps, min(as_many, enough)))
    if hasattr(algo, "minibatch"):
        parts = max(1, round(algo.minibatch * now / before / algo.microbatch))
        return replace(algo, minibatch=parts * algo.microbatch)
    return algo


def _with(part: Any, path: list[str], value: Any, what: str) -> Any:
    first, *rest = path
    if not is_dataclass(part) or not hasattr(part, first):
        raise ConfigError(
            f"{what}, which {type(part).__name__} lacks: expected a preset that fine-tunes a large policy"
        )
    inner = _with(getattr(part, first), rest, value, what) if rest else value
    changed: Any = replace(part, **{first: inner})  # pyright: ignore[reportArgumentType]
    return changed
