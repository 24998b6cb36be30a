"""Loop of the servo: observe, take the chunk's action, check and send, on absolute deadlines.

It computes no policy. A control tick that needs a chunk writes a request and goes on; the answer is picked up when it
is there. Until then the last command is repeated, or the rest of the last chunk is executed where the policy inferred
more actions than it executes. An inference that is slow, frozen or dead therefore moves no deadline: once its
observation is older than the bundle allows, the robot is held, and then damped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, Wiring
from robotrl.deploy.bundle.plausible import place_outside_start
from robotrl.deploy.control.instructions import instruction_misfit, instructions_of
from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.safety import NONE, Mode, Reason, SafetyChain, in_time, is_plausible
from robotrl.deploy.control.start import away_from_start, measured_action, toward
from robotrl.deploy.history import ObservationHistory
from robotrl.deploy.inference.link import AnswerKind, InferenceLink
from robotrl.deploy.robots.cameras import NO_FRAME
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import Link, RobotCommand, message
from robotrl.deploy.servo.asking import Answered, Asker, delay_of
from robotrl.deploy.servo.clock import MONOTONIC, Clock
from robotrl.deploy.servo.commands import Commander, commands_of
from robotrl.deploy.servo.link import Order, RecordKind, ServoLink
from robotrl.deploy.servo.observing import NO_OBSERVATION, Observer, OpenTick
from robotrl.deploy.servo.plan import Chunk, ChunkPlan, Latency, lead_ticks
from robotrl.deploy.servo.records import event, most_lateness, tick_to_record
from robotrl.deploy.servo.reflex import RiskGuard
from robotrl.deploy.servo.settings import IDLE_TIMEOUT_S, RESET_TIMEOUT_S, SUPERVISOR_TIMEOUT_S, ServoCfg

_NOT_SEEN: tuple[int, float] | None = (0, float("nan"))
"""Element that is away from the start pose, and its value, before the robot was measured."""
_FIRST_DEADLINE_NS = 5_000_000
_IDLE_NS = 2_000_000
_HEARTBEAT_NS = 100_000_000
"""Interval of the commands that hold the robot between episodes."""
_LOOK_NS = 200_000
"""Interval at which an answer is looked for while a tick waits for it."""
_NO_ACTIONS = np.zeros((0, 0), np.float32)


class RunEnded(Exception):
    """The run ends: with a fault, or as ordered."""

    def __init__(self, kind: RecordKind | None) -> None:
        self.kind = kind


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
        self.guard = guard
        self._parent = parent
        self.clock = clock
        timing = manifest.timing
        self.cfg = cfg
        self.manifest = manifest
        self.wiring = wiring
        self.robot = robot
        self.link = link
        self.observer = Observer(robot, info, wiring, clock)
        self.history = ObservationHistory(manifest.observations)
        commands = commands_of(manifest, info, cfg.steps)
        self.commander = Commander(robot, wiring, cfg.steps, commands, cfg.dry_run, clock)
        # the sensors of a robot that is held stand still
        self.chain = SafetyChain(wiring.limits._replace(max_still_s={}) if cfg.dry_run else wiring.limits)
        self.period_s = timing.control_period_s
        self.period_ns = round(timing.control_period_s * 1e9)
        self.steps = cfg.steps
        self.max_age_ns = round(wiring.limits.max_observation_age_s * 1e9)
        self.max_ticks = max(1, round(cfg.limit_s * 1e9 / self.period_ns))
        self.max_start_ticks = max(1, round(RESET_TIMEOUT_S * 1e9 / self.period_ns))
        self.most_lead = timing.chunk_length - 1
        if timing.rtc_mode != "none":
            self.most_lead = min(self.most_lead, timing.rtc_max_delay_steps)
        self.least_lead = 1 if timing.rtc_mode == "guided" else 0
        self._exact = instructions_of(manifest)
        self.latency = Latency(cfg.inference_s)
        self.asker = Asker(manifest, inference, cfg.doorbell, self.latency, clock)
        self.plan = ChunkPlan(timing.chunk_length, timing.execute, timing.rtc_mode == "guided")
        self.misses = 0
        """Control periods in which no command was decided."""
        self._orders_done = 0
        self._in_episode = False
        self._serial, self._state_id, self._start, self._tick = 0, -1, 0, -1
        self._next: tuple[Chunk, int] | None = None
        """A chunk that has arrived ahead of its time, and the control tick at which it takes over."""
        self._open: OpenTick | None = None
        self._starting = False
        """The robot is being moved to its start pose."""
        self._away: tuple[int, float] | None = None
        """First element that has not arrived there, and its measured position; None once all have."""
        self._start_known = False
        """The episode's first whole and finite observation is within the start envelope, or that is not asked for."""
        self._lateness_us: list[float] = []
        self._policy_action: np.ndarray | None = None
        """The policy's action of this control period, where it is executed and a reflex watches it."""
        self._recovering = False
        """The last command was a recovery of the reflex."""
        self._recoveries = 0
        """Servo ticks with a recovery since the last record."""
        self._between_sent = False
        """The reflex has sent a command since the last control tick."""
        self._fault: dict[str, Any] = {}
        """Facts of the fault that ended the run, see `fault_words`."""

    def run(self) -> None:
        """Run episodes until the supervisor orders the end, or is gone."""
        beat = self.clock.now_ns()
        try:
            while True:
                order = self._order()
                if order is None:
                    if self._serial and self.clock.now_ns() - beat > _HEARTBEAT_NS:
                        beat = self.clock.now_ns()
                        self.commander.hold()
                    self.clock.sleep_until(self.clock.now_ns() + _IDLE_NS)
                elif order.kind == Order.EPISODE:
                    self._in_episode = True
                    self._episode(order)
                    self._in_episode = False
                    beat = self.clock.now_ns()
                else:
                    if self._serial and order.kind == Order.STOP:
                        self.commander.damp()
                    return
        except RunEnded as ended:
            if ended.kind is not None:
                self._report(ended.kind)

    def _order(self) -> Message | None:
        """The next order.

        Raises:
            RunEnded: the supervisor is gone.
        """
        if self._parent() != self.link.supervisor_pid:
            if self._serial:
                self.commander.damp()
            raise RunEnded(None)
        order = self.link.orders.read()
        if order is None:
            return None
        if order.tick == self._orders_done:
            self._check_silence(self.clock.now_ns() - order.stamp_ns)
            return None
        self._orders_done = order.tick
        return order

    def _check_silence(self, silent_ns: int) -> None:
        """End the run if the supervisor hangs, since nobody could stop it any more.

        Raises:
            RunEnded: it does.
        """
        limit_s = SUPERVISOR_TIMEOUT_S if self._in_episode else IDLE_TIMEOUT_S
        if silent_ns > limit_s * 1e9:
            self.commander.damp()
            self._fault = {"kind": "silent", "limit_ns": round(limit_s * 1e9)}
            raise RunEnded(RecordKind.FAULT)

    # episodes

    def _episode(self, order: Message) -> None:
        """Run one episode until success or the time limit.

        Raises:
            RunEnded: the robot was damped.
        """
        self.chain.reset()
        self.history.reset()
        self._outdate()
        self._open, self._tick = None, -1
        self._start_known, self._starting = self.cfg.accept_start, False
        self._policy_action, self._recovering, self._recoveries = None, False, 0
        self._between_sent = False
        self.asker.take_round_trip()
        self._serial, self._state_id = order.episode, order.state_id
        self.commander.begin(order.episode, order.state_id)
        self._reset_robot()
        self._move_to_start()
        self._start = self.clock.now_ns() + _FIRST_DEADLINE_NS
        success = self._steps()
        # the last action must not outlive its episode
        self.commander.hold()
        self._report(RecordKind.END, success)

    def _reset_robot(self) -> None:
        """Have the robot reset, and wait for its first observation and a frame of each camera.

        Raises:
            RunEnded: it takes too long, or the supervisor ended the run.
        """
        limits, dry = self.wiring.limits, self.cfg.dry_run
        sends = limits.hold == "neutral" and not dry
        neutral = limits.neutral[self.wiring.action] if sends else np.zeros(0, np.float32)
        mode = int(Mode.HOLD if dry else Mode.ACTIVE)
        facts = {"tick": 0, "episode": self._serial, "state_id": self._state_id, "mode": mode}
        reset = message(RobotCommand.RESET, **facts, values=neutral)
        beat, missing = 0, NO_OBSERVATION
        deadline = self.clock.now_ns() + round(RESET_TIMEOUT_S * 1e9)
        while self.clock.now_ns() < deadline:
            if self.clock.now_ns() - beat > _HEARTBEAT_NS:
                # again and again, so that a robot whose reset takes long sees afterwards that the servo lives
                beat = self.clock.now_ns()
                self.robot.commands.write(reset._replace(stamp_ns=beat))
            missing = self.observer.missing(self._serial)
            if missing is None:
                if not self._moves_to_start:
                    self._check_start(self.observer.open_tick(0, self.clock.now_ns(), self._serial))
                return
            if self._order() is not None:
                self.commander.damp()
                raise RunEnded(RecordKind.STOPPED)
            self.clock.sleep_until(self.clock.now_ns() + _IDLE_NS)
        self._fault = {"kind": "reset", "episode": self._serial, "missing": missing}
        raise RunEnded(RecordKind.FAULT)

    @property
    def _moves_to_start(self) -> bool:
        return self.wiring.start is not None and not self.cfg.dry_run

    def _move_to_start(self) -> None:
        """Move the robot to its start pose by commands of the servo's own, where its driver does not.

        Raises:
            RunEnded: it does not arrive in time, was damped, or stands outside the start envelope then.
        """
        if not self._moves_to_start:
            return
        self._starting, self._away = True, _NOT_SEEN
        self._start = self.clock.now_ns() + _FIRST_DEADLINE_NS
        self._steps()
        self._starting = False
        if self._away is not None:
            self.commander.damp()
            element, value = self._away
            self._fault = {
                "kind": "start_pose",
                "episode": self._serial,
                "state_id": self._state_id,
                "element": element,
                "value": value if np.isfinite(value) else None,
            }
            raise RunEnded(RecordKind.FAULT)
        self.chain.hand_over()
        self._tick = -1
        self._check_start(self.observer.open_tick(0, self.clock.now_ns(), self._serial))

    def _move(self, opened: OpenTick) -> None:
        """Decide a control tick of the motion to the start pose."""
        plan, action = self.wiring.start, None
        observed = self._observed(opened)
        if observed == NONE and plan is not None:
            action = toward(plan, self.chain.state.sent)
            measured = measured_action(self.chain.limits, self.observer.numbers(opened))
            away = away_from_start(plan, self.chain.state.sent, measured)
            self._away = None if away is None else (away, float(measured[away]))
        self._finish(opened, observed | Reason.STARTING, action)

    def _check_start(self, opened: OpenTick) -> None:
        """Refuse a hand-over outside the poses that training saw, once the first whole and finite observation is there.

        Raises:
            RunEnded: an element of it is outside the bundle's start envelope.
        """
        if self._start_known or not opened.complete:
            return
        obs = self.observer.numbers(opened)
        self._start_known = all(bool(np.isfinite(array).all()) for array in obs.values())
        place = place_outside_start(self.manifest.safety.start, self.manifest.observations, obs)
        if place is not None:
            key, at = place
            self._fault = {
                "kind": "start",
                "episode": self._serial,
                "state_id": self._state_id,
                "port": list(obs).index(key),
                "at": at,
                "value": float(obs[key].flat[at]),
            }
            raise RunEnded(RecordKind.FAULT)

    def _steps(self) -> bool:
        """Run the servo ticks of an episode; returns its success."""
        step = 0
        while True:
            self._wait(self._deadline(step))
            woke = self.clock.now_ns()
            self._note_lateness((woke - self._deadline(step)) * 1e-3)
            # missed servo ticks are skipped, never caught up
            step = max(step, (woke - self._start) * self.steps // self.period_ns)
            tick = step // self.steps
            if tick > self._tick and self._open is None:
                self.misses += tick - self._tick - 1
            if tick > self._tick:
                if self._ended(tick):
                    return self.observer.solved
                self._control(tick, woke)
                if self._open is not None:
                    self._between(self.steps - 1)
            else:
                self._look()
                # while a tick waits for its action, the one before it has been reached
                self._between(step if self._open is None else self.steps - 1)
            step += 1

    def _between(self, step: int) -> None:
        """Command of a servo tick that decides none: the reflex's, or the last one again; `step` as of `repeat`."""
        if not self._reflexed():
            self.commander.repeat(step)

    def _reflexed(self) -> bool:
        """Have the reflex judge the action on the newest observation; True if that sent another command.

        An observation that is stale or not finite is left to the next control tick.
        """
        action = self._policy_action
        if self.guard is None or action is None:
            return False
        self.observer.update(self._serial)
        flat, age_ns = self.observer.newest()
        if not (age_ns <= self.max_age_ns and np.isfinite(flat).all() and len(flat) == self.wiring.observation_size):
            return False
        measured = {self.guard.observation: flat[self.wiring.observations[self.guard.observation]]}
        recovery = self.guard.recovery(measured, action)
        self._recoveries += recovery is not None
        if (recovery is not None) == self._recovering:
            return False
        self._recovering = recovery is not None
        verdict = self.chain.between(action, recovery)
        self._between_sent = True
        self.commander.send(verdict.mode, verdict.reason, verdict.action, verdict.before)
        return True

    def _deadline(self, step: int) -> int:
        return self._start + step * self.period_ns // self.steps

    def _ended(self, tick: int) -> bool:
        """Read the latest observation, and orders; True if the episode is over."""
        self.observer.update(self._serial)
        if self._order() is not None:
            self._stop(tick)
        if self._starting:
            return self._away is None or tick >= self.max_start_ticks
        return self.observer.done or tick >= self.max_ticks

    def _stop(self, tick: int) -> None:
        """Damp the robot as ordered.

        Raises:
            RunEnded: always.
        """
        self._outdate()
        opened = self.observer.open_tick(tick, self.clock.now_ns(), self._serial)
        self.asker.forget()
        self._finish(opened, Reason.STOPPED, None)
        self.commander.settle()
        raise RunEnded(RecordKind.STOPPED)

    # control ticks

    def _control(self, tick: int, woke: int) -> None:
        """Begin a control tick, and decide its command if no chunk must be waited for."""
        waiting = self._open
        if waiting is not None:
            if self._planned(tick) is None:
                self._look()
                if self._open is not None and self._too_old(waiting.stamp_ns):
                    self._finish(waiting, Reason.ACTION_LATE, None)
                return
            # go on with the last chunk: the tick that waited has no command of its own
            self._open = None
            self.misses += tick - waiting.tick
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
            self._check_start(opened)
        observed = self._observed(opened)
        if observed != NONE:
            self._finish(opened, observed, None)
            return
        obs = self.observer.numbers(opened)
        if self._next is not None and tick >= self._next[1]:
            self.plan.start(self._next[0])
            self._next = None
        lead = max(self.least_lead, lead_ticks(self.latency.p95_ns, self.period_ns, self.most_lead))
        if self.asker.request is None and self._next is None and self.plan.wants(tick, lead):
            self._ask(opened, obs, lead)
        action = self._planned(tick) if opened.asked < 0 or lead else None
        if action is None and self._next is not None:
            self.plan.start(self._next[0])
            self._next = None
            action = self._planned(tick)
        if action is not None:
            self._finish(opened, NONE, action)
        elif self.asker.request is None:
            # its action is too late: infer again
            self._ask(opened, obs, 0)
            self._open = opened
        elif self._too_old(self.asker.request.stamp_ns):
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
            self.observer.watched(opened, obs), opened.age_ns * 1e-9, (now - self._start) * 1e-9
        )
        if observed == NONE and instruction_misfit(self._exact, obs):
            self.asker.refused, self.asker.misfit = "", True
            return Reason.OBS_MISFIT
        return observed

    def _planned(self, tick: int) -> np.ndarray | None:
        """The chunk's action for a tick; None if there is none, or it is too late."""
        chunk, index = self.plan.chunk, self.plan.index(tick)
        if chunk is None or index is None:
            return None
        periods = chunk.delay + index
        if not in_time(self.wiring.limits, (self.clock.now_ns() - chunk.stamp_ns) * 1e-9, periods, self.period_s):
            self.plan.drop()
            self.plan.expired += 1
            return None
        return chunk.actions[index]

    def _too_old(self, stamp_ns: int) -> bool:
        return self.clock.now_ns() - stamp_ns > self.max_age_ns

    def _finish(self, opened: OpenTick, observed: Reason, action: np.ndarray | None) -> None:
        """Decide, send and record a control tick.

        Raises:
            RunEnded: the robot was damped.
        """
        self._open = None
        recovery = None
        if self.guard is not None and action is not None and opened.complete and not self._starting:
            recovery = self.guard.recovery(self.observer.numbers(opened), action)
        between = self.chain.state.sent if self._between_sent else None
        verdict = self.chain.decide(observed, action, recovery)
        active = verdict.mode == Mode.ACTIVE
        self._policy_action = action if active and not self._starting else None
        self._recovering = active and recovery is not None
        chunk, cursor = self.plan.chunk, 0
        if action is not None and chunk is not None:
            index = self.plan.index(opened.tick)
            cursor = 0 if index is None else index + 1
            if self.asker.request is not None:
                self.asker.request.executed += 1
        self.commander.send(verdict.mode, verdict.reason, verdict.action, verdict.before)
        waited_ns = self.asker.take_round_trip()
        if observed & (Reason.ACTION_LATE | Reason.INFERENCE_FAILED) and self.asker.request is not None:
            waited_ns = self.clock.now_ns() - self.asker.request.asked_ns
        tick = Tick(
            tick=opened.tick,
            deadline_ns=opened.tick * self.period_ns,
            lateness_ns=opened.woke - (self._start + opened.tick * self.period_ns),
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
            recoveries=self._recoveries,
            between=between,
        )
        self._recoveries, self._between_sent = int(self._recovering), False
        kind = RecordKind.START if self._starting else RecordKind.TICK
        self.link.records.write(*tick_to_record(self._serial, tick, self._lateness_us, kind))
        self._lateness_us = []
        if verdict.mode == Mode.ACTIVE:
            return
        hung = self.asker.request if observed & Reason.ACTION_LATE else None
        self._outdate()
        if verdict.mode == Mode.DAMP and not observed & Reason.STOPPED:
            self.commander.settle()
            still = list(self.chain.limits.max_still_s)
            self._fault = {
                "kind": "damped",
                "episode": self._serial,
                "state_id": self._state_id,
                "hung_ns": -1 if hung is None else self.clock.now_ns() - hung.asked_ns,
                "frozen": still.index(self.chain.frozen) if self.chain.frozen else -1,
                "misfit": self.asker.misfit,
                "refused": {"why": self.asker.refused} if self.asker.refused else None,
            }
            raise RunEnded(RecordKind.FAULT)

    # inference

    def _ask(self, opened: OpenTick, obs: dict[str, np.ndarray], lead: int) -> None:
        """Ask for the chunk of a tick's observation."""
        planned = _NO_ACTIONS
        if self.manifest.prefix and lead:
            planned = self.plan.planned(opened.tick, self.manifest.timing.rtc_max_delay_steps)
        due_tick = self.plan.due(opened.tick, lead, delay_of(self.manifest, min(lead, len(planned))))
        due = self._start + due_tick * self.period_ns if self.cfg.wake_early else 0
        if self.history.keys:
            obs = self.history.whole(obs)
        self.asker.ask(opened, obs, planned, lead, self._serial, due)

    def _look(self) -> None:
        """Take the answer to the request, if it is there."""
        found = self.asker.answered()
        if found is None:
            return
        waiting = self._open
        if found.request.abandoned:
            if waiting is not None:
                self._ask(waiting, self.observer.numbers(waiting), 0)
            return
        if found.answer.kind == AnswerKind.CHUNK:
            self._take(found)
            return
        self.asker.note_failure()
        if waiting is not None:
            late = self._too_old(found.request.stamp_ns)
            failed = Reason.ACTION_LATE if late else Reason.INFERENCE_FAILED
            refused = found.answer.kind == AnswerKind.REFUSED
            self._finish(waiting, Reason.OBS_REFUSED if refused else failed, None)

    def _take(self, found: Answered) -> None:
        """Place a chunk in time."""
        request = found.request
        length, now_tick = self.plan.length, max(0, (self.clock.now_ns() - self._start) // self.period_ns)
        actions = found.answer.values.reshape(length, -1)
        zero_tick = request.tick + request.delay
        chunk = Chunk(actions, request.decision, request.stamp_ns, zero_tick, request.delay)
        waiting = self._open
        if waiting is None:
            takeover = request.tick + request.lead
            if self._tick < takeover:
                self._next = (chunk, takeover)
            else:
                self.plan.start(chunk)
            return
        # where nothing was executed since the request, the chunk begins now, however long it took
        index = min(max(0, waiting.tick - zero_tick), length - 1) if request.executed else 0
        self.plan.start(chunk._replace(zero_tick=waiting.tick - index))
        periods = request.delay + index
        timely = in_time(self.wiring.limits, (self.clock.now_ns() - request.stamp_ns) * 1e-9, periods, self.period_s)
        self._finish(waiting, NONE if timely else Reason.ACTION_LATE, actions[index])
        self.misses += max(0, now_tick - waiting.tick)
        self._tick = max(self._tick, now_tick)
        if self.plan.chunk is not None and not request.executed:
            self.plan.start(chunk._replace(zero_tick=self._tick))

    def _outdate(self) -> None:
        """Give up chunk and request: they are of a time before a bad tick."""
        self.plan.drop()
        self._next = None
        self.asker.abandon()

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

    def _note_lateness(self, lateness_us: float) -> None:
        if len(self._lateness_us) < most_lateness(self.steps):
            self._lateness_us.append(lateness_us)

    def _report(self, kind: RecordKind, success: bool = False) -> None:
        counters = self.chain.counters
        last = self.observer.last
        self.link.summarize(
            {
                "misses": self.misses,
                "expired": self.plan.expired,
                "ticks": counters.ticks,
                "held": counters.held,
                "damped": counters.damped,
                "reasons": counters.reasons,
                "made_up": 0 if last is None else last.reason,
                "lost_ns": 0 if last is None else last.lost_ns,
                "torn": self.observer.torn,
                "fault": self._fault,
            }
        )
        self.link.records.write(event(kind, self._serial, success=success), np.zeros(0, np.float32))
