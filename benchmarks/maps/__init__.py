"""OpenDRIVE maps of our own, one of each kind that people's files are of."""
