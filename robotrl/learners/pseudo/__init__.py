"""Pseudo-simulation of drives from logs: vectorized scenes, and a forecaster of the other road users."""
