"""Settings of the C++ servo: what Python knows of bundle, robot and site, as one flat and checked block of bytes.

`src/settings.cpp` reads the same fields in the same order. Nothing in the block needs a JSON reader on the robot.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest, Port
from robotrl.deploy.bundle.match import RobotInfo, Wiring
from robotrl.deploy.bundle.plausible import start_ranges
from robotrl.deploy.bundle.risk_program import RiskProgram
from robotrl.deploy.control.safety import Reason, SafetyLimits
from robotrl.deploy.inference import link as inference_link
from robotrl.deploy.robots import link as robot_link
from robotrl.deploy.robots.cameras import SLOTS, cameras_of
from robotrl.deploy.servo import link as servo_link
from robotrl.deploy.servo.commands import commands_of
from robotrl.deploy.servo.records import most_lateness
from robotrl.deploy.servo.reflex import RiskGuard, guard_of, unpacked
from robotrl.deploy.servo.ring import slot_bytes, slot_count
from robotrl.deploy.servo.settings import IDLE_TIMEOUT_S, RESET_TIMEOUT_S, SUPERVISOR_TIMEOUT_S, ServoCfg
from robotrl.deploy.shared_memory import BLOCK_HEADER_BYTES
from robotrl.spec import is_picture, overlap_weights

MAGIC = b"rrlblok1"
_HEAD = struct.Struct("<8sI4xq")
"""Magic, checksum of the rest, bytes of the rest."""
_ABSENT = -1
"""Register of a risk graph that an operation does not take; number that measures no position."""


class BlockWriter:
    """Writes fields one after the other."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def wholes(self, *values: int) -> None:
        """Whole numbers, each a field."""
        self._parts.append(struct.pack(f"<{len(values)}q", *values))

    def numbers(self, *values: float) -> None:
        """Numbers of float64, each a field."""
        self._parts.append(struct.pack(f"<{len(values)}d", *values))

    def text(self, value: str | bytes) -> None:
        """A text."""
        data = value.encode() if isinstance(value, str) else value
        self.wholes(len(data))
        self._parts.append(data)

    def floats(self, values: np.ndarray | Iterable[float]) -> None:
        """An array of float32."""
        array = np.ascontiguousarray(values, "<f4").ravel()
        self.wholes(len(array))
        self._parts.append(array.tobytes())

    def places(self, values: np.ndarray) -> None:
        """An array of whole numbers."""
        array = np.ascontiguousarray(values, "<i8").ravel()
        self.wholes(len(array))
        self._parts.append(array.tobytes())

    def limits(self, limits: SafetyLimits) -> None:
        """Limits of actions, and of the age of observations."""
        for array in (limits.low, limits.high, limits.neutral):
            self.floats(array)
        self.floats([] if limits.max_step is None else limits.max_step)
        self.wholes(limits.hold == "last", limits.chooses, limits.bad_ticks_to_damp, limits.ramp_ticks)
        self.numbers(limits.max_observation_age_s)

    def measured(self, limits: SafetyLimits, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Where each position target is measured, in the numbers of all observations.

        Args:
            limits: the safety limits.
            shapes: shape of each observation of numbers, in order.
        """
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)
        starts = dict(zip(shapes, [0, *ends.tolist()], strict=False))
        elements = [None if one is None or one.key not in shapes else one for one in limits.measured or ()]
        self.wholes(limits.measured is not None)
        self.places(
            np.asarray([_ABSENT if one is None else starts[one.key] + one.element for one in elements], np.int64)
        )
        self.floats([1.0 if one is None else one.factor for one in elements])

    def plausible(self, limits: SafetyLimits, key: str, shape: tuple[int, ...]) -> None:
        """Plausible range of each element of an observation; empty for none."""
        for side in limits.plausible.get(key, (None, None)):
            self.floats([] if side is None else np.broadcast_to(side, shape))

    def watched(self, limits: SafetyLimits, numbers: list[str], cameras: list[str]) -> None:
        """The inputs that must not stand still, in the order of the limits."""
        self.wholes(len(limits.max_still_s))
        for key, still_s in limits.max_still_s.items():
            of_camera = key in cameras
            self.wholes(of_camera, (cameras if of_camera else numbers).index(key))
            self.numbers(still_s)

    def reflex(self, guard: RiskGuard | None, places: Mapping[str, np.ndarray]) -> None:
        """A reflex, if there is one.

        Args:
            guard: the reflex.
            places: indices into the robot's flat observation for each element of an observation of numbers, by key.
        """
        self.wholes(guard is not None)
        if guard is None:
            return
        self.numbers(guard.threshold)
        self.floats(guard.recovery_action)
        self.places(places[guard.observation][guard.columns])
        self.program(guard.risk.program)

    def program(self, program: RiskProgram) -> None:
        """The registers of a risk graph after its two inputs."""
        self.wholes(len(program.registers))
        for register in program.registers:
            self.wholes(register.op)
            if register.values is None:
                self.wholes(*register.of, *[_ABSENT] * (3 - len(register.of)))
            else:
                self.floats(register.values)
        self.wholes(program.result)

    def packed(self) -> bytes:
        """The block."""
        rest = b"".join(self._parts)
        return _HEAD.pack(MAGIC, zlib.crc32(rest), len(rest)) + rest


def servo_block(cfg: ServoCfg, manifest: Manifest, wiring: Wiring, info: RobotInfo) -> bytes:
    """The settings of a servo.

    Args:
        cfg: settings as of the Python servo.
        manifest: the bundle's manifest.
        wiring: index maps and limits of bundle, robot and site.
        info: the robot's description.

    Raises:
        DataError: the bundle's risk graph cannot be computed.
    """
    out = BlockWriter()
    timing = manifest.timing
    limits = wiring.limits._replace(max_still_s={}) if cfg.dry_run else wiring.limits
    _write_links(out, cfg)
    period_ns = round(timing.control_period_s * 1e9)
    most_lead = timing.chunk_length - 1
    if timing.rtc_mode != "none":
        most_lead = min(most_lead, timing.rtc_max_delay_steps)
    guided = timing.rtc_mode == "guided"
    out.wholes(period_ns, cfg.steps, max(1, round(cfg.limit_s * 1e9 / period_ns)))
    out.wholes(round(limits.max_observation_age_s * 1e9), timing.chunk_length, timing.execute)
    out.wholes(1 if guided else 0, most_lead, timing.rtc_max_delay_steps)
    out.wholes(*(round(limit_s * 1e9) for limit_s in (RESET_TIMEOUT_S, SUPERVISOR_TIMEOUT_S, IDLE_TIMEOUT_S)))
    out.wholes(most_lateness(cfg.steps), wiring.observation_size)
    for magic in (servo_link.MAGIC, robot_link.MAGIC, inference_link.MAGIC):
        out.text(magic)
    out.numbers(timing.control_period_s, cfg.inference_s)
    commands = commands_of(manifest, info, cfg.steps)
    out.wholes(commands == "linear", commands == "mean", cfg.dry_run, cfg.wake_early, cfg.fifo, cfg.accept_start)
    out.wholes(timing.rtc_mode == "trained", guided)
    out.places(wiring.action)
    ports = {port.name: port for port in manifest.observations if not is_picture(port.spec)}
    _write_ports(out, manifest, ports, wiring, limits)
    cameras = cameras_of(info.observation_spec, memoryview(b""), robot_link.CAMERAS_AT)
    out.wholes(len(wiring.cameras))
    for key in wiring.cameras:
        out.wholes(cameras[key].offset, cameras[key].slot_bytes, SLOTS)
    out.wholes(len(manifest.prefix))
    for port in manifest.prefix:
        out.wholes(port.role == "prefix_mask", math.prod(port.shape))
    steps = timing.rtc_max_delay_steps if guided else 0
    rows = [overlap_weights(min(d, n), n, steps) for d in range(steps + 1) for n in range(steps + 1)]
    out.floats(np.asarray(rows, np.float32))
    out.watched(limits, list(ports), list(wiring.cameras))
    out.limits(limits)
    out.measured(limits, {key: port.measured_shape for key, port in ports.items()})
    out.reflex(guard_of(manifest, unpacked(cfg.risk)), wiring.observations)
    for side in ((), (), ()) if wiring.start is None else wiring.start:
        out.floats(side)
    out.wholes(max(1, round(RESET_TIMEOUT_S * 1e9 / period_ns)))
    names = [str(reason.name).lower() for reason in Reason]
    out.wholes(len(names))
    for name in names:
        out.text(name)
    return out.packed()


def _write_links(out: BlockWriter, cfg: ServoCfg) -> None:
    """The inherited files, and what lies where in them."""
    text = servo_link.TEXT_BYTES
    out.wholes(_handle(cfg.link), servo_link.link_bytes(cfg.max_values), BLOCK_HEADER_BYTES, servo_link.SUMMARY_AT)
    out.wholes(text, servo_link.ORDER_AT, servo_link.RING_AT, slot_bytes(cfg.max_values), slot_count(cfg.max_values))
    out.wholes(cfg.max_values)
    out.wholes(_handle(cfg.robot_link), robot_link.LINK_BYTES, robot_link.COMMAND_AT, robot_link.MAX_ACTION)
    out.wholes(robot_link.OBSERVATION_AT, robot_link.MAX_OBSERVATION)
    out.wholes(_handle(cfg.inference_link), inference_link.LINK_BYTES)
    out.wholes(inference_link.FAILURE_AT, inference_link.TEXT_BYTES)
    out.wholes(inference_link.REQUEST_AT, inference_link.MAX_REQUEST)
    out.wholes(inference_link.ANSWER_AT, inference_link.MAX_CHUNK)
    out.wholes(cfg.doorbell)


def _handle(name: str) -> int:
    return int(name.removeprefix("fd:"))


def _write_ports(
    out: BlockWriter, manifest: Manifest, ports: Mapping[str, Port], wiring: Wiring, limits: SafetyLimits
) -> None:
    """The observations of numbers, in the bundle's order."""
    out.wholes(len(ports))
    envelope = {key: (low, high) for key, low, high in start_ranges(manifest.safety.start, manifest.observations)}
    for name, port in ports.items():
        out.places(wiring.observations[name])
        out.plausible(limits, name, port.measured_shape)
        row = port.shape[-1] if port.shape else 1
        out.wholes(len(port.words) - 1, bool(port.words) and not port.words[0], row, port.stack)
        for side in envelope.get(name, (None, None)):
            out.floats([] if side is None else side)


def chain_block(limits: SafetyLimits, shapes: Mapping[str, tuple[int, ...]], cameras: list[str]) -> bytes:
    """The settings of a safety chain alone, with the checks before it (see `NativeChain`).

    Args:
        limits: the safety limits.
        shapes: shape of each observation of numbers.
        cameras: keys of the observations that are images.
    """
    out = BlockWriter()
    out.limits(limits)
    out.measured(limits, shapes)
    out.wholes(len(shapes))
    for key, shape in shapes.items():
        out.wholes(math.prod(shape))
        out.plausible(limits, key, shape)
    out.wholes(len(cameras))
    out.watched(limits, list(shapes), cameras)
    return out.packed()


def reflex_block(guard: RiskGuard, places: np.ndarray, observation_size: int) -> bytes:
    """The settings of a reflex alone (see `NativeGuard`).

    Args:
        guard: the reflex.
        places: indices into a robot's flat observation for each element of the reflex's observation.
        observation_size: length of the flat observation.
    """
    out = BlockWriter()
    out.wholes(observation_size)
    out.reflex(guard, {guard.observation: places})
    return out.packed()
