"""Sweeps that train in seconds: PPO on the arm that reaches, with a few steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TINY: dict[str, Any] = {
    "sim": "mujoco/reach",
    "algo": "ppo",
    "sim.num_envs": 4,
    "sim.limit_s": 0.5,
    "sim.reward": "shaped",
    "algo.env_steps": 512,
    "algo.num_steps": 8,
    "algo.minibatch": 16,
    "algo.epochs": 2,
    "algo.critic_warmup_env_steps": 0,
    "algo.engine": "eager",
    "evaluation.episodes": 4,
    "evaluation.num_envs": 4,
    "evaluation.animation": 0,
    "evaluation.every_env_steps": 128,
    "evaluation.score": "return",
}


def tiny(vary: Mapping[str, Any], train: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Content of a sweep file with the tiny training but for what varies, further fields, and further keys."""
    fields = TINY | dict(train or {})
    return {"train": {name: fields[name] for name in fields if name not in vary}, "vary": dict(vary), **more}


def write_file(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a Python sweep file."""
    path.write_text(f"sweep = {dict(content)!r}\n")
    return path


def table_of(out: Path) -> dict[str, Any]:
    """The table of a sweep."""
    return json.loads((out / "table.json").read_text())
