"""A worker process that answers each input line with a line of JSON; in between it blocks in a read."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from robotrl.errors import RobotrlError


class Served:
    """The worker process; the constructor returns when it is ready.

    Args:
        argv: its command. It prints one line when it is ready, and one for each input line.
        env: its environment.
        who: its name in errors.

    Raises:
        RobotrlError: it ended before it was ready, with the last line that it wrote to standard error.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], who: str) -> None:
        self._who = who
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=dict(env)
        )
        self.ready = self._read()
        """Its first line."""

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and wait for the answer.

        Raises:
            RobotrlError: it ended, with the last line that it wrote to standard error.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-1:] or ["(no output)"]
        raise RobotrlError(f"{self._who} ended with code {code}: {said[0]}")
