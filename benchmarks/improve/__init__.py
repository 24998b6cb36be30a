"""Bench `improve`."""
