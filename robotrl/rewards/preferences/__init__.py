"""Rewards from preferences between two segments of behavior: labellers, ensemble, reward source."""
