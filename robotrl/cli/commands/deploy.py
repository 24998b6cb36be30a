"""`robotrl deploy`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed, parse
from robotrl.errors import ConfigError

if TYPE_CHECKING:
    from robotrl.deploy.control.safety import Counters
    from robotrl.deploy.control.shadow import ShadowReport
    from robotrl.deploy.remote.controller import RemotePolicyCfg


@dataclass(frozen=True)
class Args:
    """Run a bundle on a robot at its fixed control rate; report latency and success rate."""

    bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
    """Bundle directory, written by `robotrl export`."""
    robot: str
    """DRIVER:ARGUMENT, e.g. sim:mujoco/peg-insert; drivers are in `robotrl list robots`."""
    episodes: int = 16
    """Number of episodes, from the first held-out starts."""
    seed: int = 0
    """Seed of the policy's sampling noise."""
    log: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write every control tick to this file (JSON lines); its folder is made, and only a log is ever replaced."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the report to this file; its folder is made, and only a report is ever replaced."""
    servo_hz: float = 200.0
    """Rate at which the servo commands the robot, a multiple of the control rate (rounded)."""
    runtime: Literal["python", "native"] = "python"
    """Language of servo and engine; "native" is C++, which robotrl build native compiles (else the first run does)."""
    realtime: bool = False
    """Use the system's real-time scheduler and locked memory for the servo (needs the permission)."""
    limits: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The site's robot.json (robotrl new limits makes one); the tighter limit of bundle, robot and site holds."""
    signed_by: Annotated[Path | None, tyro.conf.arg(metavar="KEY.pem")] = None
    """Run the bundle only if it is signed by this public Ed25519 key (extra sign)."""
    dry_run: bool = False
    """Hold the robot all the while: the commands are decided and logged, and not sent."""
    accept_start: bool = False
    """Begin outside the poses that training saw, too; without it such a hand-over is refused."""
    no_steer: bool = False
    """Run the base policy of a bundle with a steering graph (robotrl export --steer-graph), without that."""
    shadow: Annotated[Path | None, tyro.conf.arg(metavar="BUNDLE")] = None
    """Another bundle that sees the same observations; its actions are compared with the policy's, and not sent."""
    remote: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Policy server that infers (ws://HOST:PORT or wss://HOST:PORT, see robotrl serve); all else stays here."""
    token_env: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Environment variable that holds the server's token."""
    token_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File that holds the server's token."""
    tls_ca: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Certificate to trust for wss:// instead of the system's authorities."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl deploy", argv)
    at_least("--episodes", args.episodes, 1)
    check_seed(args.seed)
    from robotrl.deploy.control.signals import Stopped, ended_by_signals

    with ended_by_signals():
        try:
            return _deploy(args)
        except Stopped as stopped:
            print(f"{stopped.name}: the robot was stopped, control has ended", file=sys.stderr)
            raise


def _deploy(args: Args) -> int:
    from robotrl.api.inspection import kind_of
    from robotrl.registry import ROBOTS

    if (kind := kind_of(args.bundle)) != "bundle":
        raise ConfigError(f"{args.bundle} is a {kind}: expected a bundle; robotrl export makes one from a run")
    ROBOTS.check(args.robot.partition(":")[0])
    from robotrl.deploy.control.outputs import check_output
    from robotrl.deploy.control.report import REPORT_BEGINS
    from robotrl.deploy.control.run import check_log, run_control
    from robotrl.utils.files import dump_json, replace_file
    from robotrl.utils.progress import track

    if args.log is not None:
        check_log(args.log, args.bundle)
    if args.json is not None:
        check_output(args.json, "control report", REPORT_BEGINS, outside=args.bundle)
        if args.log is not None and args.log.absolute() == args.json.absolute():
            raise ConfigError(f"--json is {str(args.json)!r}, as --log: expected two files")
    remote = _remote(args)
    with track(args.episodes, "control", "episodes") as bar:
        report = run_control(
            args.bundle,
            args.robot,
            episodes=args.episodes,
            seed=args.seed,
            log=args.log,
            servo_hz=args.servo_hz,
            fifo=args.realtime,
            remote=remote,
            limits=args.limits,
            signed_by=args.signed_by,
            dry_run=args.dry_run,
            accept_start=args.accept_start,
            shadow=args.shadow,
            runtime=args.runtime,
            steer=not args.no_steer,
            progress=lambda episode: bar.advance(note="success" if episode.success else "failure"),
        )
    late = report.servo_lateness_us
    rates = f"at {report.rate_hz:g} Hz, servo at {report.servo_hz:g} Hz"
    print(f"success {report.successes} of {len(report.episodes)} {rates}, {report.ticks} control ticks")
    print(f"servo lateness p50 {late.p50:.0f}, p99 {late.p99:.0f}, p99.9 {late.p999:.0f}, max {late.max:.0f} us")
    print(f"deadlines missed {report.deadline_misses}, inference p50 {report.inference_us.p50:.0f} us")
    print(f"safety: {_counted(report.safety)}")
    if report.started_by == "servo" and not args.dry_run:
        print(f"start motions: {_counted(report.start_safety)}; deadlines missed {report.start_deadline_misses}")
    print(f"scheduling: {report.scheduling}; runtime {report.runtime}, inference by {report.engine}")
    if report.started_by == "driver" and not args.dry_run:
        print("starts: by the driver's own motion, which the safety chain does not see")
    if args.dry_run:
        print("dry run: the robot was held, no command was sent")
    if report.shadow is not None:
        _print_shadow(report.shadow)
    if report.log is not None:
        print(f"log {report.log}" + (f" ({report.log_error})" if report.log_error else ""))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        replace_file(args.json, dump_json({"schema_version": 1, **report.to_json()}))
        print(f"wrote {args.json}")
    return 0


def _counted(safety: Counters) -> str:
    """Ticks that the safety chain held and damped, with its reasons."""
    found = [f"{name.replace('_', ' ')} {count}" for name, count in safety.reasons.items() if count]
    reasons = f"; {', '.join(found)}" if found else ""
    return f"{safety.held} of {safety.ticks} ticks held, {safety.damped} damped{reasons}"


def _print_shadow(shadow: ShadowReport) -> None:
    """Differences of each action element."""
    width = max(len(name) for name in shadow.differences)
    print(f"shadow {shadow.bundle_id[:12]}: {shadow.ticks} ticks compared, {shadow.refused} without its action,")
    if shadow.skipped:
        print(f"  {shadow.skipped} skipped, since it is slower than the control;")
    print(f"  {shadow.outside} beyond the limits; shadow minus policy:")
    print(f"  {'':{width}}       mean    |p50|    |p95|    |max|")
    for name, found in shadow.differences.items():
        print(f"  {name:{width}}  {found.mean:9.4f} {found.p50:8.4f} {found.p95:8.4f} {found.max:8.4f}")


def _remote(args: Args) -> RemotePolicyCfg | None:
    """The policy server of the arguments."""
    if args.remote is None:
        for option, value in (("token-env", args.token_env), ("token-file", args.token_file), ("tls-ca", args.tls_ca)):
            if value is not None:
                raise ConfigError(f"--{option} needs --remote: expected the address of a policy server")
        return None
    from robotrl.deploy.remote.access import check_url, read_token
    from robotrl.deploy.remote.controller import RemotePolicyCfg

    return RemotePolicyCfg(check_url(args.remote, "--remote"), read_token(args.token_env, args.token_file), args.tls_ca)
