"""`robotrl reward eval`: rewards against the ground truth of a sim, before training."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import options_at, parse_with_sim
from robotrl.cli.outputs import writable
from robotrl.errors import ConfigError, out_of_range
from robotrl.registry import SIMS
from robotrl.spec import Split

if TYPE_CHECKING:
    from robotrl.cli.commands.rewards.flags import RewardFlags

COMMAND = "robotrl reward eval"


@dataclass(frozen=True)
class EvalArgs:
    """Measure rewards against a sim's ground truth on held-out rollouts: do they tell success from failure, do they see
    a collision coming, do they follow the progress? Prints a verdict for each reward.

    --policy, --expert and --random say who acts; those that are given share the rollouts. Without any of them the sim's
    expert acts with five levels of noise, and random actions, so that both good and bad behavior occur.
    """

    sim: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SIM")]
    """Name from `robotrl list sims`. `--sim.FIELD VALUE` sets one of its options; `SIM --help` lists them."""
    policy: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Run, checkpoint or bundle that acts, on the sim with the options that it was trained with."""
    expert: bool = False
    """The sim's expert acts, without noise."""
    random: bool = False
    """Random actions."""
    episodes: int = 64
    """Number of starts, the first of the split."""
    split: Split = "test"
    """Held-out starts ("test"), those for model selection ("val"), or those of training ("train")."""
    seed: int = 0
    """Seed of the sim, of those that act, and of the intervals."""
    num_envs: int = 32
    """Number of parallel environments."""
    gamma: float = 1.0
    """Discount per env step of the learner, which potential-based rewards depend on, above 0, at most 1."""
    by: Literal["mean", "final", "return"] = "mean"
    """Judge by an episode's mean score, by its last valid score, or by its sum."""
    tells: float = 0.7
    """AUC from which a reward tells success from failure; its interval must be above 0.5, too."""
    least: int = 5
    """Fewest successes, and failures, for a verdict."""
    ahead_s: float = 2.0
    """A step's score is compared with collisions (or failures) within the next so many seconds."""
    require: Annotated[float | None, tyro.conf.arg(metavar="AUC")] = None
    """Exit code 1 if the AUC is below this, or nothing was judged; of several rewards that of their sum."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """Write an HTML page, with the scores along some episodes."""
    replays: int = 6
    """Number of episodes on the page; 0 shows none."""
    camera: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Camera of the page's pictures; default: the sim's first."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE.json")] = None
    """Write all metrics to this file."""


def evaluate_rewards(argv: Sequence[str]) -> int:
    """Run the command."""
    from robotrl.cli.commands.rewards.flags import RewardFlags

    flags, rest = RewardFlags.named(argv)
    both = dataclasses.make_dataclass("Eval", flags.fields(), bases=(EvalArgs,), frozen=True, kw_only=True)
    both.__doc__ = EvalArgs.__doc__
    args, options = parse_with_sim(both, COMMAND, rest, lambda args: options_at(args.policy, args.sim))
    return _run(args, flags, options, argv)


def _run(args: Any, flags: RewardFlags, options: dict[str, Any], argv: Sequence[str]) -> int:
    if not flags.names:
        raise ConfigError("missing: --reward NAME, one or more of `robotrl list rewards`")
    check_seed(args.seed)
    at_least("--replays", args.replays, 0)
    if args.require is not None and not 0 <= args.require <= 1:
        raise out_of_range("--require", args.require, "an AUC, 0 to 1")
    if not 0 < args.gamma <= 1:
        raise out_of_range("--gamma", args.gamma, "above 0, at most 1")
    SIMS.check(args.sim)
    inputs = [args.policy] if args.policy is not None else []
    if args.out is not None:
        writable("--out", args.out, (".html", ".htm"), inputs=inputs)
    if args.json is not None:
        writable("--json", args.json, (".json",), inputs=inputs)
    print(f"{COMMAND} {args.sim}: loading", file=sys.stderr, flush=True)
    from robotrl.api.reward_evaluation import RewardEvalRequest, measure_rewards
    from robotrl.rewards.trust.metrics import JudgeCfg
    from robotrl.utils.files import dump_json, replace_file

    found = measure_rewards(
        RewardEvalRequest(
            args.sim,
            flags.picked_from(args),
            options,
            policy=args.policy,
            expert=args.expert,
            random=args.random,
            episodes=args.episodes,
            split=args.split,
            seed=args.seed,
            num_envs=args.num_envs,
            gamma=args.gamma,
            judge=JudgeCfg(by=args.by, tells=args.tells, least=args.least, ahead_s=args.ahead_s),
        )
    )
    for line in found.lines():
        print(line)
    if args.json is not None:
        replace_file(args.json, dump_json(found.to_json()))
        print(f"wrote {args.json}")
    if args.out is not None:
        page = found.page(args.replays, shlex.join(["robotrl", "reward", "eval", *argv]), args.camera)
        replace_file(args.out, page.encode())
        print(f"wrote {args.out}")
    return 0 if args.require is None else _required(found.reached, args.require)


def _required(reached: float | None, least: float) -> int:
    """Exit code: 1 if the AUC is below `least`, or if there is none."""
    if reached is not None and reached >= least:
        return 0
    print(f"required is an AUC of {least:g}: {'not judged' if reached is None else f'it is {reached:.3f}'}")
    return 1
