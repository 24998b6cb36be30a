"""Bench of the doors to other programs and processes."""
