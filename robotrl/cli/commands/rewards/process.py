"""`robotrl reward milestones`, `robotrl reward process` and `robotrl reward judge`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from robotrl.cli.commands.parsing import check_seed, parse
from robotrl.cli.outputs import fresh_folder, writable
from robotrl.errors import ConfigError

if TYPE_CHECKING:
    from robotrl.datasets.reader import Dataset
    from robotrl.rewards.columns import FrameNumber
    from robotrl.rewards.grading import Graded, Origin, ProgressLabels
    from robotrl.rewards.process_training import ProcessVerdict
    from robotrl.spec import Spec

LABELS_SCHEMA = 1


@dataclass(frozen=True)
class Where:
    """Columns of a dataset that show milestones, and thresholds of their detection."""

    gripper: tuple[str, ...] = ()
    """Columns with the gripper's opening, as ARRAY.NAME or ARRAY.NUMBER, e.g. "action.6"; default: columns with such
    names, measured ones before commanded ones."""
    velocity: tuple[str, ...] = ()
    """Columns with the hand's velocity along its axes, m/s; default: columns with such names and units."""
    position: tuple[str, ...] = ()
    """Columns with the hand's position along its axes, m, instead of a velocity."""
    change: float = 0.3
    """Change of the gripper that counts as opening or closing, as a fraction of its range in the dataset."""
    still_mps: float | None = None
    """Speed below which the hand is at rest, m/s, after it was three times as fast; default: a tenth of its own usual
    speed."""
    gap_s: float = 0.25
    """Minimum seconds between two milestones, and from a milestone to the start or a success."""
    failure_s: float = 1.0
    """The last seconds of a failed episode get progress 0; earlier frames get no label."""


