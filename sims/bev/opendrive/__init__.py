"""OpenDRIVE (.xodr) files as road networks."""
