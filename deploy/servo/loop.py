"""Loop of the servo: observe, take the chunk's action, check and send, on absolute deadlines.

It computes no policy. A control tick that needs a chunk writes a request and goes on; the answer is picked up when it
is there. Until then the last command is repeated, or the rest of the last chunk is executed where the policy inferred
more actions than it executes. An inference that is slow, frozen or dead therefore moves no deadline: once its
observation is older than the bundle allows, the robot is held, and then damped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, Wiring
from robotrl.deploy.control.instructions import instruction_misfit, instructions_of
from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.safety import NONE, Mode, Reason, SafetyChain, is_plausible
from robotrl.deploy.history import ObservationHistory
from robotrl.deploy.inference.link import AnswerKind, InferenceLink
from robotrl.deploy.robots.cameras import NO_FRAME
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import Link
from robotrl.deploy.servo.asking import Answered
from robotrl.deploy.servo.chunks import ChunkSource
from robotrl.deploy.servo.clock import MONOTONIC, Clock
from robotrl.deploy.servo.commands import Commander, commands_of
from robotrl.deploy.servo.link import Order, RecordKind, ServoLink
from robotrl.deploy.servo.observing import Observer, OpenTick
from robotrl.deploy.servo.orders import NO_FAULT, Orders, RunEnded
from robotrl.deploy.servo.records import ServoRecorder
from robotrl.deploy.servo.reflex import BetweenTicks, RiskGuard
from robotrl.deploy.servo.settings import RESET_TIMEOUT_S, ServoCfg
from robotrl.deploy.servo.starting import HEARTBEAT_NS, IDLE_NS, EpisodeStart

_FIRST_DEADLINE_NS = 5_000_000
_LOOK_NS = 200_000
"""Interval at which an answer is looked for while a tick waits for it."""


class ServoLoop:
    """Runs episodes as the supervisor orders.

    Args:
        cfg: the servo's settings.
        manifest: the bundle's manifest.
        wiring: index maps and limits of bundle and robot.
        info: the robot's description.
        robot: the robot's link.
        inference: link to the process that infers.
        link: link to the supervisor.
        clock: the servo's time.
        guard: the bundle's reflex; None without one.
        parent: gives the id of this process's parent, which is the supervisor as long as that lives.
    """

    def __init__(
        self,
        cfg: ServoCfg,
        manifest: Manifest,
        wiring: Wiring,
        info: RobotInfo,
        robot: Link,
        inference: InferenceLink,
        link: ServoLink,
        clock: Clock = MONOTONIC,
        parent: Callable[[], int] = os.getppid,
        guard: RiskGuard | None = None,
    ) -> None:
        self.clock = clock
        self.wiring = wiring
        self.observer = Observer(robot, info, wiring, clock)
        self.recorder = ServoRecorder(link, self.observer, cfg.steps)
        self.history = ObservationHistory(manifest.observations)
        commands = commands_of(manifest, info, cfg.steps)
        self.commander = Commander(robot, wiring, cfg.steps, commands, cfg.dry_run, clock)
        self.orders = Orders(link, self.commander, clock, parent)
        # the sensors of a robot that is held stand still
        self.chain = SafetyChain(wiring.limits._replace(max_still_s={}) if cfg.dry_run else wiring.limits)
        self.start = EpisodeStart(cfg, manifest, wiring, self.observer, self.commander, self.chain, self.orders, clock)
        self.between = BetweenTicks(guard, self.observer, self.chain, self.commander, wiring)
        self.chunks = ChunkSource(cfg, manifest, wiring.limits, inference, clock)
        self.period_ns = round(manifest.timing.control_period_s * 1e9)
        self.steps = cfg.steps
        self.max_ticks = max(1, round(cfg.limit_s * 1e9 / self.period_ns))
        self.max_start_ticks = max(1, round(RESET_TIMEOUT_S * 1e9 / self.period_ns))
        self._exact = instructions_of(manifest)
        self._serial, self._state_id, self._start_ns, self._tick = 0, -1, 0, -1
        self._open: OpenTick | None = None
        self._starting = False
        """The robot is being moved to its start pose."""

    def run(self) -> None:
        """Run episodes until the supervisor orders the end, or is gone."""
        beat = self.clock.now_ns()
        try:
            while True:
                order = self.orders.next()
                if order is None:
                    if self._serial and self.clock.now_ns() - beat > HEARTBEAT_NS:
                        beat = self.clock.now_ns()
                        self.commander.hold()
                    self.clock.sleep_until(self.clock.now_ns() + IDLE_NS)
                elif order.kind == Order.EPISODE:
                    self.orders.in_episode = True
                    self._episode(order)
                    self.orders.in_episode = False
                    beat = self.clock.now_ns()
                else:
                    if self._serial and order.kind == Order.STOP:
                        self.commander.damp()
                    return
        except RunEnded as ended:
            if ended.kind is not None:
                self._report(ended.kind, fault=ended.fault)

    # episodes

    def _episode(self, order: Message) -> None:
        """Run one episode until success or the time limit.

        Raises:
            RunEnded: the robot was damped.
        """
        self.chain.reset()
        self.history.reset()
        self.chunks.outdate()
        self._open, self._tick, self._starting = None, -1, False
        self.chunks.asker.take_round_trip()
        self._serial, self._state_id = order.episode, order.state_id
        self.between.begin(self._serial)
        self.start.begin(self._serial, self._state_id)
        self.commander.begin(self._serial, self._state_id)
        self.start.reset_robot()
        if self.start.moves:
            self._move_to_start()
        self.start.check_envelope(self.observer.open_tick(0, self.clock.now_ns(), self._serial))
        self._start_ns = self.clock.now_ns() + _FIRST_DEADLINE_NS
        success = self._steps()
        # the last action must not outlive its episode
        self.commander.hold()
        self._report(RecordKind.END, success)

    def _move_to_start(self) -> None:
        """Move the robot to its start pose by commands of the servo's own, where its driver does not.

        Raises:
            RunEnded: it does not arrive in time, or was damped.
        """
        self._starting = True
        self._start_ns = self.clock.now_ns() + _FIRST_DEADLINE_NS
        self._steps()
        self._starting = False
        self.start.check_arrived()
        self.chain.hand_over()
        self._tick = -1

    def _move(self, opened: OpenTick) -> None:
        """Decide a control tick of the motion to the start pose."""
        observed = self._observed(opened)
        action = self.start.command(opened) if observed == NONE else None
        self._finish(opened, observed | Reason.STARTING, action)

    def _steps(self) -> bool:
        """Run the servo ticks of an episode; returns its success."""
        step = 0
        while True:
            self._wait(self._deadline(step))
            woke = self.clock.now_ns()
            self.recorder.note_lateness((woke - self._deadline(step)) * 1e-3)
            # missed servo ticks are skipped, never caught up
            step = max(step, (woke - self._start_ns) * self.steps // self.period_ns)
            tick = step // self.steps
            if tick > self._tick and self._open is None:
                self._miss(tick - self._tick - 1)
            if tick > self._tick:
                if self._ended(tick):
                    return self.observer.solved
                self._control(tick, woke)
                if self._open is not None:
                    self.between.send(self.steps - 1)
            else:
                self._look()
                # while a tick waits for its action, the one before it has been reached
                self.between.send(step if self._open is None else self.steps - 1)
            step += 1

    def _deadline(self, step: int) -> int:
        return self._start_ns + step * self.period_ns // self.steps

    def _ended(self, tick: int) -> bool:
        """Read the latest observation, and orders; True if the episode is over."""
        self.observer.update(self._serial)
        if self.orders.next() is not None:
            self._stop(tick)
        if self._starting:
            return self.start.arrived or tick >= self.max_start_ticks
        return self.observer.done or tick >= self.max_ticks

    def _stop(self, tick: int) -> None:
        """Damp the robot as ordered.

        Raises:
            RunEnded: always.
        """
        self.chunks.outdate()
        opened = self.observer.open_tick(tick, self.clock.now_ns(), self._serial)
        self.chunks.asker.forget()
        self._finish(opened, Reason.STOPPED | (Reason.STARTING if self._starting else NONE), None)
        self.commander.settle()
        raise RunEnded(RecordKind.STOPPED)

    # control ticks

    def _control(self, tick: int, woke: int) -> None:
        """Begin a control tick, and decide its command if no chunk must be waited for."""
        waiting = self._open
        if waiting is not None:
            if self.chunks.planned(tick) is None:
                self._look()
                if self._open is not None and self.chunks.too_old(waiting.stamp_ns):
                    self._finish(waiting, Reason.ACTION_LATE, None)
                return
            # go on with the last chunk: the tick that waited has no command of its own
            self._open = None
            self._miss(tick - waiting.tick)
        self._look()
        self._tick = tick
        opened = self.observer.open_tick(tick, woke, self._serial)
        if self._starting:
            self._move(opened)
            return
        if self.history.keys and len(opened.observation) == self.wiring.observation_size:
            numbers = self.observer.numbers(opened)
            if is_plausible(self.wiring.limits, numbers):
                self.history.take(tick, numbers)
        if opened.complete:
            self.start.check_envelope(opened)
        observed = self._observed(opened)
        if observed != NONE:
            self._finish(opened, observed, None)
            return
        obs = self.observer.numbers(opened)
        self.chunks.take_over(tick)
        lead = self.chunks.lead
        if self.chunks.wants(tick, lead):
            self._ask(opened, obs, lead)
        action = self.chunks.planned(tick) if opened.asked < 0 or lead else None
        if action is None:
            action = self.chunks.ahead_of_time(tick)
        if action is not None:
            self._finish(opened, NONE, action)
        elif self.chunks.asker.request is None:
            # its action is too late: infer again
            self._ask(opened, obs, 0)
            self._open = opened
        elif self.chunks.too_old(self.chunks.asker.request.stamp_ns):
            self._finish(opened, Reason.ACTION_LATE, None)
        else:
            self._open = opened

    def _observed(self, opened: OpenTick) -> Reason:
        """Check the observation of a control tick."""
        if not opened.complete:
            whole = len(opened.observation) == self.wiring.observation_size
            return Reason.OBS_STALE if whole else Reason.OBS_NOT_FINITE
        obs = self.observer.numbers(opened)
        now = opened.stamp_ns + opened.age_ns
        observed = self.chain.check(
            self.observer.watched(opened, obs), opened.age_ns * 1e-9, (now - self._start_ns) * 1e-9
        )
        if observed == NONE and instruction_misfit(self._exact, obs):
            self.chunks.asker.refused, self.chunks.asker.misfit = "", True
            return Reason.OBS_MISFIT
        return observed

    def _finish(self, opened: OpenTick, observed: Reason, action: np.ndarray | None) -> None:
        """Decide, send and record a control tick.

        Raises:
            RunEnded: the robot was damped.
        """
        self._open = None
        recovery = None if self._starting else self.between.recovery(opened, action)
        between = self.chain.state.sent if self.between.sent else None
        verdict = self.chain.decide(observed, action, recovery)
        active = verdict.mode == Mode.ACTIVE
        self.between.follow(action if active and not self._starting else None, active and recovery is not None)
        chunk, cursor = self.chunks.plan.chunk, 0
        if action is not None and chunk is not None:
            index = self.chunks.plan.index(opened.tick)
            cursor = 0 if index is None else index + 1
            if self.chunks.asker.request is not None:
                self.chunks.asker.request.executed += 1
        self.commander.send(verdict.mode, verdict.reason, verdict.action, verdict.before)
        waited_ns = self.chunks.asker.take_round_trip()
        if observed & (Reason.ACTION_LATE | Reason.INFERENCE_FAILED) and self.chunks.asker.request is not None:
            waited_ns = self.clock.now_ns() - self.chunks.asker.request.asked_ns
        tick = Tick(
            tick=opened.tick,
            deadline_ns=opened.tick * self.period_ns,
            lateness_ns=opened.woke - (self._start_ns + opened.tick * self.period_ns),
            age_ns=opened.age_ns,
            read_ns=opened.read_ns,
            busy_ns=self.clock.now_ns() - opened.woke,
            inference_ns=waited_ns,
            decision=-1 if chunk is None else chunk.decision,
            cursor=cursor,
            observation=opened.observation,
            policy=action,
            sent=verdict.action,
            mode=int(verdict.mode),
            reason=int(verdict.reason),
            asked=opened.asked,
            committed=opened.committed,
            frames=opened.frames if opened.complete else (NO_FRAME,) * self.observer.cameras,
            recoveries=self.between.recoveries,
            between=between,
        )
        self.between.recorded()
        kind = RecordKind.START if self._starting else RecordKind.TICK
        self.recorder.tick(self._serial, tick, kind)
        if verdict.mode == Mode.ACTIVE:
            return
        hung = self.chunks.asker.request if observed & Reason.ACTION_LATE else None
        self.chunks.outdate()
        if verdict.mode == Mode.DAMP and not observed & Reason.STOPPED:
            self.commander.settle()
            still = list(self.chain.limits.max_still_s)
            fault = {
                "kind": "damped",
                "episode": self._serial,
                "state_id": self._state_id,
                "hung_ns": -1 if hung is None else self.clock.now_ns() - hung.asked_ns,
                "frozen": still.index(self.chain.frozen) if self.chain.frozen else -1,
                "misfit": self.chunks.asker.misfit,
                "refused": {"why": self.chunks.asker.refused} if self.chunks.asker.refused else None,
            }
            raise RunEnded(RecordKind.FAULT, fault)

    # inference

    def _ask(self, opened: OpenTick, obs: dict[str, np.ndarray], lead: int) -> None:
        """Ask for the chunk of a tick's observation."""
        if self.history.keys:
            obs = self.history.whole(obs)
        self.chunks.ask(opened, obs, lead, self._serial, self._start_ns)

    def _look(self) -> None:
        """Take the answer to the request, if it is there."""
        found = self.chunks.asker.answered()
        if found is None:
            return
        waiting = self._open
        if found.request.abandoned:
            if waiting is not None:
                self._ask(waiting, self.observer.numbers(waiting), 0)
            return
        if found.answer.kind == AnswerKind.CHUNK:
            if waiting is None:
                self.chunks.keep(found, self._tick)
            else:
                self._take(found, waiting)
            return
        self.chunks.asker.note_failure()
        if waiting is not None:
            late = self.chunks.too_old(found.request.stamp_ns)
            failed = Reason.ACTION_LATE if late else Reason.INFERENCE_FAILED
            refused = found.answer.kind == AnswerKind.REFUSED
            self._finish(waiting, Reason.OBS_REFUSED if refused else failed, None)

    def _take(self, found: Answered, waiting: OpenTick) -> None:
        """Give the tick that waits its action."""
        now_tick = max(0, (self.clock.now_ns() - self._start_ns) // self.period_ns)
        executed = self.chunks.place(found, waiting)
        self._finish(waiting, NONE if executed.timely else Reason.ACTION_LATE, executed.action)
        self._miss(max(0, now_tick - waiting.tick))
        self._tick = max(self._tick, now_tick)
        self.chunks.move(executed, self._tick)

    # time

    def _wait(self, deadline: int) -> None:
        """Sleep until a deadline, and look for an answer meanwhile if a tick waits for it."""
        while self._open is not None:
            now = self.clock.now_ns()
            if now >= deadline:
                return
            self.clock.sleep_until(min(deadline, now + _LOOK_NS))
            self._look()
        self.clock.sleep_until(deadline)

    # the supervisor

    def _miss(self, periods: int) -> None:
        """Count control periods in which no command was decided."""
        if self._starting:
            self.recorder.start_misses += periods
        else:
            self.recorder.misses += periods

    def _report(self, kind: RecordKind, success: bool = False, fault: Mapping[str, Any] = NO_FAULT) -> None:
        expired = self.chunks.plan.expired
        self.recorder.end(kind, self._serial, self.chain, expired, success, fault)
