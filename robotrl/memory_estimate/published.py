"""Parameter counts of published networks, known without torch; a test compares them with the networks themselves."""

from __future__ import annotations

import re

from robotrl.errors import ConfigError, unknown

PARAMETERS = {"openvla": 7_541_237_184, "smolvla": 449_994_789, "pi0": 3_237_979_893}
"""Parameters of each network on the tabletop, all in float32."""
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@\S+)?")
GIB = 1 << 30


def check_name(name: str) -> None:
    """Check that a policy which is no local path is a published network.

    Raises:
        ConfigError: it is another name; one on the hub is answered with what is known here.
    """
    if name in PARAMETERS:
        return
    if HUB_NAME.fullmatch(name):
        alike = [one for one in PARAMETERS if one in name.lower()]
        known = f"{alike[0]} (that network at published size)" if alike else ", ".join(PARAMETERS)
        raise ConfigError(
            f"policy {name!r} is no local path, and nothing is fetched for an estimate: expected {known}, or a"
            " checkpoint that robotrl import made"
        )
    raise unknown("policy", name, PARAMETERS)


def summary_line(name: str) -> str:
    """Weights and optimizer state of a published network, in one line."""
    count = PARAMETERS[name]
    return (
        f"{name}: {count / 1e6:,.0f} million parameters, {4 * count / GIB:.2f} GiB of weights in float32,"
        f" {8 * count / GIB:.2f} GiB of Adam's moments if all learn"
    )
