"""Loop of the servo: observe, take the chunk's action, check and send, on absolute deadlines.

It computes no policy. A control tick that needs a chunk writes a request and goes on; the answer is picked up when it
is there. Until then the last command is repeated, or the rest of the last chunk is executed where the policy inferred
more actions than it executes. An inference that is slow, frozen or dead therefore moves no deadline: once its
observation is older than the bundle allows, the robot is held, and then damped.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, Wiring
from robotrl.deploy.control.bad_tick import why_bad
from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.realtime import sleep_until
from robotrl.deploy.control.safety import NONE, Mode, Reason, SafetyChain, in_time
from robotrl.deploy.inference.link import AnswerKind, InferenceLink
from robotrl.deploy.inference.request import committed_inputs, packed
from robotrl.deploy.robots.cameras import Frame
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import Link, RobotCommand, message, now_ns
from robotrl.deploy.servo.link import Order, RecordKind, ServoLink
from robotrl.deploy.servo.plan import Chunk, ChunkPlan, Latency, lead_ticks
from robotrl.deploy.servo.records import event, most_lateness, tick_to_record
from robotrl.deploy.servo.settings import ServoCfg
from robotrl.spec.checks import misfit

RESET_TIMEOUT_S = 30.0
SUPERVISOR_TIMEOUT_S, IDLE_TIMEOUT_S = 10.0, 60.0
"""A supervisor that is silent for so long has hung: in an episode, and between two of them (user code runs there)."""
_FIRST_DEADLINE_NS = 5_000_000
_IDLE_S = 0.002
_HEARTBEAT_NS = 100_000_000
"""Interval of the commands that hold the robot between episodes."""
_LOOK_NS = 200_000
"""Interval at which an answer is looked for while a tick waits for it."""
_NO_FRAME = Frame(0, 0, 0, 0)
_SETTLE_S = 0.1
"""Time for the robot to receive the last command."""


@dataclass
class _Request:
    """A request under way."""

    serial: int
    decision: int
    tick: int
    """Control tick of its observation."""
    stamp_ns: int
    asked_ns: int
    lead: int
    executed: int = 0
    """Actions executed since."""
    abandoned: bool = False
    """Its chunk will not be used."""


@dataclass
class _OpenTick:
    """A control tick whose command is not decided yet."""

    tick: int
    woke: int
    lateness_ns: int
    age_ns: int
    read_ns: int
    stamp_ns: int
    observation: np.ndarray
    frames: tuple[Frame, ...]
    complete: bool
    """It has the robot's numbers, and a frame of this episode from each camera."""
    asked: int = -1
    committed: int = 0


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
    ) -> None:
        timing = manifest.timing
        self.cfg = cfg
        self.manifest = manifest
        self.wiring = wiring
        self.robot = robot
        cameras = robot.cameras(info.observation_spec)
        self.cameras = {key: cameras[key] for key in wiring.cameras}
        self.inference = inference
        self.link = link
        # the sensors of a robot that is held stand still
        self.chain = SafetyChain(wiring.limits._replace(max_still_s={}) if cfg.dry_run else wiring.limits)
        self.period_s = timing.control_period_s
        self.period_ns = round(timing.control_period_s * 1e9)
        self.steps = cfg.steps
        self.max_age_ns = round(wiring.limits.max_observation_age_s * 1e9)
        self.max_ticks = max(1, round(cfg.limit_s * 1e9 / self.period_ns))
        self.linear = timing.interpolation == "linear" and cfg.steps > 1
        self.most_lead = timing.chunk_length - 1
        if timing.rtc_mode == "trained":
            self.most_lead = min(self.most_lead, timing.rtc_max_delay_steps)
        self._exact = {port.name: port.spec for port in manifest.observations if port.words}
        """Specs of instructions, which hold numbers of words."""
        self.latency = Latency(cfg.inference_s)
        self.plan = ChunkPlan(timing.chunk_length, timing.execute)
        self.misses = 0
        """Control periods in which no command was decided."""
        self.last: Message | None = None
        self._orders_done = 0
        self._in_episode = False
        self._serial, self._state_id, self._start, self._tick = 0, -1, 0, -1
        self._request: _Request | None = None
        self._requests, self._decision = 0, -1
        self._next: tuple[Chunk, int] | None = None
        """A chunk that has arrived ahead of its time, and the control tick at which it takes over."""
        self._open: _OpenTick | None = None
        self._refused = ""
        """Reason of the last failed inference."""
        self._answer_ns = 0
        """Round trip of the answer that arrived since the last tick."""
        self._sent = 0
        """Number of the last command."""
        self._command = (Mode.HOLD, NONE, wiring.limits.neutral)
        self._from = wiring.limits.neutral
        """The action before the last one, from which the servo interpolates."""
        self._lateness_us: list[float] = []
        self._fault = ""

    def run(self) -> None:
        """Run episodes until the supervisor orders the end, or is gone."""
        beat = now_ns()
        try:
            while True:
                order = self._order()
                if order is None:
                    if self._serial and now_ns() - beat > _HEARTBEAT_NS:
                        beat = now_ns()
                        limits = self.wiring.limits
                        self._send(Mode.HOLD, NONE, self._command[2] if limits.hold == "last" else limits.neutral)
                    time.sleep(_IDLE_S)
                elif order.kind == Order.EPISODE:
                    self._in_episode = True
                    self._episode(order)
                    self._in_episode = False
                    beat = now_ns()
                else:
                    return
        except RunEnded as ended:
            if ended.kind is not None:
                self._report(ended.kind)

    def _order(self) -> Message | None:
        """The next order.

        Raises:
            RunEnded: the supervisor is gone.
        """
        if os.getppid() != self.link.supervisor_pid:
            if self._serial:
                self._send(Mode.DAMP, Reason.STOPPED, self.wiring.limits.neutral)
                self._settle()
            raise RunEnded(None)
        order = self.link.orders.read()
        if order is None:
            return None
        if order.tick == self._orders_done:
            self._check_silence(now_ns() - order.stamp_ns)
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
            self._send(Mode.DAMP, Reason.STOPPED, self.wiring.limits.neutral)
            self._settle()
            self._fault = f"robot {self.cfg.robot!r}: the supervisor was silent for {limit_s:g} s; damped"
            raise RunEnded(RecordKind.FAULT)

    # episodes

    def _episode(self, order: Message) -> None:
        """Run one episode until success or the time limit.

        Raises:
            RunEnded: the robot was damped.
        """
        self.chain.reset()
        self._outdate()
        self._open, self._answer_ns, self._tick = None, 0, -1
        self._serial, self._state_id = order.episode, order.state_id
        self._from = self.wiring.limits.neutral
        self._command = (Mode.HOLD, NONE, self.chain.state.last)
        self.last = self._reset_robot()
        self._start = now_ns() + _FIRST_DEADLINE_NS
        success = self._steps()
        self._report(RecordKind.END, success)

    def _reset_robot(self) -> Message:
        limits = self.wiring.limits
        neutral = limits.neutral[self.wiring.action] if limits.hold == "neutral" else np.zeros(0, np.float32)
        reset = message(RobotCommand.RESET, tick=0, episode=self._serial, state_id=self._state_id, values=neutral)
        beat, deadline = 0, time.monotonic() + RESET_TIMEOUT_S
        while time.monotonic() < deadline:
            if now_ns() - beat > _HEARTBEAT_NS:
                # again and again, so that a robot whose reset takes long sees afterwards that the servo lives
                beat = now_ns()
                self.robot.commands.write(reset._replace(stamp_ns=beat))
            first = self.robot.observations.read()
            if first is not None and first.episode == self._serial:
                return first
            if self._order() is not None:
                raise RunEnded(RecordKind.STOPPED)
            time.sleep(_IDLE_S)
        self._fault = f"robot {self.cfg.robot!r} did not start episode {self._serial} within {RESET_TIMEOUT_S:g} s"
        raise RunEnded(RecordKind.FAULT)

    def _steps(self) -> bool:
        """Run the servo ticks of an episode; returns its success."""
        step = 0
        while True:
            self._wait(self._deadline(step))
            woke = now_ns()
            self._note_lateness((woke - self._deadline(step)) * 1e-3)
            # missed servo ticks are skipped, never caught up
            step = max(step, (woke - self._start) * self.steps // self.period_ns)
            tick = step // self.steps
            if tick > self._tick and self._open is None:
                self.misses += tick - self._tick - 1
            if tick > self._tick:
                if self._ended(tick):
                    return self.last is not None and bool(self.last.mode)
                self._control(tick, woke)
            else:
                self._repeat(step)
            step += 1

    def _deadline(self, step: int) -> int:
        return self._start + step * self.period_ns // self.steps

    def _ended(self, tick: int) -> bool:
        """Read the latest observation, and orders; True if the episode is over."""
        latest = self.robot.observations.read()
        if latest is not None and latest.episode == self._serial:
            self.last = latest
        if self._order() is not None:
            self._stop(tick)
        return (self.last is not None and bool(self.last.mode)) or tick >= self.max_ticks

    def _stop(self, tick: int) -> None:
        """Damp the robot as ordered.

        Raises:
            RunEnded: always.
        """
        self._outdate()
        now = now_ns()
        opened = self._observed(tick, now)
        self._answer_ns, self._request = 0, None
        self._finish(opened, Reason.STOPPED, None)
        self._settle()
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
        opened = self._observed(tick, woke)
        if not opened.complete:
            whole = len(opened.observation) == self.wiring.observation_size
            self._finish(opened, Reason.OBS_STALE if whole else Reason.OBS_NOT_FINITE, None)
            return
        obs = self._numbers(opened)
        now = opened.stamp_ns + opened.age_ns
        pictures = zip(self.cameras, opened.frames, strict=True)
        seen = {**obs, **{key: np.float64([frame.checksum]) for key, frame in pictures}}
        observed = self.chain.check(seen, opened.age_ns * 1e-9, (now - self._start) * 1e-9)
        if observed == NONE and (wrong := self._misfit(obs)):
            self._refused = wrong
            observed = Reason.OBS_IMPLAUSIBLE
        if observed != NONE:
            self._finish(opened, observed, None)
            return
        if self._next is not None and tick >= self._next[1]:
            self.plan.start(self._next[0])
            self._next = None
        lead = lead_ticks(self.latency.p95_ns, self.period_ns, self.most_lead)
        if self._request is None and self._next is None and self.plan.wants(tick, lead):
            self._ask(opened, obs, lead)
        action = self._planned(tick) if opened.asked < 0 or lead else None
        if action is None and self._next is not None:
            self.plan.start(self._next[0])
            self._next = None
            action = self._planned(tick)
        if action is not None:
            self._finish(opened, NONE, action)
        elif self._request is None:
            # its action is too late: infer again
            self._ask(opened, obs, 0)
            self._open = opened
        elif self._too_old(self._request.stamp_ns):
            self._finish(opened, Reason.ACTION_LATE, None)
        else:
            self._open = opened

    def _misfit(self, obs: dict[str, np.ndarray]) -> str:
        """Description of an instruction that is none; "" if all are right."""
        for name, spec in self._exact.items():
            if wrong := misfit(name, obs[name], spec, by_value=True):
                return wrong
        return ""

    def _observed(self, tick: int, woke: int) -> _OpenTick:
        """The tick with the latest observation, which is empty if it has another length than the robot's."""
        latest = self.last
        flat = latest.values if latest is not None else np.zeros(0, np.float32)
        stamp = latest.stamp_ns if latest is not None else woke
        if len(flat) != self.wiring.observation_size:
            flat = np.zeros(0, np.float32)
        found = [camera.newest() for camera in self.cameras.values()]
        frames = tuple(frame for frame in found if frame is not None and frame.episode == self._serial)
        # the oldest of what the policy sees counts
        stamp = min(stamp, *(frame.stamp_ns for frame in frames)) if frames else stamp
        now = now_ns()
        lateness = woke - (self._start + tick * self.period_ns)
        complete = len(flat) == self.wiring.observation_size and len(frames) == len(found)
        return _OpenTick(tick, woke, lateness, now - stamp, now - woke, stamp, flat, frames, complete)

    def _numbers(self, opened: _OpenTick) -> dict[str, np.ndarray]:
        """The bundle's observations of numbers."""
        return {key: opened.observation[order] for key, order in self.wiring.observations.items()}

    def _planned(self, tick: int) -> np.ndarray | None:
        """The chunk's action for a tick; None if there is none, or it is too late."""
        chunk, index = self.plan.chunk, self.plan.index(tick)
        if chunk is None or index is None:
            return None
        if not in_time(self.wiring.limits, (now_ns() - chunk.stamp_ns) * 1e-9, index, self.period_s):
            self.plan.drop()
            self.plan.expired += 1
            return None
        return chunk.actions[index]

    def _too_old(self, stamp_ns: int) -> bool:
        return now_ns() - stamp_ns > self.max_age_ns

    def _finish(self, opened: _OpenTick, observed: Reason, action: np.ndarray | None) -> None:
        """Decide, send and record a control tick.

        Raises:
            RunEnded: the robot was damped.
        """
        self._open = None
        verdict = self.chain.decide(observed, action)
        chunk, cursor = self.plan.chunk, 0
        if action is not None and chunk is not None:
            index = self.plan.index(opened.tick)
            cursor = 0 if index is None else index + 1
            if self._request is not None:
                self._request.executed += 1
        self._from = self._command[2]
        self._send(verdict.mode, verdict.reason, verdict.action)
        waited_ns = self._answer_ns
        if observed & (Reason.ACTION_LATE | Reason.INFERENCE_FAILED) and self._request is not None:
            waited_ns = now_ns() - self._request.asked_ns
        tick = Tick(
            tick=opened.tick,
            deadline_ns=opened.tick * self.period_ns,
            lateness_ns=opened.lateness_ns,
            age_ns=opened.age_ns,
            read_ns=opened.read_ns,
            busy_ns=now_ns() - opened.woke,
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
            frames=opened.frames if opened.complete else tuple(_NO_FRAME for _ in self.cameras),
        )
        self._answer_ns = 0
        self.link.records.write(*tick_to_record(self._serial, tick, self._lateness_us))
        self._lateness_us = []
        if verdict.mode == Mode.ACTIVE:
            return
        hung = self._request if observed & Reason.ACTION_LATE else None
        self._outdate()
        if verdict.mode == Mode.DAMP and not observed & Reason.STOPPED:
            self._settle()
            self._fault = self._why(tick, hung)
            raise RunEnded(RecordKind.FAULT)

    def _why(self, tick: Tick, hung: _Request | None) -> str:
        if hung is not None:
            why = f"an inference has not ended after {(now_ns() - hung.asked_ns) * 1e-9:.3f} s"
        else:
            why = why_bad(tick, self.manifest, self.wiring, self.chain, self._refused)
        where = f"in episode {self._serial} (start {self._state_id}) at tick {tick.tick}"
        return f"robot {self.cfg.robot!r} {where}: {why}; held, then damped"

    # inference

    def _ask(self, opened: _OpenTick, obs: dict[str, np.ndarray], lead: int) -> None:
        """Write a request for the observation of a tick."""
        self._requests += 1
        self._decision += 1
        actions = self.plan.committed(opened.tick, lead) if self.manifest.prefix and lead else None
        prefix = None
        if actions is not None and len(actions):
            prefix = committed_inputs(self.manifest, actions)
            opened.committed = len(actions)
        opened.asked = self._decision
        self._refused = ""
        now = now_ns()
        due = self._start + self.plan.due(opened.tick, lead) * self.period_ns if self.cfg.wake_early else 0
        self._request = _Request(self._requests, self._decision, opened.tick, opened.stamp_ns, now, lead)
        self.inference.requests.write(
            Message(
                stamp_ns=opened.stamp_ns,
                tick=self._requests,
                episode=self._serial,
                state_id=self._decision,
                kind=0,
                mode=int(prefix is not None),
                reason=0,
                echo=0,
                lost_ns=due,
                values=packed(obs, self.manifest, prefix, [frame.number for frame in opened.frames]),
            )
        )
        try:
            os.write(self.cfg.doorbell, b"\0")
        except (BlockingIOError, BrokenPipeError):
            # it is frozen or dead: no answer will come, and the robot is held
            return

    def _look(self) -> None:
        """Take the answer to the request, if it is there."""
        request = self._request
        if request is None:
            return
        answer = self.inference.answers.read()
        if answer is None or answer.tick != request.serial:
            return
        self._request = None
        self._answer_ns = now_ns() - request.asked_ns
        self.latency.add(self._answer_ns)
        waiting = self._open
        if request.abandoned:
            if waiting is not None:
                self._ask(waiting, self._numbers(waiting), 0)
            return
        if answer.kind == AnswerKind.CHUNK:
            self._take(answer, request)
            return
        self._refused = self.inference.failure
        if waiting is not None:
            late = self._too_old(request.stamp_ns)
            failed = Reason.ACTION_LATE if late else Reason.INFERENCE_FAILED
            self._finish(waiting, Reason.OBS_IMPLAUSIBLE if answer.kind == AnswerKind.REFUSED else failed, None)

    def _take(self, answer: Message, request: _Request) -> None:
        """Place a chunk in time."""
        length, now_tick = self.plan.length, max(0, (now_ns() - self._start) // self.period_ns)
        actions = answer.values.reshape(length, -1)
        chunk = Chunk(actions, request.decision, request.stamp_ns, request.tick)
        waiting = self._open
        if waiting is None:
            takeover = request.tick + request.lead
            if self._tick < takeover:
                self._next = (chunk, takeover)
            else:
                self.plan.start(chunk)
            return
        # where nothing was executed since the request, the chunk begins now, however long it took
        index = min(waiting.tick - request.tick, length - 1) if request.executed else 0
        self.plan.start(chunk._replace(zero_tick=waiting.tick - index))
        timely = in_time(self.wiring.limits, (now_ns() - request.stamp_ns) * 1e-9, index, self.period_s)
        self._finish(waiting, NONE if timely else Reason.ACTION_LATE, actions[index])
        self.misses += max(0, now_tick - waiting.tick)
        self._tick = max(self._tick, now_tick)
        if self.plan.chunk is not None and not request.executed:
            self.plan.start(chunk._replace(zero_tick=self._tick))

    def _outdate(self) -> None:
        """Give up chunk and request: they are of a time before a bad tick."""
        self.plan.drop()
        self._next = None
        if self._request is not None:
            self._request.abandoned = True

    # commands

    def _wait(self, deadline: int) -> None:
        """Sleep until a deadline, and look for an answer meanwhile if a tick waits for it."""
        while self._open is not None:
            now = now_ns()
            if now >= deadline:
                return
            sleep_until(min(deadline, now + _LOOK_NS))
            self._look()
        sleep_until(deadline)

    def _repeat(self, step: int) -> None:
        """Repeat the last command between control ticks, or interpolate; an answer is taken if it is there."""
        self._look()
        mode, reason, action = self._command
        if self.linear and mode == Mode.ACTIVE:
            self._sent += 1
            action = self._between(step % self.steps + 1)
        self._write(mode, reason, action)

    def _between(self, part: int) -> np.ndarray:
        """Action between the last one and the one before it, `part` of `steps` servo ticks on."""
        after = self._command[2]
        return self._from + np.float32(part / self.steps) * (after - self._from)

    def _send(self, mode: Mode, reason: Reason, action: np.ndarray) -> None:
        """Send a new command, or the first part of the way to it."""
        self._command = (mode, reason, action)
        self._sent += 1
        self._write(mode, reason, self._between(1) if self.linear and mode == Mode.ACTIVE else action)

    def _write(self, mode: Mode, reason: Reason, action: np.ndarray) -> None:
        if self.cfg.dry_run:
            mode, action = Mode.HOLD, self.wiring.limits.neutral
        self.robot.commands.write(
            message(
                RobotCommand.ACT,
                tick=self._sent,
                episode=self._serial,
                state_id=self._state_id,
                mode=int(mode),
                reason=int(reason),
                values=action[self.wiring.action],
            )
        )

    def _settle(self) -> None:
        """Wait until the robot has received the last command, with a time limit."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            latest = self.robot.observations.read()
            if latest is not None and latest.echo == self._sent:
                return
            time.sleep(1e-3)

    # the supervisor

    def _note_lateness(self, lateness_us: float) -> None:
        if len(self._lateness_us) < most_lateness(self.steps):
            self._lateness_us.append(lateness_us)

    def _report(self, kind: RecordKind, success: bool = False) -> None:
        counters = self.chain.counters
        last = self.last
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
                "torn": self.robot.observations.torn,
                "fault": self._fault,
            }
        )
        self.link.records.write(event(kind, self._serial, success=success), np.zeros(0, np.float32))
