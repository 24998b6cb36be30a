"""Lanes, routes, observations, rasters and scores that all driving worlds share."""
