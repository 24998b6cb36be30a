"""Rollouts: collection, evaluation, demonstrations, sim wrappers."""
