"""`robotrl compare`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from robotrl.cli.commands.parsing import check_seed
from robotrl.cli.commands.sim_flags import SimName, options_at, parse_with_sim
from robotrl.cli.outputs import writable
from robotrl.errors import ConfigError, out_of_range
from robotrl.spec import Split
from robotrl.spec.sim_options import SimOptions

LEAST_POINTS, MOST_POINTS = 1.0, 90.0


@dataclass(frozen=True)
class Args:
    """Compare training runs, finished or not: runs that differ in nothing but the seed are one arm.

    With --detect, judge whether the second of two policies is better than the first: both drive the same starts, and
    the test stops as soon as it knows."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    """Directories of runs. With --detect a baseline and a candidate, each a run (its best checkpoint), checkpoint,
    bundle, or a folder of runs seed-N."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write a page (FILE.html) with learning curves, scores, differences in config and rollouts; it is self-contained.
    With --detect, write the verdict with every outcome, as a page or as FILE.json."""
    ignore: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD ...")] = ()
    """Config fields that do not divide runs into arms, beside the seed: init_from dataset."""
    detect: Annotated[float | None, tyro.conf.arg(metavar="POINTS")] = None
    """Smallest difference that matters, in points of success, 1 to 90, e.g. 10. Where the return counts instead: share
    of starts with a higher return less that with a lower one."""
    control: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """With --detect: the same training on shuffled labels. The candidate has to be better than it, too."""
    split: Split = "test"
    """With --detect: held-out starts ("test"), those for model selection ("val"), or those of training ("train")."""
    starts: int | None = None
    """With --detect: most starts; default twice those of a fixed plan, or all that the split has."""
    seed: int = 0
    """With --detect: draws the order of the starts, and the policies' noise."""
    num_envs: int = 64
    """With --detect: number of parallel environments; so many starts are run before the test is looked at."""
    device: str = "cpu"
    """With --detect: device of the policies: "cpu", "cuda", "cuda:1"."""
    sim: SimName = None
    """With --detect: name from `robotrl list sims`; default: the sim of the baseline with its options. `--sim.FIELD
    VALUE` sets an option of the sim, to judge with other looks, delays, noise or friction."""


OF_VERDICT = ("control", "split", "starts", "seed", "num_envs", "device", "sim")
"""Options that only a verdict has."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(Args, "robotrl compare", argv, _options_before)
    if args.detect is not None:
        return _judge(args, args.detect, options, shlex.join(["robotrl", "compare", *argv]))
    given = [field.name for field in dataclasses.fields(Args) if getattr(args, field.name) != field.default]
    if extra := [name for name in OF_VERDICT if name in given]:
        raise ConfigError(f"--{extra[0].replace('_', '-')} is of a verdict: expected --detect POINTS beside it")
    if options:
        raise ConfigError(f"--sim.{next(iter(options))} is of a verdict: expected --detect POINTS beside it")
    if not args.runs:
        raise ConfigError("missing: RUN, the directories of one or more runs")
    if args.out is not None:
        writable("--out", args.out, (".html", ".htm"), inputs=list(args.runs))
    from robotrl.api.comparing import compare_runs
    from robotrl.utils.files import replace_file

    found = compare_runs(args.runs, args.ignore)
    for line in found.lines():
        print(line)
    if args.out is not None:
        replace_file(args.out, found.page(shlex.join(["robotrl", "compare", *argv])).encode())
        print(f"wrote {args.out}")
    return 0


def _options_before(args: Args) -> SimOptions:
    """Options of the sim before the flags: those of the baseline."""
    return options_at(args.runs[0] if args.runs else None, args.sim)


def _judge(args: Args, points: float, options: dict[str, Any], command: str) -> int:
    """Judge the second policy against the first."""
    if len(args.runs) != 2:
        raise ConfigError(f"{len(args.runs)} paths beside --detect: expected two, BASELINE CANDIDATE")
    if args.ignore:
        raise ConfigError(f"--ignore is {' '.join(args.ignore)} beside --detect: arms are given by their paths")
    if not LEAST_POINTS <= points <= MOST_POINTS:
        raise out_of_range("--detect", points, f"{LEAST_POINTS:g} to {MOST_POINTS:g} points")
    check_seed(args.seed)
    inputs = [*args.runs, *([args.control] if args.control else [])]
    if args.out is not None:
        writable("--out", args.out, (".html", ".htm", ".json"), inputs=inputs)
    from robotrl.api.judging.judge import JudgeSettings, judge
    from robotrl.api.judging.page import verdict_page
    from robotrl.api.judging.sides import read_side
    from robotrl.api.judging.text import lines, to_json
    from robotrl.fn.evidence.sequential import PairedTest
    from robotrl.utils.files import dump_json, replace_file

    sides = [read_side(path) for path in inputs]
    settings = JudgeSettings(
        PairedTest(points / 100),
        args.sim,
        options,
        args.split,
        args.starts,
        args.seed,
        args.num_envs,
        args.device,
    )
    found = judge(sides[0], sides[1], settings, sides[2] if args.control else None)
    for line in lines(found):
        print(line)
    if args.out is not None:
        is_json = args.out.suffix.lower() == ".json"
        as_json = dump_json({"schema_version": 1, **to_json(found)}) if is_json else b""
        replace_file(args.out, as_json or verdict_page(found, command).encode())
        print(f"wrote {args.out}")
    return 0
