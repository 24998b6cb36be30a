"""A terminal's keyboard as a device."""

from __future__ import annotations

import atexit
import os
import select
import sys
import termios
import tty
from collections.abc import Mapping

import numpy as np

from robotrl.errors import ConfigError, RobotrlError, out_of_range
from robotrl.interventions.mapping import Binding, DeviceState, Verdict, check_bindings, grippers
from robotrl.spec import Spec

TOGGLE = " "
VERDICTS: dict[str, Verdict] = {
    "\n": "keep",
    "\r": "keep",
    "\x7f": "discard",
    "\x08": "discard",
    "\x04": "finish",
}
"""Enter, backspace and Ctrl-D, as terminals send them."""
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}
"""Name of an arrow key by the last byte of its escape sequence."""
ESCAPE = "\x1b"
PAIRS = (("w", "s"), ("a", "d"), ("r", "f"), ("q", "e"), ("t", "g"), ("y", "h"))
"""Keys that move the first, second, ... axis (without grippers) up and down."""
GRIPPER_KEYS = ("o", "c")
"""Keys that open and close the gripper."""


def default_keys(action_spec: Spec) -> dict[str, Binding]:
    """Default bindings: letters in pairs for an action's axes in order, and open and close for a gripper."""
    hands = grippers(action_spec)
    moving = [name for name in action_spec.names if name not in hands]
    pairs = [*zip(moving, PAIRS, strict=False), *((name, GRIPPER_KEYS) for name in hands[:1])]
    return {key: Binding(name, value) for name, pair in pairs for key, value in zip(pair, (1.0, -1.0), strict=True)}


class Keyboard:
    """Keyboard device: a pressed key deflects its axis for `hold_s`, the space bar takes over and hands back.

    A terminal reports presses, not releases: a key that is held down repeats, after a pause of a quarter to half a
    second. `hold_s` bridges the repeats; the pause is the terminal's (on X11: `xset r rate 200 30`).

    The terminal is switched to deliver each key at once without echo; `close`, or the end of the program, restores it.
    Ctrl-C works as usual.

    Args:
        action_spec: of the sim.
        keys: bindings by character, or "up", "down", "left", "right"; None uses `default_keys`.
        hold_s: duration of a press in seconds.
        terminal: file descriptor of a terminal; None: standard input, or, if that is redirected as in an actor process,
            the terminal that the process belongs to.

    Raises:
        ConfigError: there is no terminal, or a key is bound to an axis that the action does not have.
    """

    def __init__(
        self,
        action_spec: Spec,
        keys: Mapping[str, Binding] | None = None,
        hold_s: float = 0.15,
        terminal: int | None = None,
    ) -> None:
        self.keys = dict(default_keys(action_spec) if keys is None else keys)
        check_bindings("key", self.keys, action_spec)
        if TOGGLE in self.keys:
            raise ConfigError("key ' ' cannot be bound: the space bar takes over and hands back")
        if not hold_s > 0:
            raise out_of_range("hold_s", hold_s, "above 0 seconds")
        self._names, self._hold_s = action_spec.names, hold_s
        self._terminal, self._opened = _terminal() if terminal is None else (terminal, False)
        if not os.isatty(self._terminal):
            raise ConfigError(
                f"file descriptor {self._terminal} is no terminal: interventions by keyboard need one (run the command"
                " in a terminal, its standard input not redirected)"
            )
        self._settings: list[int | list[bytes | int]] | None = termios.tcgetattr(self._terminal)
        self._until: dict[str, float] = {}
        self._begun = ""
        # cbreak, not raw: Ctrl-C must still interrupt the run
        tty.setcbreak(self._terminal, termios.TCSANOW)
        atexit.register(self.close)

    def poll(self, now_s: float) -> DeviceState:
        """See `Device.poll`.

        Raises:
            RobotrlError: the terminal is gone.
        """
        toggled, verdict = False, None
        for key in self._pressed():
            if key == TOGGLE:
                toggled = not toggled
            elif key in self.keys:
                self._until[key] = now_s + self._hold_s
            elif key in VERDICTS:
                verdict = VERDICTS[key]
        self._until = {key: until for key, until in self._until.items() if until > now_s}
        deflection = np.zeros(len(self._names))
        for key in self._until:
            binding = self.keys[key]
            deflection[self._names.index(binding.axis)] += binding.value
        return DeviceState(np.clip(deflection, -1.0, 1.0), bool(self._until), toggled, verdict)

    def close(self) -> None:
        """Restore the terminal's settings."""
        settings, self._settings = self._settings, None
        if settings is None:
            return
        atexit.unregister(self.close)
        # a terminal that was closed meanwhile has no settings to restore
        if os.isatty(self._terminal):
            termios.tcsetattr(self._terminal, termios.TCSANOW, settings)
        if self._opened:
            os.close(self._terminal)

    def _pressed(self) -> list[str]:
        """Keys pressed since the last call; the start of an incomplete escape sequence is kept for the next call."""
        text = self._begun
        while select.select([self._terminal], [], [], 0)[0]:
            try:
                data = os.read(self._terminal, 1024)
            except OSError as error:
                raise RobotrlError(f"the terminal of the keyboard cannot be read: {error.strerror}") from error
            if not data:
                raise RobotrlError("the terminal of the keyboard was closed")
            text += data.decode(errors="replace")
        keys, self._begun = split_keys(text)
        return keys


def _terminal() -> tuple[int, bool]:
    """Return a terminal's file descriptor, and whether it was opened here."""
    standard = sys.stdin.fileno()
    if not os.isatty(standard):
        try:
            return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY), True
        except OSError:
            pass
    return standard, False


def split_keys(text: str) -> tuple[list[str], str]:
    """Split a terminal's text into keys; returns them and an incomplete escape sequence at the end.

    Sequences other than the arrow keys' are dropped.
    """
    keys: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != ESCAPE:
            keys.append(text[at])
            at += 1
            continue
        rest = text[at + 1 :]
        if rest == "" or rest in ("[", "O"):
            return keys, text[at:]
        if rest[0] not in "[O":
            at += 1  # the escape key alone
            continue
        # a sequence ends with its first letter or tilde
        end = next((i for i, c in enumerate(rest[1:], 1) if c.isalpha() or c == "~"), None)
        if end is None:
            return keys, text[at:]
        if end == 1 and rest[1] in ARROWS:
            keys.append(ARROWS[rest[1]])
        at += end + 2
    return keys, ""
