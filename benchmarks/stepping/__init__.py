"""Benches `stepping` and the raster camera."""
