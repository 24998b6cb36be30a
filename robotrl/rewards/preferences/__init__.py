"""Rewards from preferences between two segments of behavior: labelers, ensemble, reward source."""
