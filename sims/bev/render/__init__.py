"""Observations and pictures: raster and vectors."""
