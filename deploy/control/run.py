"""`run_control`: real-time control of a robot by a bundle, at a fixed rate, through the safety chain.

Four processes: this one supervises and logs; the servo alone commands the robot; another one infers; and the robot has
its own. What an inference does moves no deadline of the servo.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from robotrl.deploy.buffers import Runtime, check_steer
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, Wiring, wire
from robotrl.deploy.bundle.site import SiteLimits
from robotrl.deploy.control.frames import FRAMES_BEGIN, frames_path
from robotrl.deploy.control.log import LOG_BEGINS, ControlLog
from robotrl.deploy.control.outputs import check_output
from robotrl.deploy.control.report import ControlReport, EpisodeReport, histogram, percentiles
from robotrl.deploy.control.safety import Counters
from robotrl.deploy.control.shadow import Shadow
from robotrl.deploy.control.signals import Stopped, ended_by_signals
from robotrl.deploy.control.supervisor import Supervisor
from robotrl.deploy.inference.process import InferenceProcess
from robotrl.deploy.robots.link import Link, RobotFault
from robotrl.deploy.robots.process import RobotProcess, driver_of
from robotrl.deploy.robots.start_motion import StartedBy
from robotrl.deploy.servo.link import ServoLink
from robotrl.deploy.servo.process import ServoProcess, python_settings
from robotrl.deploy.servo.records import room
from robotrl.deploy.servo.reflex import check_rate, guard_of, packed
from robotrl.deploy.servo.settings import ServoCfg
from robotrl.errors import ConfigError, DataError, unknown
from robotrl.spec import is_picture

if TYPE_CHECKING:
    from robotrl.deploy.remote.controller import RemotePolicyCfg

DEFAULT_LIMIT_S = 5.0
DEFAULT_SERVO_HZ = 200.0
MAX_SERVO_HZ = 2000.0
_LEAVE_S = 0.5
"""Time for the servo to damp the robot and end, beyond a control period."""


def run_control(
    bundle: str | os.PathLike[str],
    robot: str = "sim:mujoco/peg-insert",
    *,
    episodes: int = 16,
    seed: int = 0,
    state_ids: Sequence[int] | None = None,
    limit_s: float | None = None,
    log: str | os.PathLike[str] | None = None,
    servo_hz: float = DEFAULT_SERVO_HZ,
    fifo: bool = False,
    wake_early: bool = True,
    remote: RemotePolicyCfg | None = None,
    limits: str | os.PathLike[str] | None = None,
    signed_by: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    accept_start: bool = False,
    shadow: str | os.PathLike[str] | None = None,
    runtime: Runtime = "python",
    steer: bool = True,
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
        servo_hz: rate at which the servo commands the robot, rounded to a multiple of the control rate; between control
            ticks the last command is repeated, or interpolated where the bundle says so. A bundle's reflex is evaluated
            at each of them, and learned at one rate.
        fifo: request the real-time scheduler and locked memory for the servo.
        wake_early: run a dummy inference shortly before each tick with an inference, to warm the caches (see
            `warm_leads_ns`); not where a server infers.
        remote: policy server that computes the inferences; None computes them here.
        limits: the site's `robot.json`, see `SiteLimits`; for each number the tighter limit of bundle, robot and site
            holds. None for none.
        signed_by: public Ed25519 key by which the bundle must be signed, a PEM file; None for any bundle.
        dry_run: hold the robot all the while: the commands are decided and logged, and not sent.
        accept_start: begin episodes outside the poses that training saw (the bundle's start envelope), too.
        shadow: another bundle, which sees the same observations and whose actions are compared with the policy's, see
            `Shadow`; None compares none.
        runtime: "native" runs the servo and the policy's graph in C++, see `robotrl.deploy.native`.
        steer: False runs the base policy of a bundle with a steering graph, without that.
        progress: called after each episode.

    Raises:
        ConfigError: an argument is out of range, the robot does not match the bundle, or the native runtime cannot be
            built.
        DataError: the bundle is refused, or the log cannot be created.
        RemoteError: the policy server cannot be reached, does not let this client in, or runs another bundle.
        RobotFault: a process ended or stopped answering, too many ticks in a row were bad, or an episode would begin
            outside the poses that training saw. The log holds all ticks so far.
        Stopped: on SIGTERM or SIGHUP; as after Ctrl-C, the robot was damped and the log holds all ticks.
    """
    place = None if log is None else Path(log)
    if place is not None:
        check_log(place, Path(bundle))
    if not 1.0 <= servo_hz <= MAX_SERVO_HZ:
        raise ConfigError(f"servo_hz is {servo_hz!r}: expected 1 to {MAX_SERVO_HZ:g}")
    if seed < 0:
        raise ConfigError(f"seed is {seed!r}: expected 0 or more")
    # what can be refused before any process starts is
    driver_of(robot)
    if state_ids is not None and not state_ids:
        raise ConfigError("state_ids is empty: expected one or more")
    program = servo_program(runtime)
    site = None if limits is None else SiteLimits.read(limits)
    # the process that infers says which bundle it loaded: it is this one, or the run ends
    opened = open_bundle(bundle, signed_by)
    manifest = opened.manifest
    _check_steer(manifest, steer, remote)
    if limit_s is not None:
        _check_limit(limit_s, manifest.timing.control_period_s)
    steps = max(1, round(servo_hz * manifest.timing.control_period_s))
    check_rate(manifest, steps)
    # a graph that cannot be computed is refused before any process starts
    guard_of(manifest, opened.risk)
    if place is not None and any(is_picture(port.spec) for port in manifest.observations):
        check_output(frames_path(place), "file of a control log's frames", FRAMES_BEGIN, outside=Path(bundle))
    with (
        ended_by_signals(),
        contextlib.closing(Link.create()) as robot_link,
        _inference(robot_link, bundle, seed, remote, runtime, steer) as inference,
    ):
        proved = inference.introduction()
        if proved["bundle_id"] != manifest.bundle_id:
            raise DataError(f"bundle {os.fspath(bundle)!r} was replaced while it was loaded: expected one bundle")
        with RobotProcess(robot, robot_link) as process:
            info = process.introduction()
            ids = _state_ids(info, state_ids, episodes)
            limit = _limit_s(info, limit_s)
            wiring = wire(manifest, info, site)
            _tell_unchecked(manifest, wiring)
            shade = None if shadow is None else Shadow(shadow, manifest, info, seed)
            writer = ControlLog(place)
            max_values = room(wiring.observation_size, len(wiring.action), len(wiring.cameras), steps)
            link = ServoLink.create(max_values)
            cfg = ServoCfg(
                link=link.name,
                max_values=max_values,
                robot_link=process.link.name,
                inference_link=inference.link.name,
                doorbell=inference.doorbell,
                manifest=manifest.to_bytes().decode(),
                robot=robot,
                robot_introduction=json.dumps(process.link.introduction("robot")),
                limit_s=limit,
                steps=steps,
                fifo=fifo,
                wake_early=wake_early and remote is None,
                inference_s=float(proved["inference_s"]),
                site=None if site is None else site.to_bytes().decode(),
                dry_run=dry_run,
                accept_start=accept_start,
                risk=packed(opened.risk),
            )
            handles = (link.handle, process.link.handle, inference.link.handle, inference.doorbell)
            settings = _settings(cfg, manifest, wiring, info, runtime)
            leave_s = manifest.timing.control_period_s + _LEAVE_S
            with ServoProcess(settings, link, handles, leave_s, program) as servo:
                scheduling = str(servo.introduction()["scheduling"])
                where = "local" if remote is None else remote.url
                site_json = None if site is None else strict.to_json(site)
                run = Supervisor(servo, inference, process, info, wiring, writer, manifest, shade)
                header = {**_header(manifest, seed, robot, scheduling, wiring), **start_header(info, wiring)}
                engine = str(proved["engine"])
                kinds = {"inference": where, "runtime": runtime, "engine": engine}
                chosen = {"dry_run": dry_run, "accept_start": accept_start, "site": site_json, "placed": True}
                steered = {} if manifest.steer is None else {"steer": steer}
                run.open({**header, **kinds, **chosen, **steered})
                try:
                    for serial, state_id in enumerate(ids, start=1):
                        report = run.episode(serial, state_id)
                        if progress is not None:
                            progress(report)
                except RobotFault as error:
                    writer.write([{"kind": "fault", "text": str(error)}])
                    raise
                except (KeyboardInterrupt, Stopped) as error:
                    run.stop(error)
                    raise
                finally:
                    run.close()
                return _report(
                    run,
                    manifest,
                    seed,
                    robot,
                    scheduling,
                    where,
                    steps,
                    float(proved["golden_error"]),
                    runtime,
                    engine,
                    info.started_by,
                )


