"""Driver of simulated robots (`--robot sim:NAME`), in real time and in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robotrl.deploy.robots.driver import RobotSim, drive, fault
from robotrl.deploy.robots.link import Link
from robotrl.errors import ConfigError, RobotrlError, nearest
from robotrl.registry import ROBOT_SIMS
from robotrl.utils.user_module import user_module


def main(link_name: str, argument: str) -> int:
    """Run a simulated robot until the controller stops it.

    Args:
        link_name: the link, as `Link.attach` takes it.
        argument: name of a registered simulated robot ("mujoco/peg-insert"), or your "module:function" that takes a
            seed and returns a `RobotSim`.

    Returns:
        The exit code of the process.
    """
    link = Link.attach(link_name)
    try:
        return drive(link, factory(argument)(0))
    except RobotrlError as error:
        return fault(link, error)


def factory(argument: str) -> Callable[[int], RobotSim]:
    """Find the function that creates the simulated robot.

    Raises:
        ConfigError: there is no such name, module or function.
    """
    if ":" not in argument:
        return ROBOT_SIMS.load(argument)
    name, _, attribute = argument.partition(":")
    module = user_module(name, f"robot sim {argument!r}")
    found: Any = getattr(module, attribute, None)
    if callable(found):
        makes: Any = found
        return makes
    close = nearest(attribute, [known for known in vars(module) if not known.startswith("_")])
    hint = f"did you mean '{name}:{close}'? " if close else ""
    raise ConfigError(
        f"robot sim {argument!r}: {name} has no function {attribute!r}: {hint}expected one that takes a seed and"
        " returns a RobotSim"
    )
