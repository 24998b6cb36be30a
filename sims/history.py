"""Wrapper of any sim that observes the last control steps, not the present one alone.

A policy without memory learns velocities, delays and contacts from what has changed. The robot's runtime keeps the same
observations by the same steps (`robotrl.deploy.history`), so a policy is given on a robot what it was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError, check_count
from robotrl.sims.wrapper import State, WrappedSim, declared
from robotrl.spec import LONGEST_HISTORY, Spec, Step, is_picture, visible, with_history, without_committed
from robotrl.spec.symmetry import Signed, Symmetry


def remembered(sim: Any, steps: int) -> Any:
    """Wrap a sim so that each vector of numbers holds the last control steps.

    Images, arrays of several axes, instructions, committed actions and observations for a critic alone stay as they
    are.

    Args:
        sim: any sim; the wrapped one has its capabilities.
        steps: K control steps, the present one among them, 2 to 100.

    Raises:
        ConfigError: a number out of range, or a sim that observes no such vector.
    """
    check_count("history", steps, 1, LONGEST_HISTORY, "control steps")
    keys = tuple(key for key, spec in without_committed(visible(sim)).items() if _is_vector(spec))
    if not keys:
        raise ConfigError(
            f"history is {steps}: {type(sim).__name__} observes no vector of numbers"
            f" ({', '.join(sim.observation_spec)}), expected 1"
        )
    return declared(HistorySim, sim)(sim, steps, keys)


def _is_vector(spec: Spec) -> bool:
    return len(spec.shape) == 1 and not spec.words and not is_picture(spec)


class HistorySim(WrappedSim):
    """A sim that observes the last control steps; made by `remembered`.

    The first observation of an episode stands for the steps before it. `final_obs` ends with the last one.

    Args:
        sim: the sim.
        steps: K.
        keys: observations (N, D) that become (N, K D), the oldest step first; see `robotrl.spec.with_history`.
    """

    prefix = "history/"

    def __init__(self, sim: Any, steps: int, keys: tuple[str, ...]) -> None:
        super().__init__(sim)
        self._steps = steps
        specs: dict[str, Spec] = sim.observation_spec
        self.observation_spec = {key: with_history(spec, steps) if key in keys else spec for key, spec in specs.items()}
        self._past = {
            key: torch.zeros(
                (self.num_envs, steps, specs[key].shape[0]), dtype=getattr(torch, specs[key].dtype), device=self.device
            )
            for key in keys
        }
        """(N, K, D) observations of the last steps, oldest first."""
        self._fresh = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        """(N,) envs that have begun an episode outside of `step`."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see the sim's own `reset`."""
        obs = self.sim.reset(seed=seed, options=options)
        self._fresh[:] = True
        return self.present(obs)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs; see the sim's own `step`."""
        step: Step = self.sim.step(actions)
        ended, final = step.final_ids, dict(step.final_obs)
        for key, past in self._past.items():
            if key in final:
                older = past[ended, 1:]
                final[key] = torch.cat([older, final[key][:, None].to(past.dtype)], dim=1).flatten(1)
            self._past[key] = torch.cat([past[:, 1:], step.obs[key][:, None]], dim=1)
        self._begin(ended, step.obs)
        return step._replace(obs=self._observed(step.obs), final_obs=final)

    def present(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Begin the episodes of restarted envs; after a restored state nothing begins."""
        # what was handed out before stays as it is
        self._past = {key: past.clone() for key, past in self._past.items()}
        self._begin(torch.nonzero(self._fresh).squeeze(1), obs)
        self._fresh[:] = False
        return self._observed(obs)

    def on_restarted(self, envs: Tensor) -> None:
        """See `WrappedSim.on_restarted`."""
        self._fresh[envs] = True

    def symmetries_of(self, symmetries: Mapping[str, tuple[Symmetry, ...]]) -> Mapping[str, tuple[Symmetry, ...]]:
        """The sim's symmetries, applied to each of the steps."""
        return {kind: tuple(map(self._symmetry, found)) for kind, found in symmetries.items()}

    def own_state(self) -> State:
        """The observations of the last steps."""
        return {key: past.cpu().numpy().copy() for key, past in self._past.items()}

    def load_own(self, state: State) -> None:
        """Restore what `own_state` gave.

        Raises:
            DataError: it was saved with another history or another number of envs.
        """
        for key, past in self._past.items():
            found = state[key].shape if key in state else "no place"
            if found != past.shape:
                raise DataError(
                    f"state {self.prefix}{key} has shape {found}: expected {tuple(past.shape)}, from a sim with"
                    f" {self.num_envs} envs and history {self._steps}"
                )
        self._past = {key: torch.from_numpy(state[key].copy()).to(self.device) for key in self._past}
        self._fresh[:] = False

    def _begin(self, envs: Tensor, obs: dict[str, Tensor]) -> None:
        """Begin episodes in the envs (n,), which stand at the rows `envs` of `obs`."""
        for key, past in self._past.items():
            past[envs] = obs[key][envs][:, None].to(past.dtype)

    def _observed(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The observations that the user is given."""
        return {key: self._past[key].flatten(1) if key in self._past else x.clone() for key, x in obs.items()}

    def _symmetry(self, one: Symmetry) -> Symmetry:
        numbers = {key: self._repeated(signed) if key in self._past else signed for key, signed in one.numbers.items()}
        return one._replace(numbers=numbers)

    def _repeated(self, signed: Signed) -> Signed:
        width = len(signed.order)
        order = tuple(k * width + column for k in range(self._steps) for column in signed.order)
        return Signed(order, signed.signs * self._steps)
