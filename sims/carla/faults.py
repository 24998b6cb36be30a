"""Errors of CARLA sims."""

from __future__ import annotations

from robotrl.errors import RobotrlError


class CarlaFault(RobotrlError):
    """A server cannot be reached, has another version, or was lost too often."""


class ServerLost(Exception):
    """A server or the process of its client died, hung, or gave a stale frame; the episode is repeated."""
