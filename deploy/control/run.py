"""`run_control`: real-time control of a robot by a bundle, at a fixed rate, through the safety chain.

The loop runs on absolute deadlines: a late tick never shifts the next one; missed periods are skipped and counted, not
sent in a burst. Inference and servo are separate processes; this is the inference side.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from robotrl.deploy.bounded import bounded_memory
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, Wiring, wire
from robotrl.deploy.control.log import LOG_BEGINS, ControlLog
from robotrl.deploy.control.loop import ControlLoop, stopped_line
from robotrl.deploy.control.outputs import check_output
from robotrl.deploy.control.realtime import steady
from robotrl.deploy.control.report import ControlReport, EpisodeReport, histogram, percentiles
from robotrl.deploy.control.signals import Stopped, ended_by_signals
from robotrl.deploy.robots.link import RobotFault
from robotrl.deploy.robots.process import RobotProcess
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError
from robotrl.spec import is_picture

if TYPE_CHECKING:
    from robotrl.deploy.remote.controller import RemotePolicyCfg

DEFAULT_LIMIT_S = 5.0


def run_control(
    bundle: str | os.PathLike[str],
    robot: str = "sim:mujoco/peg-insert",
    *,
    episodes: int = 16,
    seed: int = 0,
    state_ids: Sequence[int] | None = None,
    limit_s: float | None = None,
    log: str | os.PathLike[str] | None = None,
    fifo: bool = False,
    wake_early: bool = True,
    remote: RemotePolicyCfg | None = None,
    progress: Callable[[EpisodeReport], None] | None = None,
) -> ControlReport:
    """Control a robot by a bundle for some episodes, in real time.

    Args:
        bundle: the bundle's directory.
        robot: "NAME:ARGUMENT"; NAME is a registered driver.
        episodes: number of episodes, 1 or more; they start from the first ids of the robot's held-out test split.
        seed: seed of the sampler's noise.
        state_ids: start states to use instead; `episodes` is then ignored.
        limit_s: time limit of an episode, after which it counts as failed; None takes the robot's own limit, else 5 s.
        log: path of the log (JSON lines); None writes none. A file that is not a control log is not replaced.
        fifo: request the real-time scheduler.
        wake_early: run a dummy inference shortly before each tick with an inference, to warm the caches (see
            `warm_leads_ns`); not where a server infers.
        remote: policy server that computes the inferences; None computes them here.
        progress: called after each episode.

    Raises:
        ConfigError: an argument is out of range, or the robot does not match the bundle.
        DataError: the bundle is refused, or the log cannot be created.
        RemoteError: the policy server cannot be reached, does not let this client in, or runs another bundle.
        RobotFault: the robot's process ended or stopped answering, or too many ticks in a row were bad. The log holds
            all ticks so far. After an inference that has not ended, end your program by `exit_past_native_threads`.
        Stopped: on SIGTERM or SIGHUP; as after Ctrl-C, the robot was damped and the log holds all ticks.
    """
    place = None if log is None else Path(log)
    if place is not None:
        check_log(place, Path(bundle))
    with (
        ended_by_signals(),
        _controller(bundle, seed, remote) as controller,
        # also bound the memory that the graph allocates while it runs
        bounded_memory(),
        RobotProcess(robot) as process,
        steady(fifo=fifo) as scheduling,
    ):
        info = process.introduction()
        ids = _state_ids(info, state_ids, episodes)
        limit = _limit_s(info, limit_s)
        wiring = wire(controller.manifest, info)
        _tell_unchecked(controller.manifest, wiring)
        writer = ControlLog(place)
        inference = "local" if remote is None else remote.url
        writer.open({**_header(controller, robot, scheduling, wiring), "inference": inference})
        loop = ControlLoop(controller, process, wiring, writer, limit, wake_early and remote is None)
        try:
            for serial, state_id in enumerate(ids, start=1):
                report = loop.episode(serial, state_id)
                if progress is not None:
                    progress(report)
        except RobotFault as error:
            writer.write([{"kind": "fault", "text": str(error)}])
            raise
        except (KeyboardInterrupt, Stopped) as error:
            writer.write([stopped_line(error)])
            raise
        finally:
            writer.close()
        return _report(loop, robot, scheduling, inference)


def _controller(
    bundle: str | os.PathLike[str], seed: int, remote: RemotePolicyCfg | None
) -> contextlib.AbstractContextManager[Controller]:
    """Controller whose inferences are computed here, or by a server."""
    if remote is None:
        return contextlib.nullcontext(Controller.load(bundle, seed=seed))
    from robotrl.deploy.remote.controller import remote_controller

    return remote_controller(bundle, remote, seed=seed)


def check_log(log: Path, bundle: Path) -> None:
    """Check the path of a log before the run starts, see `check_output`.

    Raises:
        DataError: the log must not or cannot be written there.
    """
    check_output(log, "control log", LOG_BEGINS, outside=bundle, stream=True)


def _tell_unchecked(manifest: Manifest, wiring: Wiring) -> None:
    """Warn about a bundle without plausible ranges."""
    if not wiring.limits.plausible and not wiring.limits.max_still_s:
        known = all(is_picture(port.spec) or port.words for port in manifest.observations)
        if not known:
            warnings.warn(
                "this bundle states no plausible ranges: observations are checked for age and finiteness alone; "
                "export it again to have them",
                stacklevel=3,
            )


def _state_ids(info: RobotInfo, given: Sequence[int] | None, episodes: int) -> list[int]:
    if given is not None:
        if not given:
            raise ConfigError("state_ids is empty: expected one or more")
        return [int(i) for i in given]
    most = len(info.test_ids)
    if not 1 <= episodes <= most:
        raise ConfigError(f"episodes is {episodes!r}: expected 1 to {most}, the robot's held-out starts")
    return list(info.test_ids[:episodes])


def _limit_s(info: RobotInfo, given: float | None) -> float:
    limit = given if given is not None else info.limit_s if info.limit_s is not None else DEFAULT_LIMIT_S
    if not info.control_dt_s <= limit <= 3600.0:
        raise ConfigError(f"limit_s is {limit!r}: expected {info.control_dt_s} to 3600 seconds")
    return limit


def _header(controller: Controller, robot: str, scheduling: str, wiring: Wiring) -> dict[str, object]:
    manifest = controller.manifest
    return {
        "bundle_id": manifest.bundle_id,
        "robot": robot,
        "seed": controller.seed,
        "control_period_s": manifest.timing.control_period_s,
        "observations": {port.name: list(port.names) for port in manifest.observations},
        "action": list(manifest.action.names),
        "low": wiring.limits.low.tolist(),
        "high": wiring.limits.high.tolist(),
        "scheduling": scheduling,
    }


def _report(loop: ControlLoop, robot: str, scheduling: str, inference: str) -> ControlReport:
    """Create the report of a run."""
    controller, last = loop.controller, loop.last
    return ControlReport(
        bundle_id=controller.manifest.bundle_id,
        robot=robot,
        seed=controller.seed,
        rate_hz=1.0 / controller.manifest.timing.control_period_s,
        episodes=tuple(loop.episodes),
        successes=sum(episode.success for episode in loop.episodes),
        ticks=len(loop.times.lateness),
        lateness_us=percentiles(loop.times.lateness),
        inference_us=percentiles(loop.times.inference),
        busy_us=percentiles(loop.times.busy),
        observation_age_us=percentiles(loop.times.age),
        deadline_misses=loop.misses,
        over_budget=loop.over_budget,
        chunks_expired=loop.expired,
        lateness_histogram_us=histogram(loop.times.lateness),
        safety=loop.chain.counters,
        robot_steps_made_up=0 if last is None else last.reason,
        robot_time_lost_s=0.0 if last is None else last.lost_ns * 1e-9,
        torn_reads=loop.link.observations.torn,
        golden_error=controller.golden_error,
        scheduling=scheduling,
        inference=inference,
        log=None if loop.writer.path is None else str(loop.writer.path),
        log_error=loop.writer.error,
    )
