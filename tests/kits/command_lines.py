"""Command lines of `robotrl` in a process of their own, as a user types them one after the other.

Starting Python and importing torch takes longer than a small command does, so the lines of one test share one process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MARK = "\x1e"
"""Printed after each command's own output."""
PROGRAM = f"""
import json, sys
from robotrl.cli.main import main
for line in json.loads(sys.argv[1]):
    code = main(line.split())
    print({MARK!r}, end="", flush=True)
    if code:
        sys.exit(code)
"""


def robotrl_lines(lines: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    """Output of each command line (words without `robotrl`), all run in one process; each must succeed.

    Args:
        lines: the command lines; no word of theirs holds a space.
        environment: environment variables of the process.
        folder: its working directory.
    """
    command = [sys.executable, "-c", PROGRAM, json.dumps(lines)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    *said, rest = done.stdout.split(MARK)
    assert len(said) == len(lines) and not rest, done.stdout
    return said
