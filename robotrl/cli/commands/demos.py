"""`robotrl demos`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from robotrl.cli.commands.outputs import fresh_folder
from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import parse_with_sim
from robotrl.registry import SIMS, sim_options


@dataclass(frozen=True)
class Args:
    """Record demonstrations as a dataset in the LeRobot v3 layout: of the sim's scripted expert, or of your own."""

    sim: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SIM")]
    """Name from `robotrl list sims`. `--sim.FIELD VALUE` sets one of its options; `SIM --help` lists them."""
    out: Path
    """Directory of the dataset; must not exist."""
    episodes: int = 100
    """Number of episodes to record."""
    keep: Literal["success", "all"] = "success"
    """"success" records successes only, "all" failures too."""
    expert: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME")] = None
    """Your own expert instead of the sim's: a function of the observations, or a class with `act(obs, started)`; see
    docs/own-demonstrations.md."""
    noise: float = 0.0
    """Noise on each of the expert's actions, 0 to 1; the sim's page gives its scale."""
    clumsiness: float = 0.0
    """Scale of the expert's errors drawn once per episode, 0 to 1; lowers the quality of whole episodes."""
    mode: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """One of the expert's modes (strategies); default: each episode draws one."""
    seed: int = 0
    """Seeds the sim and the expert."""
    pictures: Literal["numbers", "video", "video-exact"] = "numbers"
    """Storage of images: raw arrays, lossy mp4, or lossless mp4."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(Args, "robotrl demos", argv, lambda args: sim_options(args.sim))
    at_least("--episodes", args.episodes, 1)
    check_seed(args.seed)
    SIMS.check(args.sim)
    from robotrl.rollout.demos import collect_demos

    with fresh_folder("--out", args.out):
        report = collect_demos(
            args.sim,
            args.out,
            episodes=args.episodes,
            noise=args.noise,
            clumsiness=args.clumsiness,
            mode=args.mode,
            expert=args.expert,
            seed=args.seed,
            keep=args.keep,
            pictures=args.pictures,
            sim_options=options,
        )
    modes = ", ".join(f"{name} {count}" for name, count in report.modes.items())
    recorded = f"{report.episodes} episodes, {report.frames} frames{modes and f' ({modes})'}"
    print(
        f"{report.path}: {recorded}; the expert solved "
        f"{100 * report.success.value:.1f} % of the {report.tried} starts that were tried"
    )
    return 0
