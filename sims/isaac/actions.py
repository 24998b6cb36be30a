"""Actions of an Isaac environment: check, bounds, and conversion from joint targets, on the environment's device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, NumericsError
from robotrl.sims.actions import ActionBounds
from robotrl.sims.isaac.descriptors import ActionDescription
from robotrl.sims.isaac.observations import UNIT_UNKNOWN
from robotrl.spec import Spec
from robotrl.utils.devices import CPU

LARGEST = 1e30
"""Bounds of larger magnitude count as none."""


def raw_bounds(space: Any, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (A,) of the environment's own action; `bound` replaces infinite ones.

    Raises:
        ConfigError: the space is no Box of one axis.
    """
    shape: tuple[int, ...] = tuple(space.shape) if hasattr(space, "low") else ()
    if len(shape) != 1:
        raise ConfigError(f"action is a {type(space).__name__} space of shape {shape}: expected a Box of one axis")
    ends = [np.broadcast_to(np.asarray(end, np.float64), shape).copy() for end in (space.low, space.high)]
    for end, instead in zip(ends, (-bound, bound), strict=True):
        end[~(np.abs(end) < LARGEST)] = instead
    return ends[0], ends[1]


def action_spec(low: np.ndarray, high: np.ndarray, described: ActionDescription | None) -> Spec:
    """Spec of an action with the environment's own bounds (A,), in the units of its description, if there is one."""
    width = len(low)
    if described is None:
        return Spec(
            (width,),
            tuple(f"action_{i}" for i in range(width)),
            (UNIT_UNKNOWN,) * width,
            tuple(low.tolist()),
            tuple(high.tolist()),
        )
    if len(described.names) != width:
        raise ConfigError(f"the env's descriptors describe {len(described.names)} actions: expected {width}")
    ends = np.stack([end * np.array(described.scale) + np.array(described.offset) for end in (low, high)])
    lowest = np.maximum(ends.min(0), described.low)
    highest = np.minimum(ends.max(0), described.high)
    for name, a, b in zip(described.names, lowest, highest, strict=True):
        if not a < b:
            raise ConfigError(f"action {name!r} has bounds {a:g} to {b:g}: expected a clip that leaves room to move")
    return Spec((width,), described.names, described.units, tuple(lowest.tolist()), tuple(highest.tolist()))


class ActionCommands:
    """Converts a policy's actions to the environment's own, and refuses those that are not finite.

    On a CPU an action that is not finite is refused before anything moves. Elsewhere reading the check would make the
    device wait: `fault` is left there instead, and `rows_that_ended` reads it together with the flags of the step.

    Args:
        spec: spec of the action.
        num_envs: number of envs N.
        device: device of the environment.
        described: scale and offset of the environment's own actions; None passes actions on as they are.
        sim: name of the sim, for messages.
    """

    def __init__(
        self, spec: Spec, num_envs: int, device: torch.device, described: ActionDescription | None, sim: str
    ) -> None:
        self._bounds = ActionBounds(spec, num_envs, sim)
        self._on_cpu, self._sim = device == CPU, sim
        self._low, self._high = (torch.tensor(end, dtype=torch.float32, device=device) for end in (spec.low, spec.high))
        self._gain: Tensor | None = None
        self._shift = self._low
        if described is not None and (set(described.scale) != {1.0} or any(described.offset)):
            scale, offset = (torch.tensor(x, dtype=torch.float32, device=device) for x in described[2:4])
            self._gain, self._shift = 1 / scale, -offset / scale
        self._steps = np.zeros(num_envs, np.int64)
        self.fault = torch.zeros((), dtype=torch.bool, device=device)
        """True on the device if the last actions held a number that is not finite; on a CPU never."""

    def raw(self, actions: Tensor, steps: Tensor) -> Tensor:
        """The environment's own actions (N, A), as a new tensor.

        Args:
            actions: (N, A) in the units of the spec.
            steps: (N,) steps made in the running episodes, for messages.

        Raises:
            ConfigError: wrong shape.
            NumericsError: on a CPU, an action that is not finite; env, step and action are named.
        """
        actions = actions.detach()
        if self._on_cpu:
            inside = torch.from_numpy(self._bounds.checked(actions.numpy(), steps.numpy()))
        else:
            if tuple(actions.shape) != self._bounds.shape:
                raise ConfigError(f"actions has shape {tuple(actions.shape)}: expected {self._bounds.shape}")
            self.fault = ~torch.isfinite(actions).all()
            inside = torch.clamp(actions, self._low, self._high)
        if self._gain is None:
            # the environment may keep the tensor, and the caller may overwrite its own
            return inside.clone()
        return torch.addcmul(self._shift, inside, self._gain)

    def rows_that_ended(self, done: Tensor) -> Tensor:
        """Env ids (n,) int64 of the flags (N,), the only number of a step that the host waits for.

        Raises:
            NumericsError: the last actions held a number that is not finite.
        """
        if self._on_cpu:
            return done.nonzero()[:, 0]
        # more rows than envs: the length alone, which is known anyhow, tells of the fault
        rows = torch.cat((done, self.fault.expand(len(done) + 1))).nonzero()[:, 0]
        if len(rows) > len(done):
            raise NumericsError(f"{self._sim}: an action of the last step is not finite: expected finite numbers")
        return rows
