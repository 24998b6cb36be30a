"""Bench `isaac`."""
