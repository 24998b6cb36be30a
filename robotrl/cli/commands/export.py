"""`robotrl export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, parse
from robotrl.cli.outputs import fresh_folder


@dataclass(frozen=True)
class Args:
    """Export a run as a bundle that needs no torch, and verify its parity with the policy on recorded observations."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Directory of a run, or of one of its checkpoints."""
    out: Path
    """Directory of the bundle."""
    samples: int = 1024
    """Number of recorded observations for the parity check, 1000 or more."""
    sim: Annotated[str | None, tyro.conf.arg(metavar="SIM")] = None
    """Name from `robotrl list sims`; default: the sim that the run was trained on."""
    control_dt_s: float | None = None
    """Seconds between two actions, for a run whose sim states no control rate; default: the sim's."""
    guided_steps: int = 0
    """Guide each chunk of a flow or diffusion policy by the last actions of the one before, so many of them, so that it
    continues the motion under way without training for it. 0: off."""
    max_observation_age_s: float | None = None
    """Age from which on an observation is stale, s; an inference must be as quick. Default: two control periods, and
    one more for each action that may be committed while the policy infers."""
    reflex: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Run of `--algo reflex` beside this policy, whose risk critic the servo evaluates; default: that of RUN, if it is
    one."""
    interpolation: Literal["hold", "linear"] = "hold"
    """Commands of the servo between two actions: "hold" repeats the last one, "linear" goes to it in a straight line
    from the one before, which is smoother and half a control period later."""
    steer_graph: bool = False
    """Keep the steering of a run of DSRL in a graph of its own (steer.onnx), so that robotrl deploy --no-steer runs the
    base policy alone; without it one graph holds both."""
    sign: Annotated[Path | None, tyro.conf.arg(metavar="KEY.pem")] = None
    """Sign the bundle with this private Ed25519 key (extra sign); default: unsigned."""
    overwrite: bool = False
    """Replace an existing bundle."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl export", argv)
    at_least("--samples", args.samples, 1000)
    at_least("--guided-steps", args.guided_steps, 0)
    from robotrl.api.exporting import export
    from robotrl.deploy.bundle.describe import SafetyOptions

    period = {} if args.control_dt_s is None else {"control_dt_s": args.control_dt_s}
    with fresh_folder("--out", args.out, inputs=[args.run], replaces=args.overwrite):
        report = export(
            args.run,
            args.out,
            samples=args.samples,
            overwrite=args.overwrite,
            sim=args.sim,
            guided_steps=args.guided_steps,
            safety=SafetyOptions(max_observation_age_s=args.max_observation_age_s),
            sign=args.sign,
            reflex=args.reflex,
            steer_graph=args.steer_graph,
            interpolation=args.interpolation,
            **period,
        )
    print(
        f"{report.path}: largest difference {report.parity_max_abs:.2e} ({report.parity_max_rel:.2e} of the range) "
        f"over {report.samples} observations; {report.graph_nodes} nodes, {report.graph_bytes / 1024:.0f} KiB"
    )
    return 0
