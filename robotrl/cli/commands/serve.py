"""`robotrl serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import check_seed, parse
from robotrl.errors import ConfigError


@dataclass(frozen=True)
class Args:
    """Serve a bundle over websockets, for `robotrl deploy --remote` and for openpi's client.

    Stops in order on Ctrl-C and SIGTERM. GET /healthz on the same port answers while an inference runs.
    """

    bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
    """Bundle directory, written by `robotrl export`."""
    host: str = "127.0.0.1"
    """Address to bind; any other than this machine's own needs a token."""
    port: int = 8000
    """TCP port; 0 lets the system choose."""
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


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl serve", argv)
    check_seed(args.seed)
    from robotrl.api.inspection import kind_of

    if (kind := kind_of(args.bundle)) != "bundle":
        raise ConfigError(f"{args.bundle} is a {kind}: expected a bundle; robotrl export makes one from a run")
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
        port=args.port,
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
