"""Entry point of a robot's process: `python -m robotrl.deploy.robots DRIVER LINK ARGUMENT`."""

from __future__ import annotations

import importlib
import sys


def main(arguments: list[str]) -> int:
    """Import "module:function" and run it with the link and the robot's argument."""
    driver, link_name, argument = arguments
    module, _, attribute = driver.partition(":")
    return int(getattr(importlib.import_module(module), attribute)(link_name, argument))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
