"""Algorithms, one file each, in the same order: config, losses, update, learner."""
