"""Reflex of the servo: at each of its ticks, the bundle's risk graph judges the policy's action on what is measured.

`BetweenTicks` sends the commands between two control ticks: the reflex's, or the last one again.

The C++ servo has the same in `native/src/risk.cpp`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import Wiring
from robotrl.deploy.bundle.risk_graph import RiskGraph
from robotrl.deploy.control.safety import SafetyChain
from robotrl.deploy.servo.commands import Commander
from robotrl.deploy.servo.observing import Observer, OpenTick
from robotrl.errors import ConfigError, DataError

_RATE_TOLERANCE = 0.01


class RiskGuard:
    """The reflex of one bundle.

    Args:
        manifest: the bundle's manifest, with a reflex.
        graph: content of its risk graph.

    Attributes:
        threshold: risk above which the recovery is sent, 0 to 1.
        recovery_action: (A,) float32.
        observation: key of the observation that the graph reads.
        columns: (S,) the elements of it, in the graph's order.
        risk: the graph, a function of those elements (S,) and an action (A,).

    Raises:
        DataError: the graph cannot be computed, or the manifest has no reflex.
    """

    def __init__(self, manifest: Manifest, graph: bytes) -> None:
        reflex = manifest.reflex
        if reflex is None:
            raise DataError("manifest.reflex is null: expected one beside a risk graph")
        self.threshold = reflex.threshold
        self.recovery_action = np.asarray(reflex.recovery, np.float32)
        self.observation = reflex.observation
        names = next(port.names for port in manifest.observations if port.name == reflex.observation)
        self.columns = np.array([names.index(name) for name in reflex.columns])
        self.risk = RiskGraph(graph, len(self.columns), len(self.recovery_action), str(manifest.graphs.risk))

    def recovery(self, obs: Mapping[str, np.ndarray], action: np.ndarray) -> np.ndarray | None:
        """The recovery action (A,) where an action (A,) is risky or its risk no number; None where it may be sent.

        Args:
            obs: the bundle's observations of numbers.
            action: the policy's action. One that is not finite is left to the safety chain.
        """
        return self.judge(obs[self.observation][self.columns], action)

    def judge(self, measured: np.ndarray, action: np.ndarray) -> np.ndarray | None:
        """The same, from the elements (S,) that the graph reads, in its order."""
        if action.shape != self.recovery_action.shape or not np.isfinite(action).all():
            return None
        return None if self.risk(measured, action) <= self.threshold else self.recovery_action


class BetweenTicks:
    """Sends the commands between two control ticks.

    Args:
        guard: the bundle's reflex; None without one.
        observer: reader of the robot's observations.
        chain: the safety chain.
        commander: writer of the robot's commands.
        wiring: index maps and limits of bundle and robot.

    Attributes:
        recoveries: servo ticks with a recovery since the last record.
        sent: the reflex has sent a command since the last control tick.
    """

    def __init__(
        self, guard: RiskGuard | None, observer: Observer, chain: SafetyChain, commander: Commander, wiring: Wiring
    ) -> None:
        self._guard = guard
        self._observer = observer
        self._chain = chain
        self._commander = commander
        self._wiring = wiring
        self._max_age_ns = round(wiring.limits.max_observation_age_s * 1e9)
        self._episode = 0
        self._action: np.ndarray | None = None
        """The policy's action of this control period, where it is executed and a reflex watches it."""
        self._recovering = False
        """The last command was a recovery of the reflex."""
        self.recoveries = 0
        self.sent = False

    def begin(self, episode: int) -> None:
        """Begin an episode, by its serial number."""
        self._episode = episode
        self._action, self._recovering, self.recoveries, self.sent = None, False, 0, False

    def recovery(self, opened: OpenTick, action: np.ndarray | None) -> np.ndarray | None:
        """The reflex's action (A,) in place of the policy's at a control tick; None where it lets that pass."""
        if self._guard is None or action is None or not opened.complete:
            return None
        return self._guard.recovery(self._observer.numbers(opened), action)

    def follow(self, action: np.ndarray | None, recovering: bool) -> None:
        """Go on after a control tick.

        Args:
            action: (A,) the policy's action, if it is executed.
            recovering: the reflex's action was sent in its place.
        """
        self._action, self._recovering = action, recovering

    def recorded(self) -> None:
        """Note that the control tick was recorded: counts begin anew."""
        self.recoveries, self.sent = int(self._recovering), False

    def send(self, step: int) -> None:
        """Send the command of a servo tick that decides none; `step` as of `Commander.repeat`."""
        if not self._reflexed():
            self._commander.repeat(step)

    def _reflexed(self) -> bool:
        """Have the reflex judge the action on the newest observation; True if that sent another command.

        An observation that is stale or not finite is left to the next control tick.
        """
        guard, action = self._guard, self._action
        if guard is None or action is None:
            return False
        self._observer.update(self._episode)
        flat, age_ns = self._observer.newest()
        if not (age_ns <= self._max_age_ns and np.isfinite(flat).all() and len(flat) == self._wiring.observation_size):
            return False
        measured = {guard.observation: flat[self._wiring.observations[guard.observation]]}
        recovery = guard.recovery(measured, action)
        self.recoveries += recovery is not None
        if (recovery is not None) == self._recovering:
            return False
        self._recovering = recovery is not None
        verdict = self._chain.between(action, recovery)
        self.sent = True
        self._commander.send(verdict.mode, verdict.reason, verdict.action, verdict.before)
        return True


def guard_of(manifest: Manifest, graph: bytes | None) -> RiskGuard | None:
    """The reflex of a bundle; None if it has none."""
    return None if graph is None else RiskGuard(manifest, graph)


def packed(graph: bytes | None) -> str | None:
    """A risk graph as text, for the settings of a process."""
    return None if graph is None else base64.b64encode(graph).decode()


def unpacked(text: str | None) -> bytes | None:
    """Inverse of `packed`."""
    return None if text is None else base64.b64decode(text)


def check_rate(manifest: Manifest, steps: int) -> None:
    """Check that a servo evaluates a bundle's reflex at the rate at which its critic learned.

    Args:
        manifest: the bundle's manifest.
        steps: servo ticks in a control period.

    Raises:
        ConfigError: it does not.
    """
    reflex = manifest.reflex
    if reflex is None:
        return
    period = manifest.timing.control_period_s
    if abs(steps * reflex.period_s - period) > _RATE_TOLERANCE * period:
        raise ConfigError(
            f"servo_hz is {steps / period:g}: the bundle's reflex learned at {1 / reflex.period_s:g} Hz, expected that"
        )
