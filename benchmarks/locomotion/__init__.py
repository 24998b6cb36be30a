"""Bench `locomotion`."""
