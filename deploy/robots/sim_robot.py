"""Driver of simulated robots (`--robot sim:NAME`), in real time and in a separate process."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from robotrl.deploy.robots.driver import RobotSim, drive, fault
from robotrl.deploy.robots.link import Link
from robotrl.errors import RobotrlError, unknown
from robotrl.registry import ROBOT_SIMS, SIMS
from robotrl.spec.json_fields import name_values
from robotrl.utils.user_module import user_callable

_OPTION = re.compile(r",(?=\w+=)")
"""Comma before an option; a value may hold commas, too."""


def main(link_name: str, argument: str) -> int:
    """Run a simulated robot until the controller stops it.

    Args:
        link_name: the link, as `Link.attach` takes it.
        argument: name of a sim, with options after commas ("mujoco/peg-insert", "mujoco/tabletop,image=flat_near"), or
            your "module:function" that takes a seed and returns a `RobotSim`.

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

    A sim without one of its own (`ROBOT_SIMS`), or with options, is run as it is, see `sim_as_robot`.

    Args:
        argument: "NAME", "NAME,OPTION=VALUE,..." or "MODULE:FUNCTION".

    Raises:
        ConfigError: there is no such name, module, function or option.
    """
    argument, *options = _OPTION.split(argument)
    if ":" in argument:
        expected = "MODULE:FUNCTION, which takes a seed and returns a RobotSim"
        return user_callable(argument, "robot sim", expected)
    if argument in ROBOT_SIMS.names() and not options:
        return ROBOT_SIMS.load(argument)
    if argument.partition("/")[0] + "/" not in SIMS.families and argument not in SIMS.names():
        raise unknown("simulated robot", argument, {*ROBOT_SIMS.names(), *SIMS.names()})
    # a batched sim needs torch, which a sim with a robot of its own does not
    from robotrl.deploy.robots.sim_as_robot import robot_of_sim

    return partial(robot_of_sim, argument, options=name_values(options, f"options of sim {argument!r}"))
