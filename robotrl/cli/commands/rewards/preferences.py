"""`robotrl reward train preferences` and `robotrl reward relabel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from robotrl.cli.commands.parsing import check_seed, parse
from robotrl.cli.outputs import fresh_folder
from robotrl.errors import check_number

if TYPE_CHECKING:
    from robotrl.datasets.reader import Dataset
    from robotrl.rewards.preferences.offline import AnsweredDataset

TRAIN, RELABEL = "robotrl reward train preferences", "robotrl reward relabel"


@dataclass(frozen=True)
class PreferencesArgs:
    """Learn a reward from answers to "which of these two segments of behavior is better?", on a dataset.

    A synthetic labeler, a served vision-language model, or a person in the browser answers.
    """

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Directory of a dataset with good and bad behavior (`robotrl demos --keep all`)."""
    out: Path
    """Directory of the preferences; must not exist."""
    keys: tuple[str, ...] = ()
    """Observation arrays that the reward reads; default: all of the dataset."""


@dataclass(frozen=True)
class RelabelArgs:
    """Write a dataset with the rewards of learned preferences in the place of its own, for offline learning."""

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Directory of the dataset."""
    model: Path
    """Directory of the preferences (`robotrl reward train preferences`)."""
    out: Path
    """Directory of the new dataset; must not exist."""
    pessimism: float = 0.0
    """Standard deviations of the ensemble that are taken off each reward, 0 to 100."""
    offset: float = 0.0
    """Added to each step's reward, whose standard deviation is 1, -100 to 100."""


def train_preferences(argv: Sequence[str]) -> int:
    """Run `robotrl reward train preferences`."""
    from robotrl.rewards.preferences.offline import OfflinePreferencesCfg, learn_offline
    from robotrl.rewards.preferences.stored import save_preferences

    cfg = Annotated[OfflinePreferencesCfg, tyro.conf.arg(name="")]
    both = dataclasses.make_dataclass(
        "Preferences",
        [("cfg", cfg, field(default_factory=OfflinePreferencesCfg))],
        bases=(PreferencesArgs,),
        frozen=True,
        kw_only=True,
    )
    both.__doc__ = PreferencesArgs.__doc__
    args: Any = parse(both, TRAIN, argv)
    check_seed(args.cfg.seed)
    args.cfg.check()
    with fresh_folder("--out", args.out, inputs=[args.dataset]):
        dataset = _read(args.dataset)
        learned, labeled = learn_offline(dataset, args.keys, args.cfg)
        save_preferences(args.out, learned)
    _say(labeled)
    held_out = learned.held_out
    print(
        f"{args.out}: reward by {learned.ensemble.form}, {len(learned.ensemble.members)} networks; held out"
        f" {held_out.answers} answers, of which it agrees with {100 * held_out.agreement:.1f} %"
    )
    print(f"calibration error {held_out.error:.3f} at temperature {held_out.temperature:.2f}")
    return 0


def relabel(argv: Sequence[str]) -> int:
    """Run `robotrl reward relabel`."""
    args = parse(RelabelArgs, RELABEL, argv)
    check_number("--pessimism", args.pessimism, 0.0, 100.0)
    check_number("--offset", args.offset, -100.0, 100.0)
    from robotrl.rewards.preferences.relabeling import relabeled_rewards, write_relabeled
    from robotrl.rewards.preferences.stored import load_preferences

    with fresh_folder("--out", args.out, inputs=[args.dataset, args.model]):
        learned = load_preferences(args.model)
        dataset = _read(args.dataset)
        rewards = relabeled_rewards(dataset, learned, args.pessimism, args.offset)
        note: dict[str, Any] = {
            "preferences": learned.identity,
            "form": learned.ensemble.form,
            "pessimism": args.pessimism,
            "offset": args.offset,
        }
        write_relabeled(dataset, rewards, args.out, note)
    print(
        f"{args.out}: {dataset.num_episodes} episodes, {dataset.num_frames:,} frames, rewards {rewards.mean():.3f}"
        f" +- {rewards.std():.3f}"
    )
    return 0


def _read(path: Path) -> Dataset:
    from robotrl.datasets.reader import read_dataset

    return read_dataset(path)


def _say(labeled: AnsweredDataset) -> None:
    metrics = labeled.metrics
    known = f", {metrics['known']:.0f} of them kept from before" if metrics["known"] else ""
    answered = len(labeled.pairs.choice) + labeled.neither
    print(f"{answered} of {labeled.asked} pairs are answered{known}, {labeled.neither} without a preference")
    if labeled.agreement is not None:
        print(f"{100 * labeled.agreement:.1f} % of the answers agree with the dataset's own rewards")
    paid = {
        name: metrics[name]
        for name in ("calls", "cost", "unanswered", "invalid", "failed", "refused")
        if metrics.get(name)
    }
    if paid:
        print(", ".join(f"{name} {value:g}" for name, value in paid.items()))
