"""CARLA's adapter against a stub of its server: cost of a step, agreement of rasters, lost servers."""
