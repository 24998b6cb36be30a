"""`robotrl sweep`."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, parse
from robotrl.cli.outputs import makeable
from robotrl.errors import ConfigError

if TYPE_CHECKING:
    from robotrl.config import TrainCfg
    from robotrl.jobs.job import JobPlace
    from robotrl.sweeps.execution import SweepResult
    from robotrl.sweeps.plan import CheckedSetting, SweepPlan

COMMAND = "robotrl sweep"


@dataclass(frozen=True)
class SweepClusterArgs:
    """Where the runs of a sweep are trained; see docs/sweeps.md."""

    name: Annotated[Literal["none", "ray"], tyro.conf.arg(name="")] = "none"
    """"none": on this machine; "ray": on the nodes of a Ray cluster, which share the folder OUT."""
    address: str | None = None
    """Address of the Ray cluster, HOST:PORT, or "auto" for the one that this machine belongs to."""
    cpus: int = 2
    """CPU cores of each run."""
    gpus: float = 0.0
    """GPUs of each run, which may be a part of one."""


@dataclass(frozen=True)
class Args:
    """Train every setting of a file with every seed, each run by a process of its own; typed again, it goes on.

    At the end there are a table, OUT/table.json, and a page of all runs, OUT/compare.html.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """TOML or Python file with the settings; see docs/sweeps.md."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Directory of the sweep, whose runs are OUT/SETTING/seed-N; default runs/NAME of FILE."""
    parallel: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Number of runs at the same time; default: one for two cores, as far as an estimate of their memory allows, and
    one on a GPU."""
    cluster: SweepClusterArgs = field(default_factory=SweepClusterArgs)
    extend: bool = False
    """Go on with a FILE that has more values, samples or seeds than before."""
    dry_run: bool = False
    """Check every config and list the settings, without training."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, COMMAND, argv)
    if args.parallel is not None:
        at_least("--parallel", args.parallel, 1)
    print(f"{COMMAND} {args.file}: loading", file=sys.stderr, flush=True)
    from robotrl.run.locking import StopSignals
    from robotrl.sweeps.execution import run_sweep
    from robotrl.sweeps.file import read_sweep_file
    from robotrl.sweeps.plan import checked, continued, load_plan, plan_of

    file = read_sweep_file(args.file)
    out = Path("runs", args.file.stem) if args.out is None else args.out
    makeable("--out", out)
    stored = load_plan(out)
    plan = plan_of(file) if stored is None else continued(stored, file, args.extend)
    with _configs() as make:
        settings = checked(plan, make)
    runs = len(settings) * len(plan.seeds)
    what = f"{out}: {runs} runs, {len(settings)} settings with {len(plan.seeds)} seeds"
    if args.dry_run:
        print(what)
        for one in settings:
            print(f"{one.setting.name}: robotrl train {' '.join(one.arguments)}")
        return 0
    with _place(args, settings) as place, _locked(out, stored, plan):
        print(f"{what}, {place.slots} at once{' on Ray' if args.cluster.name == 'ray' else ''}")
        signals = StopSignals()
        signals.install()
        try:
            result = run_sweep(plan, settings, out, place, signals)
        finally:
            signals.restore()
        if signals.received is not None:
            print(f"stopped: all runs are saved; go on with: {COMMAND} {args.file} --out {out}", file=sys.stderr)
            return 130
        _report(result, settings, plan, out)
    for one in result.failed:
        print(f"failed: {one.run.key}, code {one.code}: {one.said}; log: {one.run.log}", file=sys.stderr)
    return 1 if result.failed else 0


@contextlib.contextmanager
def _configs() -> Generator[Callable[[Sequence[str]], TrainCfg[Any, Any]]]:
    """Function from arguments of `robotrl train` to their config; its notices are printed once, at the end."""
    from robotrl.cli.commands.train import parse_config, split_names
    from robotrl.sweeps.arguments import of_training

    said = io.StringIO()

    def make(words: Sequence[str]) -> TrainCfg[Any, Any]:
        with contextlib.redirect_stderr(said):
            return of_training(parse_config(*split_names(words))[0])

    yield make
    for line in dict.fromkeys(said.getvalue().splitlines()):
        print(line, file=sys.stderr)


