"""Adapter from `VecSim` to `EnvBase` of TorchRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import EnvBase

from robotrl.errors import CapabilityError, ConfigError
from robotrl.sims.interop.tensors import BoundedActions
from robotrl.spec import HasFinalObs, HasRestart, Spec, VecSim, why_lacking

SUCCESS = "success"
TAKEN = ("action", "reward", "done", "terminated", "truncated", SUCCESS)
"""Keys that observations cannot have."""


class TorchRlEnv(EnvBase):
    """TorchRL environment of batch size (N,) around a sim.

    Observations keep the sim's keys, privileged ones included (choose with `in_keys`), beside "success" (N, 1) bool of
    the step just made. "done", "terminated", "truncated" and "reward" are (N, 1). All tensors are copies.

    A sim resets in the step in which an episode ends; TorchRL calls for a reset afterwards. So `step` returns the true
    last observation of an ended episode, and the reset of its env gives the first observation of the episode that the
    sim has already begun: no start is skipped, and value targets see the right observation.

    A reset of an env in mid-episode needs a sim with `HasRestart`. A reset of all envs is always possible; envs whose
    episode has just begun keep it if the others can be restarted alone. `set_seed` takes effect in the next reset.

    Actions are in the units of the sim's `action_spec` and are clipped to its bounds.

    Args:
        sim: the sim; it must fill `Step.final_obs`.
        seed: seed of its first reset.

    Raises:
        CapabilityError: the sim does not fill `final_obs`.
        ConfigError: an observation has a key that TorchRL or this adapter uses.
    """

    def __init__(self, sim: VecSim, seed: int = 0) -> None:
        if not isinstance(sim, HasFinalObs):
            raise CapabilityError("as_torchrl needs the last observation: this sim lacks it (HasFinalObs)")
        for key in TAKEN:
            if key in sim.observation_spec:
                raise ConfigError(f"observation {key!r} has a name of TorchRL's: expected none of {', '.join(TAKEN)}")
        super().__init__(device=sim.device, batch_size=torch.Size([sim.num_envs]))
        n, column = sim.num_envs, torch.Size([sim.num_envs, 1])
        self.sim: VecSim = sim
        self._limited = BoundedActions(sim)
        self._next_seed: int | None = seed
        self._obs: dict[str, Tensor] = {}
        self._begun = torch.zeros(n, dtype=torch.bool, device=sim.device)
        specs = {key: _spec_of(spec, n) for key, spec in sim.observation_spec.items()}
        self.observation_spec = Composite({**specs, SUCCESS: Binary(1, column, dtype=torch.bool)}, shape=(n,))
        self.action_spec = _spec_of(sim.action_spec, n)
        self.reward_spec = Unbounded(column, dtype=torch.float32)
        flags = {key: Categorical(2, column, dtype=torch.bool) for key in ("done", "terminated", "truncated")}
        self.done_spec = Composite(flags, shape=(n,))
        self.to(sim.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = self.sim.step(self._limited(tensordict["action"]))
        self._obs = {key: value.clone() for key, value in out.obs.items()}
        torch.logical_or(out.terminated, out.truncated, out=self._begun)
        shown = self._obs
        if len(out.final_ids):
            shown = {key: value.index_copy(0, out.final_ids, out.final_obs[key]) for key, value in shown.items()}
        return self._record(
            shown,
            self._begun,
            reward=out.reward,
            terminated=out.terminated,
            # both flags at once mean failure: no bootstrap
            truncated=out.truncated & ~out.terminated,
            success=out.info[SUCCESS],
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = tensordict.get("_reset", None) if tensordict is not None else None
        wanted = torch.ones_like(self._begun) if mask is None else mask.view(-1)
        self._start(wanted)
        self._begun &= ~wanted
        none = torch.zeros_like(self._begun)
        return self._record(self._obs, none, terminated=none, truncated=none, success=none)

    def _start(self, wanted: Tensor) -> None:
        """Start new episodes in the envs `wanted` (N,) whose episode has not just begun."""
        running = wanted & ~self._begun
        if not self._obs or self._next_seed is not None or bool(running.all()):
            self._reset_all()
        elif bool(running.any()):
            if isinstance(self.sim, HasRestart):
                obs = self.sim.restart(running.nonzero()[:, 0])
                self._obs = {key: value.clone() for key, value in obs.items()}
            elif bool(wanted.all()):
                self._reset_all()
            else:
                env = int(running.nonzero()[0, 0])
                raise CapabilityError(
                    f"env {env} was to be reset in mid-episode, and this sim lacks HasRestart"
                    f"{why_lacking(self.sim, 'HasRestart')}: expected a reset of all envs, or of ended ones"
                )

    def _reset_all(self) -> None:
        obs = self.sim.reset(seed=self._next_seed)
        self._next_seed = None
        self._obs = {key: value.clone() for key, value in obs.items()}

    def _record(self, obs: Mapping[str, Tensor], done: Tensor, **others: Tensor) -> TensorDictBase:
        columns = {key: value[:, None].clone() for key, value in {"done": done, **others}.items()}
        return TensorDict({**obs, **columns}, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the sim."""
        super().close(raise_if_closed=raise_if_closed)
        self.sim.close()


def _spec_of(spec: Spec, n: int) -> TensorSpec:
    """TorchRL spec (N, ...) of an array."""
    shape, dtype = torch.Size([n, *spec.shape]), getattr(torch, spec.dtype)
    if spec.choices is not None:
        return MultiCategorical(torch.tensor(spec.choices), shape, dtype=dtype)
    low, high = (torch.tensor(bound, dtype=dtype).expand(shape).clone() for bound in (spec.low, spec.high))
    if dtype.is_floating_point and not bool((low.isfinite() & high.isfinite()).all()):
        return Unbounded(shape, dtype=dtype)
    return Bounded(low, high, shape, dtype=dtype)
