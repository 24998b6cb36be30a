"""Bench `parity`."""
