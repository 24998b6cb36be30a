"""Bench `latency`."""
