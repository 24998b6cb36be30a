"""`serve_driver`: a bundle behind the driver's contract until a signal."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from carla_driver_interface.server import UNIX_SCHEMES, bind_address, build_server

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.control.outputs import check_output
from robotrl.deploy.driver.bundle_driver import LOG_HEADER, BundleDriver, DriverCounts
from robotrl.deploy.driver.sensing import DriverCfg
from robotrl.deploy.remote.access import is_loopback
from robotrl.errors import ConfigError, unknown

Runtime = Literal["alpasim", "carla"]
"""The simulator on the other end: AlpaSim, or a CARLA runtime, which also reports road users, lights and limits."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
_LOG = logging.getLogger("robotrl.driver")
LOG_BEGINS = re.compile(rb'\{"kind": "' + LOG_HEADER.encode() + rb'"')
"""Pattern of the first bytes of a driver's log."""
GRACE_S = 2.0
"""Time in which calls that are open are answered once the server stops."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_address(host: str, allow_network: bool) -> None:
    """Check that only this machine can connect, unless others are allowed to: the contract knows no token.

    Raises:
        ConfigError: another machine could connect.
    """
    here = host.startswith(UNIX_SCHEMES) or host == "localhost" or is_loopback(host)
    if not here and not allow_network:
        raise ConfigError(
            f"--host is {host!r}: this contract has no token, so everybody on the network could drive; expected"
            " 127.0.0.1, unix:///PATH, or --allow-network for a network of your own"
        )


def serve_driver(
    bundle: str | os.PathLike[str],
    cfg: DriverCfg,
    *,
    runtime: Runtime,
    host: str,
    port: int,
    allow_network: bool = False,
    seed: int = 0,
    log: Path | None = None,
    started: Callable[[Manifest, str], None],
) -> DriverCounts:
    """Serve a bundle as a driver until SIGINT, SIGTERM or SIGHUP. A second signal ends the process at once.

    Args:
        bundle: the bundle's directory.
        cfg: facts that neither the bundle nor the contract states.
        runtime: the simulator on the other end.
        host: address to bind, or "unix:///PATH".
        port: TCP port; 0 lets the system choose.
        allow_network: bind an address that other machines reach.
        seed: seed of the noise.
        log: path of the log; None writes none. A file that is no driver log is not replaced.
        started: called once with the bundle's manifest and the address.

    Raises:
        DataError: the bundle is refused, or is of no driving policy, or the log must not or cannot be written.
        ConfigError: an argument is out of range, or the address cannot be bound.
    """
    if runtime not in RUNTIMES:
        raise unknown("runtime", str(runtime), RUNTIMES)
    check_address(host, allow_network)
    if log is not None:
        check_output(log, "driver log", LOG_BEGINS, outside=Path(bundle), stream=True)
    driver = BundleDriver(bundle, cfg, seed, log)
    try:
        try:
            server, bound = build_server(driver, port=port, host=host, mode=runtime)
        except RuntimeError as error:
            raise ConfigError(f"{bind_address(host, port)} cannot be bound: expected a free port (--port)") from error
        stop = threading.Event()
        taken = {number: signal.getsignal(number) for number in _ENDING}
        for number, handler in taken.items():
            # signals that are ignored, e.g. in a background job, stay ignored
            if handler is not signal.SIG_IGN:
                signal.signal(number, lambda _number, _frame: _ended(stop))
        try:
            server.start()
            started(driver.manifest, bind_address(host, bound))
            stop.wait()
            server.stop(GRACE_S).wait()
        finally:
            for number, handler in taken.items():
                signal.signal(number, handler)
        if driver.log.error is not None:
            _LOG.warning(driver.log.error)
        return driver.counts
    finally:
        driver.close()


def _ended(stop: threading.Event) -> None:
    """Stop in order; on the second signal at once."""
    if stop.is_set():
        os._exit(1)
    stop.set()
