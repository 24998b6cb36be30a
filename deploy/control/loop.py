"""Real-time control loop: observe, infer, check and send on absolute deadlines, supervised by the caller's thread.

The ticks of an episode run in a separate thread. If an inference hangs, only that thread is blocked: the caller, which
waits for the episode, cancels the inference and meanwhile sends hold and damp commands. Signals reach the caller at
once for the same reason.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np

from robotrl.deploy.buffers import InferenceError
from robotrl.deploy.bundle.match import Wiring
from robotrl.deploy.control.bad_tick import why_bad
from robotrl.deploy.control.log import ControlLog, Tick, tick_record
from robotrl.deploy.control.realtime import sleep_until, warm_leads_ns
from robotrl.deploy.control.report import EpisodeReport, TickTimes
from robotrl.deploy.control.safety import NONE, Mode, Reason, SafetyChain, in_time
from robotrl.deploy.control.signals import words
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import RobotCommand, RobotFault, message, now_ns
from robotrl.deploy.robots.process import RobotProcess
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError, NumericsError
from robotrl.utils.native_thread import NativeThread

_FIRST_DEADLINE_NS = 5_000_000
_LOOK_S = 0.01
"""Shortest interval of the caller's supervision, which runs once a period."""
_LEAVE_S = 0.2
"""Time to wait for the loop to end, beyond its period."""
_SETTLE_S = 0.1
"""Time for the robot to receive the last command of a stopped run."""


class _Inference(NamedTuple):
    """A running inference, for the caller's supervision."""

    tick: int
    stamp_ns: int
    """Time stamp of its observation."""


