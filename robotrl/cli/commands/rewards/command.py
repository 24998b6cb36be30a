"""`robotrl reward`: a success classifier's actions; others are in the modules beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from robotrl.cli.commands.parsing import check_seed
from robotrl.cli.commands.sim_flags import parse_with_sim
from robotrl.cli.outputs import fresh_folder
from robotrl.errors import unknown
from robotrl.registry import SIMS, sim_options
from robotrl.spec import Split
from robotrl.spec.json_fields import name_values
from robotrl.spec.sim_options import SimOptions

if TYPE_CHECKING:
    from robotrl.rewards.calibration import Rates
    from robotrl.rewards.success import TrainedClassifier

USAGE = """usage: robotrl reward ACTION [options]

  eval               measure any reward against a sim's ground truth, before training on it
  train              train and calibrate a success classifier, which can stand in for a sim's reward
  train clip         train a small model of a sim's pictures and captions, for rewards in words
  train preferences  learn a reward from answers about which of two segments is better
  relabel            write a dataset with the rewards of learned preferences
  check              false-positive and false-negative rates of a success classifier on new episodes
  milestones         find milestones in demonstrations, and label how far each frame has come
  process            train a process reward on such labels, and judge it on held-out episodes
  judge              judge a process reward on other datasets

robotrl reward ACTION --help shows the options."""


@dataclass(frozen=True)
class TrainArgs:
    """Train a success classifier on episodes of a sim's experts, of a policy and of demonstrations."""

    sim: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SIM")]
    """Name from `robotrl list sims`. `--sim.FIELD VALUE` sets one of its options; `SIM --help` lists them."""
    out: Path
    """Directory of the classifier."""
    episodes: int = 400
    """Number of rollouts to record; more of them permit a lower bound on false positives."""
    dataset: tuple[Path, ...] = ()
    """Additional demonstrations for training. Those that this sim recorded are run again, to see their end."""
    tail: int = 1
    """Last frames of a successful demonstration from elsewhere that count as successes."""
    accept_data: bool = False
    """Accept datasets with doubtful properties, without warnings."""
    policy: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Run or checkpoint that acts in half of the rollouts; the sim's experts act in the rest."""
    keys: tuple[str, ...] = ()
    """Observation arrays that the classifier reads; default: all that a robot can measure."""
    updates: int = 1000
    """Gradient steps."""
    max_false_positive: float = 0.02
    """Maximum fraction of episodes with a false alarm, for which the threshold is chosen."""
    min_threshold: float = 0.5
    """Minimum threshold."""
    steps: int = 1
    """Steps in a row that must be above the threshold; 1 if an episode ends at its success."""
    grace: int = 0
    """A success reported up to so many steps early is correct, and these frames are not used in training."""
    seed: int = 0
    """Seeds every random stream."""


@dataclass(frozen=True)
class CheckArgs:
    """Error rates of a success classifier on new episodes. Exit code 1 if it raises more false alarms than promised."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Directory of the classifier."""
    sim: Annotated[str | None, tyro.conf.arg(metavar="SIM")] = None
    """Name from `robotrl list sims`; default: the sim that it was trained on. `--sim.FIELD VALUE` overrides one of the
    options that it was trained with."""
    episodes: int = 256
    """Number of rollouts to record."""
    policy: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Run or checkpoint that acts in half of the rollouts: the policy that is to be trained with this reward."""
    split: Split = "test"
    """Split of the starts."""
    seed: int = 1
    """Seed of the sim and of the actors."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    from robotrl.cli.commands.rewards.evaluation import evaluate_rewards
    from robotrl.cli.commands.rewards.preferences import relabel
    from robotrl.cli.commands.rewards.process import ACTIONS

    actions = {"eval": evaluate_rewards, "train": _train, "check": _check, "relabel": relabel, **ACTIONS}
    if argv[0] not in actions:
        raise unknown("action", argv[0], actions)
    return actions[argv[0]](argv[1:])


