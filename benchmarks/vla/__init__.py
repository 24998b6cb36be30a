"""Bench `vla`."""
