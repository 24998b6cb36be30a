"""`robotrl eval`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import SimName, parse_with_sim
from robotrl.cli.outputs import writable
from robotrl.errors import ConfigError
from robotrl.registry import sim_options
from robotrl.spec import Split
from robotrl.spec.sim_options import SimOptions

if TYPE_CHECKING:
    from robotrl.rollout.evaluate import EvalResult


@dataclass(frozen=True)
class Args:
    """Success rate of a run (its best checkpoint), checkpoint or bundle: each numbered start is run exactly once."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Directory of a run, checkpoint or bundle."""
    episodes: int = 256
    """Number of starts, the first of the split."""
    split: Split = "test"
    """Held-out starts ("test"), those for model selection ("val"), or those of training ("train")."""
    seed: int = 0
    """Seed of the policy's noise."""
    sim: SimName = None
    """Name from `robotrl list sims`; default: the sim that the run was trained on. `--sim.FIELD VALUE` sets an option
    of the sim, which overrides that of the run; `--sim NAME --help` lists them."""
    num_envs: int = 64
    """Number of parallel environments."""
    latency_ms: float | None = None
    """Execute each action so long after its observation, in whole control periods, as inference and actuation do on a
    robot, ms; default: the delay that the run was trained with."""
    guided_steps: int = 0
    """Guide each chunk of a flow or diffusion policy by the last actions of the one before, so many of them, so that it
    continues the motion under way without training for it. 0: off."""
    device: str = "cpu"
    """Device of the policy: "cpu", "cuda", "cuda:1"."""
    against: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """With a bundle: also evaluate the run that it came from, with the same noise, and list the starts that differ."""
    report: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the results of all episodes to this file: JSON, or an HTML page if the name ends in .html."""
    replays: Annotated[int, tyro.conf.arg(aliases=("--drives",))] = 12
    """Number of episodes that the page shows, including failures; 0 shows none."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(Args, "robotrl eval", argv, _options_before)
    at_least("--episodes", args.episodes, 1)
    check_seed(args.seed)
    at_least("--replays", args.replays, 0)
    at_least("--guided-steps", args.guided_steps, 0)
    from robotrl.api.inspection import kind_of
    from robotrl.registry import SIMS, check_num_envs

    check_num_envs("--num-envs", args.num_envs)
    kind = kind_of(args.path)
    if args.sim is not None:
        SIMS.check(args.sim)
    if args.report is not None:
        writable("--report", args.report, inputs=[args.path, *([args.against] if args.against else [])])
    late_steps = 0
    if args.latency_ms is not None or args.guided_steps:
        from robotrl.api.evaluation import latency_options

        options = latency_options(args.path, args.sim, options, args.latency_ms or 0.0, args.guided_steps)
        late_steps = int(options["perturb"]["action_delay_steps"])
    if args.guided_steps and (args.against is not None or _is_page(args.report)):
        raise ConfigError(
            f"--guided-steps is {args.guided_steps} beside --against or a page: expected 0; to compare or show a guided"
            " policy, export it with robotrl export --guided-steps, and give the bundle"
        )
    if args.against is not None:
        return _compare(args, kind, options, late_steps)
    if _is_page(args.report):
        return _page(args, argv, options, late_steps)
    from robotrl.api.evaluation import evaluate_path, to_json
    from robotrl.rollout.evaluate import RULE
    from robotrl.utils.files import dump_json, replace_file

    result = evaluate_path(
        args.path,
        sim=args.sim,
        episodes=args.episodes,
        split=args.split,
        seed=args.seed,
        num_envs=args.num_envs,
        device=args.device,
        options=options,
        guided_steps=args.guided_steps,
        late_steps=late_steps,
    )
    _tell(args, result)
    if args.report is not None:
        about = {"path": str(args.path), "kind": kind, "split": args.split, "seed": args.seed}
        about |= {"starts": len(result.ids), "rule": RULE}
        replace_file(args.report, dump_json({"schema_version": 1, **about, **to_json(result)}))
        print(f"wrote {args.report}")
    return 0


def _options_before(args: Args) -> SimOptions:
    """Options of the sim before the flags: those of the run."""
    from robotrl.api.evaluation import sim_of

    return sim_options(*sim_of(args.path, args.sim))


def _is_page(report: Path | None) -> bool:
    return report is not None and report.suffix.lower() in (".html", ".htm")


def _page(args: Args, argv: Sequence[str], options: dict[str, Any], late_steps: int) -> int:
    """Evaluate and write the HTML page."""
    from robotrl.api.viewing import ViewRequest, report
    from robotrl.utils.files import replace_file

    request = ViewRequest(
        args.path,
        sim=args.sim,
        options=options,
        device=args.device,
        episodes=args.episodes,
        split=args.split,
        seed=args.seed,
        num_envs=args.num_envs,
        late_steps=late_steps,
    )
    seen = report(request, args.replays, shlex.join(["robotrl", "eval", *argv]))
    _tell(args, seen.result)
    if args.report is not None:
        replace_file(args.report, seen.page(whole=True).encode())
        print(f"wrote {args.report}")
    return 0


def _tell(args: Args, result: EvalResult) -> None:
    from robotrl.api.verdict import outcome_text, score_of

    print(outcome_text(result, args.split, args.seed, score_of(args.path, result)))


def _compare(args: Args, kind: str, options: dict[str, Any], late_steps: int) -> int:
    if kind != "bundle" or args.against is None:
        raise ConfigError(f"--against compares a bundle with its run: {args.path} is a {kind}")
    if args.device != "cpu":
        raise ConfigError(f"--device is {args.device!r}: a bundle runs on the CPU, expected cpu beside --against")
    if _is_page(args.report):
        raise ConfigError(f"--report is {args.report}: a comparison is written as JSON, expected another ending")
    from robotrl.api.evaluation import compare, to_json
    from robotrl.rollout.evaluate import RULE, rated
    from robotrl.utils.files import dump_json, replace_file

    found = compare(
        args.against,
        args.path,
        sim=args.sim,
        episodes=args.episodes,
        seed=args.seed,
        num_envs=args.num_envs,
        options=options,
        late_steps=late_steps,
    )
    for name, result in (("policy", found.policy), ("bundle", found.bundle)):
        print(f"{name} {rated(result).removeprefix('success ').rstrip(',')}")
    flipped = ", ".join(str(i) for i in found.flipped) or "none"
    print(f"same {args.episodes} starts, same noise; starts that flipped: {flipped}")
    if args.report is not None:
        sides = {"policy": to_json(found.policy), "bundle": to_json(found.bundle)}
        about = {"split": "test", "seed": args.seed, "starts": args.episodes, "rule": RULE}
        replace_file(args.report, dump_json({"schema_version": 1, **about, "flipped": found.flipped, **sides}))
        print(f"wrote {args.report}")
    return 0
