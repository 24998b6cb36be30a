"""Supervision of a control run: episodes are ordered, records collected and logged, and dead processes noticed.

It takes no part in control. The servo alone commands the robot; this process starts the others, writes the log, and
ends them in order.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, Wiring
from robotrl.deploy.control.bad_tick import fault_words
from robotrl.deploy.control.frames import FrameWriter
from robotrl.deploy.control.log import START_TICK, ControlLog, Tick, numbers, tick_record
from robotrl.deploy.control.report import EpisodeReport, TickTimes
from robotrl.deploy.control.shadow import Shadow
from robotrl.deploy.control.signals import words
from robotrl.deploy.inference.process import InferenceProcess
from robotrl.deploy.robots.link import RobotFault
from robotrl.deploy.robots.process import RobotProcess
from robotrl.deploy.servo.link import Order, RecordKind
from robotrl.deploy.servo.process import ServoProcess
from robotrl.deploy.servo.records import tick_of_record
from robotrl.deploy.servo.ring import RingRecord

_POLL_S = 0.01


class Supervisor:
    """Supervises the servo, the process that infers and the robot's process.

    Args:
        servo: the running servo.
        inference: the process that infers.
        robot: the robot's process.
        info: the robot's description.
        wiring: index maps of bundle and robot.
        writer: the log.
        manifest: the bundle's manifest.
        shadow: a policy whose actions are compared; None for none.

    Attributes:
        times: timing of all ticks.
        servo_lateness_us: lateness of the servo ticks.
        over_budget: inferences that took longer than the budget.
        episodes: reports of the finished episodes.
    """

    def __init__(
        self,
        servo: ServoProcess,
        inference: InferenceProcess,
        robot: RobotProcess,
        info: RobotInfo,
        wiring: Wiring,
        writer: ControlLog,
        manifest: Manifest,
        shadow: Shadow | None = None,
    ) -> None:
        self.servo = servo
        self.inference = inference
        self.robot = robot
        self.wiring = wiring
        self.writer = writer
        cameras = robot.link.cameras(info.observation_spec)
        self._cameras = {key: cameras[key] for key in wiring.cameras}
        self._frames = FrameWriter(writer.path if self._cameras else None)
        self.manifest = manifest
        self.period_s = manifest.timing.control_period_s
        self.budget_ns = round(manifest.timing.latency_budget_s * 1e9)
        self.shadow = shadow
        self.times = TickTimes([], [], [], [])
        self.servo_lateness_us: list[float] = []
        self.over_budget = 0
        self.episodes: list[EpisodeReport] = []
        self._ticks, self._lost = 0, 0
        self._failed = -1
        """The last decision that was not computed."""
        self._last: Tick | None = None
        self._where = "before the first episode"

    def episode(self, serial: int, state_id: int) -> EpisodeReport:
        """Run one episode until success or the time limit.

        Raises:
            RobotFault: the robot, the servo or the process that infers failed; the robot was damped if it still runs.
        """
        self._ticks = 0
        self._where = f"while starting episode {serial}"
        if self.shadow is not None:
            self.shadow.reset()
        self.servo.order(Order.EPISODE, serial, state_id)
        while True:
            # in this order: a process may end right after its last record
            ended = self.servo.ended()
            for record in self.servo.records():
                kind = RecordKind(record.numbers[0])
                # a shadow or a disk that is slow must not make the servo think that nobody is there
                self.servo.beat()
                if kind in (RecordKind.TICK, RecordKind.START):
                    self._take(record, state_id)
                elif kind == RecordKind.END:
                    # from the last tick's number: periods without a tick took their time, too
                    periods = self._last.tick + 1 if self._ticks and self._last is not None else 0
                    report = EpisodeReport(state_id, bool(record.numbers[3]), self._ticks, periods * self.period_s)
                    self.episodes.append(report)
                    self.writer.write(
                        [{"kind": "episode", "episode": serial, "state_id": state_id, "success": report.success}]
                    )
                    return report
                else:
                    raise RobotFault(self._fault())
            self.robot.check(self._where)
            self.servo.beat()
            if ended:
                raise RobotFault(f"the servo {ended} {self._where}; without commands the robot holds")
            time.sleep(_POLL_S)

    def open(self, header: dict[str, Any]) -> None:
        """Begin the log.

        Raises:
            DataError: it cannot be made.
        """
        self.writer.open(header)
        self._frames.open()

    def close(self) -> None:
        """Close the log."""
        self._frames.close()
        self.writer.close()

    @property
    def log_error(self) -> str | None:
        """Reason why the log is not whole; None if it is."""
        lost = self.servo.link.records.lost
        late = f"{lost} ticks are not in the log: the supervisor was too late to read them" if lost else None
        return self.writer.error or self._frames.error or late

    def stop(self, error: BaseException) -> None:
        """Damp the robot, and write the rest of the log with the signal's name."""
        self.servo.leave()
        for record in self.servo.records():
            if record.numbers[0] in (RecordKind.TICK, RecordKind.START):
                self._take(record, -1)
        self.writer.write([{"kind": "stopped", "text": words(error)}])

    @property
    def summary(self) -> dict[str, Any]:
        """The servo's summary of the run."""
        return self.servo.link.summary

    def _fault(self) -> str:
        """Reason of a fault: the death of a process, or else the servo's reason."""
        self.robot.check(self._where)
        fault = self.summary.get("fault", {})
        text = fault_words(fault, self.robot.robot, self.manifest, self.wiring, self._last)
        if ended := self.inference.ended():
            where = f"robot {self.robot.robot!r} {self._where}"
            text = f"{where}: the process that infers {ended}; held, then damped"
        return text

    def _take(self, record: RingRecord, state_id: int) -> None:
        """Count and log a tick."""
        sizes = (self.wiring.observation_size, len(self.wiring.action), len(self._cameras))
        episode, tick, lateness_us = tick_of_record(record, *sizes)
        starting = record.numbers[0] == RecordKind.START
        self._ticks += not starting
        self._last = tick
        if (lost := self.servo.link.records.lost) > self._lost:
            self.writer.write([{"kind": "lost", "episode": episode, "ticks": lost - self._lost}])
            self._lost = lost
        self.servo_lateness_us.extend(lateness_us.tolist())
        if starting:
            self._where = f"on the way to start {state_id} of episode {episode}, at tick {tick.tick}"
            line = tick_record(episode, tick, self.wiring.observations, START_TICK)
            if self._cameras:
                line["frames"] = self._frame_lines(tick)
            self.writer.write([line])
            return
        self._where = f"in episode {episode} (start {state_id}) at tick {tick.tick}"
        self._account(tick)
        self._note_failed(episode)
        line = tick_record(episode, tick, self.wiring.observations)
        if self._cameras:
            line["frames"] = self._frame_lines(tick)
        line["servo_lateness_us"] = [round(late, 1) for late in lateness_us.tolist()]
        if self._ticks == 1:
            # the wall clock is read here and not by the servo: late by a poll at most
            line["start_unix_ns"] = time.time_ns() - tick.deadline_ns - tick.lateness_ns - tick.busy_ns
        if self.shadow is not None:
            # a slow shadow must not cost ticks of the log
            action = self.shadow.skip(tick) if self.servo.link.records.is_filling else self.shadow.act(tick)
            line["shadow"] = None if action is None else numbers(action)
        self.writer.write([line])

    def _note_failed(self, episode: int) -> None:
        """Log the decisions that were not computed since the last tick; they are told before it."""
        for decision in self.inference.link.failed:
            if decision > self._failed:
                self._failed = decision
                self.writer.write([{"kind": "inference_failed", "episode": episode, "decision": decision}])

    def _frame_lines(self, tick: Tick) -> dict[str, dict[str, int | None]]:
        """Log entries of a tick's frames; the pixels that an inference was asked for with are kept."""
        lines: dict[str, dict[str, int | None]] = {}
        for (key, camera), frame in zip(self._cameras.items(), tick.frames, strict=True):
            pixels = camera.read(frame.number) if tick.asked >= 0 else None
            at, kept = None, None
            if pixels is not None:
                # in the bundle's order of channels, as the policy saw it
                seen = np.ascontiguousarray(pixels[..., self.wiring.cameras[key]])
                at, kept = self._frames.write(seen), zlib.crc32(seen.tobytes())
            lines[key] = {
                "number": frame.number,
                "stamp_ns": frame.stamp_ns,
                "checksum": frame.checksum,
                "at": at,
                "kept_checksum": kept,
            }
        return lines

    def _account(self, tick: Tick) -> None:
        self.times.lateness.append(tick.lateness_ns)
        self.times.busy.append(tick.busy_ns)
        self.times.age.append(tick.age_ns)
        if tick.inference_ns and tick.policy is not None:
            self.times.inference.append(tick.inference_ns)
            self.over_budget += tick.inference_ns > self.budget_ns
