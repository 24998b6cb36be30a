"""`robotrl build`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from robotrl.cli.commands.parsing import parse


@dataclass(frozen=True)
class Args:
    """Compile the native runtime, a servo and an inference engine in C++, into this machine's cache."""

    part: Annotated[Literal["native"], tyro.conf.Positional]
    """Part to compile: native, which robotrl deploy --runtime native uses."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    parse(Args, "robotrl build", argv)
    from robotrl.deploy.native.build import native_runtime

    began = time.monotonic()
    built = native_runtime()
    print(f"native runtime ready after {time.monotonic() - began:.1f} s in {built.servo.parent}")
    return 0
