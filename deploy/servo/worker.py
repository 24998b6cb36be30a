"""The servo's process. It imports neither torch nor onnxruntime."""

from __future__ import annotations

from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.manifest import parse
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.bundle.site import SiteLimits
from robotrl.deploy.control.realtime import steady
from robotrl.deploy.inference.link import InferenceLink
from robotrl.deploy.robots.link import Link
from robotrl.deploy.servo.link import ServoLink
from robotrl.deploy.servo.loop import ServoLoop
from robotrl.deploy.servo.reflex import guard_of, unpacked
from robotrl.deploy.servo.settings import ServoCfg


def run(settings: bytes) -> int:
    """Run the servo until the supervisor ends it.

    Args:
        settings: a `ServoCfg` as JSON.

    Returns:
        The exit code of the process.
    """
    cfg = strict.from_json(ServoCfg, strict.loads(settings, "settings of the servo"), "settings")
    manifest = parse(cfg.manifest.encode())
    robot = RobotInfo.from_json(strict.loads(cfg.robot_introduction.encode(), "introduction of the robot"))
    site = None if cfg.site is None else SiteLimits.parse(cfg.site.encode())
    link = ServoLink.attach(cfg.link, cfg.max_values)
    loop = ServoLoop(
        cfg,
        manifest,
        wire(manifest, robot, site),
        robot,
        Link.attach(cfg.robot_link),
        InferenceLink.attach(cfg.inference_link),
        link,
        guard=guard_of(manifest, unpacked(cfg.risk)),
    )
    with steady(fifo=cfg.fifo) as scheduling:
        link.introduce({"scheduling": scheduling})
        loop.run()
    return 0