def _train(argv: Sequence[str]) -> int:
    from robotrl.cli.commands.rewards.clip import train_clip
    from robotrl.cli.commands.rewards.preferences import train_preferences

    kinds = {"clip": train_clip, "preferences": train_preferences}
    if argv and argv[0] in kinds:
        return kinds[argv[0]](argv[1:])
    if len(argv) > 1 and not any(word.startswith("-") for word in argv[:2]):  # a success classifier's SIM stands alone
        raise unknown("robotrl reward train", argv[0], kinds)
    args, options = parse_with_sim(TrainArgs, "robotrl reward train", argv, lambda args: sim_options(args.sim))
    check_seed(args.seed)
    SIMS.check(args.sim)
    from robotrl.rewards.recording import record_labeled
    from robotrl.rewards.stored import save_classifier
    from robotrl.rewards.training import TrainingCfg, train_classifier

    cfg = TrainingCfg(
        updates=args.updates,
        max_false_positive=args.max_false_positive,
        min_threshold=args.min_threshold,
        steps=args.steps,
        grace=args.grace,
        seed=args.seed,
    )
    inputs = [*args.dataset, *([args.policy] if args.policy else [])]
    with fresh_folder("--out", args.out, inputs=inputs):
        labeled, specs = record_labeled(
            args.sim,
            options=options,
            episodes=args.episodes,
            seed=args.seed,
            policy=args.policy,
            datasets=args.dataset,
            tail=args.tail,
            keys=args.keys or None,
            accept_data=args.accept_data,
        )
        about: dict[str, str | int | float] = {
            "sim": args.sim,
            "options": "\n".join(f"{name}={json.dumps(value)}" for name, value in options.items()),
        }
        trained = train_classifier(labeled, specs, cfg, about)
        save_classifier(args.out, trained)
    calibration = trained.calibration
    print(
        f"{args.out}: {len(labeled.success):,} observations of {labeled.num_episodes} episodes, of which"
        f" {int(labeled.success.sum()):,} show a success"
    )
    print(
        f"threshold {calibration.threshold:.4f}, chosen on {calibration.episodes} held-out episodes for false alarms in"
        f" at most {100 * calibration.bound:g} % of them"
    )
    _say(calibration.rates, "held-out episodes that the threshold was not chosen on")
    return 0


def _check(argv: Sequence[str]) -> int:
    args, options = parse_with_sim(CheckArgs, "robotrl reward check", argv, _trained_on)
    check_seed(args.seed)
    if args.sim is not None:
        SIMS.check(args.sim)
    from robotrl.rewards.recording import record_labeled
    from robotrl.rewards.stored import load_classifier
    from robotrl.rewards.training import measured

    trained = load_classifier(args.path)
    labeled, _ = record_labeled(
        args.sim or str(trained.about["sim"]),
        options={**_options_of(trained), **options},
        episodes=args.episodes,
        split=args.split,
        seed=args.seed,
        policy=args.policy,
        keys=tuple(trained.model.observation_spec),
    )
    calibration = trained.calibration
    rates = measured(trained.model, labeled, calibration.threshold, calibration.steps, calibration.grace)
    _say(rates, f"new episodes of split {args.split}")
    if rates.false_positive.low > calibration.bound:
        print(f"more false alarms than the {100 * calibration.bound:g} % that the threshold was chosen for")
        return 1
    return 0


def _trained_on(args: CheckArgs) -> SimOptions:
    from robotrl.rewards.stored import load_classifier

    trained = load_classifier(args.path)
    return sim_options(args.sim or str(trained.about["sim"]), _options_of(trained))


def _options_of(trained: TrainedClassifier) -> dict[str, Any]:
    """Options of the sim that a classifier was trained on."""
    return name_values([line for line in str(trained.about["options"]).split("\n") if line], "options")


def _say(rates: Rates, where: str) -> None:
    wrong, missed = rates.false_positive, rates.false_negative
    print(
        f"false positives in {100 * wrong.value:.1f} % (95 % interval {100 * wrong.low:.1f} to {100 * wrong.high:.1f})"
        f" of {wrong.episodes} {where}, on {100 * rates.frame_false_positive:.3f} % of their frames"
    )
    if missed is not None:
        print(
            f"missed {100 * missed.value:.1f} % (95 % interval {100 * missed.low:.1f} to {100 * missed.high:.1f})"
            f" of {missed.episodes} successes"
        )
