"""`robotrl serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from robotrl.cli.commands.parsing import check_seed, parse
from robotrl.errors import ConfigError

Protocol = Literal["policy", "driver"]
PORTS = {"policy": 8000, "driver": 50051}
OF_POLICIES = ("max_message_mib", "max_connections", "max_waiting", "max_deadline_s", "map")
"""Settings of `--as policy` alone."""


@dataclass(frozen=True)
class DriverArgs:
    """Settings of `--as driver`."""

    runtime: Literal["alpasim", "carla"] = "alpasim"
    """The simulator that connects: "carla" also reports road users, lights and speed limits."""
    allow_network: bool = False
    """Bind an address that other machines reach: AlpaSim's contract has no token."""
    limit_mps: float = 10.0
    """Speed limit where the simulator tells none, m/s."""
    throttle_mps2: float = 2.4
    """Acceleration for an acceleration action of 1, as trained."""
    pixels_per_m: float = 2.0
    """Resolution of the raster, as trained."""
    horizon_s: float = 4.0
    """Length of a plan, seconds."""
    cameras: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=NAME")] = ()
    """Camera of the simulator for each picture that the bundle observes."""
    log: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write ids and times of each call as JSON lines."""


@dataclass(frozen=True)
class Args:
    """Serve a bundle over websockets, for `robotrl deploy --remote` and for openpi's client, or as AlpaSim's driver.

    Stops in order on Ctrl-C and SIGTERM. Of websockets, GET /healthz on the same port answers while an inference runs.
    """

    bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
    """Bundle directory, written by `robotrl export`."""
    protocol: Annotated[Protocol, tyro.conf.arg(name="as")] = "policy"
    """"policy": chunks of actions over websockets; "driver": AlpaSim's driver contract over gRPC."""
    host: str = "127.0.0.1"
    """Address to bind; any other than this machine's own needs a token."""
    port: int | None = None
    """TCP port; 0 lets the system choose. None: 8000, or 50051 of a driver."""
    token_env: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Environment variable that holds the token which clients must present."""
    token_file: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File that holds the token."""
    tls_cert: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Certificate (PEM, with its chain); clients then connect to wss://."""
    tls_key: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Its private key (PEM, without a password)."""
    max_message_mib: float = 16.0
    """Largest message that is accepted, in MiB."""
    max_connections: int = 16
    """Clients at once."""
    max_waiting: int = 8
    """Requests that may wait behind the one that is computed; further ones are answered with `busy`."""
    max_deadline_s: float = 10.0
    """Longest time until a request is answered, with a chunk or an error, in seconds."""
    map: Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY=PORT")] = ()
    """Where keys of openpi observations belong that no port has the name of; KEY= drops a key."""
    seed: int = 0
    """Seed of the sampling noise, for clients that send none."""
    driver: DriverArgs = field(default_factory=DriverArgs)
    """Settings of `--as driver`."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl serve", argv)
    check_seed(args.seed)
    from robotrl.api.inspection import kind_of

    if (kind := kind_of(args.bundle)) != "bundle":
        raise ConfigError(f"{args.bundle} is a {kind}: expected a bundle; robotrl export makes one from a run")
    _check_protocol(args)
    port = PORTS[args.protocol] if args.port is None else args.port
    if args.protocol == "driver":
        return _as_driver(args, port)
    from robotrl.deploy.bundle.manifest import Manifest
    from robotrl.deploy.remote.access import bind_addresses, is_loopback, read_token, server_tls
    from robotrl.deploy.remote.server import HEALTH, ServeCfg
    from robotrl.deploy.remote.serving import serve_bundle

    token = read_token(args.token_env, args.token_file)
    addresses = bind_addresses(args.host, token)
    tls = server_tls(args.tls_cert, args.tls_key)
    if tls is None and not all(is_loopback(address) for address in addresses):
        print("warning: without --tls-cert, token and observations can be read on the network", file=sys.stderr)
    cfg = ServeCfg(
        addresses=tuple(addresses),
        port=port,
        token=token,
        tls=tls,
        max_message_mib=args.max_message_mib,
        max_connections=args.max_connections,
        max_waiting=args.max_waiting,
        max_deadline_s=args.max_deadline_s,
    )

    def started(manifest: Manifest, ports: Sequence[int]) -> None:
        scheme, secure = ("ws", "") if tls is None else ("wss", "s")
        print(
            f"bundle {manifest.bundle_id[:12]}, {'token' if token else 'no token'}, health at {HEALTH} (http{secure})"
        )
        for address, port in zip(addresses, ports, strict=True):
            place = f"[{address}]" if ":" in address else address
            print(f"serving at {scheme}://{place}:{port}", flush=True)

    report = serve_bundle(args.bundle, cfg, seed=args.seed, keys=args.map, started=started)
    refused = ", ".join(f"{code} {count}" for code, count in report.refused.items()) or "none"
    print(f"stopped; answered {report.answered}; refused: {refused}")
    return 0


def _check_protocol(args: Args) -> None:
    """Check that no setting of the other protocol is given.

    Raises:
        ConfigError: one is.
    """
    if args.protocol == "driver":
        defaults, given, owner, prefix = Args(args.bundle), args, "policy", ""
        names: Sequence[str] = OF_POLICIES
    else:
        defaults, given, owner, prefix = DriverArgs(), args.driver, "driver", "driver."
        names = [one.name for one in fields(DriverArgs)]
    for name in names:
        value = vars(given)[name]
        if value != vars(defaults)[name]:
            flag = f"--{prefix}{name}".replace("_", "-")
            raise ConfigError(f"{flag} is {value!r} with --as {args.protocol}: expected it with --as {owner} alone")


def _as_driver(args: Args, port: int) -> int:
    """Serve AlpaSim's driver contract."""
    if args.token_env or args.token_file or args.tls_cert or args.tls_key:
        raise ConfigError("AlpaSim's driver contract has neither tokens nor TLS: expected --as driver without them")
    from robotrl.deploy.bundle.manifest import Manifest
    from robotrl.deploy.driver.sensing import DriverCfg
    from robotrl.deploy.driver.serving import serve_driver

    own = args.driver
    cameras = tuple(_pair(text) for text in own.cameras)
    cfg = DriverCfg(own.limit_mps, own.throttle_mps2, own.pixels_per_m, own.horizon_s, cameras)

    def started(manifest: Manifest, address: str) -> None:
        print(f"bundle {manifest.bundle_id[:12]}, driver for {own.runtime}, no token")
        print(f"serving egodriver at {address}", flush=True)

    counts = serve_driver(
        args.bundle,
        cfg,
        runtime=own.runtime,
        host=args.host,
        port=port,
        allow_network=own.allow_network,
        seed=args.seed,
        log=own.log,
        started=started,
    )
    print(f"stopped; planned {counts.planned}, braked {counts.braked}")
    return 0


def _pair(text: str) -> tuple[str, str]:
    """Observation and camera of a "KEY=NAME"."""
    key, sign, camera = text.partition("=")
    if not (key and sign and camera):
        raise ConfigError(f"--driver.cameras is {text!r}: expected KEY=NAME, e.g. front=camera_front")
    return key, camera
