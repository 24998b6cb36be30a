"""`robotrl improve`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from robotrl.cli.commands.parsing import check_seed
from robotrl.cli.commands.sim_flags import SimName, options_at, parse_with_sim
from robotrl.cli.outputs import makeable
from robotrl.errors import ConfigError, out_of_range, short
from robotrl.spec import Split
from robotrl.spec.sim_options import SimOptions

LEAST_POINTS, MOST_POINTS = 1.0, 90.0
FILMED = 2
"""Starts that the page shows."""


@dataclass(frozen=True)
class Args:
    """Improve a policy from the logs of its robot, failures included, or leave it as it is.

    A candidate is fitted to the logged episodes, and takes the policy's place only if it is shown to be better on
    starts that it has not learned from. The policy itself is never written. The same command goes on with what was
    interrupted."""

    policy: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="POLICY|BUNDLE")]
    """Directory of a run (its best checkpoint), checkpoint or bundle. A bundle is traced back to its run, which lies
    beside it or under runs."""
    logs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="DIR ...")] = ()
    """Control logs of robotrl deploy --log, datasets, and folders of these."""
    method: str = "pa-rl"
    """Method of the fit: "pa-rl" clones the choice of a critic among the policy's own samples; "recap" clones all
    episodes, with the advantage of each action as an input; "rl100" follows a critic through the denoising chain of a
    flow or diffusion policy; "successes" clones the successful episodes."""
    rounds: int = 1
    """Number of rounds. Each one after the first begins with new episodes of the policy, as the next option says."""
    collect_episodes: int = 0
    """Episodes that the policy drives in its own sim before each round after the first; without --logs, before the
    first one, too."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of all that is written; default: the policy's name and "-improved", here."""
    detect: Annotated[float, tyro.conf.arg(metavar="POINTS")] = 10.0
    """Smallest difference that matters, in points of success, 1 to 90: the search for a smaller one is given up."""
    split: Split = "val"
    """Starts of the sim that judge; "test" is for the end."""
    starts: int | None = None
    """Most starts of a verdict; default twice those of a fixed plan, or all that the split has."""
    no_sim: bool = False
    """The policy's sim does not stand for its robot: it neither tells outcomes again, nor collects, nor judges."""
    trials: Annotated[tuple[Path, Path] | None, tyro.conf.arg(metavar="BEFORE CANDIDATE")] = None
    """With --no-sim, and the command of before: control logs of the bundle of before and of the candidate's on the same
    starts of the robot, which judge."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Config fields of the training, e.g. algo.updates=4000."""
    seed: int = 0
    """Draws the starts that are collected and that judge, and seeds the training."""
    num_envs: int = 64
    """Number of parallel environments."""
    device: str = "cpu"
    """Device of the networks: "cpu", "cuda", "cuda:1"."""
    sim: SimName = None
    """Name from `robotrl list sims`; default: the sim that the policy was trained on, with its options. `--sim.FIELD
    VALUE` sets an option of it."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(Args, "robotrl improve", argv, _options_before)
    check_seed(args.seed)
    if not LEAST_POINTS <= args.detect <= MOST_POINTS:
        raise out_of_range("--detect", args.detect, f"{LEAST_POINTS:g} to {MOST_POINTS:g} points")
    out = Path(f"{args.policy.resolve().name}-improved") if args.out is None else args.out
    makeable("--out", out)
    from robotrl.improve.films import film_both
    from robotrl.improve.holdings import holdings
    from robotrl.improve.report import lines, page, to_json, won_starts
    from robotrl.improve.rounds import ImproveSettings, episodes_of, improve
    from robotrl.utils.files import dump_json, replace_file

    settings = ImproveSettings(
        policy=args.policy,
        out=out,
        logs=args.logs,
        method=args.method,
        rounds=args.rounds,
        collect_episodes=args.collect_episodes,
        in_sim=not args.no_sim,
        detect=args.detect / 100,
        split=args.split,
        starts=args.starts,
        trials=args.trials,
        sim=args.sim,
        options=options,
        settings=assigned(args.set),
        seed=args.seed,
        num_envs=args.num_envs,
        device=args.device,
    )
    state, target = improve(settings, _say)
    book = episodes_of(out, target, len(state.rounds))
    held = holdings(book, target.observation_spec, target.control_dt_s) if book.episodes else None
    accepted = [record for record in state.rounds if record.accepted]
    films = []
    if accepted and not args.no_sim:
        record = accepted[-1]
        seed = settings.gate.seed + record.number
        pairs = (
            film_both(Path(record.policy), Path(str(record.candidate)), target, start, seed)
            for start in won_starts(record)[:FILMED]
        )
        films = [pair for pair in pairs if pair is not None]
    for line in lines(state, held):
        print(line)
    command = shlex.join(["robotrl", "improve", *argv])
    replace_file(out / "improve.json", dump_json({"schema_version": 1, **to_json(state, held)}))
    replace_file(out / "improve.html", page(state, target, held, films, command).encode())
    print(f"wrote {out / 'improve.html'} and {out / 'improve.json'}")
    return 0


def assigned(words: Sequence[str]) -> dict[str, Any]:
    """Config fields by path of "NAME=VALUE" each.

    Raises:
        ConfigError: a word is none of these.
    """
    import json

    out: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise ConfigError(f"--set {short(word)}: expected NAME=VALUE, e.g. algo.updates=4000")
        try:
            out[name] = json.loads(text)
        except ValueError:
            out[name] = text
    return out


def _options_before(args: Args) -> SimOptions:
    """Options of the sim before the flags: those of the policy's training."""
    return options_at(args.policy, args.sim)


def _say(number: int, stage: str) -> None:
    print(f"round {number}: {stage}" if number else stage, file=sys.stderr)
