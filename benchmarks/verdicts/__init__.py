"""Bench `verdicts`."""
