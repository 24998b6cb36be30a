"""Observations (rasters and vectors) and images."""
