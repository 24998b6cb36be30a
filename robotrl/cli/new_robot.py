"""Files of a robot driver of one's own: the driver, its test and a page of what to run next."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path

from robotrl.errors import ConfigError, short

TEMPLATE, TEMPLATE_CLASS = "robotrl.deploy.robots.two_joints", "TwoJointsRobot"
LONGEST_NAME = 60
TEST = '''\
"""Checks of the driver, one test each: `pytest test_{name}.py`. They move the robot."""

from {name} import make

import pytest
from robotrl.testing.robots import CHECKS, RobotCase

# a real robot: how far the checks may move it, and how exactly a run repeats (see RobotCase)
CASE = RobotCase(make, amplitude=0.1, tolerance=0.0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_driver(check):
    check(CASE)
'''
README = """\
# {name}

`{name}.py` is a driver: what a robot measures, what it can be told, and how. It moves a model of two joints until the
lines marked "SDK:" call your robot. Run in this folder:

```shell
python -m pytest test_{name}.py
robotrl deploy BUNDLE --robot sim:{name}:make
```

The first runs the checks of a driver, and names what is wrong. The second runs a policy: BUNDLE is what
`robotrl export` wrote of one with the same observations, actions and control period. Names and units are compared
before anything moves.

## A name of its own

In the `pyproject.toml` of your package:

```toml
[project.entry-points."robotrl.robot_sims"]
{name} = "{name}:make"
```

Once it is installed, `--robot sim:{name}` finds the driver from every folder.

## A real robot

- `advance` does nothing: the robot moves by itself, and the driver's loop waits until the time has passed.
- `observe` returns the last measurement and its time. One that grows too old stops the robot.
- `reset` moves to the start pose and returns when the robot stands there.
- The robot's own watchdog must stop it when commands end: no program can, once its process is gone. Have an emergency
  stop at hand, and try with small limits first.

To open and close a connection, or to be told an address (`--robot {name}:ADDRESS`), register a function `main` in the
group `robotrl.robots`: see `docs/add-a-robot.md` of robotrl.
"""


def check_name(name: str) -> None:
    """Check that a module can have this name, and that no other module has it.

    Raises:
        ConfigError: it cannot; the nearest name that can is suggested.
    """
    reason = _why_unusable(name)
    if reason:
        raise ConfigError(f"NAME is {short(repr(name))}: {reason}; did you mean {_usable(name)!r}?")


def _why_unusable(name: str) -> str:
    """Reason why a module cannot have this name; "" if it can."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        return "expected letters, digits and _, a letter first, which Python can import"
    if len(name) > LONGEST_NAME:
        return f"expected at most {LONGEST_NAME} characters"
    if keyword.iskeyword(name):
        return "that is a word of Python, expected a name that it can import"
    if name == "conftest":
        return "pytest reads a file of that name, expected another one"
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        return "an installed module has that name, expected another one"
    return ""


def _usable(name: str) -> str:
    """The nearest usable name."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_").lstrip("0123456789_")[: LONGEST_NAME - 10] or "my_robot"
    tried = (plain, f"{plain}_robot", f"my_{plain}", *(f"{plain}_{number}" for number in range(2, 1000)))
    return next(candidate for candidate in tried if not _why_unusable(candidate))


def class_name(name: str) -> str:
    """Name of the driver's class: "my_arm" gives "MyArmRobot"."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")).removesuffix("Robot") + "Robot"


def robot_files(name: str) -> dict[str, str]:
    """Texts of the files, by file name.

    Args:
        name: name of the driver's module, see `check_name`.
    """
    found = importlib.util.find_spec(TEMPLATE)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no source of {TEMPLATE}", name=TEMPLATE)
    source = Path(found.origin).read_text(encoding="utf-8").replace(TEMPLATE_CLASS, class_name(name))
    _, rest = source.split('"""\n', 1)
    about = f'"""Driver of the robot {name}; `pytest test_{name}.py` checks it.\n\n'
    about += 'It moves a model, so that it runs at once. "SDK:" marks what a real robot does in its place.\n"""\n'
    return {
        f"{name}.py": about + rest,
        f"test_{name}.py": TEST.format(name=name),
        "README.md": README.format(name=name),
    }
