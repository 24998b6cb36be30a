"""`CoreSim`: wraps a numpy episode core as a `VecSim` of torch tensors that share its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.sims import starts
from robotrl.spec import Spec, Split, Step
from robotrl.utils.devices import CPU

if TYPE_CHECKING:
    import gymnasium

State = dict[str, NDArray[Any]]
Ids = NDArray[np.int64]


class CoreStep(Protocol):
    """Result of a core's step: final observations; everything else is in the core's buffers."""

    @property
    def final_obs(self) -> dict[str, NDArray[Any]]:
        """Last observations of the episodes that ended in this step, one row per ended env; copies, not buffers."""
        ...

    @property
    def final_ids(self) -> Ids:
        """Env ids of the episodes that ended, one per row of `final_obs`."""
        ...


class EpisodeCore(Protocol):
    """Interface of a numpy core: episodes in N envs with same-step reset; each step overwrites the buffers."""

    num_envs: int
    obs: dict[str, NDArray[Any]]
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    success: NDArray[np.bool_]
    state_id: Ids

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start new episodes in all envs."""
        ...

    def step(self, actions: NDArray[Any]) -> CoreStep:
        """Advance all envs by an action (N, A) each."""
        ...

    def restart(self, env_ids: Ids) -> Any:
        """Start new episodes in some envs between two steps."""
        ...

    def queue_states(self, ids: Sequence[int] | Ids) -> None:
        """Queue start ids for the next restarts."""
        ...


@runtime_checkable
class ObservesInto(Protocol):
    """A sim on the CPU that can write its observations into arrays of others, such as memory of two processes."""

    device: torch.device

    def observe_into(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write observations into other arrays from now on.

        Args:
            arrays: contiguous arrays (N, ...) of the shapes and types of the specs, by key. What they hold is not
                read: the next step, or a restart of all envs, fills them.
        """
        ...


class CoreExpert(Protocol):
    """Scripted expert that acts on all envs of a core."""

    modes: tuple[str, ...]
    mode: NDArray[np.int64]

    def act(self, started: NDArray[np.bool_]) -> NDArray[Any]:
        """Actions (N, A); `started` (N,) marks envs at the first step of an episode."""
        ...

    def get_state(self) -> State:
        """Exact state as named arrays."""
        ...

    def set_state(self, state: State) -> None:
        """Restore exact state."""
        ...


class TensorExpert:
    """Torch adapter of a core's numpy expert; satisfies `robotrl.spec.Expert` and `HasExpertState`."""

    def __init__(self, expert: CoreExpert) -> None:
        self._expert = expert
        self.modes = expert.modes
        self.mode: Tensor = torch.from_numpy(expert.mode)

    def act(self, started: Tensor) -> Tensor:
        """Actions (N, A); `started` (N,) bool marks envs at the first step of an episode."""
        return torch.from_numpy(self._expert.act(started.cpu().numpy())).to(started.device)

    def get_state(self) -> State:
        """See `robotrl.spec.HasExpertState`."""
        return self._expert.get_state()

    def set_state(self, state: State) -> None:
        """See `robotrl.spec.HasExpertState`."""
        self._expert.set_state(state)


C = TypeVar("C", bound=EpisodeCore)


class CoreSim(Generic[C]):
    """Batched sim of torch tensors around a numpy core.

    Tensors are views of the core's memory: nothing is copied, and `Step` is overwritten by the next step
    (`buffers_are_reused`). A core whose memory is visible to a GPU passes its own `device` and `tensor`.

    Args:
        core: the numpy core that steps the envs.
        observation_spec: specs of one env's observations, by name.
        action_spec: spec of one env's action.
        control_dt_s: control period, s.
        info: (N,) buffers of the core to add to `Step.info`, besides "success" and "state_id".
        device: device of the tensors.
        tensor: converts an array of the core to a tensor on that device without a copy.
    """

    buffers_are_reused = True
    has_final_obs: Literal[True] = True

    def __init__(
        self,
        core: C,
        observation_spec: dict[str, Spec],
        action_spec: Spec,
        control_dt_s: float,
        info: Mapping[str, NDArray[Any]] | None = None,
        device: torch.device = CPU,
        tensor: Callable[[NDArray[Any]], Tensor] = torch.from_numpy,
    ) -> None:
        self.core = core
        self.num_envs = core.num_envs
        self.action_spec = action_spec
        self.control_dt_s = control_dt_s
        self.device, self._tensor = device, tensor
        self._reward, self._terminated, self._truncated = map(tensor, (core.reward, core.terminated, core.truncated))
        self._info = self._tensors({"success": core.success, "state_id": core.state_id, **(info or {})})
        self._no_ids = torch.zeros(0, dtype=torch.int64, device=device)
        self._observe(observation_spec)

    def _observe(self, observation_spec: dict[str, Spec]) -> None:
        """Set the observation spec and create tensor views of the core's observations."""
        self.observation_spec = observation_spec
        self._obs = self._tensors(self.core.obs)
        # final_obs of a step in which no episode ends
        self._no_obs = {key: value[:0] for key, value in self._obs.items()}

    def _tensors(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        return {key: self._tensor(value) for key, value in arrays.items()}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes; see the core's `reset` for the options."""
        self.core.reset(seed, options)
        return dict(self._obs)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by an action (N, A) each; see the core's `step`."""
        out = self.core.step(actions.detach().cpu().numpy())
        ended = len(out.final_ids) > 0
        return Step(
            obs=dict(self._obs),
            reward=self._reward,
            terminated=self._terminated,
            truncated=self._truncated,
            final_obs=self._tensors(out.final_obs) if ended else dict(self._no_obs),
            final_ids=self._tensor(out.final_ids) if ended else self._no_ids,
            info=dict(self._info),
        )

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) between two steps; returns the observations of all envs."""
        self.core.restart(envs.cpu().numpy())
        return dict(self._obs)

    def state_ids(self, split: Split) -> range:
        """Start ids of a split."""
        return starts.ids_of(split)

    def queue_states(self, ids: Sequence[int] | Ids) -> None:
        """Queue start ids for the next restarts, in order; after the last one, training ids are drawn again.

        Raises:
            ConfigError: an id outside all splits.
        """
        self.core.queue_states(ids)

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Wrap the sim as a numpy `gymnasium.vector.VectorEnv`; `robotrl.sims.interop` has more options."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """Do nothing: there are no resources to free."""
