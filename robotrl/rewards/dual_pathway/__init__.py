"""Reward of two paths: language goals in every step, and a larger model where a gate says that something matters."""
