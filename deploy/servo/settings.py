"""Settings of the servo's process, which it reads from standard input."""

from __future__ import annotations

from dataclasses import dataclass

RESET_TIMEOUT_S = 30.0
SUPERVISOR_TIMEOUT_S, IDLE_TIMEOUT_S = 10.0, 60.0
"""A supervisor that is silent for so long has hung: in an episode, and between two of them (user code runs there)."""


@dataclass(frozen=True)
class ServoCfg:
    """Settings of a servo.

    Args:
        link: name of the `ServoLink`.
        max_values: floats of its longest record.
        robot_link: name of the robot's `Link`.
        inference_link: name of the `InferenceLink`.
        doorbell: file number into which a byte is written for each request.
        manifest: text of the bundle's `manifest.json`.
        robot: name of the robot, for errors.
        robot_introduction: the robot's introduction, as JSON.
        limit_s: time limit of an episode.
        steps: servo ticks in a control period.
        fifo: request the real-time scheduler and locked memory.
        wake_early: have the caches warmed before an inference is due.
        inference_s: duration of an inference, from the warm-up.
        site: text of the site's `robot.json`; None without one.
        dry_run: hold the robot all the while; the commands are decided and recorded, and not sent.
        accept_start: begin outside the poses that training saw, too.
        risk: the bundle's risk graph, see `reflex.packed`; None for a bundle without a reflex.
    """

    link: str
    max_values: int
    robot_link: str
    inference_link: str
    doorbell: int
    manifest: str
    robot: str
    robot_introduction: str
    limit_s: float
    steps: int
    fifo: bool
    wake_early: bool
    inference_s: float
    site: str | None
    dry_run: bool
    accept_start: bool
    risk: str | None = None
