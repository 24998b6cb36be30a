"""`serve_bundle`: load a bundle, serve it, and stop in order on a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from robotrl.deploy.bounded import bounded_memory
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.remote.engine import InferenceEngine
from robotrl.deploy.remote.openpi import OpenpiKeys
from robotrl.deploy.remote.server import PolicyServer, ServeCfg, ServeReport
from robotrl.deploy.runtime import Controller
from robotrl.deploy.state import refuse_state

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_bundle(
    bundle: str | os.PathLike[str],
    cfg: ServeCfg,
    *,
    seed: int = 0,
    keys: Sequence[str] = (),
    started: Callable[[Manifest, Sequence[int]], None],
) -> ServeReport:
    """Serve a bundle until SIGINT, SIGTERM or SIGHUP. A second signal ends the process at once.

    Args:
        bundle: the bundle's directory; it is verified, and proved on this machine, before a port is opened.
        cfg: settings of the server.
        seed: seed of the noise that the server draws, for clients that send none.
        keys: "KEY=PORT" for keys of openpi observations, see `OpenpiKeys.parse`.
        started: called once with the bundle's manifest and the open ports.

    Raises:
        DataError: the bundle is refused, or has recurrent state.
        ConfigError: a key is invalid.
        OSError: an address cannot be bound.
    """
    controller = Controller.load(bundle, seed=seed)
    refuse_state(controller.manifest, "a policy server")
    if controller.manifest.reflex is not None:
        warnings.warn(
            "this bundle has a reflex: it acts on robots of `robotrl deploy --remote`, whose servo evaluates it; for"
            " other clients, such as openpi's, it does not",
            stacklevel=2,
        )
    cfg = replace(cfg, keys=OpenpiKeys.parse(keys, controller.manifest))
    # also bound the memory that the graph allocates while it runs
    with bounded_memory():
        engine = InferenceEngine(controller, cfg.max_waiting)
        try:
            return asyncio.run(_served(engine, cfg, lambda ports: started(controller.manifest, ports)))
        finally:
            engine.close()


async def _served(engine: InferenceEngine, cfg: ServeCfg, started: Callable[[Sequence[int]], None]) -> ServeReport:
    loop = asyncio.get_running_loop()
    server = PolicyServer(engine, cfg)
    # signals that are ignored, e.g. in a background job, stay ignored
    taken = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]

    def stop() -> None:
        for number in taken:
            loop.remove_signal_handler(number)
        server.stop()

    for number in taken:
        loop.add_signal_handler(number, stop)
    return await server.run(started)
