"""Dynamics as a part of a run's critic checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robotrl.errors import DataError, short
from robotrl.learners.dynamics.ensemble import DynamicsEnsemble
from robotrl.run.critic_checkpoint import read_critic
from robotrl.run.policy_checkpoint import load_weights

DYNAMICS = "dynamics"
"""Entry of the checkpoint."""


def dynamics_tree(model: DynamicsEnsemble) -> dict[str, Any]:
    """Entries to add to the state of a critic; see `robotrl.learners.critics.stored.critic_tree`."""
    sizes = {"state_width": model.state_width, "chunk": list(model.chunk), "hidden": list(model.hidden)}
    weights = {name: x.detach().clone() for name, x in model.state_dict().items()}
    return {DYNAMICS: {**sizes, "weights": weights}}


def stored_dynamics(path: str | Path) -> DynamicsEnsemble:
    """Read the dynamics of a run.

    Raises:
        DataError: there are none, or they are damaged.
    """
    found = read_critic(Path(path))
    if DYNAMICS not in found.tree:
        raise DataError(f"critic {found.path} has no dynamics: expected a run of rl100 with algo.gate-steps above 1")
    tree = found.tree[DYNAMICS]
    try:
        weights, (horizon, width) = tree["weights"], tree["chunk"]
        counts = len(weights["error"]), len(weights["elites"])
        model = DynamicsEnsemble(tree["state_width"], (horizon, width), *counts, tree["hidden"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"dynamics of {found.path} lack what dynamics have ({short(repr(error))})") from error
    load_weights(model, weights, f"{found.path}: the dynamics")
    return model.requires_grad_(False)
