"""Bench `ppo`."""
