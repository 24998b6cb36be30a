"""Entry point of the process that infers: `python -m robotrl.deploy.inference`, settings on standard input."""

from __future__ import annotations

import os
import sys

from robotrl.deploy.inference.worker import run

if __name__ == "__main__":
    code = run(sys.stdin.fileno())
    # an inference that never returns must not keep the process
    os._exit(code)