@contextlib.contextmanager
def _place(args: Args, settings: Sequence[CheckedSetting]) -> Generator[JobPlace]:
    """Place of the runs.

    Raises:
        ConfigError: settings of a cluster without one, or one that has no room for a run.
        RobotrlError: Ray does not start.
    """
    cluster = args.cluster
    if cluster.name == "ray":
        from robotrl.cluster.ray_jobs import JobResources, RayPlace

        with contextlib.closing(
            RayPlace(cluster.address, JobResources(cluster.cpus, cluster.gpus), args.parallel)
        ) as one:
            yield one
        return
    from robotrl.jobs.local import LocalPlace

    changed = [one.name for one in fields(cluster) if getattr(cluster, one.name) != one.default]
    if changed:
        raise ConfigError(
            f"--cluster.{changed[0]} is {getattr(cluster, changed[0])} and --cluster is 'none': expected --cluster ray"
        )
    yield LocalPlace(_slots([one.config for one in settings]) if args.parallel is None else args.parallel)


def _slots(configs: Sequence[TrainCfg[Any, Any]]) -> int:
    """Number of runs that there is room for at the same time: cores, memory as far as it is estimated, one GPU."""
    from robotrl.jobs.training_runs import parallel_runs
    from robotrl.memory_estimate.check import announce
    from robotrl.memory_estimate.estimate import available
    from robotrl.utils.devices import device_of

    devices = [device_of(config.device) for config in configs]
    if any(device.type != "cpu" for device in devices):
        return 1
    # that of one setting stands for all
    found = announce(configs[0])
    most = parallel_runs()
    return most if found is None else max(1, min(most, available(devices[0]) // max(1, found.total)))


@contextlib.contextmanager
def _locked(out: Path, stored: SweepPlan | None, plan: SweepPlan) -> Generator[None]:
    """Hold the lock of a sweep's folder, with the plan stored in it.

    Args:
        out: the folder; made if absent.
        stored: the plan that was found there.
        plan: the plan to store.

    Raises:
        ConfigError: the folder holds something else than a sweep.
        RobotrlError: another sweep runs there.
    """
    from robotrl.run.locking import WriteLock
    from robotrl.sweeps.plan import load_plan, save_plan

    if stored is None and out.is_dir() and any(path.name != "lock" for path in out.iterdir()):
        raise ConfigError(f"--out is {out}: that holds something else, expected a new folder or that of a sweep")
    out.mkdir(parents=True, exist_ok=True)
    lock = WriteLock(out, "sweep")
    try:
        if load_plan(out) != stored:
            raise ConfigError(f"--out is {out}: another sweep began there meanwhile, expected another folder")
        if plan != stored:
            save_plan(out, plan)
        yield
    finally:
        lock.release()


def _report(result: SweepResult, settings: Sequence[CheckedSetting], plan: SweepPlan, out: Path) -> None:
    """Print the table; write it, and the page of all runs."""
    from robotrl.api.comparing import compare_runs
    from robotrl.sweeps.results import ranked, score_of, table_json, table_lines
    from robotrl.utils.files import dump_json, replace_file

    score = score_of(settings)
    rows = ranked(result.rows, score)
    print(*table_lines(rows, score), sep="\n")
    replace_file(out / "table.json", dump_json(table_json(rows, score)))
    print(f"wrote {out / 'table.json'}")
    runs = [row.checked.run(out, seed).path for row in rows for seed in plan.seeds]
    begun = [path for path in runs if (path / "config.json").exists()]
    if begun:
        page = compare_runs(begun).page(f"robotrl compare {out}/*/seed-*[0-9] --out {out}/compare.html")
        replace_file(out / "compare.html", page.encode())
        print(f"wrote {out / 'compare.html'}")
