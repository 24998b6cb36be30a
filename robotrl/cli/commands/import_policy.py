"""`robotrl import`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import at_least
from robotrl.cli.commands.sim_flags import parse_with_sim
from robotrl.cli.outputs import fresh_folder
from robotrl.errors import ConfigError
from robotrl.importers.layouts import BACKBONES, Layout
from robotrl.registry import make_sim, sim_options


@dataclass(frozen=True)
class Args:
    """Import a policy of another library with strict checks, and store it as a checkpoint.

    Use the checkpoint with `robotrl train PRESET --init-from OUT` or `robotrl eval OUT`. Without `--check-data` the
    import is unverified: names, shapes, tokenizer and statistics match, but the policy's actions were not compared.

    Examples, one for each kind; docs/vla-recipes.md has them from the checkpoint to fine-tuning:

    robotrl import openvla DIR --sim gym/libero_gym:Libero-v0 --key libero_spatial --out openvla

    robotrl import openvla-oft DIR --sim gym/libero_gym:Libero-v0 --horizon 8 --key libero_spatial_no_noops --out oft

    robotrl import lerobot DIR --vlm VLM --sim mujoco/tabletop --sim.image flat_near --sim.image-size 512 --cameras
    observation.images.top=image_flat_near --horizon 8 --out smolvla

    robotrl import openpi DIR --vlm VLM --key ASSET --sim mujoco/tabletop --cameras base_0_rgb=image_flat_near --out pi0

    robotrl import vlm DIR --sim mujoco/tabletop --sim.image flat_near --sim.image-size 512 --out vlm

    robotrl import sb3 model.zip --sim mujoco/hopper --out hopper
    """

    layout: Annotated[Layout, tyro.conf.Positional, tyro.conf.arg(metavar="LAYOUT")]
    """Layout of the directory: openvla, openvla-oft, lerobot (SmolVLA, pi0) or openpi (pi0); vlm or vlm-oft is a
    vision-language model in the transformers layout, to be trained to output actions; sb3 is a model
    file of Stable-Baselines3 (PPO, A2C, SAC, TD3, DDPG with an MLP)."""
    path: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """The directory, or a name on the Hugging Face hub: ORGANISATION/NAME, optionally with @REVISION; default: the
    newest. sb3: the file of model.save."""
    sim: Annotated[str, tyro.conf.arg(metavar="SIM")]
    """Sim whose observations and actions the policy uses: a name from `robotrl list sims`. `--sim.FIELD VALUE`
    sets one of its options: --sim.image flat_near --sim.image-size 224."""
    out: Path
    """Directory of the checkpoint; must not exist."""
    vlm: str = ""
    """Directory or hub name of the vision-language model, for tokenizer.json and config.json (lerobot, openpi)."""
    key: str = ""
    """Key of the dataset statistics to use; may be omitted if there is only one."""
    cameras: tuple[str, ...] = ()
    """FEATURE=PICTURE for each of the policy's cameras; nothing after the = if the sim has no such camera. openvla and
    vlm use one picture."""
    horizon: int = 0
    """Number of actions of a chunk that are executed; 0 takes the value in the directory, or 1. Required for
    openvla-oft: the chunk length that it was trained with."""
    state: int = 0
    """openvla-oft, vlm, vlm-oft: width of the proprioceptive state."""
    stats: str = ""
    """vlm, vlm-oft: a dataset whose statistics normalize actions (1 to 99 % quantiles) and state; default: the action
    bounds. sb3: statistics of VecNormalize, written by robotrl.importers.sb3.write_statistics; default: none."""
    template: str = ""
    """vlm, vlm-oft: prompt template with {picture} and {task}; default: the one of the model family."""
    check_data: Path | None = None
    """Dataset of the sim; the policy's actions must come near its recorded actions."""
    tolerance: float = 0.05
    """Maximum mean error, as a fraction of the action range."""
    frames: int = 256
    """Number of frames of the dataset to compare."""
    accept_data: bool = False
    """Accept a dataset with doubtful properties, without warnings."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args, options = parse_with_sim(Args, "robotrl import", argv, lambda args: sim_options(args.sim))
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
    from robotrl.importers.policy import ImportCfg, import_policy

    with (
        fresh_folder("--out", args.out),
        contextlib.closing(make_sim(args.sim, num_envs=1, seed=0, **options)) as sim,
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
    print(f"{found.path}: {found.source}, {found.parameters:,} parameters, fingerprint {found.fingerprint}")
    if found.effects is not None:
        seen = ", ".join(f"another {key} moves it by {by:.1%}" for key, by in found.effects.pictures.items())
        print(f"  {seen}, another instruction by {found.effects.words:.1%}")
    if found.key:
        print(f"  statistics of {found.key}")
    if args.layout in BACKBONES:
        command = f"robotrl train tabletop-bc-token --algo.muon 0 --algo.grounding-coef 0 --init-from {found.path}"
        print(f"  it has no actions yet: clone some into it, {command}")
    elif found.labels is None:
        print("  unverified: compare it with recorded actions by --check-data DATASET")
    else:
        error, other = found.labels.error, found.labels.shuffled
        print(f"  recorded actions missed by {error:.2%} of the action range, those of other frames by {other:.2%}")
    return 0