def servo_program(runtime: Runtime) -> Path | None:
    """The C++ servo, built if need be; None for the Python one.

    Raises:
        ConfigError: it is neither, or cannot be built.
    """
    if runtime not in get_args(Runtime):
        raise unknown("runtime", runtime, get_args(Runtime))
    if runtime == "python":
        return None
    # a robot without a compiler does not need the module
    from robotrl.deploy.native.build import native_runtime

    return native_runtime().servo


def _settings(cfg: ServoCfg, manifest: Manifest, wiring: Wiring, info: RobotInfo, runtime: Runtime) -> bytes:
    """The settings as the servo of a runtime reads them."""
    if runtime == "python":
        return python_settings(cfg)
    from robotrl.deploy.native.settings import servo_block

    return servo_block(cfg, manifest, wiring, info)


def _check_steer(manifest: Manifest, steer: bool, remote: RemotePolicyCfg | None) -> None:
    """Check that steering can be switched off.

    Raises:
        ConfigError: it cannot: the bundle has no steering graph, or a server infers, which uses it.
    """
    check_steer(manifest, steer)
    if not steer and remote is not None:
        raise ConfigError(f"steer is False: the policy server {remote.url} steers, expected an inference here")


def _inference(
    robot: Link,
    bundle: str | os.PathLike[str],
    seed: int,
    remote: RemotePolicyCfg | None,
    runtime: Runtime,
    steer: bool,
) -> InferenceProcess:
    """Start the process that infers, here or by a server."""
    path = os.path.abspath(bundle)
    if remote is None:
        return InferenceProcess(robot, path, seed, runtime=runtime, steer=steer)
    ca = None if remote.tls_ca is None else os.path.abspath(remote.tls_ca)
    return InferenceProcess(robot, path, seed, remote.url, remote.token, ca)


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
        return [int(i) for i in given]
    most = len(info.test_ids)
    if not 1 <= episodes <= most:
        raise ConfigError(f"episodes is {episodes!r}: expected 1 to {most}, the robot's held-out starts")
    return list(info.test_ids[:episodes])


