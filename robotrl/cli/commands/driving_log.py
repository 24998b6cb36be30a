"""`robotrl driving-log`: logs that `bev/warp` replays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed, parse, run_action
from robotrl.cli.commands.sim_flags import parse_with_sim
from robotrl.cli.outputs import fresh_folder
from robotrl.errors import CapabilityError
from robotrl.registry import SIMS, make_sim, sim_options
from robotrl.spec import Split

if TYPE_CHECKING:
    from robotrl.sims.driving.logs.layout import LogIndex
    from robotrl.sims.driving.logs.tracks import LeftOut

USAGE = """usage: robotrl driving-log ACTION [options]

  record   record drives of a driving sim's rule-based driver
  nuplan   make a log of databases in the layout of nuPlan
  waymo    make a log of scenarios in the layout of the Waymo Open Motion Dataset

robotrl driving-log ACTION --help shows the options."""
ACTIONS = ("record", "nuplan", "waymo")


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


@dataclass(frozen=True)
class NuplanArgs:
    """Make a log of databases in the layout of nuPlan that you have: poses and boxes, without lanes and frames."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """SQLite files (.db)."""
    out: Path
    """Folder of the log; must not exist."""
    slots: int = 31
    """Road users that are kept of a clip, those that come nearest."""
    clip_s: float = 20.0
    """Length of the longest clip, s."""
    split: Split | None = None
    """Split of all clips; by default of ten scenes eight are for training, one for validation and one for the test."""


@dataclass(frozen=True)
class WaymoArgs:
    """Make a log of scenarios in the layout of the Waymo Open Motion Dataset that you have: vectors with lanes."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """TFRecord files of `Scenario` messages."""
    out: Path
    """Folder of the log; must not exist."""
    slots: int = 31
    """Road users that are kept of a scenario, those that come nearest."""
    split: Split | None = None
    """Split of all clips; by default of ten scenarios eight are for training, one for validation, one for the test."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    actions = {"record": _record, "nuplan": _nuplan, "waymo": _waymo}
    return run_action(argv, USAGE, actions)


def _record(argv: Sequence[str]) -> int:
    args, options = parse_with_sim(RecordArgs, "robotrl driving-log record", argv, lambda args: sim_options(args.sim))
    at_least("--num-envs", args.num_envs, 1)
    check_seed(args.seed)
    SIMS.check(args.sim)
    from robotrl.sims.driving.logs.record import RecordedFrames, record_drives
    from robotrl.sims.driving.sim import DrivingSim

    starts: dict[Split, int] = {"train": args.train, "val": args.val, "test": args.test}

    def say(count: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{count} of {sum(starts.values())} drives", end="", file=sys.stderr, flush=True)

    frames = RecordedFrames(args.pixels, args.pixels_per_m, args.margin_m) if args.frames else None
    with fresh_folder("--out", args.out):
        unseen = {"obs": "none"} if "obs" in vars(sim_options(args.sim)) else {}
        sim: Any = make_sim(args.sim, args.num_envs, args.seed, **{**unseen, **options})
        if not isinstance(sim, DrivingSim):
            sim.close()
            raise CapabilityError(f"--sim is {args.sim!r}, which is no driving sim: expected one such as 'bev/drive'")
        report = record_drives(sim, args.out, starts, frames, args.seed, say)
        sim.close()
    clips = ", ".join(f"{count} {split}" for split, count in report.clips.items())
    print(f"{report.path}: {report.steps} steps in {clips} clips; {report.tried} starts were driven")
    return 0


def _nuplan(argv: Sequence[str]) -> int:
    args = parse(NuplanArgs, "robotrl driving-log nuplan", argv)
    at_least("--slots", args.slots, 1)
    from robotrl.sims.driving.logs.nuplan import read_nuplan
    from robotrl.sims.driving.logs.tracks import LeftOut

    with fresh_folder("--out", args.out):
        left_out = LeftOut()
        index = read_nuplan(args.files, args.out, args.slots, args.clip_s, args.split, left_out=left_out)
    return _written(args.out, index, left_out, args.slots)


def _waymo(argv: Sequence[str]) -> int:
    args = parse(WaymoArgs, "robotrl driving-log waymo", argv)
    at_least("--slots", args.slots, 1)
    from robotrl.sims.driving.logs.tracks import LeftOut
    from robotrl.sims.driving.logs.waymo import read_waymo

    with fresh_folder("--out", args.out):
        left_out = LeftOut()
        index = read_waymo(args.files, args.out, args.slots, args.split, left_out=left_out)
    return _written(args.out, index, left_out, args.slots)


def _written(out: Path, index: LogIndex, left_out: LeftOut, slots: int) -> int:
    """Say what was written, and what was left out."""
    count = {split: sum(clip.split == split for clip in index.clips) for split in ("train", "val", "test")}
    clips = ", ".join(f"{number} {split}" for split, number in count.items())
    print(f"{out}: {sum(clip.steps for clip in index.clips)} steps in {clips} clips")
    if left_out.pieces:
        print(f"left out: {left_out.steps} steps in {left_out.pieces} pieces that are too short for a clip")
    if left_out.road_users:
        print(
            f"left out: {left_out.road_users} road users who came less near than {slots} others of their clip (--slots)"
        )
    return 0
