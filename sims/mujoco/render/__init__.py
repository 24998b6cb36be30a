"""Cameras and rasters of the MuJoCo sims."""
