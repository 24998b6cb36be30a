"""Bench `stepping`, which includes the raster camera."""
