"""`robotrl view`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import SimName, options_at, parse_with_sim
from robotrl.cli.outputs import writable
from robotrl.errors import ConfigError, out_of_range
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
    """Directory of a run, checkpoint or bundle; with --live also the name of a sim."""
    live: bool = False
    """Show a MuJoCo sim live in the browser, episode after episode, until Ctrl-C; needs robotrl[viewer]."""
    actions: Literal["random", "zero"] = "random"
    """With --live and a sim's name: random actions, or none."""
    envs: int = 4
    """With --live: number of parallel envs, one of which is shown."""
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
    candidates: int = 0
    """Of a driving sim and a policy that samples (flow, diffusion): further plans drawn at each decision and shown thin
    beside the one that is driven; 0 to 256."""
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
    if args.live:
        return _live(args, options)
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
            viewing.ViewRequest(
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
                candidates=args.candidates,
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
    path, sim = _subject(args)
    return options_at(path, sim)


def _subject(args: Args) -> tuple[Path | None, str | None]:
    """Path and sim of the arguments; with --live the positional one may be a sim's name."""
    if args.live and args.path is not None and args.sim is None and not args.path.exists():
        return None, str(args.path)
    return args.path, args.sim


def _live(args: Args, options: dict[str, Any]) -> int:
    """Show a sim live until Ctrl-C."""
    at_least("--envs", args.envs, 1)
    check_seed(args.seed)
    _check_port(args.port)
    for option, value in (("--out", args.out), ("--video", args.video)):
        if value is not None:
            raise ConfigError(f"{option} is {value}: expected none beside --live, which writes nothing")
    from robotrl.registry import SIMS, check_num_envs

    check_num_envs("--envs", args.envs)
    path, sim = _subject(args)
    if sim is not None:
        SIMS.check(sim)
    if path is not None and args.expert:
        raise ConfigError("PATH and --expert are both given: expected one of them")
    from robotrl.api.live_view import go_live
    from robotrl.api.viewing import ViewRequest

    request = ViewRequest(path, sim=sim, options=options, split=args.split, seed=args.seed, num_envs=args.envs)
    view = go_live(request, None if args.expert or path is not None else args.actions, args.port)
    try:
        _announce(view.address, not args.no_open)
        with contextlib.suppress(KeyboardInterrupt):
            view.run()
    finally:
        view.close()
    return 0


def _check_port(port: int | None) -> None:
    if port is not None and not 0 <= port < 1 << 16:
        raise out_of_range("--port", port, "0 to 65535")


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
    _check_port(args.port)
    if args.out is not None:
        writable("--out", args.out, (".html", ".htm"), inputs=[args.path] if args.path else [])
    if args.video is not None:
        writable("--video", args.video, inputs=[args.path] if args.path else [])


def _serve(server: PageServer, may_open: bool) -> None:
    """Serve until Ctrl-C."""
    _announce(server.address, may_open)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def _announce(address: str, may_open: bool) -> None:
    """Print where to look, and open the browser if there is a display."""
    print(f"look at {address} (Ctrl-C ends)", flush=True)
    if may_open and (sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        import webbrowser

        webbrowser.open(address)
