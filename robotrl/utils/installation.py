"""Origin of this installation of robotrl: a checkout, a wheel or a git address; robotrl is on no package index."""

from __future__ import annotations

import json
import shlex
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def checkout() -> Path | None:
    """Root of the checkout that robotrl is installed from; None where it came as a wheel or from a git address."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


@cache
def install_line(extra: str) -> str:
    """Command that adds an extra to this installation, from the place that robotrl itself came from.

    pip leaves the address of a wheel or a repository in `direct_url.json` (PEP 610).

    Args:
        extra: an extra of pyproject.toml, e.g. "train".
    """
    root = checkout()
    if root is not None:
        return f"pip install -e {shlex.quote(f'{root}[{extra}]')}"
    try:
        origin = json.loads(distribution("robotrl").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        origin = {}
    url = origin.get("url")
    if url is not None and "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f"pip install {shlex.quote(f'robotrl[{extra}]' + (f' @ {url}' if url else ''))}"
