"""A categorical state value of logged episodes, and the one of its states that ranks held-out episodes best.

Such a value soon remembers the episodes that it learns from: its loss still falls while its order of other episodes
gets worse. So it is stopped, and its weights are chosen, by the rank correlation on held-out episodes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, DataError, check_at_least, check_number, unknown
from robotrl.policies.base import NetworkPolicy
from robotrl.policies.networks.mlp import ACTIVATIONS
from robotrl.policies.networks.value import CategoricalValueNet

ValueEncoder = Literal["policy", "own"]
"""Context of the value: the frozen one of the policy that a run begins with, or a copy of its encoder that learns."""
ENCODERS = ("policy", "own")
LOW, HIGH = -1.0, 0.0
"""Range of scaled returns."""


class StateValue(nn.Module):
    """Value of an observation, by an encoder and bins.

    Args:
        policy: policy whose encoder it reads, which is copied.
        cfg: settings with `value_encoder`, `bins`, `value_hidden` and `value_activation`.

    Raises:
        CapabilityError: the policy has no encoder that could be copied and trained.
    """

    def __init__(self, policy: Any, cfg: Any) -> None:
        super().__init__()
        self._frozen = cfg.value_encoder == "policy"
        if not self._frozen and not isinstance(policy, NetworkPolicy):
            raise CapabilityError(
                f"policy {type(policy).__name__} has no encoder to copy: expected algo.value_encoder 'policy'"
            )
        # the frozen encoder may be any policy's: all of it is kept
        self.encoder: Any = (
            copy.deepcopy(policy).requires_grad_(False) if self._frozen else policy.copy_encoder().requires_grad_(True)
        )
        self.net = CategoricalValueNet(
            policy.context_width, cfg.bins, LOW, HIGH, cfg.value_hidden, cfg.value_activation
        )

    def context(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) of observations."""
        return self.encoder.encode(obs) if self._frozen else self.encoder(obs)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Logits (B, K) of observations (B, ...)."""
        return self.net(self.context(obs))

    def mean(self, obs: dict[str, Tensor]) -> Tensor:
        """Values (B,) of observations, from -1 to 0."""
        return self.net.mean(self.context(obs))


class BestValue:
    """The weights that ranked held-out episodes best so far; a part of a learner's state."""

    def __init__(self) -> None:
        self.rank: float | None = None
        """Rank correlation on held-out episodes, -1 to 1; None if none could be computed yet."""
        self.weights: dict[str, Tensor] = {}
        """Trained weights by name; empty until the first offer."""
        self.since = 0
        """Number of offers since the best one."""
        self.scalars: dict[str, float] = {}
        """Quality of the best one, to log."""

    def offer(self, module: nn.Module, rank: float | None, scalars: Mapping[str, float]) -> None:
        """Keep the weights of a network if it ranks better than all before; of equal ranks, the first."""
        better = rank is not None and (self.rank is None or rank > self.rank)
        if better or not self.weights:
            trained = module.named_parameters()
            self.weights = {name: x.detach().clone() for name, x in trained if x.requires_grad}
            self.rank, self.since, self.scalars = rank, 0, dict(scalars)
        else:
            self.since += 1

    def check(self, least: float) -> None:
        """Check that the value may be trusted.

        Args:
            least: least rank correlation, -1 to 1; -1 trusts any value.

        Raises:
            DataError: it ranks held-out episodes worse, or they cannot be ranked.
        """
        if least <= -1:
            return
        episodes = int(self.scalars.get("critic/heldout_episodes", 0))
        if self.rank is None:
            raise DataError(
                f"the value cannot be judged: {episodes} episodes are held out from it, 3 or more with different"
                " returns are needed; expected more logged episodes, or a larger algo.held_out"
            )
        if self.rank < least:
            raise DataError(
                f"the value ranks {episodes} held-out episodes with a correlation of {self.rank:.2f}: expected"
                f" algo.least_rank {least:g} or more, since labels of a value that does not generalize are noise;"
                " expected more logged episodes, or method pa-rl"
            )

    def load_into(self, module: nn.Module) -> None:
        """Copy the kept weights into a network of the same kind."""
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.weights.items():
                own[name].copy_(value)

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"rank": self.rank, "weights": dict(self.weights), "since": self.since, "scalars": dict(self.scalars)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self.rank, self.weights = state["rank"], dict(state["weights"])
        self.since, self.scalars = int(state["since"]), dict(state["scalars"])


def check_state_value(cfg: Any) -> None:
    """Check the settings of a state value: those of `StateValue`, and `held_out`, `least_rank` and `patience`.

    Raises:
        ConfigError: a setting is out of range; names the field, its value and the expectation.
    """
    if cfg.value_encoder not in ENCODERS:
        raise unknown("algo.value_encoder", str(cfg.value_encoder), ENCODERS)
    if cfg.value_activation not in ACTIVATIONS:
        raise unknown("algo.value_activation", str(cfg.value_activation), ACTIVATIONS)
    check_at_least("algo.bins", cfg.bins, 2)
    check_at_least("algo.patience", cfg.patience, 1)
    check_number("algo.least_rank", cfg.least_rank, -1.0, 1.0)
