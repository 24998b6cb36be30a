"""Entry point of the servo's process: `python -m robotrl.deploy.servo`, settings on standard input."""

from __future__ import annotations

import sys

from robotrl.deploy.servo.worker import run

if __name__ == "__main__":
    sys.exit(run(sys.stdin.buffer.read()))
