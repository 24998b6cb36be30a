"""`robotrl import`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.outputs import fresh_folder
from robotrl.cli.commands.parsing import at_least, parse
from robotrl.errors import ConfigError
from robotrl.importers.layouts import BACKBONES, Layout


@dataclass(frozen=True)
class Args:
    """Read a published vision-language-action policy strictly, see that it looks and reads, and store it.

    What is stored is a checkpoint: `robotrl train PRESET --init-from OUT`, `robotrl eval OUT`. Without `--check-data`
    it is unverified: names, shapes, tokenizer and statistics fit, which says nothing of whose weights they are.
    """

    layout: Annotated[Layout, tyro.conf.Positional, tyro.conf.arg(metavar="LAYOUT")]
    """How the directory is laid out: openvla, openvla-oft, lerobot (SmolVLA, pi0) or openpi (pi0); vlm or vlm-oft is a
    vision-language model of transformers that is to learn to say actions."""
    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """The directory, or its name on the hub: ORGANISATION/NAME, with @REVISION behind it if not the newest."""
    sim: Annotated[str, tyro.conf.arg(metavar="SIM")]
    """On whose observations and actions: a name from `robotrl list sims`."""
    out: Path
    """The checkpoint's directory, which must not exist yet."""
    options: tuple[str, ...] = ()
    """Options of the sim, as in `robotrl demos`: image=flat_near image_size=224."""
    vlm: str = ""
    """Directory, or name on the hub, of the vision-language model: tokenizer.json and config.json (lerobot, openpi)."""
    key: str = ""
    """Whose statistics; may be left out where there is one."""
    cameras: tuple[str, ...] = ()
    """FEATURE=PICTURE for each of the policy's cameras, nothing behind the = where one is missing. openvla and vlm see
    one picture."""
    horizon: int = 0
    """Actions of a chunk that are executed; 0 is what the directory says, or 1. openvla-oft: what it was trained with,
    which must be given."""
    state: int = 0
    """OFT, vlm, vlm-oft: width of the measured state."""
    stats: str = ""
    """vlm, vlm-oft: a dataset whose statistics normalise actions (1 to 99 %) and state; without, actions' bounds do."""
    template: str = ""
    """vlm, vlm-oft: the prompt around {picture} and {task}; the family's own if left out."""
    check_data: Path | None = None
    """A dataset of the sim whose recorded actions the policy must come near."""
    tolerance: float = 0.05
    """Mean error at most, as a share of the action range."""
    frames: int = 256
    """Frames of the dataset to compare."""
    accept_data: bool = False
    """What is doubtful about the dataset is known to be right: neither tell nor refuse it."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl import", argv)
    for option, value, low in (
        ("--frames", args.frames, 2),
        ("--horizon", args.horizon, 0),
        ("--state", args.state, 0),
    ):
        at_least(option, value, low)
    cameras: dict[str, str] = {}
    for pair in args.cameras:
        if "=" not in pair:
            raise ConfigError(f"--cameras {pair!r}: expected FEATURE=PICTURE")
        feature, _, picture = pair.partition("=")
        cameras[feature] = picture
    from robotrl.config import sim_options
    from robotrl.importers.policy import ImportCfg, import_policy
    from robotrl.registry import make_sim

    with (
        fresh_folder("--out", args.out),
        contextlib.closing(make_sim(args.sim, num_envs=1, seed=0, **sim_options(args.options))) as sim,
    ):
        cfg = ImportCfg(args.vlm, args.key, cameras, args.horizon, args.state, args.stats, args.template)
        found = import_policy(
            args.layout,
            args.path,
            sim,
            args.out,
            cfg,
            dataset=args.check_data,
            tolerance=args.tolerance,
            frames=args.frames,
            accept_data=args.accept_data,
        )
    seen = ", ".join(f"another {key} moves it by {by:.1%}" for key, by in found.effects.pictures.items())
    print(f"{found.path}: {found.source}, {found.parameters:,} parameters, fingerprint {found.fingerprint}")
    print(f"  {seen}, another instruction by {found.effects.words:.1%}")
    if found.key:
        print(f"  statistics of {found.key}")
    if args.layout in BACKBONES:
        print(f"  says no actions yet: clone some into it, robotrl train tabletop-bc-vlm --init-from {found.path}")
    elif found.labels is None:
        print("  unverified: compare it with recorded actions by --check-data DATASET")
    else:
        error, other = found.labels.error, found.labels.shuffled
        print(f"  recorded actions missed by {error:.2%} of the action range, those of other frames by {other:.2%}")
    return 0
