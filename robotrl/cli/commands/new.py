"""`robotrl new`: first files of one's own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import parse, run_action
from robotrl.cli.outputs import fresh_folder, writable
from robotrl.errors import ConfigError

USAGE = """usage: robotrl new KIND [options]

  robot    a driver of a robot, with its test
  limits   limits of a robot's site, which tighten those of any bundle

robotrl new KIND --help shows the options."""
KINDS = ("robot", "limits")


@dataclass(frozen=True)
class NewRobotArgs:
    """Write a first driver of a robot, which runs at once on a model, with its test and what to run next."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the driver's module: letters, digits and _."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """New folder for the files; by default NAME, here."""


@dataclass(frozen=True)
class NewLimitsArgs:
    """Write the limits of a bundle as those of a robot's site, to be edited: for each the tighter one holds."""

    bundle: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BUNDLE")]
    """Bundle directory, written by `robotrl export`."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("robot.json")
    """New file."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    return run_action(argv, USAGE, {"robot": _robot, "limits": _limits}, "kind")


def _robot(argv: Sequence[str]) -> int:
    args = parse(NewRobotArgs, "robotrl new robot", argv)
    from robotrl.cli.new_robot import check_name, robot_files

    check_name(args.name)
    folder = Path(args.name) if args.out is None else args.out
    with fresh_folder("NAME" if args.out is None else "--out", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in robot_files(args.name).items():
            (folder / name).write_text(text, encoding="utf-8")
            print(f"wrote {folder / name}")
    print(f"next: cd {shlex.quote(str(folder))} && python -m pytest test_{args.name}.py")
    return 0


def _limits(argv: Sequence[str]) -> int:
    args = parse(NewLimitsArgs, "robotrl new limits", argv)
    writable("--out", args.out, (".json",), inputs=(args.bundle,))
    if args.out.exists():
        raise ConfigError(f"--out is {args.out}: that exists already, expected the name of a new file")
    from robotrl.deploy.bundle.bundle import open_bundle
    from robotrl.deploy.bundle.site import site_limits_of
    from robotrl.deploy.control.safety import limits_of
    from robotrl.utils.files import replace_file

    manifest = open_bundle(args.bundle).manifest
    replace_file(args.out, site_limits_of(limits_of(manifest), manifest).to_bytes())
    print(f"wrote {args.out}: the limits of {args.bundle}, to be edited")
    return 0
