"""Gamepad, space mouse or joystick through Linux' joystick interface, read without any library."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robotrl.errors import ConfigError, RobotrlError, out_of_range
from robotrl.interventions.mapping import Binding, DeviceState, Verdict, check_bindings, grippers, past_dead_zone
from robotrl.spec import Spec

EVENT = struct.Struct("=IhBB")
"""`struct js_event` of <linux/joystick.h>: time in ms, value, type, number of the axis or button."""
BUTTON, AXIS, INIT = 0x01, 0x02, 0x80
"""Event types; INIT is added to events that report the initial state."""
FULL = 32767
STICKS = ((1, -1.0), (0, -1.0), (4, -1.0), (3, -1.0))
"""(axis, sign) for the first, second, ... moving axis of an action, on a pad with the Xbox layout: left stick up and
left, right stick up and left. A stick reports -1 when pushed up."""
OPEN_BUTTON, CLOSE_BUTTON, TOGGLE_BUTTON = 1, 0, 7
"""Buttons B, A and start of the Xbox layout."""
VERDICTS: dict[int, Verdict] = {2: "keep", 3: "discard", 6: "finish"}
"""Buttons X, Y and back of the Xbox layout."""


class JoystickEvent(NamedTuple):
    """One event of the joystick interface."""

    time_ms: int
    value: int
    kind: int
    number: int


def read_events(data: bytes) -> tuple[list[JoystickEvent], bytes]:
    """Parse events from bytes; returns them and the bytes of an incomplete event."""
    whole = len(data) - len(data) % EVENT.size
    return [JoystickEvent(*fields) for fields in EVENT.iter_unpack(data[:whole])], data[whole:]


def default_axes(action_spec: Spec) -> dict[int, Binding]:
    """Bindings of the two sticks to the first four axes of an action that are no gripper."""
    hands = grippers(action_spec)
    moving = [name for name in action_spec.names if name not in hands]
    return {axis: Binding(name, value) for name, (axis, value) in zip(moving, STICKS, strict=False)}


def default_buttons(action_spec: Spec) -> dict[int, Binding]:
    """Bindings of two buttons to a gripper, if there is one."""
    pair = ((OPEN_BUTTON, 1.0), (CLOSE_BUTTON, -1.0))
    return {button: Binding(name, value) for name in grippers(action_spec)[:1] for button, value in pair}


class Gamepad:
    """Gamepad device: sticks and pressed buttons deflect axes, and one button takes over and hands back.

    Args:
        action_spec: of the sim.
        path: the device file.
        axes: bindings by the number of the device's axis; None uses `default_axes`.
        buttons: bindings by the number of the button; None uses `default_buttons`.
        toggle: number of the button that takes over and hands back.
        dead_zone: deflections up to this count as none, 0 or more and below 1.

    Raises:
        ConfigError: the device does not exist or cannot be opened, or a setting does not fit.
    """

    def __init__(
        self,
        action_spec: Spec,
        path: Path | str = "/dev/input/js0",
        *,
        axes: Mapping[int, Binding] | None = None,
        buttons: Mapping[int, Binding] | None = None,
        toggle: int = TOGGLE_BUTTON,
        dead_zone: float = 0.15,
    ) -> None:
        self.axes = dict(default_axes(action_spec) if axes is None else axes)
        self.buttons = dict(default_buttons(action_spec) if buttons is None else buttons)
        check_bindings("axis", self.axes, action_spec)
        check_bindings("button", self.buttons, action_spec)
        if toggle in self.buttons:
            raise ConfigError(f"button {toggle} cannot be bound: it takes over and hands back")
        if not 0 <= dead_zone < 1:
            raise out_of_range("dead_zone", dead_zone, "0 or more and below 1")
        self._names, self._toggle, self._dead_zone = action_spec.names, toggle, dead_zone
        self._path = Path(path)
        self._deflected: dict[int, float] = {}
        self._pressed: set[int] = set()
        self._begun = b""
        try:
            self._device: int | None = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            there = ", ".join(str(found) for found in sorted(self._path.parent.glob("js*"))) or "none"
            raise ConfigError(
                f"gamepad {self._path} does not exist: is it plugged in, and the kernel's module joydev loaded?"
                f" there: {there}"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"gamepad {self._path} cannot be opened: {error.strerror}; expected read access, as the group of"
                " /dev/input has"
            ) from error

    def poll(self, now_s: float) -> DeviceState:
        """See `Device.poll`.

        Raises:
            RobotrlError: the device was unplugged.
        """
        del now_s
        events, self._begun = read_events(self._begun + self._read())
        toggled, verdict = False, None
        for event in events:
            kind = event.kind & ~INIT
            if kind == AXIS:
                self._deflected[event.number] = past_dead_zone(event.value / FULL, self._dead_zone)
            elif kind == BUTTON and event.number == self._toggle:
                # a button that is already down when the device is opened does not take over
                toggled ^= bool(event.value) and not event.kind & INIT
            elif kind == BUTTON and event.number in VERDICTS and event.number not in self.buttons:
                verdict = VERDICTS[event.number] if event.value and not event.kind & INIT else verdict
            elif kind == BUTTON:
                (self._pressed.add if event.value else self._pressed.discard)(event.number)
        deflection = np.zeros(len(self._names))
        touched = False
        for number, binding in self.axes.items():
            value = binding.value * self._deflected.get(number, 0.0)
            deflection[self._names.index(binding.axis)] += value
            touched |= value != 0
        for number in self._pressed & self.buttons.keys():
            binding = self.buttons[number]
            deflection[self._names.index(binding.axis)] += binding.value
            touched = True
        return DeviceState(np.clip(deflection, -1.0, 1.0), touched, toggled, verdict)

    def close(self) -> None:
        """Close the device."""
        device, self._device = self._device, None
        if device is not None:
            os.close(device)

    def _read(self) -> bytes:
        """Read all available bytes; nothing after `close`."""
        data = b""
        while self._device is not None:
            try:
                part = os.read(self._device, 64 * EVENT.size)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ENODEV:
                    raise RobotrlError(f"gamepad {self._path} was unplugged") from error
                raise
            if not part:
                break
            data += part
        return data