@dataclass(frozen=True)
class MilestoneArgs:
    """Find milestones in demonstrations, print a summary, and label the progress of each frame."""

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Directory of demonstrations."""
    where: Annotated[Where, tyro.conf.arg(name="")] = Where()
    accept_data: bool = False
    """Accept datasets with doubtful properties, without warnings."""
    out: Path | None = None
    """JSON file for milestones and labels of each episode."""


@dataclass(frozen=True)
class ProcessArgs:
    """Train a process reward on demonstrations and test it on held-out episodes. Exit code 1 if it falls short."""

    dataset: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Directories of demonstrations; failures, as recorded by `robotrl demos --keep all`, improve the reward."""
    out: Path
    """Directory of the process reward."""
    where: Annotated[Where, tyro.conf.arg(name="")] = Where()
    reader: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Run or checkpoint of a vision-language policy whose features are the input; default: a small network from
    scratch."""
    accept_data: bool = False
    """Accept datasets with doubtful properties, without warnings."""
    keys: tuple[str, ...] = ()
    """Observation arrays for the small network; default: all that a robot can measure."""
    updates: int = 1000
    """Gradient steps."""
    held_out: float = 0.25
    """Fraction of the episodes held out for testing."""
    min_rank: float = 0.6
    """Minimum rank correlation of progress with time in held-out successes, -1 to 1."""
    min_separation: float = 0.7
    """Minimum probability that a success's last frame has more predicted progress than a failure's, 0 to 1."""
    max_error: float = 0.15
    """Maximum mean difference between predicted and labeled progress, 0 to 1."""
    seed: int = 0
    """Seeds every random stream."""


@dataclass(frozen=True)
class JudgeArgs:
    """Test a process reward on other datasets. Exit code 1 if it falls short of the limits that it was trained with."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Directory of the process reward."""
    dataset: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Directories of demonstrations that were not used in its training."""
    where: Annotated[Where, tyro.conf.arg(name="")] = Where()
    accept_data: bool = False
    """Accept datasets with doubtful properties, without warnings."""


def _milestones(argv: Sequence[str]) -> int:
    args = parse(MilestoneArgs, "robotrl reward milestones", argv)
    if args.out is not None:
        writable("--out", args.out, (".json",), inputs=[args.dataset])
    found = _labeled(args.dataset, args.where, args.accept_data)
    print(_found(found))
    if args.out is not None:
        args.out.write_text(json.dumps(_labels_to_json(found)) + "\n")
        print(f"{args.out}: labels of {int(found.labels.known.sum()):,} frames")
    return 0


def _process(argv: Sequence[str]) -> int:
    args = parse(ProcessArgs, "robotrl reward process", argv)
    check_seed(args.seed)
    if args.reader is not None and args.keys:
        raise ConfigError(
            f"--keys is {' '.join(args.keys)}, and --reader is given: expected none, the policy has its own"
        )
    from robotrl.peft.lora import merged
    from robotrl.rewards.process_model import AcceptanceThresholds
    from robotrl.rewards.process_stored import save_process
    from robotrl.rewards.process_training import ProcessCfg, train_process
    from robotrl.run.policy_checkpoint import load_policy

    inputs = [*args.dataset, *([args.reader] if args.reader else [])]
    with fresh_folder("--out", args.out, inputs=inputs):
        policy = None if args.reader is None else merged(load_policy(args.reader))
        seen = None if policy is None else policy.observation_spec
        found = [_labeled(path, args.where, args.accept_data, seen) for path in args.dataset]
        graded, specs = _graded(found, args.keys if seen is None else tuple(seen))
        for one in found:
            print(_found(one))
        bar = AcceptanceThresholds(args.min_rank, args.min_separation, args.max_error)
        cfg = ProcessCfg(updates=args.updates, held_out=args.held_out, bar=bar, seed=args.seed)
        about: dict[str, str | int | float] = {"datasets": "\n".join(map(str, args.dataset))}
        reward, learned, process_verdict = train_process(graded, specs, cfg, about, policy)
        save_process(args.out, reward)
    print(f"{args.out}: {len(learned.progress):,} frames of {len(learned.success)} episodes learned from")
    return _say(process_verdict, "held-out episodes")


def _judge(argv: Sequence[str]) -> int:
    args = parse(JudgeArgs, "robotrl reward judge", argv)
    from robotrl.rewards.process_stored import load_process
    from robotrl.rewards.process_training import judge

    reward = load_process(args.path)
    seen = reward.net.observation_spec
    found = [_labeled(path, args.where, args.accept_data, seen) for path in args.dataset]
    graded, _ = _graded(found, tuple(seen))
    return _say(judge(reward.net, graded, reward.verdict.bar), "episodes")


ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {"milestones": _milestones, "process": _process, "judge": _judge}


class Found(NamedTuple):
    """A dataset with its labels and the columns that they come from."""

    dataset: Dataset
    origin: Origin
    labels: ProgressLabels
    gripper: tuple[FrameNumber, ...]
    hand: tuple[FrameNumber, ...]


def _labeled(path: Path, where: Where, accept: bool, seen: Mapping[str, Spec] | None = None) -> Found:
    """Read and label a dataset; its observations must match the specs `seen`, if given."""
    from robotrl.datasets.agreement.agree import agree
    from robotrl.datasets.reader import read_dataset
    from robotrl.rewards.columns import find_sources
    from robotrl.rewards.grading import GradingCfg, grade, origin

    dataset = agree(read_dataset(path), seen or {}, None, None, accept=accept)
    sources = find_sources(dataset, where.gripper, where.velocity, where.position)
    about = origin(dataset)
    cfg = GradingCfg(change=where.change, still_mps=where.still_mps, gap_s=where.gap_s, failure_s=where.failure_s)
    labels = grade(dataset, sources, cfg, about.family)
    return Found(dataset, about, labels, sources.gripper, sources.velocity or sources.position)


def _graded(found: Sequence[Found], keys: Sequence[str]) -> tuple[Graded, dict[str, Spec]]:
    """All labeled frames together, and the specs of the kept arrays."""
    from robotrl.rewards.grading import graded, join_graded

    specs: dict[str, Spec] | None = None
    parts: list[Graded] = []
    for dataset, origin, labels, *_ in found:
        if dataset.observation_spec is None:
            raise ConfigError(f"dataset {dataset.root} has no meta/robotrl.json: expected one with units and words")
        kept = tuple(keys) or tuple(key for key in dataset.observation_spec if key not in origin.privileged)
        parts.append(graded(dataset, labels, kept, origin.start))
        shown = {key: dataset.observation_spec[key] for key in kept}
        if specs is not None and shown != specs:
            raise ConfigError(f"dataset {dataset.root} shows other arrays, units or words than {found[0].dataset.root}")
        specs = shown
    if specs is None:
        raise ConfigError("DATASET is not given: expected one directory of demonstrations or more")
    # options may change the meaning of a start id; then episodes are grouped more coarsely, so that nothing leaks
    sims = {one.dataset.provenance.get("sim") for one in found}
    return join_graded(parts, same_starts=len(sims) == 1 and None not in sims), specs


def _found(found: Found) -> str:
    """Summary of a labeled dataset as a small table."""
    from robotrl.rewards.grading import summary

    dataset, labels = found.dataset, found.labels
    rows = [("family", "episodes", "successes", "milestones of a success", "gripper", "still")]
    for row in summary(labels):
        counts = ", ".join(f"{n} x {count}" for n, count in row.counts.items()) or "-"
        gripper, still = (f"{mean:.1f}" if row.successes else "-" for mean in (row.gripper, row.still))
        rows.append((row.family, str(row.episodes), str(row.successes), counts, gripper, still))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(
        [
            f"{dataset.root}: {dataset.num_episodes} episodes, {dataset.num_frames:,} frames",
            f"gripper {_paths(found.gripper)}; hand {_paths(found.hand)}, at rest below {labels.still_mps:.3g} m/s",
            *lines,
        ]
    )


def _paths(columns: Sequence[FrameNumber]) -> str:
    return ", ".join(column.path for column in columns)


def _labels_to_json(found: Found) -> dict[str, object]:
    labels, offsets = found.labels, found.dataset.offsets
    return {
        "schema_version": LABELS_SCHEMA,
        "dataset": str(found.dataset.root),
        "gripper": [column.path for column in found.gripper],
        "hand": [column.path for column in found.hand],
        "still_mps": labels.still_mps,
        "episodes": [
            {
                "family": labels.family[e],
                "success": bool(labels.success[e]),
                "milestones": [
                    {"frame": int(frame), "kind": kind} for frame, kind in zip(of.frames, of.kinds, strict=True)
                ],
                "progress": [
                    round(float(labels.progress[f]), 6) if labels.known[f] else None
                    for f in range(offsets[e], offsets[e + 1])
                ],
            }
            for e, of in enumerate(labels.milestones)
        ],
    }


def _say(process_verdict: ProcessVerdict, what: str) -> int:
    verdict = process_verdict.verdict
    rank, bar = verdict.rank, verdict.bar
    print(
        f"judged on {process_verdict.episodes} {what}: rank correlation of progress with time {rank.value:.2f} (95 %"
        f" interval {rank.low:.2f} to {rank.high:.2f}) in {rank.episodes} successes"
    )
    if verdict.separation is None:
        print("no failures to part from: whether it sees them is not known")
    else:
        print(f"separation of {verdict.failures} failures {verdict.separation:.2f} (1 parts all of them, 0.5 none)")
    print(f"calibration error {verdict.error:.3f}")
    for name, found in process_verdict.families.items():
        print(f"  {name}: rank correlation {found.value:.2f} in {found.episodes}")
    short = verdict.shortcomings()
    if short:
        print(f"it falls short, and no run may use it: {'; '.join(short)}")
        return 1
    print(f"it may be used (bar: {bar.min_rank:g}, {bar.min_separation:g}, {bar.max_error:g})")
    return 0
