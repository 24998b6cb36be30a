"""Actions on the sim's device: check and bounds."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.sims.actions import ActionBounds
from robotrl.spec import Spec
from robotrl.utils.devices import CPU


class DeviceActions:
    """Checks and clips actions without making a GPU wait.

    On a processor an action that is not finite is refused before anything moves, and the first that is clipped warns.
    On a GPU reading such a check would make the device wait: `bad` is left there instead.

    Args:
        spec: spec of one env's action.
        num_envs: number of envs N.
        device: device of the sim.
    """

    def __init__(self, spec: Spec, num_envs: int, device: torch.device) -> None:
        self._bounds = ActionBounds(spec, num_envs)
        self._device = device
        self._low, self._high = (torch.tensor(end, device=device) for end in (spec.low, spec.high))
        self.bad = torch.zeros(num_envs, dtype=torch.bool, device=device)
        """Envs (N,) whose last action was not finite; on a processor none."""

    def checked(self, actions: Tensor, steps: NDArray[np.int64]) -> Tensor:
        """Actions (N, A) on the device, float32, within their bounds.

        Args:
            actions: (N, A).
            steps: (N,) steps made in the running episodes, for messages.

        Raises:
            ConfigError: wrong shape.
            NumericsError: on a processor, an action is not finite; env, step and action are named.
        """
        actions = actions.detach()
        if self._device == CPU:
            return torch.from_numpy(self._bounds.checked(actions.cpu().numpy(), steps))
        if tuple(actions.shape) != self._bounds.shape:
            raise self._bounds.wrong_shape(actions.shape)
        actions = actions.to(self._device, torch.float32)
        torch.logical_not(torch.isfinite(actions).all(dim=1), out=self.bad)
        return torch.clamp(actions, self._low, self._high)
