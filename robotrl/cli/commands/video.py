"""`robotrl video`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import SimName, options_at, parse_with_sim
from robotrl.cli.outputs import writable
from robotrl.errors import ConfigError
from robotrl.spec import Split


@dataclass(frozen=True)
class Args:
    """Write episodes of a policy as a video: of a driving sim from above, of any other sim through its camera."""

    path: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = None
    """Directory of a run, checkpoint or bundle."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.gif|FILE.mp4")] = None
    """The video, .gif or .mp4; mp4 needs robotrl[video]."""
    expert: bool = False
    """Let the sim's scripted expert act instead."""
    sim: SimName = None
    """Name from `robotrl list sims`; default: the sim that the run was trained on. `--sim.FIELD VALUE` sets an option
    of the sim, which overrides that of the run; `--sim NAME --help` lists them."""
    episodes: int = 4
    """Number of starts, the first of the split."""
    split: Split = "test"
    """Held-out starts ("test"), those for model selection ("val"), or those of training ("train")."""
    layout: Literal["grid", "sequence"] | None = None
    """All episodes side by side ("grid"), or one after another ("sequence"); default: drives one after another, others
    side by side."""
    camera: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Camera of a sim that has cameras; default: its first."""
    seed: int = 0
    """Seed of the policy's noise."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(Args, "robotrl video", argv, lambda args: options_at(args.path, args.sim))
    at_least("--episodes", args.episodes, 1)
    check_seed(args.seed)
    if (args.path is None) is not args.expert:
        both = "PATH and --expert are both given: expected one of them"
        raise ConfigError(both if args.expert else "missing: PATH of a run, checkpoint or bundle, or --expert")
    if args.out is None:
        raise ConfigError("missing: --out, a name that ends in .gif or .mp4")
    from robotrl.api import viewing
    from robotrl.api.filming import FOR_VIDEO
    from robotrl.registry import SIMS

    viewing.check_video(args.out, "--out")
    writable("--out", args.out, inputs=[args.path] if args.path else [])
    if args.sim is not None:
        SIMS.check(args.sim)
    request = viewing.ViewRequest(
        args.path,
        sim=args.sim,
        options=options,
        episodes=args.episodes,
        split=args.split,
        seed=args.seed,
        camera=args.camera,
        rate=FOR_VIDEO,
    )
    seen = viewing.look(request)
    for line in seen.lines():
        print(line)
    frames = seen.write_video(args.out, args.layout)
    print(f"wrote {args.out}, {frames} frames")
    return 0