def _limit_s(info: RobotInfo, given: float | None) -> float:
    limit = given if given is not None else info.limit_s if info.limit_s is not None else DEFAULT_LIMIT_S
    _check_limit(limit, info.control_dt_s)
    return limit


def _check_limit(limit_s: float, least_s: float) -> None:
    """Check the time limit of an episode.

    Raises:
        ConfigError: it is shorter than a control period, or longer than an hour.
    """
    if not least_s <= limit_s <= 3600.0:
        raise ConfigError(f"limit_s is {limit_s!r}: expected {least_s} to 3600 seconds")


def _header(manifest: Manifest, seed: int, robot: str, scheduling: str, wiring: Wiring) -> dict[str, object]:
    return {
        "bundle_id": manifest.bundle_id,
        "robot": robot,
        "seed": seed,
        "control_period_s": manifest.timing.control_period_s,
        "observations": {port.name: list(port.names) for port in manifest.observations},
        "observation_units": {port.name: list(port.units) for port in manifest.observations},
        "action": list(manifest.action.names),
        "action_units": list(manifest.action.units),
        "action_kind": manifest.action.kind,
        "low": wiring.limits.low.tolist(),
        "high": wiring.limits.high.tolist(),
        "scheduling": scheduling,
    }


def start_header(info: RobotInfo, wiring: Wiring) -> dict[str, object]:
    """Entries of a log's header that say what brought the robot to its starts."""
    if wiring.start is None:
        return {"started_by": info.started_by}
    motion = {name: array.tolist() for name, array in wiring.start._asdict().items()}
    return {"started_by": info.started_by, "start_motion": motion}


def _report(
    run: Supervisor,
    manifest: Manifest,
    seed: int,
    robot: str,
    scheduling: str,
    inference: str,
    steps: int,
    golden_error: float,
    runtime: str,
    engine: str,
    started_by: StartedBy,
) -> ControlReport:
    """Create the report of a run."""
    summary, rate_hz = run.summary, 1.0 / manifest.timing.control_period_s
    return ControlReport(
        bundle_id=manifest.bundle_id,
        robot=robot,
        seed=seed,
        rate_hz=rate_hz,
        servo_hz=steps * rate_hz,
        episodes=tuple(run.episodes),
        successes=sum(episode.success for episode in run.episodes),
        ticks=len(run.times.lateness),
        lateness_us=percentiles(run.times.lateness),
        servo_lateness_us=percentiles([round(1e3 * late) for late in run.servo_lateness_us]),
        inference_us=percentiles(run.times.inference),
        busy_us=percentiles(run.times.busy),
        observation_age_us=percentiles(run.times.age),
        deadline_misses=int(summary["policy"]["misses"]),
        over_budget=run.over_budget,
        chunks_expired=int(summary["expired"]),
        lateness_histogram_us=histogram(run.times.lateness),
        safety=_counters(summary["policy"]),
        start_deadline_misses=int(summary["start"]["misses"]),
        start_safety=_counters(summary["start"]),
        robot_steps_made_up=int(summary["made_up"]),
        robot_time_lost_s=float(summary["lost_ns"]) * 1e-9,
        torn_reads=int(summary["torn"]),
        golden_error=golden_error,
        scheduling=scheduling,
        inference=inference,
        runtime=runtime,
        engine=engine,
        started_by=started_by,
        shadow=None if run.shadow is None else run.shadow.report,
        log=None if run.writer.path is None else str(run.writer.path),
        log_error=run.log_error,
    )


def _counters(counts: Mapping[str, Any]) -> Counters:
    """Counters of the safety chain from an entry of the servo's summary."""
    return Counters(counts["ticks"], counts["held"], counts["damped"], counts["reasons"])
