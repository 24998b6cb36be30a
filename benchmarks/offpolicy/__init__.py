"""Bench `offpolicy`."""
