"""Start of an episode: reset of the robot, motion to its start pose, and the start envelope."""

from __future__ import annotations

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import Wiring
from robotrl.deploy.bundle.plausible import place_outside_start
from robotrl.deploy.control.safety import SafetyChain
from robotrl.deploy.control.start import away_from_start, measured_action, toward
from robotrl.deploy.servo.clock import MONOTONIC, Clock
from robotrl.deploy.servo.commands import Commander
from robotrl.deploy.servo.link import RecordKind
from robotrl.deploy.servo.observing import NO_OBSERVATION, Observer, OpenTick
from robotrl.deploy.servo.orders import Orders, RunEnded
from robotrl.deploy.servo.settings import RESET_TIMEOUT_S, ServoCfg

HEARTBEAT_NS = 100_000_000
"""Interval of the commands of a robot that is reset, or held between episodes."""
IDLE_NS = 2_000_000
_NOT_SEEN: tuple[int, float] | None = (0, float("nan"))
"""Element that is away from the start pose, and its value, before the robot was measured."""


class EpisodeStart:
    """Brings the robot to its start, and refuses a hand-over where training never was.

    Args:
        cfg: the servo's settings.
        manifest: the bundle's manifest.
        wiring: index maps and limits of bundle and robot.
        observer: reader of the robot's observations.
        commander: writer of its commands.
        chain: the safety chain.
        orders: orders of the supervisor.
        clock: the servo's time.
    """

    def __init__(
        self,
        cfg: ServoCfg,
        manifest: Manifest,
        wiring: Wiring,
        observer: Observer,
        commander: Commander,
        chain: SafetyChain,
        orders: Orders,
        clock: Clock = MONOTONIC,
    ) -> None:
        self._cfg = cfg
        self._manifest = manifest
        self._wiring = wiring
        self._observer = observer
        self._commander = commander
        self._chain = chain
        self._orders = orders
        self._clock = clock
        self._serial, self._state_id = 0, -1
        self._known = False
        """The episode's first whole and finite observation is within the start envelope, or that is not asked for."""
        self._away = _NOT_SEEN
        """First element that has not arrived at the start pose, and its measured position; None once all have."""

    @property
    def moves(self) -> bool:
        """The servo moves the robot to its start pose, by commands of its own."""
        return self._wiring.start is not None and not self._cfg.dry_run

    @property
    def arrived(self) -> bool:
        """The robot stands at its start pose."""
        return self._away is None

    def begin(self, serial: int, state_id: int) -> None:
        """Begin an episode."""
        self._serial, self._state_id = serial, state_id
        self._known, self._away = self._cfg.accept_start, _NOT_SEEN

    def reset_robot(self) -> None:
        """Have the robot reset, and wait for its first observation and a frame of each camera.

        Raises:
            RunEnded: it takes too long, or the supervisor ended the run.
        """
        beat, missing = 0, NO_OBSERVATION
        deadline = self._clock.now_ns() + round(RESET_TIMEOUT_S * 1e9)
        while self._clock.now_ns() < deadline:
            if self._clock.now_ns() - beat > HEARTBEAT_NS:
                # again and again, so that a robot whose reset takes long sees afterwards that the servo lives
                beat = self._clock.now_ns()
                self._commander.reset()
            missing = self._observer.missing(self._serial)
            if missing is None:
                return
            if self._orders.next() is not None:
                self._commander.damp()
                raise RunEnded(RecordKind.STOPPED)
            self._clock.sleep_until(self._clock.now_ns() + IDLE_NS)
        raise RunEnded(RecordKind.FAULT, {"kind": "reset", "episode": self._serial, "missing": missing})

    def command(self, opened: OpenTick) -> np.ndarray | None:
        """The next command (A,) on the way to the start pose, from an observation that was found good."""
        plan = self._wiring.start
        if plan is None:
            return None
        sent = self._chain.state.sent
        measured = measured_action(self._chain.limits, self._observer.numbers(opened))
        away = away_from_start(plan, sent, measured)
        self._away = None if away is None else (away, float(measured[away]))
        return toward(plan, sent)

    def check_arrived(self) -> None:
        """Check that the motion ended at the start pose.

        Raises:
            RunEnded: it did not; the robot is damped.
        """
        if self._away is None:
            return
        self._commander.damp()
        element, value = self._away
        fault = {
            "kind": "start_pose",
            "episode": self._serial,
            "state_id": self._state_id,
            "element": element,
            "value": value if np.isfinite(value) else None,
        }
        raise RunEnded(RecordKind.FAULT, fault)

    def check_envelope(self, opened: OpenTick) -> None:
        """Refuse a hand-over outside the poses that training saw, once the first whole and finite observation is there.

        Raises:
            RunEnded: an element of it is outside the bundle's start envelope.
        """
        if self._known or not opened.complete:
            return
        obs = self._observer.numbers(opened)
        self._known = all(bool(np.isfinite(array).all()) for array in obs.values())
        place = place_outside_start(self._manifest.safety.start, self._manifest.observations, obs)
        if place is not None:
            key, at = place
            fault = {
                "kind": "start",
                "episode": self._serial,
                "state_id": self._state_id,
                "port": list(obs).index(key),
                "at": at,
                "value": float(obs[key].flat[at]),
            }
            raise RunEnded(RecordKind.FAULT, fault)