class ControlLoop:
    """A control run, which executes one `episode` after another.

    Attributes:
        chain: the safety chain between the policy and the robot.
        times: timing of all ticks.
        misses: control periods in which no command was sent.
        over_budget: inferences that took longer than the bundle's budget.
        expired: chunks that were dropped because their next action was too late.
        episodes: reports of the finished episodes.
        last: the latest observation.
    """

    def __init__(
        self,
        controller: Controller,
        process: RobotProcess,
        wiring: Wiring,
        writer: ControlLog,
        limit_s: float,
        wake_early: bool,
    ) -> None:
        manifest = controller.manifest
        self.controller = controller
        self.process = process
        self.link = process.link
        self.wiring = wiring
        self.writer = writer
        self.chain = SafetyChain(wiring.limits)
        self.period_s = manifest.timing.control_period_s
        self.period_ns = round(self.period_s * 1e9)
        self.budget_ns = round(manifest.timing.latency_budget_s * 1e9)
        self.max_age_ns = round(manifest.timing.max_observation_age_s * 1e9)
        self.max_ticks = max(1, round(limit_s * 1e9 / self.period_ns))
        self.leads_ns = warm_leads_ns(controller.inference_s) if wake_early else ()
        self.times = TickTimes([], [], [], [])
        self.misses = 0
        self.over_budget = 0
        self.expired = 0
        self.episodes: list[EpisodeReport] = []
        self.last: Message | None = None
        self._why_refused = ""
        """Reason why the controller gave no action at the last tick; "" if it gave one."""
        self._chunk_stamp_ns = 0
        """Time stamp of the observation from which the current chunk was inferred."""
        self._serial, self._state_id, self._start = 0, -1, 0
        self._ticks: list[Tick] = []
        self._lock = threading.Lock()
        """Protects deciding and sending: by the loop, or by the caller while an inference hangs."""
        self._inference: _Inference | None = None
        self._sent = -1
        """Index of the last tick sent."""
        self._answered = 0
        """Number of ticks that the caller has sent in place of the loop."""
        self._ended = False
        """The caller has taken control of the robot for good."""

    def episode(self, serial: int, state_id: int) -> EpisodeReport:
        """Run one episode until success or the time limit.

        Raises:
            RobotFault: see `run_control`.
        """
        self.controller.reset()
        self.chain.reset()
        self.controller.prepare()
        limits = self.wiring.limits
        neutral = limits.neutral[self.wiring.action] if limits.hold == "neutral" else np.zeros(0, np.float32)
        self.last = self.process.reset(serial, state_id, neutral)
        self._serial, self._state_id, self._ticks, self._sent = serial, state_id, [], -1
        self._start = now_ns() + _FIRST_DEADLINE_NS
        try:
            success = self._watched()
        finally:
            indices = self.wiring.observations
            self.writer.write([tick_record(serial, tick, indices) for tick in self._ticks])
        report = EpisodeReport(state_id, success, len(self._ticks), len(self._ticks) * self.period_s)
        self.episodes.append(report)
        self.writer.write([{"kind": "episode", "episode": serial, "state_id": state_id, "success": success}])
        return report

    def _watched(self) -> bool:
        """Run and supervise the ticks in a thread; returns the episode's success."""
        results: list[bool] = []
        errors: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                results.append(self._run_ticks())
            except BaseException as error:  # raised again in the caller's thread
                errors.append(error)
            finally:
                done.set()

        NativeThread(run, "robotrl-control").start()
        try:
            while not done.wait(max(self.period_s, _LOOK_S)):
                self._look_after()
        except BaseException:
            self._end(done)
            raise
        if errors:
            raise errors[0]
        return results[0]

    def _look_after(self) -> None:
        """Cancel an inference that is too late, and send hold commands while it hangs.

        Raises:
            RobotFault: it hung until the robot was damped.
        """
        now, going = now_ns(), self._inference
        if going is None or now - going.stamp_ns <= self.max_age_ns:
            return
        self.controller.cancel()
        if now - going.stamp_ns <= self.max_age_ns + self.period_ns:
            return
        index = (now - self._start) // self.period_ns
        with self._lock:
            if self._inference is not going or index <= self._sent:
                return
            if self._answer(index, now, Reason.ACTION_LATE) == Mode.DAMP:
                self._ended = True
                taken_s = (now - self._start - going.tick * self.period_ns) * 1e-9
                raise RobotFault(
                    f"robot {self.process.robot!r} {self._where(index)}: an inference has not ended after "
                    f"{taken_s:.3f} s; held, then damped"
                )

    def _answer(self, index: int, now: int, reason: Reason) -> Mode:
        """Send a command without the policy, in the caller's thread."""
        deadline = self._start + index * self.period_ns
        self._answered += 1
        latest = self.link.observations.read() or self.last
        flat, stamp = (latest.values, latest.stamp_ns) if latest is not None else (np.zeros(0, np.float32), now)
        if len(flat) != self.wiring.observation_size:
            flat = np.zeros(0, np.float32)
        verdict = self.chain.decide(reason, None)
        self._send(index, verdict.mode, verdict.reason, verdict.action)
        self._account(
            Tick(
                tick=index,
                deadline_ns=deadline - self._start,
                lateness_ns=now - deadline,
                age_ns=now - stamp,
                read_ns=0,
                busy_ns=now_ns() - now,
                inference_ns=0,
                decision=self.controller.decision,
                cursor=self.controller.cursor,
                observation=flat,
                policy=None,
                sent=verdict.action,
                mode=int(verdict.mode),
                reason=int(verdict.reason),
            )
        )
        return verdict.mode

    def _end(self, done: threading.Event) -> None:
        """Take control of the robot from the loop and damp it."""
        # not `with`: the error may be a signal that came when this thread held the lock
        held = self._lock.acquire(timeout=_LEAVE_S)
        damped, self._ended = self._ended, True
        if not damped:
            now = now_ns()
            index = max((now - self._start) // self.period_ns, self._sent + 1)
            self._answer(index, now, Reason.STOPPED)
        if held:
            self._lock.release()
        self.controller.cancel()
        done.wait(self.period_s + _LEAVE_S)
        self._settle()

    def _settle(self) -> None:
        """Wait until the robot has received the last command, with a time limit."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            latest = self.link.observations.read()
            if latest is not None and latest.echo == self._sent:
                return
            time.sleep(1e-3)

    def _run_ticks(self) -> bool:
        """Run the ticks of an episode; returns its success."""
        start, index = self._start, 0
        while True:
            deadline = start + index * self.period_ns
            if self.controller.needs_inference:
                self._wake_early(index, deadline)
            sleep_until(deadline)
            woke = now_ns()
            skipped = (woke - deadline) // self.period_ns
            self.misses += skipped
            index += skipped
            latest = self.link.observations.read()
            if latest is not None and latest.episode == self._serial:
                self.last = latest
            if self._ended:
                return False
            if self.last is not None and self.last.mode:
                return True
            if index >= self.max_ticks:
                return False
            answered = self._answered
            tick = self._tick(index, deadline, woke)
            if tick is not None:
                self.process.check(self._where(index))
                if tick.mode == Mode.DAMP:
                    why = why_bad(tick, self.controller.manifest, self.wiring, self.chain, self._why_refused)
                    raise RobotFault(f"robot {self.process.robot!r} {self._where(index)}: {why}; held, then damped")
            self.controller.prepare()
            finished = (now_ns() - start) // self.period_ns
            self.misses += max(0, finished - index - (self._answered - answered))
            index = finished + 1

    def _wake_early(self, index: int, deadline: int) -> None:
        """Warm the caches before a tick with an inference, if there is time."""
        for lead in self.leads_ns:
            if now_ns() < deadline - lead:
                sleep_until(deadline - lead)
                # too late as soon as it overlaps with its tick
                self._inference = _Inference(index, deadline - self.max_age_ns)
                try:
                    self.controller.warm()
                except InferenceError:
                    return  # the tick meets the same error and handles it
                finally:
                    self._inference = None

    def _tick(self, index: int, deadline: int, woke: int) -> Tick | None:
        """Observe, infer, check, send; None if the caller has sent a command meanwhile."""
        controller, latest = self.controller, self.last
        flat = latest.values if latest is not None else np.zeros(0, np.float32)
        stamp = latest.stamp_ns if latest is not None else woke
        now = now_ns()
        age = now - stamp
        action: np.ndarray | None = None
        spent = 0
        self._why_refused = ""
        if len(flat) == self.wiring.observation_size:
            obs = {key: flat[order] for key, order in self.wiring.observations.items()}
            observed = self.chain.check(obs, age * 1e-9, (now - self._start) * 1e-9)
            if observed == NONE:
                begun = now_ns()
                observed, action = self._infer(obs, index, stamp)
                spent = now_ns() - begun
        else:
            observed, flat = Reason.OBS_NOT_FINITE, np.zeros(0, np.float32)
        with self._lock:
            if self._ended or self._sent >= index:
                controller.reset()
                return None
            verdict = self.chain.decide(observed, action)
            self._send(index, verdict.mode, verdict.reason, verdict.action)
            tick = Tick(
                tick=index,
                deadline_ns=deadline - self._start,
                lateness_ns=woke - deadline,
                age_ns=age,
                read_ns=now - woke,
                busy_ns=now_ns() - woke,
                inference_ns=spent,
                decision=controller.decision,
                cursor=controller.cursor,
                observation=flat,
                policy=action,
                sent=verdict.action,
                mode=int(verdict.mode),
                reason=int(verdict.reason),
            )
            self._account(tick)
        if verdict.mode != Mode.ACTIVE:
            # The rest of the chunk is outdated.
            controller.reset()
        return tick

    def _infer(self, obs: dict[str, np.ndarray], index: int, stamp: int) -> tuple[Reason, np.ndarray | None]:
        """The policy's action, and reasons not to use it."""
        controller, limits = self.controller, self.wiring.limits
        if not controller.needs_inference:
            age_s = (now_ns() - self._chunk_stamp_ns) * 1e-9
            if in_time(limits, age_s, controller.cursor, self.period_s):
                return NONE, controller.step(obs)
            # too late for this action: infer again from the current observation
            self.expired += 1
            controller.reset()
        self._chunk_stamp_ns = stamp
        self._inference = _Inference(index, stamp)
        try:
            action = controller.step(obs)
        except (ConfigError, NumericsError) as error:
            # an invalid image or instruction is handled like any implausible observation
            self._why_refused = str(error)
            return Reason.OBS_IMPLAUSIBLE, None
        except InferenceError as error:
            self._why_refused = str(error)
            late = now_ns() - stamp > self.max_age_ns
            return (Reason.ACTION_LATE if late else Reason.INFERENCE_FAILED), None
        finally:
            self._inference = None
        return (NONE if in_time(limits, (now_ns() - stamp) * 1e-9) else Reason.ACTION_LATE), action

    def _send(self, index: int, mode: Mode, reason: Reason, action: np.ndarray) -> None:
        self.link.commands.write(
            message(
                RobotCommand.ACT,
                tick=index,
                episode=self._serial,
                state_id=self._state_id,
                mode=int(mode),
                reason=int(reason),
                values=action[self.wiring.action],
            )
        )
        self._sent = index

    def _account(self, tick: Tick) -> None:
        self._ticks.append(tick)
        self.times.lateness.append(tick.lateness_ns)
        self.times.busy.append(tick.busy_ns)
        self.times.age.append(tick.age_ns)
        if tick.inference_ns and tick.cursor == 1 and tick.policy is not None:
            self.times.inference.append(tick.inference_ns)
            self.over_budget += tick.inference_ns > self.budget_ns

    def _where(self, index: int) -> str:
        return f"in episode {self._serial} (start {self._state_id}) at tick {index}"


def stopped_line(error: BaseException) -> dict[str, str]:
    """Log record of a run that was stopped by a signal."""
    return {"kind": "stopped", "text": words(error)}
