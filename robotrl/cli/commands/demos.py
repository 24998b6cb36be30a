"""`robotrl demos`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed
from robotrl.cli.commands.sim_flags import parse_with_sim
from robotrl.cli.outputs import fresh_folder
from robotrl.errors import ConfigError
from robotrl.registry import SIMS, sim_options

if TYPE_CHECKING:
    from robotrl.interventions.mapping import Device
    from robotrl.rollout.demos import DemoReport
    from robotrl.spec import Spec, VecSim

PEOPLE = ("keyboard", "gamepad")
PICTURE_SIZE = (240, 180)
"""Small, because without a GPU a picture takes longer than a step."""
LEGEND = {
    "keyboard": "space: hold still; Enter: keep the episode; Backspace: discard it; Ctrl-D: end the recording",
    "gamepad": "start: hold still; X: keep the episode; Y: discard it; back: end the recording",
}


@dataclass(frozen=True)
class Args:
    """Record demonstrations as a dataset in the LeRobot v3 layout.

    They are those of the sim's scripted expert, of an expert of your own, or of a person at a keyboard or gamepad.
    """

    sim: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SIM")]
    """Name from `robotrl list sims`. `--sim.FIELD VALUE` sets one of its options; `SIM --help` lists them."""
    out: Path
    """Directory of the dataset; must not exist."""
    episodes: int = 100
    """Number of episodes to record."""
    keep: Literal["success", "all"] = "success"
    """"success" records successes only, "all" failures too. A person decides about each episode."""
    expert: Annotated[str | None, tyro.conf.arg(metavar="MODULE:NAME|keyboard|gamepad")] = None
    """Instead of the sim's expert: your own, a function of the observations or a class with `act(obs, started)`, or a
    person at a "keyboard" or "gamepad"; see docs/own-demonstrations.md."""
    device: str = "/dev/input/js0"
    """Device file of the gamepad."""
    scale: float = 0.5
    """Largest action of a person, as a fraction of the bounds, above 0, at most 1."""
    port: int = 0
    """Port of the page on which a person sees the sim, on this machine only; 0 takes a free one."""
    noise: float = 0.0
    """Noise on each of the expert's actions, 0 to 1; the sim's page gives its scale."""
    labels: Literal["executed", "intended"] = "executed"
    """Recorded actions: "executed" includes the noise; "intended" is the expert's own action before it, so that a clone
    learns to come back from disturbances instead of repeating them (DART); the noise is then a fraction of half of each
    action's range."""
    episode_noise: float = 0.0
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
    if args.expert in PEOPLE:
        return _driven(args, args.expert, options)
    from robotrl.rollout.demos import collect_demos

    with fresh_folder("--out", args.out):
        report = collect_demos(
            args.sim,
            args.out,
            episodes=args.episodes,
            noise=args.noise,
            labels=args.labels,
            episode_noise=args.episode_noise,
            mode=args.mode,
            expert=args.expert,
            seed=args.seed,
            keep=args.keep,
            pictures=args.pictures,
            sim_options=options,
        )
    print(
        f"{_recorded(report)}; the expert solved "
        f"{100 * report.success.value:.1f} % of the {report.tried} starts that were tried"
    )
    return 0


def _recorded(report: DemoReport) -> str:
    modes = ", ".join(f"{name} {count}" for name, count in report.modes.items())
    return f"{report.path}: {report.episodes} episodes, {report.frames} frames{modes and f' ({modes})'}"


def _driven(args: Args, by: Literal["keyboard", "gamepad"], options: Mapping[str, Any]) -> int:
    """Record what a person drives."""
    for option, value, none in (("--noise", args.noise, 0.0), ("--episode-noise", args.episode_noise, 0.0)):
        if value != none:
            raise ConfigError(
                f"{option} is {value!r} and --expert is {by!r}: expected {none}, a person has no such setting"
            )
    if args.labels != "executed":
        raise ConfigError(
            f"--labels is {args.labels!r} and --expert is {by!r}: expected 'executed', a person's actions are all known"
        )
    if args.mode is not None:
        raise ConfigError(f"--mode is {args.mode!r} and --expert is {by!r}: expected none, a person has no modes")
    from robotrl.interventions.config import InterventionCfg, open_device
    from robotrl.interventions.gamepad import Gamepad
    from robotrl.interventions.keyboard import Keyboard
    from robotrl.rollout.driven import drive_demos
    from robotrl.spec import HasCamera, HasPictureSize
    from robotrl.utils.picture_stream import PictureStream

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def make_device(spec: Spec) -> Device:
        device = open_device(by, spec, args.device, InterventionCfg().dead_zone)
        bound: Mapping[Any, Any] = {}
        if isinstance(device, Keyboard):
            bound = device.keys
        elif isinstance(device, Gamepad):
            bound = {f"axis {number}": b for number, b in device.axes.items()}
            bound |= {f"button {number}": b for number, b in device.buttons.items()}
        say(", ".join(f"{key}: {binding.axis} {'+' if binding.value > 0 else '-'}" for key, binding in bound.items()))
        say(LEGEND[by])
        return device

    stream: PictureStream | None = None
    due_s = 0.0

    def show(sim: VecSim) -> None:
        nonlocal stream, due_s
        began_s = time.monotonic()
        if not isinstance(sim, HasCamera) or began_s < due_s:
            return
        if stream is None:
            stream = PictureStream(args.port)
            say(f"watch it at {stream.address}")
        camera = sim.cameras[0]
        size = sim.picture_size(camera) if isinstance(sim, HasPictureSize) else PICTURE_SIZE
        stream.show(sim.render([0], camera, *size)[0])
        # pictures take at most half of the time: the sim must keep its pace
        due_s = 2 * time.monotonic() - began_s

    try:
        with fresh_folder("--out", args.out):
            report = drive_demos(
                args.sim,
                args.out,
                make_device,
                by=by,
                episodes=args.episodes,
                scale=args.scale,
                seed=args.seed,
                pictures=args.pictures,
                sim_options=options,
                say=say,
                show=show,
            )
    finally:
        if stream is not None:
            stream.close()
    print(f"{_recorded(report)}; {100 * report.success.value:.1f} % of the {report.tried} that were driven succeeded")
    if report.stopped:
        say(f"error: ended early: {report.stopped}")
        return 2
    return 0
