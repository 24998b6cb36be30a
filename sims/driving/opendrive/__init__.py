"""OpenDRIVE (.xodr) files as road networks."""

from robotrl.sims.driving.opendrive.reader import parse, read

__all__ = ["parse", "read"]
