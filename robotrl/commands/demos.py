"""`robotrl demos`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.commands.parsing import at_least, parse, within


@dataclass(frozen=True)
class Args:
    """Record demonstrations of a sim's scripted expert as a dataset in the LeRobot v3 layout."""

    sim: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SIM")]
    """A name from `robotrl list sims`."""
    out: Path
    """The dataset's directory; must not exist."""
    episodes: int = 100
    """How many episodes to record."""
    noise: float = 0.0
    """Standard deviation of the noise on the expert's actions, as a fraction of the action range, 0 to 1."""
    clumsiness: float = 0.0
    """How often and how far the expert strays from the way, 0 (never) to 1."""
    mode: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """One of the expert's ways to solve the task; without it each episode draws one."""
    seed: int = 0
    """Seeds the sim and the expert."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl demos", argv)
    at_least("--episodes", args.episodes, 1)
    within("--noise", args.noise, 0, 1)
    within("--clumsiness", args.clumsiness, 0, 1)
    at_least("--seed", args.seed, 0)
    from robotrl.registry import SIMS

    SIMS.check(args.sim)
    from robotrl.data.demos import collect_demos

    collect_demos(
        args.sim,
        args.out,
        episodes=args.episodes,
        noise=args.noise,
        clumsiness=args.clumsiness,
        mode=args.mode,
        seed=args.seed,
    )
    print(args.out)
    return 0
