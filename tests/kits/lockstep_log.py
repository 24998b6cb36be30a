"""Logs of runs in lock step: the whole servo on a simulated clock, with the bundle's own policy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.match import wire
from robotrl.deploy.control.log import START_TICK, tick_record
from robotrl.deploy.control.run import start_header
from robotrl.deploy.inference.frames import FrameReader
from robotrl.deploy.inference.link import InferenceLink
from robotrl.deploy.inference.worker import Answering
from robotrl.deploy.native.lockstep import LockstepCfg, robot_info, run_in_lockstep
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.driver import RobotSim
from robotrl.deploy.robots.link import Link
from robotrl.deploy.runtime import Controller
from robotrl.deploy.servo.link import RecordKind
from robotrl.deploy.servo.records import tick_of_record

Change = Callable[[Message], tuple[Message, int] | None]
"""Takes an answer; returns it, or another, with the nanoseconds that the inference takes; None for no answer ever."""


def quick(answer: Message) -> tuple[Message, int]:
    return answer, 1_000_000


def lockstep_log(
    path: Path,
    bundle: Path,
    runtime: Runtime,
    robot: Callable[[], RobotSim],
    cfg: LockstepCfg,
    change: Change = quick,
    episodes: int = 1,
) -> list[dict[str, Any]]:
    """Write the log of such a run; returns its ticks, those of a motion to a start pose among them.

    Args:
        path: the log's place.
        bundle: the bundle; a policy of numbers.
        runtime: the servo's language. The policy is computed by onnxruntime.
        robot: makes the robot.
        cfg: settings of the run.
        change: what becomes of each answer.
        episodes: number of episodes.
    """
    opened, controller = open_bundle(bundle), Controller.load(bundle, seed=3)
    wiring = wire(opened.manifest, robot_info(robot()), cfg.site)
    with contextlib.closing(InferenceLink.create()) as link, contextlib.closing(Link.create()) as robot_link:
        answering = Answering(link, controller, FrameReader(robot_link.name, opened.manifest))
        starts = range(1100, 1100 + episodes)
        found = run_in_lockstep(
            runtime,
            opened.manifest,
            robot(),
            lambda request: change(answering.answer(request)),
            starts,
            cfg,
            risk=opened.risk,
        )
    header = {
        "kind": "header",
        "schema_version": 1,
        "bundle_id": opened.manifest.bundle_id,
        "seed": 3,
        "low": wiring.limits.low.tolist(),
        "high": wiring.limits.high.tolist(),
        "engine": "onnxruntime",
        "placed": True,
        "dry_run": cfg.dry_run,
        "site": None if cfg.site is None else strict.to_json(cfg.site),
        **start_header(robot_info(robot()), wiring),
    }
    sizes = (wiring.observation_size, len(wiring.action), 0)
    lines: list[dict[str, Any]] = []
    for record in found.records:
        if record.numbers[0] in (RecordKind.TICK, RecordKind.START):
            episode, tick, _ = tick_of_record(record, *sizes)
            kind = "tick" if record.numbers[0] == RecordKind.TICK else START_TICK
            lines.append(tick_record(episode, tick, wiring.observations, kind))
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    return lines
