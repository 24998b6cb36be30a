"""A logger that drops all: websockets writes tracebacks of failed handshakes, and headers, which hold the token."""

from __future__ import annotations

import logging

SILENT = logging.Logger("robotrl.remote", logging.CRITICAL + 1)
SILENT.addHandler(logging.NullHandler())
