"""`robotrl view`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from robotrl.cli.commands.outputs import writable
from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import SimName, parse_with_sim
from robotrl.errors import ConfigError, out_of_range
from robotrl.registry import sim_options
from robotrl.spec import Split
from robotrl.spec.sim_options import SimOptions

if TYPE_CHECKING:
    from robotrl.report.server import PageServer


@dataclass(frozen=True)
class Args:
    """View episodes: of a driving sim from above, step by step; of any other sim through its camera.

    Without --out and --video the page is served on this machine only, until Ctrl-C.
    """

    path: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = None
    """Directory of a run, checkpoint or bundle."""
    expert: bool = False
    """Let the sim's scripted expert act instead."""
    sim: SimName = None
    """Name from `robotrl list sims`; default: the sim that the run was trained on. `--sim.FIELD VALUE` sets an option
    of the sim, which overrides that of the run; `--sim NAME --help` lists them."""
    episodes: int = 3
    """Number of starts, the first of the split."""
    split: Split = "val"
    """Starts for model selection ("val"), held-out ones ("test"), or those of training ("train")."""
    state_id: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = ()
    """Start ids to run instead."""
    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Only starts of this scenario."""
    pick: Literal["first", "failures", "successes", "worst", "best"] = "first"
    """Selection by outcome: up to --episodes of the first --among starts that failed or succeeded, or those with the
    lowest ("worst") or highest return ("best"); "first" takes the first starts."""
    among: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Number of starts tried for --pick; default 64."""
    camera: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Camera of a sim that has cameras; default: its first."""
    seed: int = 0
    """Seed of the policy's noise."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """Write the page to this file; it is self-contained."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE.gif|FILE.mp4")] = None
    """Write the episodes as a video to this file, .gif or .mp4; mp4 needs robotrl[video]."""
    port: Annotated[int | None, tyro.conf.arg(metavar="PORT")] = None
    """Port of the web server, also with --out and --video; 0 takes a free port."""
    no_open: bool = False
    """Do not open the browser at the served page (by default it opens if there is a display)."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(Args, "robotrl view", argv, _options_before)
    _check(args)
    from robotrl.registry import SIMS
    from robotrl.report.server import PageServer
    from robotrl.utils.files import replace_file

    if args.sim is not None:
        SIMS.check(args.sim)
    from robotrl.api import viewing
    from robotrl.api.filming import FOR_PAGE, FOR_VIDEO

    if args.video is not None:
        viewing.check_video(args.video)
    serves = args.port is not None or (args.out is None and args.video is None)
    server = PageServer(args.port or 0) if serves else None
    try:
        seen = viewing.look(
            viewing.Wish(
                args.path,
                sim=args.sim,
                options=options,
                episodes=args.episodes,
                split=args.split,
                ids=args.state_id,
                scenario=args.scenario,
                pick=args.pick,
                among=args.among or viewing.MOST_ENVS,
                seed=args.seed,
                camera=args.camera,
                rate=FOR_PAGE if args.video is None else FOR_VIDEO,
            )
        )
        for line in seen.lines():
            print(line)
        if args.video is not None:
            frames = seen.write_video(args.video)
            print(f"wrote {args.video}, {frames} frames")
        page = seen.page().encode() if args.out is not None or server is not None else b""
        if args.out is not None:
            replace_file(args.out, page)
            print(f"wrote {args.out}")
        if server is not None:
            server.page = page
            _serve(server, not args.no_open)
    finally:
        if server is not None:
            server.server_close()
    return 0


def _options_before(args: Args) -> SimOptions:
    """Options of the sim before the flags: those of the run, if there is one."""
    if args.path is None:
        if args.sim is None:
            raise ConfigError("missing: --sim, a name from robotrl list sims")
        return sim_options(args.sim)
    from robotrl.api.evaluation import sim_of

    return sim_options(*sim_of(args.path, args.sim))


def _check(args: Args) -> None:
    """Check the options for errors that would otherwise appear only after the episodes."""
    at_least("--episodes", args.episodes, 1)
    if args.among is not None:
        at_least("--among", args.among, 1)
        if args.pick == "first" or args.state_id:
            raise ConfigError(f"--among is {args.among}: expected --pick beside it, and no --state-id")
        if args.among < args.episodes:
            raise ConfigError(f"--among is {args.among}: expected {args.episodes} or more, as --episodes says")
    check_seed(args.seed)
    if (args.path is None) is not args.expert:
        both = "PATH and --expert are both given: expected one of them"
        raise ConfigError(both if args.expert else "missing: PATH of a run, checkpoint or bundle, or --expert")
    if args.port is not None and not 0 <= args.port < 1 << 16:
        raise out_of_range("--port", args.port, "0 to 65535")
    if args.out is not None:
        writable("--out", args.out, (".html", ".htm"), inputs=[args.path] if args.path else [])
    if args.video is not None:
        writable("--video", args.video, inputs=[args.path] if args.path else [])


def _serve(server: PageServer, may_open: bool) -> None:
    """Serve until Ctrl-C."""
    print(f"look at {server.address} (Ctrl-C ends)", flush=True)
    if may_open and (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        import webbrowser

        webbrowser.open(server.address)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
