"""`RolloutActing`: a policy as it acts in the rollouts of an on-policy method."""

from __future__ import annotations

import copy
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.groups import Trajectories
from robotrl.spec import Arrays


class RolloutActing(Protocol):
    """A policy that acts in training rollouts, and records with each decision what the update needs.

    A worker gets a copy by pickle, once. Later it gets only the weights of `network`, and `settings`.
    """

    @property
    def horizon(self) -> int:
        """H of the policy's chunks."""
        ...

    @property
    def network(self) -> nn.Module:
        """The module whose parameters and buffers act."""
        ...

    def decide(self, obs: Arrays, generator: torch.Generator, envs: Collector) -> Decision:
        """Sample chunks.

        Args:
            obs: (n, ...) observations of the envs that are due.
            generator: random generator of the samples.
            envs: collector of the envs; says which of them are due, and which begin an episode.
        """
        ...

    def settings(self) -> Any:
        """Return what changes between rollouts beside the weights, e.g. the normalization; picklable."""
        ...

    def apply(self, settings: Any) -> None:
        """Take over the result of `settings`."""
        ...

    def copied(self, num_envs: int, device: torch.device) -> RolloutActing:
        """Return an independent copy for some of the envs, which remembers nothing of episodes.

        Args:
            num_envs: number of these envs.
            device: device of its networks.

        Raises:
            CapabilityError: the policy acts beside the learner's own sim only.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return what is remembered of running episodes, by name; empty for a policy without memory."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        ...


class StepsActing(Protocol):
    """A policy that acts for a learner with a replay; see `RolloutActing`."""

    @property
    def horizon(self) -> int:
        """See `RolloutActing.horizon`."""
        ...

    @property
    def network(self) -> nn.Module:
        """See `RolloutActing.network`."""
        ...

    def decide(self, obs: Arrays, generator: torch.Generator, before: int) -> Decision:
        """Sample chunks.

        Args:
            obs: (n, ...) observations of the envs that are due.
            generator: random generator of the samples.
            before: env steps of the run before this call's batch.
        """
        ...

    def settings(self) -> Any:
        """See `RolloutActing.settings`."""
        ...

    def apply(self, settings: Any) -> None:
        """See `RolloutActing.apply`."""
        ...

    def copied(self, num_envs: int, device: torch.device) -> StepsActing:
        """See `RolloutActing.copied`."""
        ...

    def state(self) -> dict[str, Any]:
        """See `RolloutActing.state`."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        ...


class EpisodesActing(Protocol):
    """A policy that acts in whole episodes for a group-relative method; see `RolloutActing`."""

    @property
    def network(self) -> nn.Module:
        """See `RolloutActing.network`."""
        ...

    def begin(self, num_envs: int, generator: torch.Generator) -> None:
        """Get ready for new episodes in all envs."""
        ...

    def decide(self, obs: Arrays, rows: Tensor, generator: torch.Generator) -> Decision:
        """Sample chunks for envs `rows` (n,), from their observations (n, ...)."""
        ...

    def log_prob(self, found: Trajectories) -> Tensor:
        """Compute the log-probabilities (D, ...) of decisions under the policy as it is, one for each ratio."""
        ...

    def settings(self) -> Any:
        """See `RolloutActing.settings`."""
        ...

    def apply(self, settings: Any) -> None:
        """See `RolloutActing.apply`."""
        ...

    def copied(self, num_envs: int, device: torch.device) -> EpisodesActing:
        """See `RolloutActing.copied`."""
        ...

    def state(self) -> dict[str, Any]:
        """See `RolloutActing.state`; between two rollouts."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        ...


Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def independent(network: Module, device: torch.device) -> Module:
    """Copy a module to a device; each tensor of the copy has memory of its own.

    The learner's may be parts of one vector, which would be sent as a whole with each of them.
    """
    made = copy.deepcopy(network).to(device)
    for value in (*made.parameters(), *made.buffers()):
        value.data = value.data.clone()
    return made


class MemorylessActing:
    """The members of `RolloutActing` that a policy without settings and memory leaves as they are."""

    def settings(self) -> Any:
        """See `RolloutActing.settings`."""
        return None

    def apply(self, settings: Any) -> None:
        """See `RolloutActing.apply`."""

    def state(self) -> dict[str, Any]:
        """See `RolloutActing.state`."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """See `RolloutActing.load`."""
