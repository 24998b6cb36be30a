"""Dynamics of logged states: an ensemble that predicts the state after a chunk, its fit, and its storage."""
