"""Policies to and from checkpoints, strictly: nothing missing, nothing left over, and a fingerprint that must come out.

A checkpoint that holds a policy to evaluate or export has it under "policy": its description, its weights, and the
action it gave on a fixed input when it was saved. Loading repeats that action.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.checkpoint import Checkpoint, read_checkpoint
from robotrl.errors import DataError
from robotrl.registry import POLICIES
from robotrl.run import Run
from robotrl.spec import Spec

FINGERPRINT_ROWS = 4
FINGERPRINT_TOLERANCE = 1e-5
"""In units of the action's range; another machine's arithmetic differs in the last bits."""


def policy_tree(policy: Any) -> dict[str, Any]:
    """What a checkpoint stores of a policy.

    Args:
        policy: one of `robotrl.policies`.
    """
    return {
        "description": policy.to_json(),
        "weights": {name: value.detach().clone() for name, value in policy.state_dict().items()},
        "fingerprint": fingerprint(policy),
    }


def policy_from_tree(tree: dict[str, Any], where: str) -> Any:
    """Build the policy that `policy_tree` described, and check it.

    Args:
        tree: from a checkpoint.
        where: what to call the source in errors.

    Raises:
        ConfigError: the kind of policy is unknown here.
        DataError: weights are missing, left over or of another shape, or the fingerprint differs.
    """
    description, weights = tree["description"], tree["weights"]
    policy = POLICIES.load(description["kind"]).from_json(description)
    expected = policy.state_dict()
    for problem, names in (
        ("lacks", expected.keys() - weights.keys()),
        ("has unknown", weights.keys() - expected.keys()),
    ):
        if names:
            raise DataError(f"{where}: the policy {problem} weights: {', '.join(sorted(names))}")
    for name, value in expected.items():
        if tuple(weights[name].shape) != tuple(value.shape):
            raise DataError(
                f"{where}: weight {name!r} has shape {tuple(weights[name].shape)}: expected {tuple(value.shape)}"
            )
    policy.load_state_dict(weights)
    found, stored = fingerprint(policy), tree["fingerprint"]
    span = torch.tensor(policy.action_spec.high) - torch.tensor(policy.action_spec.low)
    error = float(((found - stored).abs() / span).max())
    if not error <= FINGERPRINT_TOLERANCE:
        raise DataError(
            f"{where}: the policy's fingerprint action differs by {error:.2e} of the action range from the one stored:"
            " the weights are not those that were saved, or the code that builds the policy has changed"
        )
    return policy


@torch.no_grad()
def fingerprint(policy: Any) -> Tensor:
    """The actions (4, H, A) of a policy on a fixed input that touches every element of observation and noise."""
    obs = {key: _fixed_observation(spec) for key, spec in policy.observation_spec.items()}
    noise = None
    if policy.noise_shape is not None:
        count = FINGERPRINT_ROWS * int(np.prod(policy.noise_shape))
        noise = torch.linspace(-1.5, 1.5, count).reshape(FINGERPRINT_ROWS, *policy.noise_shape)
    return policy.deploy(obs, noise).actions.clone()


def _fixed_observation(spec: Spec) -> Tensor:
    low, high = (np.nan_to_num(np.asarray(v, np.float64), neginf=-1.0, posinf=1.0) for v in (spec.low, spec.high))
    weights = np.linspace(0.2, 0.8, FINGERPRINT_ROWS)[:, None]
    wiggle = 0.15 * np.sin(np.arange(1, len(low) + 1) * np.arange(1, FINGERPRINT_ROWS + 1)[:, None])
    return torch.tensor(low + (high - low) * (weights + wiggle), dtype=torch.float32)


def load_policy(path: str | Path, which: str = "best") -> Any:
    """The policy of a run or checkpoint.

    Args:
        path: a run's directory or a checkpoint's.
        which: of a run: "best" by evaluation (the newest where none was evaluated) or "latest".

    Raises:
        DataError: nothing readable is at the path, or it holds no policy; what is wrong is named.
    """
    checkpoint = find_checkpoint(Path(path), which)
    if not isinstance(checkpoint.tree, dict) or "policy" not in checkpoint.tree:
        raise DataError(f"checkpoint {checkpoint.path} of kind {checkpoint.kind!r} holds no policy")
    return policy_from_tree(checkpoint.tree["policy"], str(checkpoint.path))


def find_checkpoint(path: Path, which: str = "best") -> Checkpoint:
    """The checkpoint at a path, or a run's best or latest one.

    Raises:
        DataError: there is none.
    """
    if not (path / "config.json").exists():
        return read_checkpoint(path)
    run = Run.open(path)
    checkpoint = (run.best() if which == "best" else None) or run.latest()
    if checkpoint is None:
        raise DataError(f"run {path} has no checkpoint yet")
    return checkpoint
