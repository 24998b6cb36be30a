"""`robotrl driving-log`: logs that `bev/warp` replays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.outputs import fresh_folder
from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import parse_with_sim
from robotrl.errors import unknown
from robotrl.registry import SIMS, sim_options

USAGE = """usage: robotrl driving-log ACTION [options]

  record   record drives of a driving sim's rule-based driver

robotrl driving-log ACTION --help shows the options."""
ACTIONS = ("record",)


@dataclass(frozen=True)
class RecordArgs:
    """Record drives of a driving sim's rule-based driver as a log that bev/warp replays; failed drives are left out."""

    out: Path
    """Folder of the log; must not exist."""
    sim: Annotated[str, tyro.conf.arg(metavar="SIM")] = "bev/drive"
    """A driving sim. `--sim.FIELD VALUE` sets one of its options."""
    train: int = 64
    """Number of training starts to drive."""
    val: int = 16
    """Number of validation starts."""
    test: int = 16
    """Number of test starts."""
    frames: bool = True
    """Record bird's-eye frames, two bytes a pixel."""
    pixels: int = 96
    """Height and width of the view that the frames are for, even."""
    pixels_per_m: float = 2.0
    """Resolution of the frames."""
    margin_m: float = 16.0
    """Margin of the frames around that view, for deviations from the logged drives."""
    num_envs: int = 16
    """Drives at the same time."""
    seed: int = 0
    """Seed of sim and driver."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if argv[0] not in ACTIONS:
        raise unknown("action", argv[0], ACTIONS)
    return _record(argv[1:])


def _record(argv: Sequence[str]) -> int:
    args, options = parse_with_sim(RecordArgs, "robotrl driving-log record", argv, lambda args: sim_options(args.sim))
    at_least("--num-envs", args.num_envs, 1)
    check_seed(args.seed)
    SIMS.check(args.sim)
    from robotrl.api.driving_logs import record_driving_log

    def say(count: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{count} of {args.train + args.val + args.test} drives", end="", file=sys.stderr, flush=True)

    with fresh_folder("--out", args.out):
        report = record_driving_log(
            args.out,
            args.sim,
            train=args.train,
            val=args.val,
            test=args.test,
            frames=args.frames,
            pixels=args.pixels,
            pixels_per_m=args.pixels_per_m,
            margin_m=args.margin_m,
            num_envs=args.num_envs,
            seed=args.seed,
            sim_options=options,
            progress=say,
        )
    clips = ", ".join(f"{count} {split}" for split, count in report.clips.items())
    print(f"{report.path}: {report.steps} steps in {clips} clips; {report.tried} starts were driven")
    return 0
