"""Lock step: a servo of either runtime on a simulated clock, with robot, inference and supervisor in the same thread.

The servo is the whole one, over the same bytes in shared memory as between processes; only time is simulated. It passes
while the servo sleeps, and what happens meanwhile happens in the order of its times. So a run is repeated exactly, two
runtimes can be compared bit for bit, and a policy's success in control is measured apart from the machine's load.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.bundle.site import SiteLimits
from robotrl.deploy.control.safety import Mode
from robotrl.deploy.inference.link import InferenceLink
from robotrl.deploy.native.chain import servo_run
from robotrl.deploy.native.settings import servo_block
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.driver import RobotSim, TimedObservation, episode_state
from robotrl.deploy.robots.link import Link, RobotCommand, Status, message
from robotrl.deploy.robots.start_motion import StartsByCommands, started_by
from robotrl.deploy.servo.link import Order, RecordKind, ServoLink
from robotrl.deploy.servo.loop import ServoLoop
from robotrl.deploy.servo.records import room
from robotrl.deploy.servo.reflex import guard_of, packed
from robotrl.deploy.servo.ring import RingRecord
from robotrl.deploy.servo.settings import ServoCfg
from robotrl.spec import is_picture

_BEGIN_NS = 1_000_000_000


@dataclass(frozen=True)
class LockstepCfg:
    """Settings of a run in lock step.

    Args:
        steps: servo ticks in a control period.
        limit_s: time limit of an episode.
        inference_s: duration of an inference that the servo expects at the start.
        dry_run: the robot is held.
        accept_start: episodes may begin outside the poses that training saw.
        site: limits of the robot's site.
    """

    steps: int = 4
    limit_s: float = 5.0
    inference_s: float = 0.0
    dry_run: bool = False
    accept_start: bool = False
    site: SiteLimits | None = None


class LockstepResult(NamedTuple):
    """Everything that a servo wrote."""

    records: list[RingRecord]
    commands: list[Message]
    """Each command that was the latest at the end of one of the servo's sleeps."""
    requests: list[Message]
    summary: dict[str, object]

    @property
    def successes(self) -> list[bool]:
        """Success of each finished episode."""
        return [bool(r.numbers[3]) for r in self.records if r.numbers[0] == RecordKind.END]


def robot_info(robot: RobotSim) -> RobotInfo:
    """Description of a robot, as its driver would introduce it."""
    return RobotInfo(
        robot.observation_spec,
        robot.action_spec,
        robot.control_dt_s,
        robot.inner_dt_s,
        None,
        robot.state_ids("test"),
        started_by(robot),
        robot.start_motion if isinstance(robot, StartsByCommands) else None,
    )


def run_in_lockstep(
    runtime: Runtime,
    manifest: Manifest,
    robot: RobotSim,
    infer: Callable[[Message], tuple[Message, int] | None],
    state_ids: Sequence[int],
    cfg: LockstepCfg = LockstepCfg(),
    lateness_ns: Callable[[], int] = lambda: 0,
    risk: bytes | None = None,
) -> LockstepResult:
    """Run episodes of a servo.

    Args:
        runtime: "python" or "native".
        manifest: the bundle's manifest.
        robot: the robot; it is advanced by its inner period at a time.
        infer: answer to a request, and the nanoseconds that it takes; None for no answer ever.
        state_ids: start of each episode.
        cfg: settings.
        lateness_ns: nanoseconds by which the next sleep ends late.
        risk: content of the bundle's risk graph; None for a bundle without a reflex.

    Raises:
        ConfigError: the robot does not match the bundle, or the native runtime cannot be built.
    """
    with contextlib.ExitStack() as stack:
        return _World(stack, runtime, manifest, robot, infer, state_ids, cfg, lateness_ns, risk).run()


