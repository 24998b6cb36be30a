"""Reader of OpenDRIVE (.xodr) files as road networks."""
