"""`--robot sim:NAME`: a simulated robot in a process of its own, in real time."""

from __future__ import annotations

from collections.abc import Callable

from robotrl.deploy.link import Link
from robotrl.deploy.robots.driver import RobotSim, drive, fault
from robotrl.errors import ConfigError, RobotrlError
from robotrl.registry import ROBOT_SIMS
from robotrl.safe_path import import_named


def main(link_name: str, argument: str) -> int:
    """Run a simulated robot until the controller stops it.

    Args:
        link_name: the link, as `Link.attach` takes it.
        argument: a row of the table of simulated robots ("mujoco/peg-insert"), or "module:function" of yours, a
            function that takes a seed and returns a `RobotSim`.

    Returns:
        The exit code of the process.
    """
    link = Link.attach(link_name)
    try:
        return drive(link, factory(argument)(0))
    except RobotrlError as error:
        return fault(link, error)


def factory(argument: str) -> Callable[[int], RobotSim]:
    """The function that makes the simulated robot.

    Raises:
        ConfigError: there is no such row, module or function.
    """
    if ":" not in argument:
        return ROBOT_SIMS.load(argument)
    module, _, attribute = argument.partition(":")
    try:
        return getattr(import_named(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"robot sim {argument!r} cannot be imported: {error}") from error