class _World:
    """All but the servo, and the time."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        runtime: Runtime,
        manifest: Manifest,
        robot: RobotSim,
        infer: Callable[[Message], tuple[Message, int] | None],
        state_ids: Sequence[int],
        cfg: LockstepCfg,
        lateness_ns: Callable[[], int],
        risk: bytes | None,
    ) -> None:
        self.runtime, self.manifest, self.cfg, self.risk = runtime, manifest, cfg, risk
        self.infer, self.lateness_ns, self.state_ids = infer, lateness_ns, list(state_ids)
        self.now = _BEGIN_NS
        self.info = robot_info(robot)
        self.wiring = wire(manifest, self.info, cfg.site)
        sizes = (self.wiring.observation_size, len(self.wiring.action), len(self.wiring.cameras))
        self.max_values = room(*sizes, cfg.steps)
        self.robot_link = stack.enter_context(contextlib.closing(Link.create()))
        self.inference = stack.enter_context(contextlib.closing(InferenceLink.create()))
        self.servo = stack.enter_context(contextlib.closing(ServoLink.create(self.max_values)))
        self.doorbell = stack.enter_context(_ignored_pipe())
        self.robot = _SteppedRobot(robot, self.robot_link)
        self.due: list[tuple[int, int, Message]] = []
        """Answers with the time at which they are there."""
        self.answered, self.ordered, self.over = 0, 0, False
        self.result = LockstepResult([], [], [], {})

    def run(self) -> LockstepResult:
        self.order()
        servo_cfg = self.servo_cfg()
        if self.runtime == "native":
            block = servo_block(servo_cfg, self.manifest, self.wiring, self.info)
            servo_run(block, self.now, os.getpid(), self.slept)
        else:
            with contextlib.closing(self.other_end()) as link:
                loop = ServoLoop(
                    servo_cfg,
                    self.manifest,
                    self.wiring,
                    self.info,
                    self.robot_link,
                    self.inference,
                    link,
                    clock=self,
                    parent=os.getpid,
                    guard=guard_of(self.manifest, self.risk),
                )
                loop.run()
        self.collect()
        return self.result._replace(summary=self.servo.summary)

    def other_end(self) -> ServoLink:
        return ServoLink.attach(f"fd:{os.dup(self.servo.handle)}", self.max_values)

    def servo_cfg(self) -> ServoCfg:
        site = self.cfg.site
        return ServoCfg(
            link=self.servo.name,
            max_values=self.max_values,
            robot_link=self.robot_link.name,
            inference_link=self.inference.name,
            doorbell=self.doorbell,
            manifest=self.manifest.to_bytes().decode(),
            robot="lockstep",
            robot_introduction=json.dumps(None),
            limit_s=self.cfg.limit_s,
            steps=self.cfg.steps,
            fifo=False,
            wake_early=False,
            inference_s=self.cfg.inference_s,
            site=None if site is None else site.to_bytes().decode(),
            dry_run=self.cfg.dry_run,
            accept_start=self.cfg.accept_start,
            risk=packed(self.risk),
        )

    # the clock

    def now_ns(self) -> int:
        """Time in nanoseconds."""
        return self.now

    def sleep_until(self, deadline_ns: int) -> None:
        """Let time pass."""
        self.slept(deadline_ns)

    def slept(self, deadline_ns: int) -> int:
        """Let the world go on until a servo wakes up; returns the time of that."""
        self.take_request()
        wakes = max(self.now, deadline_ns) + self.lateness_ns()
        while (event := min(self.robot.next_ns, self.due[0][0] if self.due else wakes + 1)) <= wakes:
            self.now = max(self.now, event)
            if self.due and self.due[0][0] <= event:
                self.inference.answers.write(heapq.heappop(self.due)[2])
            else:
                self.robot.step(self.now)
        self.now = max(self.now, wakes)
        self.collect()
        self.beat()
        return self.now

    # inference

    def take_request(self) -> None:
        """Begin the inference that the servo asked for."""
        request = self.inference.requests.read()
        if request is None or request.tick == self.answered:
            return
        self.answered = request.tick
        self.result.requests.append(request)
        answer = self.infer(request)
        if answer is not None:
            heapq.heappush(self.due, (self.now + max(1, answer[1]), request.tick, answer[0]))

    # the supervisor

    def order(self) -> None:
        """Order the next episode, or the end."""
        number, nothing = self.ordered, np.zeros(0, np.float32)
        self.ordered += 1
        last = number >= len(self.state_ids)
        kind = Order.LEAVE if last else Order.EPISODE
        self.last_order = message(
            kind,
            tick=self.ordered,
            episode=0 if last else number + 1,
            state_id=-1 if last else self.state_ids[number],
            values=nothing,
            stamp_ns=self.now,
        )
        self.servo.orders.write(self.last_order)

    def beat(self) -> None:
        self.servo.orders.write(self.last_order._replace(stamp_ns=self.now))

    def collect(self) -> None:
        """Take what the servo wrote."""
        command = self.robot_link.commands.read()
        if command is not None:
            self.result.commands.append(command)
        while (record := self.servo.records.read()) is not None:
            self.result.records.append(record)
            if record.numbers[0] == RecordKind.END:
                self.order()


class _SteppedRobot:
    """A robot as its driver runs it (`robotrl.deploy.robots.driver`), one inner period at a time and never late."""

    def __init__(self, robot: RobotSim, link: Link) -> None:
        self.robot, self.link = robot, link
        self.cameras = link.cameras(robot.observation_spec)
        self.inner_ns = round(robot.inner_dt_s * 1e9)
        self.next_ns = _BEGIN_NS + self.inner_ns
        self.episode, self.state_id, self.steps, self.taken = 0, -1, 0, -1
        self.neutral: np.ndarray | None = None

    def step(self, now_ns: int) -> None:
        """Take the latest command, advance, and publish an observation."""
        self.next_ns += self.inner_ns
        command = self.link.commands.read()
        if command is None:
            return
        if command.kind == RobotCommand.RESET and command.episode != self.episode:
            self.robot.reset(command.state_id)
            self.neutral = command.values if len(command.values) else None
            self.episode, self.state_id = command.episode, command.state_id
            self.steps, self.taken = 0, -1
            self.hold()
        elif command.kind == RobotCommand.ACT and command.episode == self.episode and command.tick != self.taken:
            self.taken = command.tick
            if command.mode == Mode.ACTIVE:
                self.robot.command(command.values)
            else:
                self.hold()
        if self.episode == 0:
            return
        self.robot.advance(1)
        self.steps += 1
        self.publish(now_ns)

    def hold(self) -> None:
        if self.neutral is not None:
            self.robot.command(self.neutral)

    def publish(self, now_ns: int) -> None:
        found = self.robot.observe()
        obs, stamp_ns = found if isinstance(found, TimedObservation) else (found, now_ns)
        for key, camera in self.cameras.items():
            if key in obs:
                camera.write(obs[key], stamp_ns, self.episode)
        numbers = [np.ravel(obs[key]) for key, spec in self.robot.observation_spec.items() if not is_picture(spec)]
        self.link.observations.write(
            message(
                Status.READY,
                tick=self.steps,
                episode=self.episode,
                state_id=self.state_id,
                mode=int(episode_state(self.robot)),
                echo=self.taken,
                values=np.concatenate([np.zeros(0, np.float32), *numbers]).astype(np.float32),
                stamp_ns=stamp_ns,
            )
        )


@contextlib.contextmanager
def _ignored_pipe() -> Generator[int, None, None]:
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)
