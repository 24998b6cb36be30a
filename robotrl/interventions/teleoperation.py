"""Teleoperation: a human takes over with a keyboard or gamepad."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import out_of_range
from robotrl.interventions.mapping import Device, VelocityMap
from robotrl.replay.corrections import Correction
from robotrl.spec import Arrays, VecSim, shown_dt_s

Clock = Callable[[], float]
Sleep = Callable[[float], None]


class Teleoperation:
    """A human takes over one env by moving a device, and hands back by letting go.

    As with HIL-SERL's space mouse: a human who moves the device is in command, and remains so for `release_s` after, so
    that a moment without movement does not hand back. The toggle (space bar, start button) takes over until it is
    pressed again, also to hold still.

    Args:
        device: keyboard or gamepad.
        mapping: mapping from deflections to actions.
        sim: the sim that the policy acts on.
        env: index of the watched env.
        release_s: seconds that the human stays in command after the last movement.
        pace: whether to wait so that steps run at the sim's control rate, as a human needs; a robot paces itself.
        clock: monotonic clock, seconds.
        sleep: function that waits for some seconds.

    Raises:
        ConfigError: an env that the sim does not have, or a negative time.
    """

    def __init__(
        self,
        device: Device,
        mapping: VelocityMap,
        sim: VecSim,
        *,
        env: int = 0,
        release_s: float = 0.5,
        pace: bool = True,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        if not 0 <= env < sim.num_envs:
            raise out_of_range("env", env, f"0 to {sim.num_envs - 1}")
        if not release_s >= 0:
            raise out_of_range("release_s", release_s, "0 or more seconds")
        self._device, self._mapping = device, mapping
        self._env, self._release_s = env, release_s
        self._dt_s = shown_dt_s(sim) if pace else 0.0
        self._clock, self._sleep = clock, sleep
        self._last_touch_s = -np.inf
        self._last_step_s = -np.inf
        self._latched = self._taking = False
        self._held = np.zeros(len(mapping.action_spec.names))
        self._is_held = mapping.is_held()

    def __call__(self, obs: Arrays, action: Tensor, started: Tensor) -> Correction:
        """See `Intervention`."""
        del obs, started
        wait_s = self._last_step_s + self._dt_s - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        now_s = self._last_step_s = self._clock()
        reading = self._device.poll(now_s)
        if reading.touched:
            self._last_touch_s = now_s
        if reading.toggled:
            self._latched = not self._latched
            if not self._latched:
                self._last_touch_s = -np.inf
        taking = self._latched or now_s - self._last_touch_s < self._release_s
        if taking and not self._taking:
            self._held = action[self._env].double().cpu().numpy().copy()
        self._taking = taking
        taken = torch.zeros(len(action), dtype=torch.bool, device=action.device)
        if not taking:
            return Correction(action, taken)
        taken[self._env] = True
        mine = self._mapping.action(reading.deflection)
        keeps = self._is_held & (reading.deflection == 0)
        mine = np.where(keeps, self._held, mine)
        self._held = mine
        corrected = action.clone()
        corrected[self._env] = torch.as_tensor(mine, dtype=action.dtype, device=action.device)
        return Correction(corrected, taken)

    def close(self) -> None:
        """Release the device."""
        self._device.close()
